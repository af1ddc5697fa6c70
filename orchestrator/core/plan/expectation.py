"""The expected time and cost of a run, from similar runs in this bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from statistics import median
from typing import Any

from orchestrator.core.market.offers import START_S, WORK_S, Work
from orchestrator.core.market.pricing import round_up
from orchestrator.core.run.keeping import RECENT, ColdStart, cold_starts
from orchestrator.core.run.paid_time import span
from orchestrator.core.run.status import StatusLine
from orchestrator.core.text import count


@dataclass(frozen=True, slots=True)
class Expectation:
    """How long a machine is expected to take until the first case, and to measure all cases, in seconds."""

    cold: ColdStart
    measuring_s: float | None
    """None if no earlier run of this configuration shows it."""
    runs: int
    """From how many runs `measuring_s` is computed."""
    prepared: bool
    """Whether the cold starts were on prepared images."""

    @property
    def work(self) -> Work:
        measuring_s = WORK_S - START_S if self.measuring_s is None else self.measuring_s
        return Work(self.cold.billed_s + measuring_s, self.cold.billed_s)

    def usd(self, usd_per_hour: Decimal) -> Decimal | None:
        """What the run costs if its machine is not preempted, in dollars; None if `measuring_s` is not known."""
        if self.measuring_s is None:
            return None
        return round_up(Fraction(usd_per_hour) * Fraction(self.work.work_s) / 3600)

    @property
    def text(self) -> str:
        runs = f"median of {count(self.cold.runs, 'run')}"
        image = " on prepared images" if self.prepared else ""
        start = f"{span(self.cold.seconds)} to the first case ({runs}{image})"
        if self.measuring_s is None:
            return start
        return f"{start}, {span(self.measuring_s)} of measuring (median of {self.runs})"

    def document(self, usd_per_hour: Decimal) -> dict[str, Any]:
        cost = self.usd(usd_per_hour)
        return {
            "usd": None if cost is None else str(cost),
            "measuring_s": self.measuring_s,
            "measuring_rests_on_runs": self.runs,
            "prepared_image": self.prepared,
            "cold_start": self.cold.document(),
        }


def expect(
    lines: Sequence[StatusLine], gpu: str, mode: str, config: str, cases: int, *, prepared: bool
) -> Expectation | None:
    """The expectation for a run of `cases` cases of this configuration, from the bucket's runs in `lines`; None if no
    run of this GPU had a cold start. Cold starts on the same kind of image are used, if there are any."""
    on_same_image = cold_starts(lines, gpu, mode, prepared=prepared)
    cold = on_same_image or cold_starts(lines, gpu, mode)
    if cold is None:
        return None
    similar = [
        line
        for line in sorted(lines, key=lambda line: line.run_id)
        if (line.gpu, line.mode, line.config) == (gpu, mode, config)
        and line.phase in ("succeeded", "incorrect")
        and line.cases_done > 0
        and line.measuring_s > 0
    ][-RECENT:]
    s_per_case = median(line.measuring_s / line.cases_done for line in similar) if similar else None
    measuring_s = None if s_per_case is None else round(s_per_case * cases, 1)
    return Expectation(cold, measuring_s, len(similar), prepared and on_same_image is not None)
