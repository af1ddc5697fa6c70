"""Jobs of the batch service as data: what was ordered, the state of each task, and how the API shows them."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.embedded.documents import utc_stamp
from orchestrator.embedded.errors import ApiError, Document, reading_body
from orchestrator.embedded.inventory import region_of

JOB_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
MOST_TASKS = 100_000
MOST_PARALLEL = 5_000
MOST_RETRIES = 10
GROUP = "group0"
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
DONE = ("SUCCEEDED", "FAILED", "UNEXECUTED")
MOST_EVENTS = 50

ENUMS: dict[str, tuple[str, ...]] = {
    "provisioningModel": (
        "PROVISIONING_MODEL_UNSPECIFIED", "STANDARD", "SPOT", "PREEMPTIBLE", "RESERVATION_BOUND", "FLEX_START",
    ),
    "action": ("ACTION_UNSPECIFIED", "RETRY_TASK", "FAIL_TASK"),
    "schedulingPolicy": ("SCHEDULING_POLICY_UNSPECIFIED", "AS_SOON_AS_POSSIBLE", "IN_ORDER"),
    "destination": ("DESTINATION_UNSPECIFIED", "CLOUD_LOGGING", "PATH"),
    "taskState": ("STATE_UNSPECIFIED", "PENDING", "ASSIGNED", "RUNNING", "FAILED", "SUCCEEDED", "UNEXECUTED"),
}  # fmt: skip
"""The values of each enum field, by the field's name. Google's client sends and expects their numbers."""
JOB_STATES = (
    "STATE_UNSPECIFIED", "QUEUED", "SCHEDULED", "RUNNING", "SUCCEEDED", "FAILED", "DELETION_IN_PROGRESS",
    "CANCELLATION_IN_PROGRESS", "CANCELLED",
)  # fmt: skip


@dataclass(slots=True)
class BatchTask:
    """One task, with its state and events so far."""

    index: int
    state: str = "PENDING"
    attempts: int = 0
    events: list[Document] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Order:
    """What a job asks for, after the checks."""

    tasks: int
    parallel: int
    script: str
    variables: Mapping[str, str]
    max_run_s: float | None
    retries: int
    retry_codes: frozenset[int] | None
    """The exit codes after which a task is tried again; None: all."""
    fail_codes: frozenset[int]
    template: str
    labels: Mapping[str, str]
    zones: tuple[str, ...]

    def tries_again(self, code: int, attempts: int) -> bool:
        """Whether a task that ended with `code` gets another attempt, after this many."""
        may_retry = code not in self.fail_codes and (self.retry_codes is None or code in self.retry_codes)
        return may_retry and attempts <= self.retries


@dataclass(slots=True, eq=False)
class BatchJob:
    """One job. It is changed only under the service's lock."""

    name: str
    """`projects/P/locations/R/jobs/J`."""
    uid: str
    region: str
    body: Document
    order: Order
    created_at: datetime
    updated_at: datetime
    request_id: str = ""
    state: str = "QUEUED"
    running_at: datetime | None = None
    ended_at: datetime | None = None
    events: list[Document] = field(default_factory=list)
    tasks: list[BatchTask] = field(default_factory=list)
    pending: deque[int] = field(default_factory=deque)
    counts: Counter[str] = field(default_factory=Counter)
    made: int = 0
    """How many VMs were requested."""
    asks_again: bool = False
    """Whether it was refused a VM and will soon request the next one."""

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def left(self) -> int:
        """The number of tasks that are not done."""
        return sum(number for state, number in self.counts.items() if state not in DONE)

    def begin(self) -> None:
        """Creates the job's tasks, all pending."""
        self.tasks = [BatchTask(index) for index in range(self.order.tasks)]
        self.pending = deque(range(self.order.tasks))
        self.counts = Counter({"PENDING": self.order.tasks})

    def note(self, now: datetime, description: str, kind: str = "OPERATIONAL_INFO") -> None:
        """Adds an event, unless its description is that of the last event."""
        self.updated_at = now
        if self.events and self.events[-1]["description"] == description:
            return
        self.events.append({"type": kind, "description": description, "eventTime": utc_stamp(now)})
        del self.events[1:-MOST_EVENTS]

    def become(self, state: str, now: datetime, why: str = "") -> None:
        """Changes the job's state, and notes this as an event."""
        description = f"Job state is set from {self.state} to {state} for job {self.name}.{why and ' ' + why}"
        self.state = state
        self.running_at = self.running_at or (now if state == "RUNNING" else None)
        self.ended_at = self.ended_at or (now if state in OVER else None)
        self.note(now, description, "STATUS_CHANGED")

    def move(self, task: BatchTask, state: str, now: datetime, where: str = "", code: int | None = None) -> None:
        """Changes a task's state, and notes this as an event of the task. `code` is the exit code of the attempt that
        ended; None if none did."""
        why = f" with exit code {code}" if code is not None else ""
        event: Document = {
            "type": "STATUS_CHANGED",
            "description": f"Task state is updated from {task.state} to {state}{where and ' on ' + where}{why}.",
            "eventTime": utc_stamp(now),
            "taskState": state,
        }
        if code:
            event["taskExecution"] = {"exitCode": code}
        self.counts[task.state] -= 1
        self.counts[state] += 1
        task.state = state
        task.events.append(event)

    def document(self, now: datetime) -> Document:
        """The job as the API shows it."""
        status: Document = {"state": self.state, "statusEvents": list(self.events)}
        if self.running_at is not None:
            status["runDuration"] = f"{((self.ended_at or now) - self.running_at).total_seconds():.6f}s"
        if self.tasks:
            counts = {state: str(number) for state, number in self.counts.items() if number}
            status["taskGroups"] = {GROUP: {"counts": counts}}
        group = dict(self.body["taskGroups"][0]) | {"name": f"{self.name}/taskGroups/{GROUP}"}
        return self.body | {
            "name": self.name,
            "uid": self.uid,
            "taskGroups": [group],
            "createTime": utc_stamp(self.created_at),
            "updateTime": utc_stamp(self.updated_at),
            "status": status,
        }

    def task_document(self, task: BatchTask) -> Document:
        name = f"{self.name}/taskGroups/{GROUP}/tasks/{task.index}"
        return {"name": name, "status": {"state": task.state, "statusEvents": list(task.events)}}


