"""How the time of a run's machines was used: the cold start by phase, and the share that was spent measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, Final

from orchestrator.core.run.state import VM_PHASES, Run, Told

WAITED: Final = "request"
"""The part of a cold start that nobody pays for: until the machine is there."""
PARTS: Final = (WAITED, "boot", *VM_PHASES[: VM_PHASES.index("measure") + 1])
"""The parts of a cold start, in order; `measure` is what comes before the first case."""


@dataclass(frozen=True, slots=True)
class PaidTime:
    """Seconds of machines: all of those until their work was done, and those in which cases were measured."""

    paid_s: float
    measuring_s: float

    @property
    def share(self) -> float | None:
        """From 0 to 1; None where no machine has run."""
        return self.measuring_s / self.paid_s if self.paid_s > 0 else None


@dataclass(frozen=True, slots=True)
class FirstMachine:
    """The machine of a run's own that began its first case."""

    attempt: int
    asked_at: datetime
    started_at: datetime
    first_case_at: datetime


def first_machine(run: Run) -> FirstMachine | None:
    """Which it was; None where no case was begun on a machine of the run's own."""
    told = next((told for told in run.told if told.first_case_at is not None), None)
    vm = next((vm for vm in run.vms if told is not None and vm.attempt == told.attempt and vm.instance_id), None)
    if told is None or told.first_case_at is None or vm is None or vm.started_at is None:
        return None
    asked_at = min(one.requested_at for one in run.vms if one.attempt == vm.attempt)
    return FirstMachine(vm.attempt, asked_at, vm.started_at, told.first_case_at)


def cold_start_parts(run: Run) -> dict[str, float]:
    """Seconds from the request for the machine that measured the first case until that case began, by part: they add up
    to the whole. Empty where no case was begun on a machine of the run's own."""
    found = first_machine(run)
    if found is None:
        return {}
    begun = {"boot": found.started_at}
    for span in run.spans:
        if span.attempt == found.attempt and span.phase in PARTS:
            begun.setdefault(span.phase, span.started_at)
    at, parts, current = found.asked_at, dict.fromkeys(PARTS, 0.0), WAITED
    for phase in (part for part in PARTS if part in begun):
        # Machines have clocks of their own: a part that would end before it began has taken nothing.
        parts[current] += max(0.0, (begun[phase] - at).total_seconds())
        at, current = max(at, begun[phase]), phase
    parts[current] += max(0.0, (found.first_case_at - at).total_seconds())
    return {part: seconds for part, seconds in parts.items() if seconds > 0}


def paid_time(run: Run, now: datetime) -> PaidTime:
    """What the run's own machines took until `now`, until their end, or until they were kept for others."""
    paid = measuring = 0.0
    for vm in run.vms:
        if vm.started_at is None:
            continue
        told = run.said(vm.attempt)
        end = max(vm.started_at, min(told.work_done_at or now, vm.gone_at or now))
        paid += (end - vm.started_at).total_seconds()
        measuring += _measuring(run, told, end)
    return PaidTime(paid, min(measuring, paid))


def _measuring(run: Run, told: Told, end: datetime) -> float:
    """Seconds from a machine's first case to the end of its measurements."""
    if told.first_case_at is None:
        return 0.0
    spans = [span for span in run.spans if (span.attempt, span.phase) == (told.attempt, "measure")]
    if not spans:
        return 0.0
    whole = spans[-1].seconds
    seconds = (end - told.first_case_at).total_seconds()
    if whole is not None:
        seconds = min(seconds, whole - (told.first_case_at - spans[-1].started_at).total_seconds())
    return max(0.0, seconds)


def written(parts: dict[str, float]) -> str:
    """As one field of a status line: `request 2 boot 41 environment 95`, in whole seconds."""
    return " ".join(f"{part} {round(seconds)}" for part, seconds in parts.items())


def read(text: str) -> dict[str, int]:
    """The parts in a field of a status line; those that are none of ours are left out."""
    fields = text.split()
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return {part: int(number) for part, number in pairs if part in PARTS and number.isascii() and number.isdigit()}


def medians(texts: Sequence[str]) -> dict[str, float]:
    """The median of each part over several status lines, in order; a part that one lacks took it no time."""
    found = [parts for text in texts if (parts := read(text))]
    middle = {part: float(median(one.get(part, 0) for one in found)) for part in PARTS} if found else {}
    return {part: seconds for part, seconds in middle.items() if seconds > 0}


def told(parts: dict[str, float]) -> str:
    """For a person: `request 2 s, boot 41 s, environment 95 s`."""
    return ", ".join(f"{part} {span(seconds)}" for part, seconds in parts.items())


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def document(run: Run, now: datetime) -> dict[str, Any]:
    """As JSON: for `bench status RUN --json` and the manifest of fetched results."""
    paid, parts = paid_time(run, now), cold_start_parts(run)
    return {
        "paid_s": round(paid.paid_s, 3),
        "measuring_s": round(paid.measuring_s, 3),
        "measuring_share": None if paid.share is None else round(paid.share, 4),
        "cold_start_s": round(sum(parts.values()), 3) if parts else None,
        "cold_start_parts_s": {part: round(seconds, 3) for part, seconds in parts.items()},
    }
