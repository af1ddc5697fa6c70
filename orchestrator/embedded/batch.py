"""The routes of the batch service's v1 REST API."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime

from orchestrator.embedded.batch_jobs import ENUMS, GROUP, JOB_ID, JOB_STATES, Job, named, numbered, read_order
from orchestrator.embedded.batch_runner import Runner
from orchestrator.embedded.commons import Commons, Part
from orchestrator.embedded.documents import stamp
from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.filters import parse_filter
from orchestrator.embedded.inventory import numeric_id
from orchestrator.embedded.listener import Request
from orchestrator.embedded.requests import body_of
from orchestrator.embedded.templates import template_name

Answer = Callable[..., Document]
AT = r"/v1/projects/(?P<project>[^/:]+)/locations/(?P<region>[^/:]+)"
ONE = AT + r"/jobs/(?P<job>[^/:]+)"
TASKS = ONE + rf"/taskGroups/(?P<group>{GROUP})/tasks"
TYPES = "type.googleapis.com/google.cloud.batch.v1."
MOST = 1000
MOST_BYTES = 1_000_000


class Batch(Part):
    """Answers requests; raises `ApiError`. Jobs are read and changed under the runner's lock."""

    def __init__(self, commons: Commons, runner: Runner) -> None:
        super().__init__(commons)
        self.runner = runner
        self.jobs: dict[str, Job] = {}
        self.own_operations: dict[str, Document] = {}
        runner.ended = self._keep
        for kept in self.store.all("batch_job"):
            self._restore(kept)

    def routes(self) -> list[tuple[str, str, str, Answer]]:
        """(service, verb, pattern of the path, function that answers). The caller checks the project in a path."""
        return [
            ("batch", "POST", AT + "/jobs", self.create),
            ("batch", "GET", AT + "/jobs", self.list),
            ("batch", "GET", ONE, self.get),
            ("batch", "DELETE", ONE, self.delete),
            ("batch", "POST", ONE + ":cancel", self.cancel),
            ("batch", "GET", TASKS, self.list_tasks),
            ("batch", "GET", TASKS + r"/(?P<task>\d+)", self.get_task),
            ("batch", "GET", AT + r"/operations/(?P<name>[^/:]+)", self.get_operation),
        ]

    # Jobs

    def create(self, request: Request, region: str) -> Document:
        self._check(region)
        if len(request.body) > MOST_BYTES:
            raise ApiError(400, f"The job definition is larger than {MOST_BYTES} bytes.")
        body, now = named(body_of(request)), self.timeline.now()
        request_id = request.query.get("requestId", "")
        uid = f"job-{numeric_id(f'{region} {stamp(now)} {len(self.jobs)}')[:12]}"
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
            job = Job(name, uid, region, body, order, now, now, request_id)
            self.jobs[name] = job
            self._keep(job)
            self.runner.start(job)
            return self._shown(request, job.document(now))

    def find(self, region: str, job: str) -> Job:
        """The job. Raises the API's 404 if there is none."""
        self._check(region)
        name = f"projects/{self.project}/locations/{region}/jobs/{job}"
        found = self.jobs.get(name)
        if found is None:
            raise ApiError(404, f"Resource '{name}' was not found")
        return found

    def get(self, request: Request, region: str, job: str) -> Document:
        with self.runner.lock:
            return self._shown(request, self.find(region, job).document(self.timeline.now()))

    def list(self, request: Request, region: str) -> Document:
        now = self.timeline.now()
        with self.runner.lock:
            in_region = [job for job in self.jobs.values() if region in ("-", job.region)]
            documents = [job.document(now) for job in in_region]
        documents.sort(key=lambda document: str(document["createTime"]), reverse=True)
        chosen, token = paged(documents, request)
        return self._shown(request, {"jobs": chosen, **token})

    def cancel(self, _request: Request, region: str, job: str) -> Document:
        with self.runner.lock:
            found = self.find(region, job)
            if found.over:
                raise ApiError(400, f"Job {found.name} is {found.state} and cannot be cancelled.")
            operation = self._begin("cancel", found, self.timeline.now())

            def done() -> None:
                self._finish(operation, {"@type": TYPES + "CancelJobResponse"})

            self.runner.cancel(found, "CANCELLATION_IN_PROGRESS", "CANCELLED", done)
            return self.own_operations[operation]

    def delete(self, _request: Request, region: str, job: str) -> Document:
        with self.runner.lock:
            found = self.find(region, job)
            operation = self._begin("delete", found, self.timeline.now())

            def done() -> None:
                self.jobs.pop(found.name, None)
                self.store.owe("batch_job", found.name, None)
                self._finish(operation, {"@type": "type.googleapis.com/google.protobuf.Empty"})

            self.runner.cancel(found, "DELETION_IN_PROGRESS", "CANCELLED", done)
            return self.own_operations[operation]

    # Tasks

    def list_tasks(self, request: Request, region: str, job: str, group: str) -> Document:  # noqa: ARG002
        with self.runner.lock:
            found = self.find(region, job)
            documents = [found.task_document(task) for task in found.tasks]
        chosen, token = paged(documents, request)
        return self._shown(request, {"tasks": chosen, **token}, ENUMS["taskState"])

    def get_task(self, request: Request, region: str, job: str, group: str, task: str) -> Document:
        with self.runner.lock:
            found = self.find(region, job)
            if int(task) >= len(found.tasks):
                raise ApiError(404, f"Resource '{found.name}/taskGroups/{group}/tasks/{task}' was not found")
            return self._shown(request, found.task_document(found.tasks[int(task)]), ENUMS["taskState"])

    # Operations

    def get_operation(self, _request: Request, region: str, name: str) -> Document:
        path = f"projects/{self.project}/locations/{region}/operations/{name}"
        with self.runner.lock:
            found = self.own_operations.get(path)
        if found is None:
            raise ApiError(404, f"Operation '{path}' was not found")
        return found

    def _begin(self, verb: str, job: Job, now: datetime) -> str:
        number = numeric_id(f"{job.name} {verb} {stamp(now)} {len(self.own_operations)}")
        name = f"projects/{self.project}/locations/{job.region}/operations/operation-{number}"
        self.own_operations[name] = {
            "name": name,
            "metadata": {
                "@type": TYPES + "OperationMetadata",
                "createTime": stamp(now),
                "target": job.name,
                "verb": verb,
                "apiVersion": "v1",
            },
            "done": False,
        }
        return name

    def _finish(self, name: str, response: Document) -> None:
        begun = self.own_operations[name]
        ended = begun["metadata"] | {"endTime": stamp(self.timeline.now())}
        self.own_operations[name] = begun | {"metadata": ended, "done": True, "response": response}

    # Shared by the routes

    def _check(self, region: str) -> None:
        if region not in self.inventory.regions:
            raise ApiError(404, f"Location '{region}' was not found or access is unauthorized.")

    def _shown(self, request: Request, document: Document, states: tuple[str, ...] = JOB_STATES) -> Document:
        wants_numbers = "enum-encoding=int" in request.query.get("$alt", "")
        shown: Document = numbered(document, states=states) if wants_numbers else document
        return shown

    def _keep(self, job: Job) -> None:
        """Stores a job's request and its state on disk."""
        kept = {"name": job.name, "uid": job.uid, "region": job.region, "body": job.body, "state": job.state}
        self.store.owe("batch_job", job.name, kept | {"created_at": stamp(job.created_at)})

    def _restore(self, kept: Document) -> None:
        """Restores a job of an earlier process. If it was not over then, it has failed, because its VMs are gone."""
        created, now = datetime.fromisoformat(kept["created_at"]), self.timeline.now()
        order = read_order(kept["body"], kept["region"], self.inventory.zones_in(kept["region"]))
        job = Job(kept["name"], kept["uid"], kept["region"], kept["body"], order, created, created)
        job.state = kept["state"]
        if not job.over:
            job.become("FAILED", now, "The service was started anew, and its VMs are gone.")
        self.jobs[job.name] = job


def paged(documents: list[Document], request: Request) -> tuple[list[Document], Document]:
    """(documents of the requested page, token of the next page). Only documents that pass the request's filter are
    counted; the token is empty on the last page. Raises `ApiError` (400) for invalid parameters."""
    passes = parse_filter(request.query.get("filter", ""))
    documents = [document for document in documents if passes(document)]
    try:
        size = int(request.query.get("pageSize") or MOST)
        start = int(base64.urlsafe_b64decode(request.query.get("pageToken", "") or "MA==").decode())
    except ValueError as exc:
        raise ApiError(400, "Invalid pageSize or pageToken.") from exc
    end = start + min(max(size, 1), MOST)
    token = base64.urlsafe_b64encode(str(end).encode()).decode()
    return documents[start:end], {"nextPageToken": token} if end < len(documents) else {}
