"""The VM and the client were written apart: whatever the VM says, the client's vocabulary has a word for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.run.events import Unrecognised, decode_event
from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import CASES, Machine, payload, run_spec
from tests.unit.startup.played_harness import fact

WRONG = fact(
    "checked", implementation="bench", case_id=CASES[0], passed=False, max_abs_error=None, limit=0.01, reason="NaN"
)


@pytest.mark.parametrize(
    "script",
    [
        {"correctness": [WRONG, {"healthy": 1}, {"exit": 10}], "measure": [{"healthy": 1}, {"exit": 10}]},
        {"measure": [{"healthy": 1}, {"kill_parent": 1}]},
        {"environment": [{"exit": 21}]},
    ],
)
def test_every_event_of_a_vm_is_an_event_of_the_client_under_the_same_name(
    tmp_path: Path, script: dict[str, Any]
) -> None:
    with Cloud(run_spec(script), payload()) as cloud:
        cloud.clock_ahead_s = 100
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        names = [name for name in cloud.objects if "/events/" in name]
        assert names
        for name in names:
            event = decode_event(cloud.objects[name])
            assert event is not None
            assert not isinstance(event.fact, Unrecognised), event
            assert event.object_name == name
