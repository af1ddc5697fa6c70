"""The `Scheduler` of Google Cloud Batch, by Google's own client over REST.

A job of ours is one job there, in one region at a time, on machines of a template of ours. Of each GPU one job of a
fleet is asked for at a time, so that a fleet never has more machines than it holds money for.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from orchestrator.adapters.batch.bodies import job_body, order_body, template_body, variables_of
from orchestrator.adapters.payload import bundle_root
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet import batch as rules
from orchestrator.core.fleet.batch import ChildCost, GatePace, GateSite, GateVerdict
from orchestrator.core.fleet.jobs import ChildSeen, JobSpec, JobState, JobStatus, Life, SchedulerTraits, machine_seconds
from orchestrator.core.market.pricing import DEADLINE_SLACK_S
from orchestrator.core.names import FleetId, ImageName, ImageUrl, JobName, ProjectId, Region, job_name
from orchestrator.ports import Bucket, Clock, FleetDriver
from orchestrator.store.batch_jobs import BatchRecord, KnownJob, Records

if TYPE_CHECKING:
    from google.cloud import batch_v1

    from orchestrator.adapters.google.network import Session


# Reads what the children of a fleet on Batch have stored about their attempts: claims, and how each attempt ended.


@dataclass(slots=True)
class QueueWords:
    """Of one fleet, as far as this process has read it. Objects are created once, so each is read once."""

    claimed: dict[int, int] = field(default_factory=dict)
    """By child, its latest attempt."""
    ended: dict[int, dict[int, ChildCost]] = field(default_factory=dict)
    """By child and attempt."""
    _known: set[str] = field(default_factory=set)

    def listen(self, bucket: Bucket, fleet: str) -> None:
        """Reads what is new: two listings, and the ends that were not known."""
        for name in self._fresh(bucket, rules.claims_prefix(fleet)):
            place = rules.index_and_attempt(name)
            if place is not None:
                self.claimed[place[0]] = max(self.claimed.get(place[0], 0), place[1])
            self._known.add(name)
        for name, blob in bucket.read_many(self._fresh(bucket, rules.costs_prefix(fleet))).items():
            cost = rules.parse_cost(name, blob.data)
            if cost is not None:
                self.ended.setdefault(cost.index, {})[cost.attempt] = cost
            self._known.add(name)

    def counting(self, index: int) -> ChildCost | None:
        """The attempt that counts: one that measured, whichever it is; else how the latest one ended."""
        ended = self.ended.get(index)
        if ended is None:
            return None
        measured = next((cost for cost in ended.values() if cost.exit_code in (0, rules.WRONG)), None)
        return measured or ended.get(self.claimed.get(index, 0))

    def _fresh(self, bucket: Bucket, prefix: str) -> list[str]:
        return [entry.name for entry in bucket.list(prefix) if entry.name not in self._known]


WRITERS: Final = 16
SLACK: Final = timedelta(minutes=2)
"""After its end a job's machines are gone; then the job is ended too."""
STATES: Final[Mapping[str, JobState]] = {
    "QUEUED": "queued", "SCHEDULED": "queued", "RUNNING": "running", "SUCCEEDED": "succeeded", "FAILED": "failed",
    "CANCELLATION_IN_PROGRESS": "running", "DELETION_IN_PROGRESS": "running", "CANCELLED": "cancelled",
}  # fmt: skip
OVER: Final = ("absent", "succeeded", "failed", "cancelled")
QUEUE_LEFT: Final = re.compile(r"\bfrom QUEUED to (SCHEDULED|RUNNING)\b")
"""What Batch says of a job for which machines are about to be made."""
FRESH: Final = timedelta(seconds=1)
"""So long an answer about a job is good: one look asks once for what its children did and for its counts."""


@dataclass(frozen=True, slots=True)
class Service:
    """Whose Batch it is: a project of Google's, or with the endpoints of others, and the credentials for it."""

    project: str
    credentials: Any = None
    endpoint: str = ""
    storage: str = ""


