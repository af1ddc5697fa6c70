"""The routes of the batch service's v1 REST API."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from orchestrator.embedded.batch_jobs import (
    DONE,
    ENUMS,
    GROUP,
    JOB_ID,
    JOB_STATES,
    BatchJob,
    BatchTask,
    name_enums,
    number_enums,
    read_order,
)
from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import utc_stamp
from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.fleet import Fleet
from orchestrator.embedded.inventory import numeric_id
from orchestrator.embedded.listener import HttpRequest
from orchestrator.embedded.lists import cut_page, parse_filter
from orchestrator.embedded.operations import DONE as FINISHED
from orchestrator.embedded.operations import Sender
from orchestrator.embedded.routes import Route, body_of, make_routes
from orchestrator.embedded.templates import TemplateStore, body_in, template_name
from orchestrator.embedded.timeline import Alarm
from orchestrator.embedded.vm import EmbeddedVm
from orchestrator.embedded.weather import Fault, hits_job, hits_vm

TYPES = "type.googleapis.com/google.cloud.batch.v1."
MOST = 1000
MOST_BYTES = 1_000_000


class Batch(BodyPart):
    """Answers requests; raises `ApiError`. Jobs are read and changed under the runner's lock."""

    def __init__(self, commons: Commons, runner: Runner) -> None:
        super().__init__(commons)
        self.runner = runner
        self.jobs: dict[str, BatchJob] = {}
        self.own_operations: dict[str, Document] = {}
        runner.ended = self._keep
        for kept in self.store.all("batch_job"):
            self._restore(kept)

    def routes(self) -> list[Route]:
        job, tasks = "jobs/{job}", f"jobs/{{job}}/taskGroups/(?P<group>{GROUP})/tasks"
        return make_routes(
            "batch",
            "/v1/projects/{project}/locations/{region}/",
            ("POST", "jobs", self.create, "batch.jobs.create"),
            ("GET", "jobs", self.list, "batch.jobs.list"),
            ("GET", job, self.get, "batch.jobs.get"),
            ("DELETE", job, self.delete, "batch.jobs.delete"),
            ("POST", job + ":cancel", self.cancel, "batch.jobs.delete"),
            ("GET", tasks, self.list_tasks, "batch.tasks.list"),
            ("GET", tasks + r"/(?P<task>\d+)", self.get_task, "batch.tasks.get"),
            ("GET", "operations/{name}", self.get_operation),
        )

    # Jobs

    def create(self, request: HttpRequest, region: str) -> Document:
        self._check(region)
        if len(request.body) > MOST_BYTES:
            raise ApiError(400, f"The job definition is larger than {MOST_BYTES} bytes.")
        body, now = name_enums(body_of(request)), self.timeline.now()
        request_id = request.query.get("requestId", "")
        uid = f"job-{numeric_id(f'{region} {utc_stamp(now)} {len(self.jobs)}')[:12]}"
        job_id = request.query.get("jobId") or uid
        if not JOB_ID.fullmatch(job_id):
            raise ApiError(400, f"Invalid job id {job_id}: it must match {JOB_ID.pattern}")
        order = read_order(body, region, self.inventory.zones_in(region))
        template_name(order.template, self.project)
        name = f"projects/{self.project}/locations/{region}/jobs/{job_id}"
        with self.runner.lock:
            existing = self.jobs.get(name)
            if existing is not None and request_id and existing.request_id == request_id:
                return self._render(request, existing.document(now))
            if existing is not None:
                raise ApiError(409, f"Resource '{name}' already exists")
            job = BatchJob(name, uid, region, body, order, now, now, request_id)
            self.jobs[name] = job
            self._keep(job)
            self.runner.start(job)
            return self._render(request, job.document(now))

    def find(self, region: str, job: str) -> BatchJob:
        """The job. Raises the API's 404 if there is none."""
        self._check(region)
        name = f"projects/{self.project}/locations/{region}/jobs/{job}"
        stored_job = self.jobs.get(name)
        if stored_job is None:
            raise ApiError(404, f"Resource '{name}' was not found")
        return stored_job

    def get(self, request: HttpRequest, region: str, job: str) -> Document:
        with self.runner.lock:
            return self._render(request, self.find(region, job).document(self.timeline.now()))

    def list(self, request: HttpRequest, region: str) -> Document:
        now = self.timeline.now()
        with self.runner.lock:
            in_region = [job for job in self.jobs.values() if region in ("-", job.region)]
            documents = [job.document(now) for job in in_region]
        documents.sort(key=lambda document: str(document["createTime"]), reverse=True)
        chosen, token = page_documents(documents, request)
        return self._render(request, {"jobs": chosen, **token})

    def cancel(self, _request: HttpRequest, region: str, job: str) -> Document:
        with self.runner.lock:
            stored_job = self.find(region, job)
            if stored_job.over:
                raise ApiError(400, f"Job {stored_job.name} is {stored_job.state} and cannot be cancelled.")
            return self._end(stored_job, "cancel", "CANCELLATION_IN_PROGRESS", TYPES + "CancelJobResponse")

    def delete(self, _request: HttpRequest, region: str, job: str) -> Document:
        with self.runner.lock:
            empty = "type.googleapis.com/google.protobuf.Empty"
            return self._end(self.find(region, job), "delete", "DELETION_IN_PROGRESS", empty)

    def _end(self, job: BatchJob, verb: str, state: str, response: str) -> Document:
        """Begins to end a job, which has the state `state` meanwhile. Returns the operation."""
        operation = self._begin(verb, job, self.timeline.now())

        def done() -> None:
            if verb == "delete":
                self.jobs.pop(job.name, None)
                self.store.owe("batch_job", job.name, None)
            self._finish(operation, {"@type": response})

        self.runner.cancel(job, state, done)
        return self.own_operations[operation]

    # Tasks

    def list_tasks(self, request: HttpRequest, region: str, job: str, group: str) -> Document:  # noqa: ARG002
        with self.runner.lock:
            stored_job = self.find(region, job)
            documents = [stored_job.task_document(task) for task in stored_job.tasks]
        chosen, token = page_documents(documents, request)
        return self._render(request, {"tasks": chosen, **token}, ENUMS["taskState"])

    def get_task(self, request: HttpRequest, region: str, job: str, group: str, task: str) -> Document:
        with self.runner.lock:
            stored_job = self.find(region, job)
            if int(task) >= len(stored_job.tasks):
                raise ApiError(404, f"Resource '{stored_job.name}/taskGroups/{group}/tasks/{task}' was not found")
            return self._render(request, stored_job.task_document(stored_job.tasks[int(task)]), ENUMS["taskState"])

    # Operations

    def get_operation(self, _request: HttpRequest, region: str, name: str) -> Document:
        path = f"projects/{self.project}/locations/{region}/operations/{name}"
        with self.runner.lock:
            operation = self.own_operations.get(path)
        if operation is None:
            raise ApiError(404, f"Operation '{path}' was not found")
        return operation

    def _begin(self, verb: str, job: BatchJob, now: datetime) -> str:
        number = numeric_id(f"{job.name} {verb} {utc_stamp(now)} {len(self.own_operations)}")
        name = f"projects/{self.project}/locations/{job.region}/operations/operation-{number}"
        self.own_operations[name] = {
            "name": name,
            "metadata": {
                "@type": TYPES + "OperationMetadata",
                "createTime": utc_stamp(now),
                "target": job.name,
                "verb": verb,
                "apiVersion": "v1",
            },
            "done": False,
        }
        return name

    def _finish(self, name: str, response: Document) -> None:
        begun = self.own_operations[name]
        ended = begun["metadata"] | {"endTime": utc_stamp(self.timeline.now())}
        self.own_operations[name] = begun | {"metadata": ended, "done": True, "response": response}

    # Shared by the routes

    def _check(self, region: str) -> None:
        if region not in self.inventory.regions:
            raise ApiError(404, f"Location '{region}' was not found or access is unauthorized.")

    def _render(self, request: HttpRequest, document: Document, states: tuple[str, ...] = JOB_STATES) -> Document:
        wants_numbers = "enum-encoding=int" in request.query.get("$alt", "")
        shown: Document = number_enums(document, states=states) if wants_numbers else document
        return shown

    def _keep(self, job: BatchJob) -> None:
        """Stores a job's request and its state on disk."""
        kept = {"name": job.name, "uid": job.uid, "region": job.region, "body": job.body, "state": job.state}
        self.store.owe("batch_job", job.name, kept | {"created_at": utc_stamp(job.created_at)})

    def _restore(self, kept: Document) -> None:
        """Restores a job of an earlier process. If it was not over then, it has failed, because its VMs are gone."""
        created, now = datetime.fromisoformat(kept["created_at"]), self.timeline.now()
        order = read_order(kept["body"], kept["region"], self.inventory.zones_in(kept["region"]))
        job = BatchJob(kept["name"], kept["uid"], kept["region"], kept["body"], order, created, created)
        job.state = kept["state"]
        if not job.over:
            job.become("FAILED", now, "The service was started anew, and its VMs are gone.")
        self.jobs[job.name] = job


