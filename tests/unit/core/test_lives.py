"""How long machines can have been there: never less than they were, and no longer than the money lasts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.fleet.money import Life, machine_seconds

START = datetime(2026, 11, 21, 4, tzinfo=UTC)
SLACK = timedelta(seconds=30)


def life(began: int, ended: int, parallel: int = 2, *, seen: bool = True) -> Life:
    return Life(START + timedelta(seconds=began), START + timedelta(seconds=ended), parallel, seen)


def test_one_job_lasts_as_long_as_it_says_and_as_the_server_may_be_late() -> None:
    assert machine_seconds([life(0, 100)], SLACK) == 2 * 130
    assert machine_seconds([], SLACK) == 0


def test_a_requested_job_that_is_absent_counts_until_its_gpus_next_one_begins() -> None:
    assert machine_seconds([life(0, 3000, seen=False)], SLACK) == 2 * 3030
    assert machine_seconds([life(200, 3000), life(0, 3000, seen=False)], SLACK) == 2 * 3030


def test_what_outlasted_the_next_ones_start_counts_for_all_of_it() -> None:
    assert machine_seconds([life(0, 500), life(400, 600)], SLACK) == 2 * 500 + 2 * 230


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 300), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 9),
)
def test_jobs_one_after_another_never_come_to_more_than_the_time_that_was_held(
    steps: list[tuple[int, int, bool]], parallel: int
) -> None:
    at, lives = 0, []
    for lasts, gap, _ in steps:
        lives.append((at, at + lasts))
        at += lasts + gap
    end = lives[-1][1]
    jobs = [
        life(began, ended if seen else end, parallel, seen=seen)
        for (began, ended), (_, _, seen) in zip(lives, steps, strict=True)
    ]
    found = machine_seconds(jobs, SLACK)
    assert sum((ended - began) * parallel for began, ended in lives) <= found <= parallel * (end + 30)