class GoogleBatch:
    """Jobs of one project. `gate` raises where a fleet may not be launched; `image` gives the dated image of a project
    and family; `known` remembers what was asked for."""

    name: Final = "batch"

    def __init__(
        self,
        service: Service,
        bucket: Bucket,
        clock: Clock,
        *,
        script: str,
        image: Callable[[ProjectId, ImageName], ImageUrl],
        gate: Callable[[], None],
        known: KnownJob,
    ) -> None:
        self.project = service.project
        self.service = service
        self.bucket = bucket
        self.clock = clock
        self.script = script
        self.image = image
        self.gate = gate
        self.known = known
        self.records = Records(bucket, clock)
        self._words: dict[str, QueueWords] = {}
        self._jobs: dict[str, tuple[datetime, batch_v1.Job | None]] = {}

    @property
    def most_children(self) -> int:
        return rules.MOST_CHILDREN

    @cached_property
    def session(self) -> Session:
        """What Google's clients send through, with the given credentials or the application-default ones."""
        from orchestrator.adapters.google.credentials import default_credentials
        from orchestrator.adapters.google.network import Session

        return Session(self.service.credentials or default_credentials(), self.service.endpoint)

    @cached_property
    def client(self) -> batch_v1.BatchServiceClient:
        from google.cloud import batch_v1

        client: batch_v1.BatchServiceClient = self.session.client(batch_v1.BatchServiceClient, "batch")
        return client

    @cached_property
    def _templates(self) -> Any:
        from orchestrator.adapters.batch.templates import InstanceTemplates

        return InstanceTemplates(self.project, self.clock, self.session)

    # The port

    def submit(self, jobs: Sequence[JobSpec]) -> Sequence[str]:
        self.gate()
        notices: list[str] = []
        for job in jobs:
            record = self.records.read(job.fleet, job.name) or self._prepared(job)
            busy = self._before(record)
            if record.stage == "waiting" and busy:
                notices.append(f"{job.name} begins when {busy} has ended")
            elif record.stage == "waiting":
                self._place(record)
            elif record.stage == "placed":
                self._create(record)  # the answer to an earlier submit may have been lost
        return notices

    def wait(self, seconds: float, driver: FleetDriver) -> bool:  # noqa: ARG002 - its children need no client
        self.clock.sleep(seconds)
        return True

    def counts(self, names: Sequence[JobName]) -> Sequence[JobStatus]:
        return [self._status(name, self.records.read(fleet_of(name), name)) for name in names]

    def reconcile(self, fleet: FleetId, names: Sequence[JobName], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        jobs: dict[int, JobStatus] = {}
        for name in names:
            record = self.records.read(fleet, name)
            if record is None:
                continue
            status = self._looked_after(record, self._status(name, record))
            jobs.update(dict.fromkeys(record.children, status))
        queue_words = self._words.setdefault(fleet, QueueWords())
        queue_words.listen(self.bucket, fleet)
        return [
            rules.child_seen(index, queue_words.claimed.get(index, 0), queue_words.counting(index), jobs.get(index))
            for index in indexes
        ]

    def cancel(self, names: Sequence[JobName]) -> None:
        for name in names:
            record = self.records.read(fleet_of(name), name)
            if record is None:
                continue
            record = self.records.change(record, lambda present: _over(present, "it was stopped"))
            self._cancel(record)

    @property
    def traits(self) -> SchedulerTraits:
        return SchedulerTraits(machine_seconds=self.machine_seconds)

    def machine_seconds(self, names: Sequence[str]) -> Mapping[str, float]:
        """By GPU, how many seconds of machines the jobs have had at most: as many as each may have, for all its life,
        in each region that it was in. What each machine really had is on Google's bill alone."""
        lives_by_gpu: dict[str, list[Life]] = {}
        for name in names:
            record = self.records.read(fleet_of(name), name)
            if record is not None and record.stage != "waiting":
                lives_by_gpu.setdefault(record.gpu, []).extend(self._lives(record))
        slack = timedelta(seconds=DEADLINE_SLACK_S)
        return {gpu: machine_seconds(lives, slack) for gpu, lives in lives_by_gpu.items()}

    def _lives(self, record: BatchRecord) -> Sequence[Life]:
        parallel, ends = int(record.body["taskGroups"][0]["parallelism"]), record.ends_at
        lives = []
        for at in range(record.at):  # given up for want of a first task; its machines may have been booting
            job = self._job(record.model_copy(update={"at": at}))
            if job is not None and (began := scheduled_at(job)) is not None:
                lives.append(Life(began, min(self._over_at(job), ends), parallel))
        job = self._job(record)
        if job is None:
            return [*lives, Life(record.since or ends, ends, parallel, seen=False)]
        began = job.create_time or record.since or ends
        return [*lives, Life(began, min(self._over_at(job), ends), parallel)]

    def _over_at(self, job: batch_v1.Job) -> datetime:
        return (job.update_time if state_of(job) in OVER else None) or self.clock.now()

    def check(self, site: GateSite, pace: GatePace, say: Callable[[str], None]) -> GateVerdict:
        """What Batch is seen to do in this project. Raises `ProviderError` and its kin."""
        from orchestrator.adapters.batch.check import BatchCheck, Clients
        from orchestrator.adapters.google.compute_library import compute_v1

        machines = self.session.client(compute_v1.InstancesClient)
        script = (bundle_root() / "startup" / "batch" / "check.sh").read_text(encoding="utf-8")
        return BatchCheck(site, Clients(self.client, self._templates, machines), self.clock, script, pace, say).run()

    # Asking for a job

    def _prepared(self, job: JobSpec) -> BatchRecord:
        """Stores what the machines will read, and the record. Raises `ConfigError`."""
        source = ProjectId(str(job.settings["image_project"])), ImageName(str(job.settings["image_family"]))
        template = template_body(job, self.clock.now(), self.image(*source))
        variables = variables_of(job, self.service.storage)
        bodies = tuple(job_body(job, region, self.project, self.script, variables) for region in job.regions)
        children = tuple(order.index for order in job.children)

        def store(place: int) -> None:
            document = json.dumps(order_body(job, place)).encode()
            self.bucket.replace(rules.child_object(job.fleet, children[place]), document, generation=None)

        if job.payload.data:
            self.bucket.create(job.payload.object, job.payload.data, content_type="application/gzip")
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(store, range(len(children))))
        self.bucket.create(rules.job_object(job.fleet, job.name), json.dumps({"children": children}).encode())
        made = BatchRecord(
            fleet=job.fleet, name=job.name, gpu=job.gpu, children=children, regions=tuple(map(Region, job.regions)),
            template=template, jobs=bodies, ends_at=job.ends_at,
        )  # fmt: skip
        self.known.add(made.asked)
        return self.records.create(made)

    def _before(self, record: BatchRecord) -> str:
        """A job of the same fleet and GPU that is not over; empty when there is none. Its machines count too."""
        number = int(record.name.rpartition("-")[2])
        for earlier in range(number):
            name = job_name(record.fleet, earlier)
            other = self.records.read(record.fleet, name)
            if other is not None and other.gpu == record.gpu and self._status(name, other).state not in OVER:
                return name
        return ""

    def _place(self, record: BatchRecord) -> BatchRecord:
        """Asks for it in its region, once that stands in the record."""
        placed = self.records.moved(record, "placed", self.clock.now())
        if placed.stage == "placed":
            self._create(placed)
        return placed

    def _create(self, record: BatchRecord) -> None:
        from orchestrator.adapters.batch.templates import create_job

        if record.asked not in self.known:  # machines can write to the bucket
            raise ConfigError(
                f"the request of {record.name} in the bucket is not the one that this computer made",
                hint=f"`bench fleet stop {record.fleet}`, then `bench fleet resume {record.fleet}` makes it again",
            )
        self._templates.insert_with_an_end(record.template)
        self._jobs.pop(self._resource(record), None)
        again = str(uuid.uuid5(uuid.NAMESPACE_URL, f"spotbench:batch/{record.name}/{record.region}"))
        create_job(self.client, self.clock, self._resource(record), record.body, again)

    # Looking after it

    def _resource(self, record: BatchRecord) -> str:
        return f"projects/{self.project}/locations/{record.region}/jobs/{record.name}"

    def _job(self, record: BatchRecord) -> batch_v1.Job | None:
        """The job as it is, or was a moment ago; one that is over does not change any more."""
        from google.api_core import exceptions

        from orchestrator.adapters.batch.templates import send_unless_refused

        name, now = self._resource(record), self.clock.now()
        at, job = self._jobs.get(name, (None, None))
        if at is not None and (now - at < FRESH or (job is not None and state_of(job) in OVER)):
            return job
        doing, gone = f"look at the job {record.name} in {record.region}", (exceptions.NotFound,)
        job = send_unless_refused(self.clock, lambda: self.client.get_job(name=name), doing, gone)
        self._jobs[name] = (now, job)
        return job

    def _status(self, name: JobName, record: BatchRecord | None) -> JobStatus:
        if record is None:
            return JobStatus(name, "absent")
        if record.stage == "waiting":
            return JobStatus(name, "queued", len(record.children), reason="waits for another job of its GPU")
        job = self._job(record)
        if job is None:
            gone = "failed" if record.stage == "over" and record.left else "absent"
            return JobStatus(name, "queued" if record.stage == "leaving" else gone, reason=_left(record))  # type: ignore[arg-type]
        status = status_of(name, job, len(record.children))
        where = f"{record.region}: {status.reason}" if status.reason else _left(record)
        state: JobState = "queued" if record.stage == "leaving" and status.state == "cancelled" else status.state
        return JobStatus(
            name, state, status.pending, status.running, status.succeeded, status.failed, where, status.reason_at
        )

    def _looked_after(self, record: BatchRecord, status: JobStatus) -> JobStatus:
        """What the job's clock demands: a job that waits in silence goes to the next region, one whose time is over is
        ended, and one that is over leaves nothing behind."""
        now = self.clock.now()
        in_time = now < record.ends_at - timedelta(seconds=rules.SHORTEST_S)
        if record.stage == "waiting":
            if in_time and not self._before(record):
                self._place(record)
            return status
        if record.stage == "leaving":
            job = self._job(record)
            if job is not None and state_of(job) not in OVER:
                return status
            if in_time:
                self.records.moved(record, "placed", now)
            else:
                self.records.change(record, lambda present: _over(present, "no time is left for another region"))
            fresh = self.records.read(record.fleet, record.name) or record
            if fresh.stage == "placed":
                self._create(fresh)
            return self._status(record.name, fresh)
        barren = status.state == "failed" and not (status.succeeded or status.failed)
        silent = rules.is_silent(status, record.since or now, now)
        if record.stage == "placed" and (silent or barren) and now < record.ends_at:
            why = status.reason or f"{record.region}: no machine for {rules.PATIENCE.total_seconds() / 60:.0f} min"
            moved_record = self.records.moved(record, "leaving", now, why=why)
            self._cancel(moved_record)
            return JobStatus(record.name, "queued", len(record.children), reason=why)
        if status.state not in OVER and now > record.ends_at + SLACK:
            self._cancel(record)
        if status.state in OVER and record.stage == "placed":
            self.records.change(record, lambda present: _over(present, ""))
            self._templates.delete(record.name)
        return status

    def _cancel(self, record: BatchRecord) -> None:
        """Idempotent: what is over or gone is cancelled."""
        from google.api_core import exceptions

        from orchestrator.adapters.batch.templates import send_unless_refused

        name, over = self._resource(record), (exceptions.NotFound, exceptions.BadRequest, exceptions.FailedPrecondition)
        self._jobs.pop(name, None)
        send_unless_refused(
            self.clock,
            lambda: self.client.cancel_job(name=name),
            f"cancel the job {record.name} in {record.region}",
            over,
        )


