"""A machine that startup.sh boots, and how it must leave."""

from __future__ import annotations

from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import payload, run_spec

TERMINAL = {"finished", "vm_exiting"}


def cloud_for(*args: object, **spec: object) -> Cloud:
    return Cloud(run_spec(*args, **spec), payload())  # type: ignore[arg-type]


def assert_left_properly(cloud: Cloud, outcome: str) -> None:
    """One last word, with this outcome, and after it the deletion."""
    last = [event for event in cloud.events() if event["kind"] in TERMINAL]
    assert [event["data"]["outcome"] for event in last] == [outcome]
    assert cloud.events()[-1] == last[-1]
    assert cloud.journal[-1] == "DELETE instance"
    assert cloud.deleted == 1
