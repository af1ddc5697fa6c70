"""What `bench cloud weather` prints is for people."""

from __future__ import annotations

import pytest

from orchestrator.cli.cloud import format_fault


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (
            {"fault": "stockout", "id": 1, "fired": 0, "times": 1, "victims": [], "zones_available": ["b", "c"]},
            "1  stockout (zones_available b c): fired 0 of 1 time",
        ),
        (
            {"fault": "preempt", "id": 2, "fired": 1, "times": 2, "victims": ["vm-1"], "at": {"phase": "build"}},
            "2  preempt (at phase build): fired 1 of 2 times, upon vm-1",
        ),
        (
            {"fault": "billing_off", "id": 3, "fired": 19, "victims": ["insert"] * 19},
            "3  billing_off: active, met 19 times, upon insert",
        ),
        (
            {"fault": "quota", "id": 4, "fired": 5, "times": 5, "victims": list("abcde"), "global": True},
            "4  quota (global yes): fired 5 of 5 times, upon c; d; e and 2 others",
        ),
    ],
)
def test_a_fault_is_one_line_of_words(fault: dict[str, object], line: str) -> None:
    assert format_fault(fault) == line
    assert not set("{}[]'") & set(line)