def task_script() -> str:
    """What every task runs, byte for byte."""
    return (bundle_root() / "startup" / "batch" / "task.sh").read_text(encoding="utf-8")


def state_of(job: batch_v1.Job) -> JobState:
    """Its state; one that we have no word for is taken to cost money."""
    return STATES.get(getattr(job.status.state, "name", ""), "running")


def scheduled_at(job: batch_v1.Job) -> datetime | None:
    """When it left its queue, from when on machines may have been made for it; None where it never did."""
    queue_events = [event for event in job.status.status_events if QUEUE_LEFT.search(event.description)]
    return min((event.event_time or job.create_time for event in queue_events), default=None)


def status_of(name: JobName, job: batch_v1.Job, children: int) -> JobStatus:
    """What a job says of itself, in our words."""
    group = job.status.task_groups.get("group0")
    counts = dict(group.counts) if group is not None else {}
    newest_first = reversed(job.status.status_events)
    cause = rules.cause_of((event.description, event.event_time or None) for event in newest_first)
    waiting, state = counts.get("PENDING", 0) + counts.get("ASSIGNED", 0) if counts else children, state_of(job)
    return JobStatus(
        name=name,
        state=state,
        pending=0 if state in OVER else waiting,  # what is over begins no more of them
        running=counts.get("RUNNING", 0),
        succeeded=counts.get("SUCCEEDED", 0),
        failed=counts.get("FAILED", 0) + counts.get("UNEXECUTED", 0),
        reason=cause.text if cause is not None else "",
        reason_at=cause.at if cause is not None else None,
    )


def fleet_of(name: str) -> str:
    """The fleet of a job, by our name for it."""
    return name.removeprefix("bench-").rpartition("-")[0]


def _over(record: BatchRecord, why: str) -> BatchRecord:
    return record.model_copy(update={"stage": "over", "left": (*record.left, why) if why else record.left})


def _left(record: BatchRecord) -> str:
    return record.left[-1] if record.left else ""
