"""The events of a run. Each kind of fact is one frozen class, named in the past tense.

A run is the set of its events. Clients and machines add events; none is ever changed. `docs/contracts.md`, section 5,
is the contract with the programs on the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field

from orchestrator.core.bounds import Count, Finite, LenientModel, Moment, Name, Numbers, Seconds, Usd
from orchestrator.core.names import NO_ID, NO_IMAGE, CaseId, ImageUrl, MachineName, ResourceId, RunId, Zone
from orchestrator.core.naming import EventName
from orchestrator.core.text import clean_value, of_schema, parse_unversioned

# The base class of facts, and the facts about images.


class Fact(LenientModel):
    """Something that happened to a run. Unknown keys are ignored, so that an older client can read a newer run."""

    kind: ClassVar[str]
    """Its name in the log: that of the class in lower case, with `_` between the words. It may not change, and so
    neither may the name of the class."""
    advice: ClassVar[str] = ""
    """The key with advice to the user, if there is one. Only the client that wrote the fact shows it. It is dropped
    when a fact is read from the bucket, because anybody may have written it."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """The fact in a stored `body`, without its advice. Raises `ValidationError`."""
        return cls.model_validate({key: value for key, value in body.items() if key != cls.advice})

    @property
    def harmless(self) -> Self:
        """The same fact with every text made harmless, because texts from the cloud may be in it."""
        return self.model_validate(clean_value(self.model_dump(mode="json")))


class ImagePrepared(Fact):
    """The machine's disk is ready to become an image, and nothing writes to it any more."""

    torch: Name = ""
    driver: Name = ""
    kernel: Name = ""
    ncu: Name = ""


ExitCode = Annotated[int, Field(ge=-(2**31), le=2**31)]
Writer = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=80)]
"""The writer of an event, such as `client-3f9a2c`, `vm-1` or `boot-1`. It is part of the object's name."""


# --- from clients ---------------------------------------------------------------------------------------------------


class ClientFact(Fact):
    """A fact that only a client may write, as it is about money, requests to the cloud or the end of a run."""


class RunPlanned(ClientFact):
    gpu: str
    config: str
    user: str
    mode: str
    """The value of a `Mode`."""
    ceiling_usd: Usd
    ttl_s: Count
    attempts: Count
    cases: Count
    measurements_per_implementation: Count
    implementations: tuple[str, ...] = ()
    image: ImageUrl = NO_IMAGE
    offers: Count = 0
    on_demand_after: Count | None = None
    """After how many preempted spot machines an on-demand machine is requested; None: never."""
    seals: bool = False
    """It makes an image, and its client appends `seal_requested` before it copies the disk. Older clients did not."""


class BudgetHeld(ClientFact):
    hold_usd: Usd
    generation: Count = 0


class RunResumed(ClientFact):
    """A run that was over goes on as a new generation with its own hold. What ended earlier generations does not end
    it. The generation of a fact, not its time, decides what it belongs to: the clocks of two clients may differ."""

    generation: Count
    """1 for the first resumption."""
    attempts: Count
    """How many machines this generation may use."""
    by: str = ""


class ImageReplaced(ClientFact):
    """The plan's image was gone when a machine was requested. The machine boots from another image."""

    image: ImageUrl
    instead: ImageUrl
    generation: Count = 0


class SealRequested(ClientFact):
    """A client is about to copy the disk of the machine into an image. It writes this before it requests the image."""

    image: ImageUrl


class PayloadStored(ClientFact):
    sha256: str
    size_bytes: Count
    uploaded: bool


class InstanceRequested(ClientFact):
    """A VM is about to be requested. The event is written before the request is sent, so that the VM is found even if
    the client is killed at any line."""

    attempt: Count
    vm: MachineName
    zone: Zone
    machine_type: str
    provisioning: str
    usd_per_hour: Usd
    max_run_s: Count
    request_id: str
    generation: Count = 0
    queue_s: Count = 0
    """How many seconds a flex-start machine may wait for capacity."""


class InstanceQueued(ClientFact):
    """A flex-start machine waits for capacity in the cloud's queue. It does not run, and costs nothing meanwhile."""

    attempt: Count
    zone: Zone
    until: Moment
    """When it leaves the queue if there is no capacity: then it was a stock-out of its zone."""
    request_id: str


class ZoneExhausted(ClientFact):
    attempt: Count
    zone: Zone
    scope: str = "zone"
    """Where no machine can be had: `zone`, `region` or `all`."""
    code: str
    message: str = ""
    zones_available: tuple[Zone, ...] = ()
    request_id: str = ""
    machine_type: str = ""
    provisioning: str = ""
    """The provisioning and machine type that could not be had; empty: no machine can be had there."""
    generation: Count = 0
    round: Count = 0
    """The round of requests, if the client waits for capacity; 0 for the first."""


