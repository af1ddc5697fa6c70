"""Clocks that move only when somebody sleeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.support.simulated_timeline import SimulatedTimeline


@dataclass
class SimulatedClock:
    at: datetime = datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC)
    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += timedelta(seconds=seconds)


@dataclass
class TimelineClock:
    """The orchestrator's clock, on the cloud's time: whoever sleeps lets the world go on."""

    timeline: SimulatedTimeline

    def now(self) -> datetime:
        return self.timeline.now()

    def sleep(self, seconds: float) -> None:
        self.timeline.advance(seconds)
