"""What a scheduler is told, and what it reports: jobs of children. All machines of a job are alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from orchestrator.core.fleet.children import Child
from orchestrator.core.fleet.names import job_name
from orchestrator.core.fleet.state import ATTEMPTS, ChildLine
from orchestrator.core.names import FleetId, JobName
from orchestrator.core.text import clean_line, parse_document

# Claims: by creating an object a machine takes an attempt of a child. Of two machines that try, one succeeds, and no
# clock is involved. A scheduler may start a child twice (a controller that lost its memory does). Each start is a
# separate attempt with its own machine name, and begins with the claim of that attempt. Each case is also created
# only once: a second copy of a child finds the stored case and measures the next one.


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """The document that a machine writes when it takes an attempt of a child."""

    child: int
    attempt: int
    machine: str
    """The name of the node, host or VM, as its engine calls it."""
    at: str = ""

    def dump(self) -> bytes:
        return json.dumps({"schema": 1, **asdict(self)}, sort_keys=True).encode()


def parse_claim(data: bytes) -> SlotClaim | None:
    """The claim in an object, or None if it is not valid. A machine wrote it, so nothing else is taken from it."""
    try:
        claim_document = parse_document(data)
        child, attempt = claim_document["child"], claim_document["attempt"]
        if type(child) is not int or type(attempt) is not int or child < 0 or not 1 <= attempt <= ATTEMPTS:
            return None
        return SlotClaim(
            child,
            attempt,
            clean_line(str(claim_document["machine"]), 100),
            clean_line(str(claim_document.get("at", "")), 40),
        )
    except (ValueError, KeyError, TypeError):
        return None


JobState = Literal["absent", "queued", "running", "succeeded", "failed", "cancelled"]
"""`absent`: the scheduler has no such job, or no longer."""
ChildState = Literal["queued", "running", "succeeded", "failed", "lost", "absent"]


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """One child to start. `attempt` is its first free number; a scheduler that starts the child again counts up."""

    index: int
    attempt: int
    run_id: str
    spec: Mapping[str, Any]
    """The run spec for the machine (docs/contracts.md, section 3)."""


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """The payload in the bucket, and its bytes for schedulers whose machines cannot reach the bucket."""

    bucket: str
    object: str
    sha256: str
    startup_script: str
    data: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Children of one GPU type, on `parallel` machines of one kind. All machines are gone by `ends_at`."""

    fleet: FleetId
    number: int
    gpu: str
    machine_type: str
    children: tuple[ChildOrder, ...]
    """In the order in which they are to be started."""
    parallel: int
    ends_at: datetime
    """No machine of the job lives past it."""
    child_s: int
    """The longest that one child may take, in seconds."""
    payload: PayloadRef
    usd_per_hour: Decimal = Decimal(0)
    regions: tuple[str, ...] = ()
    """Where the job may run, best first; empty where the scheduler has one place only."""
    provisioning: str = "SPOT"
    priority: int = 50
    """From 0 to 99; more is sooner."""
    labels: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the machine's configuration: disk, network, service account, image."""

    @property
    def name(self) -> JobName:
        return job_name(self.fleet, self.number)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a scheduler reports about one job in one call. The numbers count children."""

    name: JobName
    state: JobState
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    reason: str = ""
    """The scheduler's latest reason why nothing starts or why the job failed."""
    reason_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChildSeen:
    """What is known of one child, from the scheduler and from what its machine stored."""

    index: int
    state: ChildState
    attempt: int = 0
    machine: str = ""
    reason: str = ""
    exit_code: int | None = None
    silent: bool = False
    """Whether it is lost because its machine gave no sign of life. It is then lost whatever its scheduler still
    reports."""
    line: ChildLine | None = None
    """What a run of this process has come to, from its own log."""


@dataclass(frozen=True, slots=True)
class SchedulerTraits:
    """What a driver of fleets must know about a scheduler."""

    is_here: bool = False
    """Whether children are runs of this process, each with a hold of its own; they start only while it drives them."""
    machines: int = 3
    """How many different machines a configuration can be tried on, as far as is known."""
    patience: timedelta = timedelta(seconds=30)
    """How long it may not know a child before the child is started again: a controller may be restarting."""


ELSEWHERE = SchedulerTraits()
"""Of a scheduler whose children need no client."""


def split_into_jobs(children: Sequence[Child], most: int) -> tuple[tuple[Child, ...], ...]:
    """Divides children into jobs. A job has one GPU, one workload and at most `most` children, in the order of the
    plan. Jobs are in the order of the first appearance of their GPU and workload. Raises `ValueError` if `most` is
    below 1."""
    if most < 1:
        raise ValueError("a job has at least one child")
    alike: dict[tuple[str, str], list[Child]] = {}
    for child in children:
        alike.setdefault((child.cell.gpu, child.cell.workload), []).append(child)
    return tuple(tuple(found[at : at + most]) for found in alike.values() for at in range(0, len(found), most))