# Enums


def name_enums(value: Any, key: str = "") -> Any:
    """A request with names in place of the numbers of its enums. Raises `ApiError` (400) for an unknown number."""
    if isinstance(value, dict):
        return {name: name_enums(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [name_enums(inner, key) for inner in value]
    if key in ENUMS and isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(ENUMS[key]):
            raise ApiError(400, f"Invalid value at '{key}': {value}")
        return ENUMS[key][value]
    return value


def number_enums(value: Any, key: str = "", states: tuple[str, ...] = JOB_STATES) -> Any:
    """An answer with numbers in place of the names of its enums. `states` are the states of the resource in it."""
    if isinstance(value, dict):
        return {name: inner if name == "labels" else number_enums(inner, name, states) for name, inner in value.items()}
    if isinstance(value, list):
        return [number_enums(inner, key, states) for inner in value]
    names = states if key == "state" else ENUMS.get(key, ())
    return names.index(value) if value in names else value


# Reading a request


def read_order(body: Document, region: str, zones: tuple[str, ...]) -> Order:
    """The order in a request's `body`. `zones` are those of the region. Raises `ApiError` (400) for a request that
    Google would refuse."""
    with reading_body("job"):
        return _read_order(body, region, zones)


def _read_order(body: Document, region: str, zones: tuple[str, ...]) -> Order:
    groups = body.get("taskGroups", [])
    _must(len(groups) == 1, "taskGroups", "exactly one task group is supported")
    group, spec = groups[0], groups[0].get("taskSpec", {})
    tasks = int(group.get("taskCount", 1))
    _must(1 <= tasks <= MOST_TASKS, "taskCount", f"it must be between 1 and {MOST_TASKS}")
    parallel = int(group.get("parallelism", 0)) or min(tasks, MOST_PARALLEL)
    _must(1 <= parallel <= MOST_PARALLEL, "parallelism", f"it must be between 1 and {MOST_PARALLEL}")
    _must(int(group.get("taskCountPerNode", 0)) == 1, "taskCountPerNode", "this cloud runs one task on a VM at a time")
    runnables = spec.get("runnables", [])
    _must(len(runnables) == 1 and "script" in runnables[0], "runnables", "this cloud runs exactly one script")
    script = runnables[0]["script"].get("text", "")
    _must(bool(script), "runnables[0].script.text", "it must be specified")
    retries = int(spec.get("maxRetryCount", 0))
    _must(0 <= retries <= MOST_RETRIES, "maxRetryCount", f"it must be between 0 and {MOST_RETRIES}")
    policy = body.get("allocationPolicy", {})
    instances = policy.get("instances", [])
    _must(len(instances) == 1, "allocationPolicy.instances", "this cloud needs exactly one")
    template = instances[0].get("instanceTemplate", "")
    _must(bool(template) and "policy" not in instances[0], "instances[0]", "this cloud makes VMs of a template alone")
    retry, fail = _policies(spec.get("lifecyclePolicies", []))
    return Order(
        tasks=tasks,
        parallel=parallel,
        script=script,
        variables={
            **spec.get("environment", {}).get("variables", {}),
            **runnables[0].get("environment", {}).get("variables", {}),
        },
        max_run_s=_seconds(spec.get("maxRunDuration")),
        retries=retries,
        retry_codes=retry,
        fail_codes=fail,
        template=template,
        labels=dict(policy.get("labels", {})),
        zones=_allowed(policy.get("location", {}).get("allowedLocations", []), region, zones),
    )


def _must(good: bool, what: str, why: str) -> None:
    if not good:
        raise ApiError(400, f"Job is invalid: {what}: {why}.")


def _seconds(duration: str | None) -> float | None:
    if duration is None:
        return None
    _must(re.fullmatch(r"\d+(\.\d+)?s", duration) is not None, "maxRunDuration", "it must be such as 60s")
    return float(duration[:-1])


def _policies(policies: list[Document]) -> tuple[frozenset[int] | None, frozenset[int]]:
    """(exit codes that are tried again, exit codes that fail at once). The first is None if all others are retried."""
    _must(len(policies) <= 1, "lifecyclePolicies", "only one is supported")
    if not policies:
        return None, frozenset()
    codes = frozenset(int(code) for code in policies[0].get("actionCondition", {}).get("exitCodes", []))
    match policies[0].get("action"):
        case "RETRY_TASK":
            return codes, frozenset()
        case "FAIL_TASK":
            return None, codes
        case other:
            raise ApiError(400, f"Job is invalid: lifecyclePolicies[0].action: {other!r} is none.")


def _allowed(locations: list[str], region: str, zones: tuple[str, ...]) -> tuple[str, ...]:
    """The allowed zones. Raises `ApiError` (400) if a location is in another region."""
    allowed: list[str] = []
    for location in locations or [f"regions/{region}"]:
        kind, _, name = location.partition("/")
        its_region = region_of(name) if kind == "zones" else name
        _must(
            kind in ("regions", "zones") and its_region == region, "allowedLocations", f"{location} is not in {region}"
        )
        allowed += [zone for zone in zones if kind == "regions" or zone == name]
    return tuple(dict.fromkeys(allowed))
