"""What a scheduler is asked to do, and what it says: jobs of children, each job on machines alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from orchestrator.core.fleet.children import Child
from orchestrator.core.fleet.names import job_name

JobState = Literal["absent", "queued", "running", "succeeded", "failed", "cancelled"]
"""`absent`: the scheduler has no such job, or no longer."""
ChildState = Literal["queued", "running", "succeeded", "failed", "lost", "absent"]


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """One child, to be started. `attempt` is the first that is free; a scheduler that starts it again counts on."""

    index: int
    attempt: int
    run_id: str
    spec: Mapping[str, Any]
    """What the machine is told: the run spec (docs/contracts.md, section 3)."""


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """What machines run, in the bucket and as bytes for schedulers whose machines do not reach it."""

    bucket: str
    object: str
    sha256: str
    startup_script: str
    data: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Children of one GPU type on `parallel` machines alike, all of them gone by `ends_at`."""

    fleet: str
    number: int
    gpu: str
    machine_type: str
    children: tuple[ChildOrder, ...]
    """In the order in which they are to be started."""
    parallel: int
    ends_at: datetime
    """No machine of the job lives past it."""
    child_s: int
    """The longest that one child may take."""
    payload: PayloadRef
    usd_per_hour: Decimal = Decimal(0)
    regions: tuple[str, ...] = ()
    """Where the job may run, best first; empty where the scheduler has one place only."""
    provisioning: str = "SPOT"
    priority: int = 50
    """From 0 to 99; more is sooner."""
    labels: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else the machine's configuration says: disk, network, service account, image."""

    @property
    def name(self) -> str:
        return job_name(self.fleet, self.number)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a scheduler says of one job, asked with one call."""

    name: str
    state: JobState
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    reason: str = ""
    """Its last word: why nothing starts, or why it failed."""
    reason_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChildSeen:
    """What is known of one child: the scheduler's word, and what its machine stored."""

    index: int
    state: ChildState
    attempt: int = 0
    machine: str = ""
    reason: str = ""
    exit_code: int | None = None
    silent: bool = False
    """Lost by its own silence, whatever its scheduler still says of its machine: that is not waited for."""


def cut(children: Sequence[Child], most: int) -> tuple[tuple[Child, ...], ...]:
    """Children in jobs of one GPU and one workload each, and at most `most` children: in the order of first appearance,
    and in each the order of the plan."""
    if most < 1:
        raise ValueError("a job has at least one child")
    alike: dict[tuple[str, str], list[Child]] = {}
    for child in children:
        alike.setdefault((child.cell.gpu, child.cell.workload), []).append(child)
    return tuple(tuple(found[at : at + most]) for found in alike.values() for at in range(0, len(found), most))
