"""A fleet on Google Cloud Batch: the names of its objects, the meaning of events, and when to give up a job. Pure.

Machines may write only below `machines/`. The names of a fleet's objects there sort before the names of kept machines,
so that a listing of kept machines can begin after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from orchestrator.core.bounds import LenientModel, Name
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.jobs import ChildSeen, ChildState, JobSpec, JobStatus
from orchestrator.core.fleet.state import ATTEMPTS
from orchestrator.core.market.catalog import find_gpu
from orchestrator.core.text import clean_line, parse_unversioned

PREFIX: Final = "machines/batch/"
CHECK_PREFIX: Final = "batch-check/"
MOST_CHILDREN: Final = 100_000
"""The most tasks of one job."""
RETRIED: Final = (50001, 50002, 50003, 50006)
"""Exit codes of a task whose machine was preempted, stopped reporting, rebooted, or was recreated. Other codes are
final."""
MOST_RETRIES: Final = 10
PATIENCE: Final = timedelta(minutes=10)
"""A job that has had no machine for this long is given up in its region."""
SHORTEST_S: Final = 300
"""The least time of a machine in seconds. With less time it returns no measurement."""
WRONG: Final = 10
"""The exit code of a child that measured a wrong kernel."""
TAKEN: Final = 75
"""The exit code of a child that was ended by a signal, as when its machine is preempted."""
MOST_RUN_S: Final = 120 * 86_400
"""The longest `maxRunDuration` that Google accepts, in seconds."""
_PLACE: Final = re.compile(r"(\d{1,9})-(\d{1,2})\.json")
_CAUSES: Final = (
    (re.compile(r"QUOTA_EXCEEDED"), "the quota is used up"),
    (re.compile(r"RESOURCE_POOL_EXHAUSTED"), "no machine of that kind is left"),
    (re.compile(r"not available|does not exist|is not offered", re.I), "there is no machine of that kind"),
    (re.compile(r"termination ?time", re.I), "the fleet is past its end"),
    (re.compile(r"permission|PERMISSION_DENIED|not authorized", re.I), "a permission is missing"),
    (re.compile(r"VM creation failed|creation failed", re.I), "no machine could be made"),
)


def job_prefix(fleet: str) -> str:
    return f"{PREFIX}{fleet}/"


def job_object(fleet: str, name: str) -> str:
    """The object that lists the children of a job in the order of its tasks."""
    return f"{job_prefix(fleet)}jobs/{name}.json"


def child_object(fleet: str, index: int) -> str:
    return f"{job_prefix(fleet)}children/{index}.json"


def claims_prefix(fleet: str) -> str:
    return f"{job_prefix(fleet)}claims/"


def costs_prefix(fleet: str) -> str:
    return f"{job_prefix(fleet)}costs/"


def record_object(fleet: str, name: str) -> str:
    """The object with a client's record of a job: how it was submitted, and in which region. No machine can write
    it."""
    return f"fleets/{fleet}/batch/{name}.json"


def check_object(project: str) -> str:
    """The object with the verdict of `bench fleet check-batch` in a project."""
    return f"{CHECK_PREFIX}{project}.json"


def index_and_attempt(name: str) -> tuple[int, int] | None:
    """(index, attempt) in the name of a claim's or a cost's object; None for any other name."""
    match = _PLACE.fullmatch(name.rpartition("/")[2]) if "/" in name else None
    if match is None or not 1 <= int(match[2]) <= ATTEMPTS:
        return None
    return int(match[1]), int(match[2])


def settings_of(gpu: str, machine: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration's `machine` section that a template needs, for `JobSpec.settings`. Raises
    `ConfigError` for an unknown GPU."""
    gpu_spec = find_gpu(gpu)
    if gpu_spec is None:
        raise ConfigError(f"unknown GPU '{gpu}'", hint="`bench plan --help` lists the GPUs")
    return {
        "accelerator": gpu_spec.accelerator if gpu_spec.attached else None,
        "disk_gb": int(machine["disk_gb"]),
        "disk_type": str(machine["disk_type"]) or gpu_spec.disk_type,
        "network": str(machine["network"]),
        "external_ip": bool(machine["external_ip"]),
        "service_account": machine.get("service_account") or None,
    }


# Answers of the service


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a job waits or has failed: our explanation, then the service's text."""

    text: str
    at: datetime | None = None


def cause_of(events: Iterable[tuple[str, datetime | None]]) -> Cause | None:
    """The cause that the latest event names, of `events` as (description, time), newest first; None if no event names
    one. The text is bounded and made harmless."""
    for description, at in events:
        for pattern, meaning in _CAUSES:
            if pattern.search(description):
                return Cause(f"{meaning}: {clean_line(description, 300)}", at)
    return None


def is_silent(status: JobStatus, since: datetime, now: datetime) -> bool:
    """Whether a job has waited `PATIENCE` for its first machine."""
    started = status.running or status.succeeded or status.failed
    return status.state == "queued" and not started and now - since >= PATIENCE


