"""What a scheduler is told, and what it reports: jobs of children. All machines of a job are alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, Literal

from orchestrator.core.fleet.state import ChildLine
from orchestrator.core.fleet.sweep import Child
from orchestrator.core.market.pricing import DEADLINE_SLACK_S, round_up
from orchestrator.core.names import FleetId, JobName, job_name

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
    machine_seconds: Callable[[Sequence[str]], Mapping[str, float]] | None = None
    """By GPU, how many seconds of machines jobs have had at most; None where none are rented. Children know of their
    own time alone, and what is settled is never less than what is billed."""


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


# What a fleet may cost at most, and what it is expected to cost. hold = sum over jobs of machines x price x (W + 30
# s) x 1.1 W is the time from the launch to the absolute end that every machine of the job carries; no machine lives
# past it, however often it is recreated. 30 s is `DEADLINE_SLACK_S`. The factor 1.1 covers machines that overlap with
# their replacements.


# How long machines of jobs can have been there, where the bill is not to be seen: never less than they were. Pure.


@dataclass(frozen=True, slots=True)
class Life:
    """A job in one region: `parallel` machines at most from `began` to `ended`. One that is not `seen` was asked for,
    and is not there: whether it ever was, nobody can say."""

    began: datetime
    ended: datetime
    parallel: int
    seen: bool = True


def machine_seconds(lives: Iterable[Life], slack: timedelta) -> float:
    """Of jobs of which one alone is there at a time. Each lasts `slack` longer than it says, but not beyond the
    beginning of the next: that one counts from there. One that was not seen is over by then too."""
    ordered = sorted(lives, key=lambda life: life.began)
    ends = [_end(life, later.began, slack) for life, later in pairwise(ordered)]
    ends += [life.ended + slack for life in ordered[-1:]]
    return sum(
        life.parallel * max(0.0, (end - life.began).total_seconds()) for life, end in zip(ordered, ends, strict=True)
    )


def _end(life: Life, next_began: datetime, slack: timedelta) -> datetime:
    late = min(life.ended + slack, next_began)
    return max(life.ended, late) if life.seen else late


OVERLAP: Final = Fraction(11, 10)


@dataclass(frozen=True, slots=True)
class JobCost:
    """The figures from which the cost of one job's machines is computed. `children` and `child_s` serve the
    estimate."""

    gpu: str
    machines: int
    usd_per_hour: Decimal
    wall_s: int
    children: int = 0
    child_s: int = 0
    ceiling_usd: Decimal | None = None
    """The worst case of one child in dollars, if each child has its own hold; None: the job has one hold."""
    margin: Decimal = Decimal(0)
    """The share of the price that is held in addition while the price table is old."""

    @property
    def hold(self) -> Decimal:
        if self.ceiling_usd is not None:
            return self.ceiling_usd * self.children
        seconds = self.machines * (self.wall_s + DEADLINE_SLACK_S)
        return round_up(Fraction(self.usd_per_hour * (1 + self.margin)) * seconds / 3600 * OVERLAP)

    @property
    def expected_usd(self) -> Decimal:
        return round_up(Fraction(self.usd_per_hour) * self.children * self.child_s / 3600)

    @property
    def expected_s(self) -> int:
        """The expected time in seconds if every machine is there from the beginning."""
        return math.ceil(self.children / self.machines) * self.child_s if self.machines else 0


def worst_case_usd(jobs: Sequence[JobCost]) -> Decimal:
    """The worst case of a fleet in dollars."""
    return sum((job.hold for job in jobs), Decimal(0))


def divide_machines(parallel: int, children: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """The number of machines of each GPU: its share of `parallel`, or an even part of what the shares leave. It is at
    least 1 and at most the GPU's number of children."""
    other_gpus = [gpu for gpu in children if gpu not in shares]
    share_left = max(0.0, 1 - sum(shares.get(gpu, 0.0) for gpu in children))
    parts = {gpu: shares.get(gpu, share_left / len(other_gpus) if other_gpus else 0.0) for gpu in children}
    return {
        gpu: max(1, min(count, math.floor(parallel * parts[gpu] + 1e-9)))
        for gpu, count in children.items()
        if count
    }  # fmt: skip


def machines_within(dollars: Decimal, jobs: Sequence[JobCost]) -> int:
    """How many of the machines that `jobs` ask for fit into `dollars`, if each job gets the same fraction of its
    machines."""
    machines, worst = sum(job.machines for job in jobs), worst_case_usd(jobs)
    return machines if worst <= dollars else math.floor(machines * Fraction(dollars) / Fraction(worst))
