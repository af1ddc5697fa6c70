"""A machine that startup.sh boots, and how it must leave."""

from __future__ import annotations

from pathlib import Path

from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import Machine, payload, run_spec

TERMINAL = {"finished", "vm_exiting"}


def cloud_for(*args: object, **spec: object) -> Cloud:
    return Cloud(run_spec(*args, **spec), payload())  # type: ignore[arg-type]


def boot(cloud: Cloud, home: Path, **env: str) -> int:
    """Boot a machine, wait for the end of its script, and return the exit code."""
    with Machine(cloud, home, **env) as machine:
        return machine.wait()


def assert_left_properly(cloud: Cloud, outcome: str) -> None:
    """One last word, with this outcome, and after it the deletion."""
    last = [event for event in cloud.events() if event["kind"] in TERMINAL]
    assert [event["data"]["outcome"] for event in last] == [outcome]
    assert cloud.events()[-1] == last[-1]
    assert cloud.journal[-1] == "DELETE instance"
    assert cloud.deleted == 1