def page_documents(documents: list[Document], request: HttpRequest) -> tuple[list[Document], Document]:
    """(documents of the requested page, token of the next page). Only documents that pass the request's filter are
    counted. Raises `ApiError` (400) for invalid parameters."""
    passes = parse_filter(request.query.get("filter", ""))
    documents = [document for document in documents if passes(document)]
    try:
        size = min(max(int(request.query.get("pageSize") or MOST), 1), MOST)
        return cut_page(documents, size, request.query.get("pageToken", ""))
    except ValueError as exc:
        raise ApiError(400, "Invalid pageSize or pageToken.") from exc


# Runs the jobs of the batch service: each on at most P VMs of the job's template. A VM runs one task after the
# other.


AGENT = Sender("service-batch@embedded.example", by="batch")
PREEMPTED, NO_REPORT, TIMED_OUT, RECREATED = 50001, 50002, 50005, 50006
CODES = {"preemption": PREEMPTED, "lost": NO_REPORT}
"""The exit code of a task whose VM ended, by the reason of that end. For every other reason it is `RECREATED`."""
CAUSES = {"quota": "CODE_GCE_QUOTA_EXCEEDED", "stockout": "CODE_GCE_ZONE_RESOURCE_POOL_EXHAUSTED"}
STRIKES_AFTER_S = 30.0
MUTE_S = 120.0
"""How long a VM that no longer reports goes on working, in simulated time."""
LONGEST_S = 2 * 86_400.0
"""The longest that a job may wait for its first VM."""


