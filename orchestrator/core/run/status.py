"""The status line of a run, which listings show. It is small enough for an object's metadata, so that one page of a
listing has a thousand lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from statistics import median
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, TypeAdapter, ValidationError

from orchestrator.core.bounds import Count, Moment, Name, Usd
from orchestrator.core.market.pricing import round_up
from orchestrator.core.naming import is_prepared
from orchestrator.core.run.diagnose import remedy_for
from orchestrator.core.run.events import Fact
from orchestrator.core.run.state import OUTCOMES, VM_PHASES, MachineReport, Run, Vm
from orchestrator.core.text import NAME, SCHEMA, clean_line, count, to_ascii

DETAIL: Final = 400
FIELD: Final = 250
"""The most characters of a field. All fields together must fit into an object's metadata."""


def _valid_as(kind: Any) -> AfterValidator:
    """That a text is valid as `kind`. The value stays text."""
    inner: TypeAdapter[Any] = TypeAdapter(kind)

    def check(text: str) -> str:
        inner.validate_python(text)
        return text

    return AfterValidator(check)


Words = Annotated[str, AfterValidator(clean_line)]
UsdText = Annotated[str, _valid_as(Usd)]
TimeText = Annotated[str, _valid_as(Moment)]


@dataclass(frozen=True, slots=True)
class StatusLine:
    """One run in one line. Every field is text or a number that can be stored in object metadata and read back."""

    run_id: Words
    phase: Words
    vm_phase: Words = ""
    gpu: Words = ""
    mode: Words = ""
    user: Words = ""
    device: Name = ""
    created_at: TimeText = ""
    updated_at: TimeText = ""
    seconds: Count = 0
    cost_usd: UsdText = "0"
    ceiling_usd: UsdText = "0"
    cases_done: Count = 0
    cases_total: Count = 0
    attempts: Count = 0
    vm: Words = ""
    """The machine that may exist now, as `zone/name`; empty if none can."""
    usd_per_hour: UsdText = "0"
    detail: Words = ""
    cold_start_s: Count = 0
    """The seconds from the request for its first machine to its first case; 0 if no case was begun, or it was begun on
    a kept machine."""
    billed_start_s: Count = 0
    """How many of these seconds were paid for."""
    start_parts: Words = ""
    """The parts of the cold start (`format_parts`)."""
    paid_s: Count = 0
    measuring_s: Count = 0
    """The seconds of machines (`paid_s`), and those in which cases were measured (`measuring_s`)."""
    config: Words = ""
    image: Words = ""
    """The image from which its machines boot, without its project."""
    machine_type: Words = ""

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: the run ended, and none of its machines can exist."""
        return self.phase in OUTCOMES and not self.vm

    @property
    def created(self) -> datetime:
        return datetime.fromisoformat(self.created_at)


def status_line(run: Run, now: datetime) -> StatusLine:
    vm = run.vm
    open_vm = vm if vm is not None and vm.open else None
    end = run.updated_at if run.closed is not None else max(now, run.updated_at)
    cold_start_s, billed_start_s = cold_start(run)
    paid = paid_time(run, end)
    return StatusLine(
        run_id=run.run_id,
        phase=run.phase.value,
        vm_phase="" if run.closed else "waiting" if waiting_text(run) else run.vm_phase,
        gpu=run.plan.gpu if run.plan else "",
        mode=run.plan.mode if run.plan else "",
        user=run.plan.user if run.plan else "",
        device=run.environment.device if run.environment else "",
        created_at=iso_time(run.created_at),
        updated_at=iso_time(run.updated_at),
        seconds=int((end - run.created_at) / timedelta(seconds=1)),
        cost_usd=str(run.cost(now)),
        ceiling_usd=str(run.ceiling_usd),
        cases_done=run.cases_done,
        cases_total=run.cases_total,
        attempts=len({vm.attempt for vm in run.vms if vm.instance_id}),
        vm=f"{open_vm.zone}/{open_vm.name}" if open_vm else "",
        usd_per_hour=str(open_vm.usd_per_hour) if open_vm else "0",
        detail=run.closed.detail[:DETAIL] if run.closed else waiting_text(run),
        cold_start_s=cold_start_s,
        billed_start_s=billed_start_s,
        start_parts=format_parts(cold_start_parts(run)),
        paid_s=round(paid.paid_s),
        measuring_s=round(paid.measuring_s),
        config=run.plan.config if run.plan else "",
        image=run.image.rpartition("/")[2],
        machine_type=vm.machine_type if vm else "",
    )


def waiting_text(run: Run) -> str:
    """How long a run waits for capacity and when its client asks again, or how long its machine waits in the cloud's
    queue; empty if it does not wait."""
    vm = run.vm
    if run.closed is None and vm is not None and vm.queued and vm.queued_until is not None:
        return f"flex-start machine in the queue of {vm.zone} until {iso_time(vm.queued_until)}; waiting costs nothing"
    if run.waiting is None:
        return ""
    pools = len({(fact.zone, fact.machine_type, fact.provisioning) for fact in run.exhausted})
    asks = f"round {run.waiting.round + 1} of requests from {iso_time(run.waiting.next_at)} on"
    return f"waiting for capacity until {iso_time(run.waiting.until)}: none in {count(pools, 'place')}, {asks}"


def cold_start(run: Run) -> tuple[int, int]:
    """(whole seconds from the first request for the machine that began the first case until that case began, how many
    of them were paid for); (0, 0) if no case was begun on a machine that the run requested."""
    machine = first_machine(run)
    if machine is None:
        return 0, 0
    waited, billed = machine.first_case_at - machine.asked_at, machine.first_case_at - machine.started_at
    return max(0, round(waited.total_seconds())), max(0, round(billed.total_seconds()))


def iso_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def encode_status(line: StatusLine) -> dict[str, str]:
    """The line as object metadata. Only printable ASCII is used, because some servers send metadata in headers."""
    limits = {"detail": DETAIL, "device": NAME}
    return {key: to_ascii(str(value), limits.get(key, FIELD)) for key, value in asdict(line).items()}


@cache
def _line_reader() -> TypeAdapter[StatusLine]:
    return TypeAdapter(StatusLine)


def decode_status(run_id: str, metadata: Mapping[str, str]) -> StatusLine | None:
    """The line in `metadata`, or None if there is none; then the run's events must be read."""
    if metadata.get("run_id") != run_id or not metadata.get("phase") or metadata.get("schema", "1") != str(SCHEMA):
        return None
    try:
        line = _line_reader().validate_python(metadata)
    except ValidationError:
        return None
    return line if line.created_at else None


