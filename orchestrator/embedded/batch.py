"""The routes of the batch service's v1 REST API."""

from __future__ import annotations

from datetime import datetime

from orchestrator.embedded.batch_jobs import (
    ENUMS,
    GROUP,
    JOB_ID,
    JOB_STATES,
    BatchJob,
    name_enums,
    number_enums,
    read_order,
)
from orchestrator.embedded.batch_runner import Runner
from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import utc_stamp
from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.inventory import numeric_id
from orchestrator.embedded.listener import HttpRequest
from orchestrator.embedded.lists import cut_page, parse_filter
from orchestrator.embedded.routes import Route, body_of, make_routes
from orchestrator.embedded.templates import template_name

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
                return self._shown(request, existing.document(now))
            if existing is not None:
                raise ApiError(409, f"Resource '{name}' already exists")
            job = BatchJob(name, uid, region, body, order, now, now, request_id)
            self.jobs[name] = job
            self._keep(job)
            self.runner.start(job)
            return self._shown(request, job.document(now))

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
            return self._shown(request, self.find(region, job).document(self.timeline.now()))

    def list(self, request: HttpRequest, region: str) -> Document:
        now = self.timeline.now()
        with self.runner.lock:
            in_region = [job for job in self.jobs.values() if region in ("-", job.region)]
            documents = [job.document(now) for job in in_region]
        documents.sort(key=lambda document: str(document["createTime"]), reverse=True)
        chosen, token = page_documents(documents, request)
        return self._shown(request, {"jobs": chosen, **token})

    def cancel(self, _request: HttpRequest, region: str, job: str) -> Document:
        with self.runner.lock:
            stored_job = self.find(region, job)
            if stored_job.over:
                raise ApiError(400, f"Job {stored_job.name} is {stored_job.state} and cannot be cancelled.")
            operation = self._begin("cancel", stored_job, self.timeline.now())

            def done() -> None:
                self._finish(operation, {"@type": TYPES + "CancelJobResponse"})

            self.runner.cancel(stored_job, "CANCELLATION_IN_PROGRESS", "CANCELLED", done)
            return self.own_operations[operation]

    def delete(self, _request: HttpRequest, region: str, job: str) -> Document:
        with self.runner.lock:
            stored_job = self.find(region, job)
            operation = self._begin("delete", stored_job, self.timeline.now())

            def done() -> None:
                self.jobs.pop(stored_job.name, None)
                self.store.owe("batch_job", stored_job.name, None)
                self._finish(operation, {"@type": "type.googleapis.com/google.protobuf.Empty"})

            self.runner.cancel(stored_job, "DELETION_IN_PROGRESS", "CANCELLED", done)
            return self.own_operations[operation]

    # Tasks

    def list_tasks(self, request: HttpRequest, region: str, job: str, group: str) -> Document:  # noqa: ARG002
        with self.runner.lock:
            stored_job = self.find(region, job)
            documents = [stored_job.task_document(task) for task in stored_job.tasks]
        chosen, token = page_documents(documents, request)
        return self._shown(request, {"tasks": chosen, **token}, ENUMS["taskState"])

    def get_task(self, request: HttpRequest, region: str, job: str, group: str, task: str) -> Document:
        with self.runner.lock:
            stored_job = self.find(region, job)
            if int(task) >= len(stored_job.tasks):
                raise ApiError(404, f"Resource '{stored_job.name}/taskGroups/{group}/tasks/{task}' was not found")
            return self._shown(request, stored_job.task_document(stored_job.tasks[int(task)]), ENUMS["taskState"])

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

    def _shown(self, request: HttpRequest, document: Document, states: tuple[str, ...] = JOB_STATES) -> Document:
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