def run_seconds(job: JobSpec, now: datetime) -> int:
    """How many seconds a machine of the job may run, from now to the job's absolute end, and at most what Google
    allows. Raises `ConfigError` if that is too short."""
    seconds_remaining = int((job.ends_at - now).total_seconds())
    if seconds_remaining < SHORTEST_S:
        raise ConfigError(
            f"{job.name} would have {seconds_remaining} s until its end, which is too short to measure anything",
            hint="`bench fleet resume` gives what is missing a new hold and a new end",
        )
    return min(seconds_remaining, MOST_RUN_S)


# Objects that machines store


class ChildCost(LenientModel):
    """How one attempt of a child ended, and how many seconds its machine worked on it."""

    index: int
    attempt: int
    machine: Name = ""
    seconds: Annotated[float, Field(strict=True, ge=0, le=MOST_RUN_S)]
    exit_code: Annotated[int, Field(strict=True, ge=-255, le=65535)]


def parse_cost(name: str, data: bytes) -> ChildCost | None:
    """The cost in the object `name`; None if it is not valid. Only the name says which child it belongs to."""
    place = index_and_attempt(name)
    if place is None:
        return None
    try:
        return ChildCost.model_validate(parse_unversioned(data) | {"index": place[0], "attempt": place[1]})
    except ValueError:  # a ValidationError is one
        return None


def child_seen(index: int, claimed: int, cost: ChildCost | None, job: JobStatus | None) -> ChildSeen:
    """The state of a child. `claimed` is its latest attempt (0: none), `cost` says how that ended (None: it has not
    ended), and `job` is the latest job with this child."""
    alive = job is not None and job.state in ("queued", "running")
    if cost is not None and not (alive and cost.exit_code == TAKEN):
        return ChildSeen(index, _outcome(cost), cost.attempt, cost.machine, _reason(cost), cost.exit_code)
    if claimed:
        # The machine may have been preempted. Batch tries the child again while the job lives, and not after that.
        return ChildSeen(index, "running" if alive else "lost", claimed, reason="" if alive else "its machine was lost")
    return ChildSeen(index, "queued" if alive else "absent", reason=job.reason if job is not None else "")


def _outcome(cost: ChildCost) -> ChildState:
    if cost.exit_code in (0, WRONG):
        return "succeeded"
    return "lost" if cost.exit_code == TAKEN else "failed"


def _reason(cost: ChildCost) -> str:
    match _outcome(cost):
        case "succeeded":
            return ""
        case "lost":
            return "its machine was preempted"
        case _:
            return f"exit code {cost.exit_code}"


# Decides whether fleets may use Google Cloud Batch: the limits on cost depend on how Batch behaves in a real project.
# Pure. `bench fleet check-batch` observes four behaviours for a few cents and stores its verdict in the bucket, where
# no machine can write.


QUESTIONS: Final = {
    "limits": "machines carry the template's terminationTime, and are deleted at it",
    "end": "no machine is made after that time",
    "bound": "there are never more machines than the job's parallelism, also while one is preempted",
    "recreate": "a machine that deletes itself is made again, and its task ends with 50006",
}
REQUIRED: Final = ("limits", "end", "bound")
"""The behaviours without which a fleet could cost more than it holds. The fourth is only reported, because no child of
ours deletes its machine."""


@dataclass(frozen=True, slots=True)
class GatePace:
    """The durations of a check, in seconds."""

    end_s: float = 480.0
    """From the creation of the template to the absolute end of its machines."""
    late_s: float = 60.0
    """A machine that lives this long past its end is late: Google may begin 30 s late, and a deletion takes time."""
    quiet_s: float = 180.0
    """For this long after the end no machine may be created."""
    poll_s: float = 5.0
    step_s: float = 20.0
    run_s: int = 900


@dataclass(frozen=True, slots=True)
class GateSite:
    """Where a check runs, and with which machines."""

    project: str
    region: str
    machine_type: str
    image: str
    network: str = "global/networks/default"
    service_account: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    compute: str = ""
    """The URL of the embedded cloud; empty on Google."""


class GateAnswer(LenientModel):
    """What a check saw of one question."""

    ok: bool
    seen: str = ""


class GateVerdict(LenientModel):
    """The result of a check in a project."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal[1] = Field(default=1, alias="schema")
    project: str
    checked_at: datetime
    region: str = ""
    answers: dict[str, GateAnswer] = Field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(name in self.answers and self.answers[name].ok for name in REQUIRED)


def parse_gate(data: bytes | None) -> GateVerdict | None:
    """The verdict in a document; None if there is no document or it is not valid."""
    try:
        return GateVerdict.model_validate_json(data) if data is not None else None
    except ValidationError:
        return None


def gate_refusal(project: str, verdict: GateVerdict | None) -> str:
    """Why no fleet may be launched on Batch in a project; empty if one may."""
    if verdict is None or verdict.project != project:
        return f"Google Cloud Batch has not been checked in project {project}"
    if verdict.passed:
        return ""
    bad = [name for name in REQUIRED if name not in verdict.answers or not verdict.answers[name].ok]
    seen = verdict.answers.get(bad[0])
    detail = f": {clean_line(seen.seen, 200)}" if seen is not None and seen.seen else ""
    return (
        f"Google Cloud Batch cannot keep a fleet within its cap in project {project}, as it was seen on "
        f"{verdict.checked_at:%Y-%m-%d}: not true that {QUESTIONS[bad[0]]}{detail}"
    )
