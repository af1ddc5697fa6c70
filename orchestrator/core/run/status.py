"""The status line of a run, which listings show. It is small enough for an object's metadata, so that one page of a
listing has a thousand lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, TypeAdapter

from orchestrator.core.bounds import Count, Moment, Usd
from orchestrator.core.run import paid_time
from orchestrator.core.run.diagnose import remedy_for
from orchestrator.core.run.events import Fact
from orchestrator.core.run.fold import OUTCOMES, Run
from orchestrator.core.run.state import Vm
from orchestrator.core.text import NAME, SCHEMA, clean_line, clean_name, count

DETAIL: Final = 400
FIELD: Final = 250
"""The most characters of a field. All fields together must fit into an object's metadata."""


@dataclass(frozen=True, slots=True)
class StatusLine:
    """One run in one line. Every field is text or a number that can be stored in object metadata and read back."""

    run_id: str
    phase: str
    vm_phase: str = ""
    gpu: str = ""
    mode: str = ""
    user: str = ""
    device: str = ""
    created_at: str = ""
    updated_at: str = ""
    seconds: int = 0
    cost_usd: str = "0"
    ceiling_usd: str = "0"
    cases_done: int = 0
    cases_total: int = 0
    attempts: int = 0
    vm: str = ""
    """The machine that may exist now, as `zone/name`; empty if none can."""
    usd_per_hour: str = "0"
    detail: str = ""
    cold_start_s: int = 0
    """The seconds from the request for its first machine to its first case; 0 if no case was begun, or it was begun on
    a kept machine."""
    billed_start_s: int = 0
    """How many of these seconds were paid for."""
    start_parts: str = ""
    """The parts of the cold start (`paid_time.written`)."""
    paid_s: int = 0
    measuring_s: int = 0
    """The seconds of machines (`paid_s`), and those in which cases were measured (`measuring_s`)."""
    config: str = ""
    image: str = ""
    """The image from which its machines boot, without its project."""

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
    paid = paid_time.paid_time(run, end)
    return StatusLine(
        run_id=run.run_id,
        phase=run.phase.value,
        vm_phase="" if run.closed else "waiting" if run.waiting else run.vm_phase,
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
        start_parts=paid_time.format_parts(paid_time.cold_start_parts(run)),
        paid_s=round(paid.paid_s),
        measuring_s=round(paid.measuring_s),
        config=run.plan.config if run.plan else "",
        image=run.image.rpartition("/")[2],
    )


def waiting_text(run: Run) -> str:
    """How long a run waits for capacity and when its client asks again; empty if it does not wait."""
    if run.waiting is None:
        return ""
    pools = len({(fact.zone, fact.machine_type, fact.provisioning) for fact in run.exhausted})
    asks = f"round {run.waiting.round + 1} of requests from {iso_time(run.waiting.next_at)} on"
    return f"waiting for capacity until {iso_time(run.waiting.until)}: none in {count(pools, 'place')}, {asks}"


def cold_start(run: Run) -> tuple[int, int]:
    """(whole seconds from the first request for the machine that began the first case until that case began, how many
    of them were paid for); (0, 0) if no case was begun on a machine that the run requested."""
    machine = paid_time.first_machine(run)
    if machine is None:
        return 0, 0
    waited, billed = machine.first_case_at - machine.asked_at, machine.first_case_at - machine.started_at
    return max(0, round(waited.total_seconds())), max(0, round(billed.total_seconds()))


def iso_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def encode_status(line: StatusLine) -> dict[str, str]:
    """The line as object metadata. Only printable ASCII is used, because some servers send metadata in headers."""
    limits = {"detail": DETAIL, "device": NAME}
    return {key: _ascii(str(value))[: limits.get(key, FIELD)] for key, value in asdict(line).items()}


def _ascii(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def decode_status(run_id: str, metadata: Mapping[str, str]) -> StatusLine | None:
    """The line in `metadata`, or None if there is none; then the run's events must be read."""
    if metadata.get("run_id") != run_id or not metadata.get("phase") or metadata.get("schema", "1") != str(SCHEMA):
        return None
    try:
        values = {
            key: _KINDS.get(key, _WORDS).validate_python(value)
            for key, value in metadata.items()
            if key in StatusLine.__dataclass_fields__
        }
        line = StatusLine(**values)
    except ValueError:  # a ValidationError is one
        return None
    return line if line.created_at else None


def _text_of(kind: Any) -> TypeAdapter[Any]:
    """The type of a text that is valid as `kind`. The value stays text."""
    inner: TypeAdapter[Any] = TypeAdapter(kind)

    def check(text: str) -> str:
        inner.validate_python(text)
        return text

    return TypeAdapter(Annotated[str, AfterValidator(check)])


_WORDS: Final[TypeAdapter[Any]] = TypeAdapter(Annotated[str, AfterValidator(clean_line)])
_COUNT: Final[TypeAdapter[Any]] = TypeAdapter(Count)
_KINDS: Final[Mapping[str, TypeAdapter[Any]]] = {
    **dict.fromkeys(
        ("seconds", "cases_done", "cases_total", "attempts", "cold_start_s", "billed_start_s", "paid_s", "measuring_s"),
        _COUNT,
    ),
    **dict.fromkeys(("cost_usd", "ceiling_usd", "usd_per_hour"), _text_of(Usd)),
    **dict.fromkeys(("created_at", "updated_at"), _text_of(Moment)),
    "device": TypeAdapter(Annotated[str, AfterValidator(clean_name)]),
}


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
    plan = run.plan
    return {
        "schema": 1,
        **line,
        "state": line["phase"],
        "settled": run.settled is not None,
        "prices_simulated": run.simulated,
        "time": paid_time.paid_time_document(run, now if run.closed is None else run.updated_at),
        "config": plan.config if plan else "",
        "image": run.image,
        "implementations": list(plan.implementations) if plan else [],
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