@dataclass(frozen=True, slots=True)
class RunnerPace:
    """How long the service takes, in seconds."""

    queue_s: float
    """From the creation of a job until it is scheduled."""
    again_s: float
    """From the refusal of a VM until the next request for one."""


REAL = RunnerPace(0.2, 1.0)
SIMULATED = RunnerPace(10.0, 60.0)


@dataclass(slots=True, eq=False)
class RunnerWorker:
    """One VM of a job, from the moment of its request."""

    job: BatchJob
    name: str
    zone: str
    operation: str
    vm: EmbeddedVm | None = None
    task: BatchTask | None = None
    attempt: int = 0
    released: bool = False
    """Whether it is being deleted, and no longer counts as a VM of the job."""
    limit: Alarm | None = None


class Runner(BodyPart):
    """Runs jobs. Thread-safe. Its lock is taken before the fleet's lock, never while that is held."""

    def __init__(self, commons: Commons, fleet: Fleet, templates: TemplateStore) -> None:
        super().__init__(commons)
        self.fleet = fleet
        self.templates = templates
        self.pace = SIMULATED if self.timeline.simulated else REAL
        self.lock = threading.RLock()
        self.workers: dict[str, RunnerWorker] = {}
        self.ended: Callable[[BatchJob], None] = lambda _job: None
        fleet.watchers.append(self)

    # A job

    def start(self, job: BatchJob) -> None:
        job.note(self.timeline.now(), f"Job {job.name} is created and queued.", "STATUS_CHANGED")
        self._later(self.pace.queue_s, lambda: self._schedule(job))
        self._later(LONGEST_S, lambda: self._give_up(job))

    def _give_up(self, job: BatchJob) -> None:
        if job.state in ("QUEUED", "SCHEDULED"):
            job.become("FAILED", self.timeline.now(), "It was queued for too long.")
            for worker in self._of(job):
                self._drop(worker)
            self.ended(job)

    def _schedule(self, job: BatchJob) -> None:
        if job.state != "QUEUED":
            return
        now = self.timeline.now()
        silent = self.weather.take(job.name, lambda f: hits_job(f, "batch_silent", job=job.id, region=job.region))
        if silent is not None:
            cause = CAUSES[silent.params.get("cause", "quota")]
            job.note(now, f"{cause}: no VM can be made for job {job.name} now; it waits for resources.")
            if "seconds" in silent.params:
                self._later(float(silent.params["seconds"]), lambda: self._schedule(job))
            return
        no_tasks = self.weather.take(job.name, lambda f: hits_job(f, "batch_no_tasks", job=job.id, region=job.region))
        if no_tasks is not None or not self._zones(job):
            job.become("FAILED", now, "No VM can be created: the machine type is not available in this region.")
            self.ended(job)
            return
        job.begin()
        job.become("SCHEDULED", now)
        self._fill(job)

    def cancel(self, job: BatchJob, state: str, done: Callable[[], None]) -> None:
        """Ends the job: it has the state `state` while its VMs are deleted, and is CANCELLED afterwards. Then `done` is
        called."""
        if not job.over and job.state not in ("CANCELLATION_IN_PROGRESS", "DELETION_IN_PROGRESS"):
            job.become(state, self.timeline.now())
            for worker in [one for one in self.workers.values() if one.job is job]:
                self._drop(worker, "UNEXECUTED")
            for task in job.tasks:
                if task.state not in DONE:
                    job.move(task, "UNEXECUTED", self.timeline.now())
            job.pending.clear()
        self._await_end(job, done)

    def _await_end(self, job: BatchJob, done: Callable[[], None]) -> None:
        if any(worker.job is job for worker in self.workers.values()):
            self._later(1.0 if self.timeline.simulated else 0.05, lambda: self._await_end(job, done))
            return
        if not job.over:
            job.become("CANCELLED", self.timeline.now())
            self.ended(job)
        done()

    def _of(self, job: BatchJob) -> list[RunnerWorker]:
        """The VMs that a job has or has requested, without those that are being deleted."""
        return [worker for worker in self.workers.values() if worker.job is job and not worker.released]

    # VMs

    def _zones(self, job: BatchJob) -> tuple[str, ...]:
        try:
            properties = self.templates.find(template_name(job.order.template, self.fleet.project))["properties"]
        except ApiError:
            return ()
        return self.templates.zones(properties, job.order.zones)

    def _fill(self, job: BatchJob) -> None:
        """Requests VMs until there is one for each task that is left, but no more than the job may have."""
        if job.state not in ("SCHEDULED", "RUNNING"):
            return
        for _ in range(min(job.order.parallel, job.left) - len(self._of(job))):
            if not self._ask(job):
                self._again(job)
                return

    def _again(self, job: BatchJob) -> None:
        """Schedules another attempt to get VMs after a pause."""
        if not job.asks_again:
            job.asks_again = True
            self._later(self.pace.again_s, lambda: self._look(job))

    def _look(self, job: BatchJob) -> None:
        job.asks_again = False
        self._fill(job)

    def _ask(self, job: BatchJob) -> bool:
        """Requests one VM. Returns whether the request was accepted."""
        now, zones = self.timeline.now(), self._zones(job)
        if not zones:
            job.note(now, f"The instance template {job.order.template} or its machine type is gone.")
            return False
        zone = zones[job.made % len(zones)]
        job.made += 1
        name = f"{job.id[:30].rstrip('-')}-{numeric_id(job.uid)[:8]}-{job.made:04d}"
        properties = self.templates.find(template_name(job.order.template, self.fleet.project))["properties"]
        body = body_in(properties, zone, name, self.fleet.project)
        for labelled in (body, *(disk.get("initializeParams", {}) for disk in body.get("disks", []))):
            labelled["labels"] = {**labelled.get("labels", {}), **job.order.labels}
        body["labels"] |= {"batch-job-id": job.id, "batch-job-uid": job.uid}
        try:
            operation = self.fleet.insert(body, zone, AGENT, tasks=True)["name"]
        except ApiError as error:
            job.note(now, f"VM creation failed in zone {zone}: {error.message}")
            return False
        worker = RunnerWorker(job, name, zone, str(operation))
        self.workers[name] = worker
        # A refusal is known when the operation is done, which is just after the VM would be provisioned.
        self._later(self.fleet.durations.provision_s * 1.01 + 0.01, lambda: self._refused(worker))
        return True

    def _refused(self, worker: RunnerWorker) -> None:
        document = self.operations.listed[worker.operation]
        if document["status"] != FINISHED or "error" not in document or worker.name not in self.workers:
            return
        del self.workers[worker.name]
        error = document["error"]["errors"][0]
        code = CAUSES["quota" if error["code"] == "QUOTA_EXCEEDED" else "stockout"]
        worker.job.note(self.timeline.now(), f"{code}: {error['message']} (zone {worker.zone})")
        self._again(worker.job)

    def booted(self, vm: EmbeddedVm) -> None:
        """Called by the fleet when a VM has booted."""
        with self.lock:
            worker = self.workers.get(vm.name)
            if worker is None or worker.released:
                return
            worker.vm = vm
            self._next(worker)

    def gone(self, vm: EmbeddedVm, by: str) -> None:
        """Called by the fleet when a VM is gone; `by` is the reason."""
        with self.lock:
            worker = self.workers.pop(vm.name, None)
            if worker is None:
                return
            self._end_attempt(worker, CODES.get(by, RECREATED))
            self._fill(worker.job)

    def _drop(self, worker: RunnerWorker, state: str = "") -> None:
        """Deletes a VM. If `state` is given, its task is dropped."""
        if worker.name not in self.workers:
            return
        worker.released = True
        if worker.task is not None and state:
            self._unlimit(worker)
            worker.task = None
        try:
            self.fleet.act("delete", worker.zone, worker.name, {}, AGENT)
        except ApiError:
            self.workers.pop(worker.name, None)  # it was never created

    # Tasks

    def _next(self, worker: RunnerWorker) -> None:
        """Gives a VM its next task, or deletes it if there is none."""
        job, now = worker.job, self.timeline.now()
        if job.state not in ("SCHEDULED", "RUNNING") or not job.pending or worker.vm is None:
            self._drop(worker)
            return
        task = worker.task = job.tasks[job.pending.popleft()]
        task.attempts += 1
        worker.attempt = task.attempts
        where = f"zones/{worker.zone}/instances/{worker.vm.id}"
        job.move(task, "ASSIGNED", now, where)
        job.move(task, "RUNNING", now, where)
        if job.state != "RUNNING":
            job.become("RUNNING", now)
        if job.order.max_run_s is not None:
            worker.limit = self._later(job.order.max_run_s, lambda: self._time_out(worker, task))
        self._reserve(worker)
        variables = {
            **job.order.variables,
            "BATCH_JOB_ID": job.id,
            "BATCH_JOB_UID": job.uid,
            "BATCH_TASK_COUNT": str(job.order.tasks),
            "BATCH_TASK_INDEX": str(task.index),
            "BATCH_TASK_RETRY_ATTEMPT": str(task.attempts - 1),
        }
        attempt = worker.attempt
        machine = worker.vm.machine

        def done(code: int) -> None:
            self._later(0, lambda: self._done(worker, task, attempt, code))

        # This is done outside the lock, because a machine may report at once.
        self.timeline.call_later(0, lambda: machine.run_task(job.order.script, variables, done))

    def _done(self, worker: RunnerWorker, task: BatchTask, attempt: int, code: int) -> None:
        """Called when a VM reports the end of an attempt."""
        if worker.task is not task or worker.attempt != attempt or worker.released:
            return
        vm = worker.vm
        if vm is None or vm.ending or (vm.guest.preempted and code != 0):
            return  # the task ends with the reason of its VM's end
        self._end_attempt(worker, code & 0xFF if code < 0 else code)
        self._next(worker)

    def _time_out(self, worker: RunnerWorker, task: BatchTask) -> None:
        if worker.task is task and worker.vm is not None:
            vm = worker.vm
            self._end_attempt(worker, TIMED_OUT)
            self.timeline.call_later(0, vm.machine.end_task)
            self._drop(worker)
            self._fill(worker.job)

    def _unlimit(self, worker: RunnerWorker) -> None:
        if worker.limit is not None:
            worker.limit.cancel()
            worker.limit = None

    def _end_attempt(self, worker: RunnerWorker, code: int) -> None:
        """Records the end of an attempt with the exit code `code`, and ends the job if no task is left."""
        task, job, now = worker.task, worker.job, self.timeline.now()
        worker.task = None
        self._unlimit(worker)
        if task is None or task.state != "RUNNING":
            return
        where = f"zones/{worker.zone}/instances/{worker.vm.id if worker.vm else worker.name}"
        if code == 0:
            job.move(task, "SUCCEEDED", now, where, code)
        elif job.order.tries_again(code, task.attempts):
            job.move(task, "PENDING", now, where, code)
            job.pending.append(task.index)
        else:
            job.move(task, "FAILED", now, where, code)
        job.updated_at = now
        if job.left == 0 and job.state in ("SCHEDULED", "RUNNING"):
            job.become("FAILED" if job.counts["FAILED"] else "SUCCEEDED", now)
            for other in self._of(job):
                self._drop(other)
            self.ended(job)

    # Faults

    def _reserve(self, worker: RunnerWorker) -> None:
        vm = worker.vm
        assert vm is not None
        hits = lambda f: hits_vm(f, "batch_recreate", "batch_mute", vm=vm.name, zone=vm.zone, run_id=None)  # noqa: E731
        fault = self.weather.reserve(hits)
        if fault is not None:
            task = worker.task
            due = float(fault.params.get("seconds", STRIKES_AFTER_S))
            self._later(due, lambda: self._strike(worker, task, fault))

    def _strike(self, worker: RunnerWorker, task: BatchTask | None, fault: Fault) -> None:
        """Applies a fault: the VM stops reporting, or is recreated. Nothing happens if its task is done by then."""
        if worker.task is not task or task is None or worker.released:
            self.weather.release(fault)
            return
        self.weather.fire(fault, worker.name)
        if fault.kind == "batch_mute":
            # The VM is given up, and goes on working for a while beside its replacement.
            self._end_attempt(worker, NO_REPORT)
            worker.released = True
            self._later(MUTE_S if self.timeline.simulated else 1.0, lambda: self._drop(worker))
        else:
            self._end_attempt(worker, RECREATED)
            self._drop(worker)
        self._fill(worker.job)

    def _later(self, seconds: float, callback: Callable[[], None]) -> Alarm:
        def locked() -> None:
            with self.lock:
                callback()

        return self.timeline.call_later(seconds, locked)
