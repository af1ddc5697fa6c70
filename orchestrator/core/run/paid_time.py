"""How the time of a run's machines was used: the cold start by phase, and the share that was spent measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, Final

from orchestrator.core.run.state import VM_PHASES, MachineReport, Run

WAITED: Final = "request"
"""The part of a cold start that is not paid for: from the request until the machine starts."""
PARTS: Final = (WAITED, "boot", *VM_PHASES[: VM_PHASES.index("measure") + 1])
"""The parts of a cold start, in order. `measure` is the time in that phase before the first case."""


@dataclass(frozen=True, slots=True)
class PaidTime:
    """Machine time in seconds: until the work was done, and the part of it in which cases were measured."""

    paid_s: float
    measuring_s: float

    @property
    def share(self) -> float | None:
        """The share of measuring, from 0 to 1; None if no machine has run."""
        return self.measuring_s / self.paid_s if self.paid_s > 0 else None


@dataclass(frozen=True, slots=True)
class FirstMachine:
    """The machine that began the first case of a run. It is one that the run requested itself, not a kept one."""

    attempt: int
    asked_at: datetime
    started_at: datetime
    first_case_at: datetime


def first_machine(run: Run) -> FirstMachine | None:
    """The machine that began the run's first case; None if no case was begun on a machine that the run requested."""
    report = next((report for report in run.reports if report.first_case_at is not None), None)
    vm = next((vm for vm in run.vms if report is not None and vm.attempt == report.attempt and vm.instance_id), None)
    if report is None or report.first_case_at is None or vm is None or vm.started_at is None:
        return None
    asked_at = min(one.requested_at for one in run.vms if one.attempt == vm.attempt)
    return FirstMachine(vm.attempt, asked_at, vm.started_at, report.first_case_at)


def cold_start_parts(run: Run) -> dict[str, float]:
    """The seconds from the request for the machine that began the first case until that case began, by part. The parts
    add up to the whole. Empty if no case was begun on a machine that the run requested."""
    machine = first_machine(run)
    if machine is None:
        return {}
    begun = {"boot": machine.started_at}
    for span in run.spans:
        if span.attempt == machine.attempt and span.phase in PARTS:
            begun.setdefault(span.phase, span.started_at)
    at, parts, current = machine.asked_at, dict.fromkeys(PARTS, 0.0), WAITED
    for phase in (part for part in PARTS if part in begun):
        # The clocks of machines differ: a part that would end before it began counts as 0 s.
        parts[current] += max(0.0, (begun[phase] - at).total_seconds())
        at, current = max(at, begun[phase]), phase
    parts[current] += max(0.0, (machine.first_case_at - at).total_seconds())
    return {part: seconds for part, seconds in parts.items() if seconds > 0}


def paid_time(run: Run, now: datetime) -> PaidTime:
    """The time of the machines that the run requested: until `now`, until their end, or until they were kept for other
    runs."""
    paid = measuring = 0.0
    for vm in run.vms:
        if vm.started_at is None:
            continue
        report = run.report_of(vm.attempt)
        end = max(vm.started_at, min(report.work_done_at or now, vm.gone_at or now))
        paid += (end - vm.started_at).total_seconds()
        measuring += _measuring(run, report, end)
    return PaidTime(paid, min(measuring, paid))


def _measuring(run: Run, report: MachineReport, end: datetime) -> float:
    """The seconds from a machine's first case to the end of its measurements."""
    if report.first_case_at is None:
        return 0.0
    spans = [span for span in run.spans if (span.attempt, span.phase) == (report.attempt, "measure")]
    if not spans:
        return 0.0
    phase_s = spans[-1].seconds
    seconds = (end - report.first_case_at).total_seconds()
    if phase_s is not None:
        seconds = min(seconds, phase_s - (report.first_case_at - spans[-1].started_at).total_seconds())
    return max(0.0, seconds)


def format_parts(parts: dict[str, float]) -> str:
    """The parts as one field of a status line, in whole seconds: `request 2 boot 41 environment 95`."""
    return " ".join(f"{part} {round(seconds)}" for part, seconds in parts.items())


def parse_parts(text: str) -> dict[str, int]:
    """The seconds of each part in a field of a status line. Unknown parts are left out."""
    fields = text.split()
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return {part: int(number) for part, number in pairs if part in PARTS and number.isascii() and number.isdigit()}


def median_parts(texts: Sequence[str]) -> dict[str, float]:
    """The median seconds of each part over several status lines, in order. A part that a line lacks counts as 0 s."""
    lines = [parts for text in texts if (parts := parse_parts(text))]
    by_part = {part: float(median(one.get(part, 0) for one in lines)) for part in PARTS} if lines else {}
    return {part: seconds for part, seconds in by_part.items() if seconds > 0}


def describe_parts(parts: dict[str, float]) -> str:
    """The parts as text for the user: `request 2 s, boot 41 s, environment 95 s`."""
    return ", ".join(f"{part} {format_span(seconds)}" for part, seconds in parts.items())


def format_span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def paid_time_document(run: Run, now: datetime) -> dict[str, Any]:
    """The times as JSON data, for `bench status RUN --json` and the manifest of fetched results."""
    paid, parts = paid_time(run, now), cold_start_parts(run)
    return {
        "paid_s": round(paid.paid_s, 3),
        "measuring_s": round(paid.measuring_s, 3),
        "measuring_share": None if paid.share is None else round(paid.share, 4),
        "cold_start_s": round(sum(parts.values()), 3) if parts else None,
        "cold_start_parts_s": {part: round(seconds, 3) for part, seconds in parts.items()},
    }
