"""What a step is at is told when it takes long, and seldom."""

from __future__ import annotations

from kernels.harness.progress import Progress


def test_a_place_is_told_after_five_seconds_and_then_after_each_threefold_time() -> None:
    now = 100.0
    progress = Progress(clock=lambda: now)
    told: list[tuple[str, float]] = []
    progress.note("before any step")
    progress.begin(lambda place, seconds: told.append((place, seconds)))
    for second in range(200):
        now = 100.0 + second
        progress.note(f"at {second}")
    assert told == [("at 5", 5.0), ("at 15", 15.0), ("at 45", 45.0), ("at 135", 135.0)]


def test_a_case_that_begins_is_told_of_anew_and_a_late_note_is_told_once() -> None:
    now = 0.0
    progress = Progress(clock=lambda: now)
    told: list[tuple[str, float]] = []
    for start in (0.0, 1000.0):
        now = start
        progress.begin(lambda place, seconds: told.append((place, seconds)))
        assert progress.wait_s() == 5.0
        now = start + 50
        assert progress.wait_s() == 0
        progress.note("slow")
        progress.note("slow")
        assert progress.wait_s() == 85
    assert told == [("slow", 50.0)] * 2
