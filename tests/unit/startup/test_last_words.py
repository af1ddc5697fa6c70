"""How a child of a fleet takes its run's last word: what measured may have stored anything under the name of an event."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from startup.host.child import FAILED, MEASURED, attempt_outcome


@pytest.mark.parametrize(
    "nonsense",
    [
        "[" * 100_000,
        '{"kind": []}',
        '{"kind": {"a": 1}, "data": 3}',
        '{"kind": "finished", "data": []}',
        "\x00",
        "1e999",
    ],
)
def test_an_event_that_is_nonsense_hides_no_last_word(nonsense: str, tmp_path: Path) -> None:
    events = tmp_path / "runs" / "r1" / "events"
    events.mkdir(parents=True)
    (events / "20260101-vm-1-9-finished.json").write_text(nonsense)
    assert attempt_outcome(tmp_path, "r1", 1) == (FAILED, "it ended without reporting why")
    finished = {"kind": "finished", "data": {"outcome": "succeeded", "detail": "all is well"}}
    (events / "20260101-vm-1-1-finished.json").write_text(json.dumps(finished))
    assert attempt_outcome(tmp_path, "r1", 1) == (MEASURED, "all is well")
