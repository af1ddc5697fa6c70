"""Time: what is due happens, once, in order, and at its own moment."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.timeline import RealTimeline
from tests.support.patience import PATIENCE_S
from tests.support.simulated_timeline import EPOCH, SimulatedTimeline


@pytest.fixture
def timeline() -> SimulatedTimeline:
    return SimulatedTimeline()


@given(st.lists(st.floats(min_value=0, max_value=1000, allow_nan=False), max_size=20))
def test_simulated_callbacks_fire_in_due_order_each_at_its_own_moment(delays: list[float]) -> None:
    timeline = SimulatedTimeline()
    fired: list[float] = []
    for delay in delays:
        timeline.call_later(delay, lambda: fired.append((timeline.now() - EPOCH).total_seconds()))
    timeline.advance(1000)
    assert fired == pytest.approx(sorted(delays), abs=1e-5)
    assert timeline.now() == EPOCH + timedelta(seconds=1000)


def test_callbacks_due_at_one_moment_fire_in_the_order_of_arrangement(timeline: SimulatedTimeline) -> None:
    fired: list[int] = []
    for number in range(5):
        timeline.call_later(3, lambda number=number: fired.append(number))  # type: ignore[misc]
    timeline.advance(3)
    assert fired == [0, 1, 2, 3, 4]


def test_a_callbacks_callbacks_fire_within_the_same_advance_when_due(timeline: SimulatedTimeline) -> None:
    fired: list[str] = []

    def arrange() -> None:
        timeline.call_later(1, lambda: fired.append("second"))

    timeline.call_later(1, arrange)
    timeline.advance(2)
    assert fired == ["second"]


def test_a_cancelled_alarm_never_fires(timeline: SimulatedTimeline) -> None:
    fired: list[str] = []
    alarm = timeline.call_later(1, lambda: fired.append("no"))
    alarm.cancel()
    timeline.advance(2)
    assert fired == []


def test_a_callback_that_fails_does_not_keep_the_next_from_firing(
    timeline: SimulatedTimeline, caplog: pytest.LogCaptureFixture
) -> None:
    fired: list[str] = []

    def fail() -> None:
        raise RuntimeError("on purpose")

    timeline.call_later(1, fail)
    timeline.call_later(2, lambda: fired.append("yes"))
    timeline.advance(3)
    assert fired == ["yes"]
    assert "on purpose" in caplog.text


def test_waiting_lets_simulated_time_pass_no_further_than_needed(timeline: SimulatedTimeline) -> None:
    done: list[bool] = []
    timeline.call_later(7, lambda: done.append(True))
    assert timeline.wait_until(lambda: bool(done), 100)
    assert timeline.elapsed == 7
    assert not timeline.wait_until(lambda: False, 100)
    assert timeline.elapsed == 107


def test_a_waiter_called_from_a_callback_on_another_thread_gets_todays_answer(timeline: SimulatedTimeline) -> None:
    answers: list[bool] = []

    def wait_elsewhere() -> None:
        thread = threading.Thread(target=lambda: answers.append(timeline.wait_until(lambda: False, 50)))
        thread.start()
        thread.join(600)

    timeline.call_later(1, wait_elsewhere)
    timeline.advance(1)
    assert answers == [False]
    assert timeline.elapsed == 1


def test_a_closed_simulated_timeline_has_forgotten_what_was_due(timeline: SimulatedTimeline) -> None:
    fired: list[str] = []
    timeline.call_later(1, lambda: fired.append("no"))
    timeline.close()
    timeline.advance(2)
    assert fired == []


def test_real_callbacks_fire_in_order_and_waiting_ends_when_they_have() -> None:
    timeline = RealTimeline()
    try:
        in_time = False
        while not in_time:  # else this machine stood still, and the second was due first
            fired: list[str] = []
            due_first = time.monotonic() + 0.01
            timeline.call_later(0.02, partial(fired.append, "second"))
            timeline.call_later(0.0, partial(fired.append, "first"))
            in_time = time.monotonic() < due_first
            assert timeline.wait_until(lambda fired=fired: len(fired) == 2, PATIENCE_S)  # type: ignore[misc]
        assert fired == ["first", "second"]
        before = timeline.now()
        timeline.sleep(0.01)
        assert timeline.now() - before >= timedelta(seconds=0.01)
    finally:
        timeline.close()


def test_a_closed_real_timeline_fires_nothing_and_keeps_nobody_waiting() -> None:
    timeline = RealTimeline()
    fired: list[str] = []
    timeline.call_later(30, lambda: fired.append("no"))
    timeline.close()
    assert not timeline.wait_until(lambda: bool(fired), 30)
    assert not timeline.thread.is_alive()


def test_a_real_timeline_can_be_closed_from_one_of_its_own_callbacks() -> None:
    timeline = RealTimeline()
    timeline.call_later(0, timeline.close)
    timeline.thread.join(600)
    assert not timeline.thread.is_alive()
