"""The server's time, whatever this machine's clock says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.adapters.clock import Offset, ServerClock, SystemClock
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.errors import LocalError
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.ports import Clock
from tests.support.patience import PATIENCE_S
from tests.support.ports import deaf_port
from tests.support.scripted_server import Reply, scripted_server
from tests.support.simulated_clock import SimulatedClock
from tests.support.simulated_timeline import SimulatedTimeline

NOW = datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC)
OFFS = (-400, -26, -2, -0.2, 0.2, 2, 26, 400)


@dataclass
class Skewed:
    """A clock that is off by so much from another."""

    true: Clock
    by: timedelta

    def now(self) -> datetime:
        return self.true.now() + self.by

    def sleep(self, seconds: float) -> None:
        self.true.sleep(seconds)


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0, 3600), st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=8),
)
def test_the_offset_is_within_what_every_answer_allows(off_s: float, answers: list[tuple[float, float, float]]) -> None:
    offset, true = Offset(), timedelta(seconds=off_s)
    for at_s, there_s, back_s in sorted(answers):
        stamped = NOW + timedelta(seconds=at_s)
        sent, received = stamped - timedelta(seconds=there_s) - true, stamped + timedelta(seconds=back_s) - true
        offset.learn(format_datetime(stamped.replace(microsecond=0), usegmt=True), sent, received)
    shortest = min(there_s + back_s for _, there_s, back_s in answers)
    assert abs((offset.value - true).total_seconds()) <= shortest + 1.001


def test_a_clock_that_is_right_is_left_alone() -> None:
    offset = Offset()
    for millis in (0, 400, 999):
        at = NOW + timedelta(milliseconds=millis)
        offset.learn(format_datetime(NOW, usegmt=True), at, at + timedelta(milliseconds=1))
    assert offset.value == timedelta(0)


def test_a_clock_that_is_set_in_between_is_followed() -> None:
    offset = Offset()
    offset.learn(format_datetime(NOW, usegmt=True), NOW, NOW)
    late = NOW + timedelta(hours=3)
    offset.learn(format_datetime(NOW, usegmt=True), late, late)
    assert timedelta(hours=-3) <= offset.value <= timedelta(hours=-3, seconds=1)


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Nov 2026 25:61:00 GMT"])
def test_a_date_that_is_none_teaches_nothing(date: str) -> None:
    offset = Offset()
    offset.learn(date, NOW, NOW)
    assert not offset.known
    assert offset.value == timedelta(0)


def test_a_clock_on_the_wall_that_is_set_meanwhile_moves_no_time_of_this_process() -> None:
    passed = iter([100.0, 110.0])
    clock = SystemClock(lambda: next(passed), (NOW, 90.0))
    assert clock.now() == NOW + timedelta(seconds=10)
    assert clock.now() == NOW + timedelta(seconds=20)


def test_every_clock_of_a_process_has_the_same_time_and_it_is_the_walls() -> None:
    first, wall, second = SystemClock().now(), datetime.now(UTC), SystemClock().now()
    assert first <= second
    assert abs(first - wall) < timedelta(seconds=PATIENCE_S)


@pytest.mark.parametrize("hours", OFFS)
def test_every_client_of_a_bucket_has_the_servers_time(tmp_path: Path, hours: float) -> None:
    timeline = SimulatedTimeline()
    with EmbeddedCloud(home=tmp_path / "cloud", timeline=timeline) as cloud:
        true = SimulatedClock(timeline.now())
        local = Skewed(true, timedelta(hours=hours))
        bucket = GoogleBucket(
            cloud.bucket,
            endpoint=cloud.storage_url,
            credentials=Bearer(cloud.token),
            patience_s=PATIENCE_S,
            clock=local,
        )
        said: list[str] = []
        clock = ServerClock(local, bucket.offset, said.append)
        assert abs(clock.now() - timeline.now()) <= timedelta(seconds=1)
        assert abs(clock.now() - timeline.now()) <= timedelta(seconds=1)
        assert bucket.calls == 1, "it is asked for once"
        assert len(said) == 1
        assert ("ahead of" if hours > 0 else "behind") in said[0]
        bucket.close()


def test_a_server_that_does_not_answer_leaves_the_clock_as_it_is() -> None:
    local = SimulatedClock()
    bucket = GoogleBucket("bench", endpoint=f"http://127.0.0.1:{deaf_port()}", patience_s=0.3, clock=local)
    assert ServerClock(local, bucket.offset).now() == local.now()


def test_a_refusal_tells_the_time_too_and_a_cache_does_not() -> None:
    local = SimulatedClock(datetime.now(UTC) + timedelta(days=40))
    for headers, off in (({}, timedelta(days=-40)), ({"Age": "3600"}, timedelta(0))):
        with scripted_server(lambda _, headers=headers: Reply(status=403, headers=headers)) as server:  # type: ignore[misc]
            bucket = GoogleBucket("bench", endpoint=server.url, patience_s=PATIENCE_S, clock=local)
            assert abs(bucket.offset() - off) < timedelta(seconds=PATIENCE_S)


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 +2359", "Mon, 99 Jan 2026 0"]
)
def test_a_date_that_is_none_or_of_another_age_moves_no_clock(date: str) -> None:
    offset = Offset()
    offset.learn(date, NOW, NOW)
    assert not offset.known


@pytest.mark.parametrize("year", [1970, 1999, 2300])
def test_a_time_that_cannot_be_is_refused_where_no_server_corrects_it(year: int) -> None:
    wrong = Skewed(SimulatedClock(NOW), NOW.replace(year=year) - NOW)
    with pytest.raises(LocalError, match=f"this machine's clock says {year}-11-21"):
        ServerClock(wrong, lambda: timedelta(0)).now()
    assert ServerClock(wrong, lambda: -wrong.by).now() == NOW