class CapacityAwaited(ClientFact):
    """A round of requests found no machine, and the client that launched the run waits before it begins another."""

    round: Count
    """The number of the round that begins at `next_at`; 1 for the first one after a wait."""
    next_at: Moment
    until: Moment
    """When the client stops waiting."""
    generation: Count = 0


class InstanceRejected(ClientFact):
    """The cloud refused the request for a reason that holds in every zone."""

    advice = "hint"
    attempt: Count
    zone: Zone
    code: str
    message: str = ""
    hint: str = ""
    request_id: str = ""
    generation: Count = 0


class InstanceCreated(ClientFact):
    attempt: Count
    vm: MachineName
    zone: Zone
    instance_id: ResourceId
    started_at: Moment
    deadline_at: Moment
    request_id: str = ""


class StopRequested(ClientFact):
    by: str
    reason: str
    generation: Count | None = None
    """The generation to end; None: every generation of the run."""


class InstanceGone(ClientFact):
    attempt: Count
    vm: MachineName
    ended_at: Moment
    how: str
    """`deleted`, `preempted`, `host_error`, `deadline`, `lost`, `never_made` (the cloud says that it made no machine)
    or `unanswered` (the request had no answer)."""
    started_at: Moment | None = None
    request_id: str = ""
    """The id of the request that made the machine. It is needed because an attempt's machine has the same name in every
    zone in which it is requested."""


class MachineTaken(Fact):
    """The run is measured on a machine that another run kept and pays for until it ends. The client that claimed the
    machine writes this, and the machine writes it again."""

    vm: MachineName
    zone: Zone
    owner: RunId
    """The run that pays for the machine."""
    deadline_at: Moment | None = None
    attempt: Count = 1
    generation: Count = 0


class Settled(ClientFact):
    cost_usd: Usd
    released_usd: Usd
    generation: Count = 0


class RunClosed(ClientFact):
    """The run is over. The client that sees its end writes this as the last event."""

    outcome: str
    detail: str = ""
    generation: Count = 0
    cases_stored: Count | None = None
    """How many files of finished cases were in the bucket then; None: not counted."""


class ChildAttempt(LenientModel):
    """One machine of a scheduler on which a child of a fleet worked, by its own account."""

    attempt: Count
    machine: Name = ""
    started_at: Moment
    ended_at: Moment


class ChildFinished(ClientFact):
    """A child of a fleet is over, on a machine that a scheduler chose: no client requested it, and the fleet pays for
    it. The client that saw its end writes this."""

    fleet: Name
    engine: Zone
    child: Count
    outcome: str
    usd_per_hour: Usd = Decimal(0)
    attempts: tuple[ChildAttempt, ...] = Field(default=(), max_length=100)
    plan: RunPlanned


# --- from machines --------------------------------------------------------------------------------------------------


class VmBooted(Fact):
    vm: MachineName
    zone: Zone | None = None
    instance_id: ResourceId = NO_ID
    attempt: Count


class PhaseStarted(Fact):
    phase: str
    limit_s: Seconds = 0


class PhaseFinished(Fact):
    phase: str
    exit_code: ExitCode
    seconds: Seconds


class Healed(Fact):
    what: str
    detail: str = ""


class GatePassed(Fact):
    name: str
    detail: str = ""


class EnvironmentRecorded(Fact):
    device: Name
    device_kind: Name
    torch: Name = ""


class KernelBuilt(Fact):
    seconds: Seconds
    compiler: str = ""
    cached: bool = False


class CaseChecked(Fact):
    implementation: str
    case_id: CaseId
    passed: bool
    max_abs_error: Finite = None
    limit: Finite = None
    reason: str = ""


class CorrectnessFinished(Fact):
    checked: Count
    failed: Count


class MeasurementPlanned(Fact):
    cases: Count
    total: Count
    measurements_per_implementation: Count


class CaseStarted(Fact):
    case_id: CaseId
    index: Count
    of: Count


class CaseObserved(Fact):
    """Where the machine is in a case that takes long: a function and its line, or an implementation."""

    case_id: CaseId | Literal[""] = ""
    place: str
    seconds: Seconds = 0


class CaseMeasured(Fact):
    case_id: CaseId
    index: Count
    of: Count
    rows: Count
    seconds: Seconds
    median_us: Numbers = Field(default_factory=dict)
    skipped: dict[str, str] = Field(default_factory=dict)


class Preempted(Fact):
    detail: str = ""


class Diagnosed(Fact):
    advice = "remedy"
    cause: str
    detail: str = ""
    remedy: str = ""
    phase: str = ""


class Finished(Fact):
    outcome: str
    exit_code: ExitCode = 0
    phase: str = ""
    detail: str = ""


class Kept(Fact):
    """The run is done, and its machine waits for another run. The result of the run is given as in `Finished`."""

    outcome: str
    exit_code: ExitCode = 0
    detail: str = ""
    idle_limit_s: Seconds


class Lent(Fact):
    """The kept machine has begun another run."""

    to: RunId


