"""Whether a waiting machine is worth keeping, judged by what cold starts have cost in this bucket so far.

The rule is that of the ski rental problem: keep a waiting machine until waiting has cost as much as the cold start that
it would save, then stop it. With this rule a user never pays more than twice the least possible cost.
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
from orchestrator.core.run.paid_time import format_span
from orchestrator.core.run.status import StatusLine
from orchestrator.core.text import count

RECENT: Final = 20
"""The most runs, newest first, from which a median is computed."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The median cold start of recent runs of one GPU, in seconds, and the number of these runs."""

    seconds: float
    """From the request for a machine to the first case."""
    billed_s: float
    """How many of these seconds were paid for."""
    runs: int
    parts: Mapping[str, float] = field(default_factory=dict)
    """The median seconds of each part of a cold start."""
    measuring_share: float | None = None
    """The median share of a machine's time that was spent measuring, from 0 to 1."""

    @property
    def text(self) -> str:
        runs = count(self.runs, "run")
        parts = f": {paid_time.describe_parts(dict(self.parts))}" if self.parts else ""
        share = (
            f"; measuring took {self.measuring_share:.0%} of machine time" if self.measuring_share is not None else ""
        )
        return f"cold starts in this bucket (median of {runs}): {format_span(self.seconds)}{parts}{share}"

    def document(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "paid_s": self.billed_s,
            "parts_s": dict(self.parts),
            "measuring_share": self.measuring_share,
            "rests_on_runs": self.runs,
        }


@dataclass(frozen=True, slots=True)
class KeepAdvice:
    verdict: Literal["keep", "stop"]
    why: str
    usd_per_hour: Decimal
    idle_s: float
    cold: ColdStart | None
    cold_usd: Decimal | None

    @property
    def text(self) -> str:
        """The advice as one line for the user."""
        hourly = f"keeping it costs ${self.usd_per_hour:.2f}/h (${self.usd_per_hour / 60:.4f}/min)"
        if self.cold is None or self.cold_usd is None:
            return f"{self.verdict}: {hourly}; {self.why}"
        runs = count(self.cold.runs, "run")
        start = f"a cold start {format_span(self.cold.seconds)} and ${self.cold_usd:.4f} (median of {runs})"
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
    """The cold start of the newest runs of this GPU in this mode; None if no run had one. `prepared` selects runs on
    prepared images (True) or on other images (False); None: all."""
    with_start = [
        line
        for line in lines
        if (line.gpu, line.mode) == (gpu, mode)
        and line.cold_start_s > 0
        and prepared in (None, is_prepared(line.image))
    ]
    newest = sorted(with_start, key=lambda line: line.run_id)[-RECENT:]
    if not newest:
        return None
    shares = [line.measuring_s / line.paid_s for line in newest if line.over and line.paid_s > 0]
    return ColdStart(
        float(median(line.cold_start_s for line in newest)),
        float(median(line.billed_start_s for line in newest)),
        len(newest),
        paid_time.median_parts([line.start_parts for line in newest]),
        round(median(shares), 4) if shares else None,
    )


def advise_keeping(run: Run, cold: ColdStart | None, now: datetime) -> KeepAdvice | None:
    """Whether to keep or stop a machine that was kept; None if it works for its own run or does not exist."""
    vm, report = run.vm, run.current
    if vm is None or not vm.open or vm.started_at is None:
        return None
    rate = vm.usd_per_hour
    cold_usd = None if cold is None else round_up(Fraction(rate) * Fraction(cold.billed_s) / 3600)

    def advice(verdict: Literal["keep", "stop"], why: str, idle_s: float = 0) -> KeepAdvice:
        return KeepAdvice(verdict, why, rate, idle_s, cold, cold_usd)

    if report.lent_to:
        return advice("keep", f"{report.lent_to} is measured on it")
    if report.idle_until is None or report.kept_at is None:
        return None
    idle_s = max(0.0, (now - report.kept_at).total_seconds())
    deletion_text = f"it deletes itself in {format_span(max(0.0, (report.idle_until - now).total_seconds()))}"
    if cold is None:
        return advice("stop", f"unless you launch again soon: {deletion_text}{_NO_HISTORY}", idle_s)
    if idle_s < cold.billed_s:
        cold_start_text = format_span(cold.billed_s - idle_s)
        return advice(
            "keep",
            f"idle for {format_span(idle_s)}, it pays if you launch within {cold_start_text}; {deletion_text}",
            idle_s,
        )
    return advice(
        "stop", f"idle for {format_span(idle_s)}, it has cost what a cold start costs; {deletion_text}", idle_s
    )


_NO_HISTORY: Final = "; no run of this GPU in this bucket tells what a cold start costs"
