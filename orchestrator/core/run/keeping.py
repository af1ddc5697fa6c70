"""Whether a live machine is worth keeping, judged by what cold starts have cost in this bucket so far.

The rule is the one for renting or buying: keep a waiting machine until waiting has cost as much as the cold start that
it would save, then stop it. With this rule a user never pays more than twice the least that was possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from statistics import median
from typing import Any, Final, Literal

from orchestrator.core.market.pricing import round_up
from orchestrator.core.naming import is_prepared
from orchestrator.core.run import paid_time
from orchestrator.core.run.fold import Run
from orchestrator.core.run.paid_time import span
from orchestrator.core.run.status import StatusLine
from orchestrator.core.wording import count

RECENT: Final = 20
"""How many of the newest runs a median rests on at most."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The medians of recent runs of one GPU, in seconds, and how many runs they rest on."""

    seconds: float
    """From the request for a machine to the first case."""
    billed_s: float
    """Of those, the ones that were paid for."""
    runs: int
    parts: Mapping[str, float] = field(default_factory=dict)
    """The median of each part of it."""
    measuring_share: float | None = None
    """Of the machine's time, from 0 to 1: the median."""

    @property
    def text(self) -> str:
        runs = count(self.runs, "run")
        parts = f": {paid_time.told(dict(self.parts))}" if self.parts else ""
        share = (
            f"; measuring took {self.measuring_share:.0%} of machine time" if self.measuring_share is not None else ""
        )
        return f"cold starts in this bucket (median of {runs}): {span(self.seconds)}{parts}{share}"

    def document(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "paid_s": self.billed_s,
            "parts_s": dict(self.parts),
            "measuring_share": self.measuring_share,
            "rests_on_runs": self.runs,
        }


@dataclass(frozen=True, slots=True)
class Advice:
    verdict: Literal["keep", "stop"]
    why: str
    usd_per_hour: Decimal
    idle_s: float
    cold: ColdStart | None
    cold_usd: Decimal | None

    @property
    def text(self) -> str:
        """One line for a person."""
        hourly = f"keeping it costs ${self.usd_per_hour:.2f}/h (${self.usd_per_hour / 60:.4f}/min)"
        if self.cold is None or self.cold_usd is None:
            return f"{self.verdict}: {hourly}; {self.why}"
        runs = count(self.cold.runs, "run")
        start = f"a cold start {span(self.cold.seconds)} and ${self.cold_usd:.4f} (median of {runs})"
        return f"{self.verdict}: {hourly}, {start}; {self.why}"

    def document(self) -> dict[str, object]:
        cold = self.cold
        return {
            "verdict": self.verdict,
            "why": self.why,
            "usd_per_hour": str(self.usd_per_hour),
            "idle_s": round(self.idle_s),
            "cold_start_s": None if cold is None else cold.seconds,
            "cold_start_usd": None if self.cold_usd is None else str(self.cold_usd),
            "rests_on_runs": 0 if cold is None else cold.runs,
        }


def cold_starts(lines: Sequence[StatusLine], gpu: str, mode: str, *, prepared: bool | None = None) -> ColdStart | None:
    """What a cold start takes, by the newest runs of that GPU in that mode; None when no run tells. `prepared` keeps to
    runs on prepared images, or to those on others."""
    told = [
        line
        for line in lines
        if (line.gpu, line.mode) == (gpu, mode)
        and line.cold_start_s > 0
        and prepared in (None, is_prepared(line.image))
    ]
    newest = sorted(told, key=lambda line: line.run_id)[-RECENT:]
    if not newest:
        return None
    shares = [line.measuring_s / line.paid_s for line in newest if line.over and line.paid_s > 0]
    return ColdStart(
        float(median(line.cold_start_s for line in newest)),
        float(median(line.billed_start_s for line in newest)),
        len(newest),
        paid_time.medians([line.start_parts for line in newest]),
        round(median(shares), 4) if shares else None,
    )


def advise(run: Run, cold: ColdStart | None, now: datetime) -> Advice | None:
    """What to do about a machine that was kept; None for one that is at work for its own run, or is not there."""
    vm, told = run.vm, run.current
    if vm is None or not vm.open or vm.started_at is None:
        return None
    rate = vm.usd_per_hour
    cold_usd = None if cold is None else round_up(Fraction(rate) * Fraction(cold.billed_s) / 3600)

    def say(verdict: Literal["keep", "stop"], why: str, idle_s: float = 0) -> Advice:
        return Advice(verdict, why, rate, idle_s, cold, cold_usd)

    if told.lent_to:
        return say("keep", f"{told.lent_to} is measured on it")
    if told.idle_until is None or told.kept_at is None:
        return None
    idle_s = max(0.0, (now - told.kept_at).total_seconds())
    left = f"it deletes itself in {span(max(0.0, (told.idle_until - now).total_seconds()))}"
    if cold is None:
        return say("stop", f"unless you launch again soon: {left}{_NO_HISTORY}", idle_s)
    if idle_s < cold.billed_s:
        rest = span(cold.billed_s - idle_s)
        return say("keep", f"idle for {span(idle_s)}, it pays if you launch within {rest}; {left}", idle_s)
    return say("stop", f"idle for {span(idle_s)}, it has cost what a cold start costs; {left}", idle_s)


_NO_HISTORY: Final = "; no run of this GPU in this bucket tells what a cold start costs"