class VmExiting(Fact):
    outcome: str
    exit_code: ExitCode = 0


class Unrecognised(Fact):
    """A fact of a kind that this version does not know, or with data that it cannot read. It is kept, and the fold
    ignores it."""

    name: str
    data: dict[str, Any] = Field(default_factory=dict)


def _kinds(base: type[Fact]) -> Iterator[type[Fact]]:
    for fact in base.__subclasses__():
        yield from _kinds(fact)
        if fact not in (ClientFact, Unrecognised):
            yield fact


FACTS: Final[Mapping[str, type[Fact]]] = {fact.kind: fact for fact in _kinds(Fact)}


class Event(LenientModel):
    """A fact, with the time and the writer. `(time, writer, seq)` identifies an event, and is the order of events."""

    run_id: str
    time: Moment
    writer: Writer
    seq: Count
    fact: Fact

    @property
    def order(self) -> tuple[datetime, str, int]:
        return (self.time, self.writer, self.seq)

    @property
    def object_name(self) -> str:
        kind = self.fact.name if isinstance(self.fact, Unrecognised) else self.fact.kind
        return EventName(self.time, self.writer, self.seq, kind).object(self.run_id)


def encode_event(event: Event) -> bytes:
    fact = event.fact
    written = {
        "schema": 1,
        "run_id": event.run_id,
        "kind": fact.name if isinstance(fact, Unrecognised) else fact.kind,
        "time": event.time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "writer": event.writer,
        "seq": event.seq,
        "data": fact.data if isinstance(fact, Unrecognised) else fact.model_dump(mode="json"),
    }
    return json.dumps(written, sort_keys=True).encode()


def decode_event(data: bytes) -> Event | None:
    """The event in `data`, or None if it is not an event. A known kind with unreadable data becomes `Unrecognised`. All
    texts are made harmless."""
    try:
        document = parse_unversioned(data)
        kind, body = str(document["kind"]), dict(document.get("data") or {})
        fact: Fact
        try:
            of_schema(document)
            fact = FACTS[kind].read(body)
        except (KeyError, ValueError):  # a ValidationError is one, and so is `Newer`
            fact = Unrecognised(name=kind, data=body)
        return Event(
            run_id=document["run_id"],
            time=document["time"],
            writer=document["writer"],
            seq=document["seq"],
            fact=fact,
        )
    except (ValueError, KeyError, TypeError):
        return None


# How many events a machine of a run may write, by their kind. What is read of its log is bounded by this.

BOOTS: Final = 4
"""How often a machine of one attempt may begin its work: each time it writes the events of a beginning again."""
OTHER: Final = "other"
"""The kind under which all kinds are counted that this version does not know, or that no machine may write."""
UNKNOWN_CASES: Final = 200
"""How many cases count for a run whose plan does not say how many it has."""
MOST_CASES: Final = 1_000
OF_A_BOOT: Final = {
    "vm_booted": 1, "machine_taken": 1, "phase_started": 8, "phase_finished": 8, "healed": 16, "gate_passed": 10,
    "environment_recorded": 1, "kernel_built": 2, "correctness_finished": 1, "measurement_planned": 1,
    "case_observed": 16, "case_checked": 2, "image_prepared": 1, "preempted": 1, "diagnosed": 4, "finished": 2,
    "vm_exiting": 1, OTHER: 16,
}  # fmt: skip
OF_A_CASE: Final = {"case_started": 2, "case_measured": 2, "case_observed": 8}
"""Twice what a machine writes that is never interrupted. A case that lasts nine hours is observed nine times."""
OF_AN_IMPLEMENTATION: Final = {"case_checked": 2}
"""For each case."""
OF_A_KEPT_MACHINE: Final = {"kept": 200, "lent": 200}
"""A machine that is kept writes one of each for each run that it serves."""

COUNTED: Final = frozenset({**OF_A_BOOT, **OF_A_CASE, **OF_A_KEPT_MACHINE})


def counted_kind(kind: str) -> str:
    """The kind under which an event counts."""
    return kind if kind in COUNTED else OTHER


@dataclass(frozen=True, slots=True)
class EventBounds:
    """The bounds for a machine of a run with so many `cases` and `implementations`; 0 where the plan does not say."""

    cases: int = 0
    implementations: int = 0

    def most(self, kind: str) -> int:
        """How many events of a kind are read of one machine."""
        cases = min(self.cases or UNKNOWN_CASES, MOST_CASES)
        implementations = min(self.implementations or 1, MOST_CASES)
        each = OF_A_CASE.get(kind, 0) + OF_AN_IMPLEMENTATION.get(kind, 0) * implementations
        return BOOTS * OF_A_BOOT.get(kind, 0) + OF_A_KEPT_MACHINE.get(kind, 0) + each * cases

    @property
    def total(self) -> int:
        """How many events are read of one machine."""
        return sum(self.most(kind) for kind in COUNTED)