def _of_vm(vm: Vm, now: datetime) -> dict[str, object]:
    return {
        "attempt": vm.attempt,
        "name": vm.name,
        "zone": vm.zone,
        "machine_type": vm.machine_type,
        "provisioning": vm.provisioning,
        "usd_per_hour": str(vm.usd_per_hour),
        "max_run_s": vm.max_run_s,
        "refused": vm.refused,
        "started_at": iso_time(vm.started_at) if vm.started_at else None,
        "gone_at": iso_time(vm.gone_at) if vm.gone_at else None,
        "how": vm.how,
        "cost_usd": str(vm.cost(now)),
    }


def _dumped(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    return [fact.model_dump() for fact in facts]


def run_document(run: Run, now: datetime) -> dict[str, object]:
    """The state of a run as one JSON document, as `bench status RUN --json` and `bench launch --json` print it."""
    line = asdict(status_line(run, now))
    return {
        "schema": 1,
        **line,
        "state": line["phase"],
        "settled": run.settled is not None,
        "prices_simulated": run.simulated,
        "time": paid_time_document(run, now if run.closed is None else run.updated_at),
        "image": run.image,
        "implementations": list(run.plan.implementations) if run.plan else [],
        "measurements_per_implementation": run.measurement.measurements_per_implementation if run.measurement else 0,
        "vms": [_of_vm(vm, now) for vm in run.vms],
        "phases": [
            {
                "attempt": span.attempt,
                "phase": span.phase,
                "started_at": iso_time(span.started_at),
                "seconds": span.seconds,
                "exit_code": span.exit_code,
            }
            for span in run.spans
        ],
        "heals": _dumped(run.heals),
        "gates": _dumped(run.gates),
        "wrong": _dumped(run.wrong),
        "cases": _dumped(run.measured),
        "diagnoses": [{**fact.model_dump(), "remedy": remedy_for(fact.cause)} for fact in run.diagnoses],
        "exhausted": _dumped(run.exhausted),
        "waiting": None if run.waiting is None else run.waiting.model_dump(mode="json", exclude={"generation"}),
    }


def status_body(run: Run, now: datetime) -> bytes:
    return json.dumps(run_document(run, now), sort_keys=True).encode()


# The objects of one run in a bucket, as bytes that are not checked yet. The page of the run is made from them.


@dataclass(frozen=True, slots=True)
class Material:
    """The objects of one run; empty if there is no such object. `body` is the state of the run as a document
    (`orchestrator.core.run.status.document`), and `cases` are the files of finished cases, by case id. `problem` says
    why the run could not be read."""

    line: StatusLine
    body: bytes = b""
    environment: bytes = b""
    build: bytes = b""
    cases: Mapping[str, bytes] = field(default_factory=dict)
    problem: str = ""


# How the time of a run's machines was used: the cold start by phase, and the share that was spent measuring.


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


# Whether a waiting machine is worth keeping, judged by what cold starts have cost in this bucket so far. The rule is
# that of the ski rental problem: keep a waiting machine until waiting has cost as much as the cold start that it
# would save, then stop it. With this rule a user never pays more than twice the least possible cost.


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
        parts = f": {describe_parts(dict(self.parts))}" if self.parts else ""
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
        median_parts([line.start_parts for line in newest]),
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
