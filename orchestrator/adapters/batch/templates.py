"""Instance templates and jobs on them, by Google's own client: made once, found there, deleted when unused."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.api_core import exceptions
from google.cloud import batch_v1
from google.protobuf.json_format import ParseDict

from orchestrator.adapters.batch.bodies import with_one_limit
from orchestrator.adapters.google.compute_calls import parse_guard
from orchestrator.adapters.google.compute_library import compute_v1
from orchestrator.adapters.google.errors import is_transient, patiently, translate_google_errors
from orchestrator.adapters.google.network import Session
from orchestrator.core.errors import ProviderError
from orchestrator.ports import Clock

WAIT_S = 120.0
T = TypeVar("T")


def send_unless_refused(
    clock: Clock, call: Callable[[], T], doing: str, unless: tuple[type[Exception], ...] = ()
) -> T | None:
    """What Google answers to `call`, sent again while that may help; None where it refuses in one of these ways.
    `doing` completes "cannot …". Raises `ProviderError` and its kin."""

    def once() -> T:
        with parse_guard():
            return call()

    with translate_google_errors(doing):
        try:
            return patiently(clock, once, passing=is_transient)
        except unless:
            return None


def create_job(
    client: batch_v1.BatchServiceClient, clock: Clock, name: str, body: Mapping[str, Any], request_id: str
) -> None:
    """Asks Batch for a job by its full name. Idempotent: one of that name was made by an earlier request."""
    job = batch_v1.Job()
    ParseDict(dict(body), type(job).pb(job))
    parent, _, short = name.partition("/jobs/")
    request = {"parent": parent, "job_id": short, "job": job, "request_id": request_id}
    doing = f"create the job {short} in {parent.rpartition('/')[2]}"
    send_unless_refused(clock, lambda: client.create_job(request=request), doing, (exceptions.Conflict,))


class InstanceTemplates:
    """Those of one project."""

    def __init__(self, project: str, clock: Clock, session: Session) -> None:
        self.project = project
        self.clock = clock
        self.client = session.client(compute_v1.InstanceTemplatesClient)
        self.operations = session.client(compute_v1.GlobalOperationsClient)

    def insert(self, body: Mapping[str, Any]) -> None:
        """Idempotent: one of that name is taken to be this one, as its name says which job it is of."""
        resource = compute_v1.InstanceTemplate()
        ParseDict(dict(body), type(resource).pb(resource))
        name = uuid.uuid5(uuid.NAMESPACE_URL, f"spotbench:template/{body['name']}/{len(str(body))}")
        request = {"project": self.project, "instance_template_resource": resource, "request_id": str(name)}
        doing = f"make the instance template {body['name']}"
        begun = send_unless_refused(
            self.clock, lambda: self.client.insert_unary(request=request), doing, (exceptions.Conflict,)
        )
        if begun is not None:
            wait = {"project": self.project, "operation": begun.name}
            send_unless_refused(self.clock, lambda: self.operations.wait(request=wait, timeout=WAIT_S), doing)

    def insert_with_an_end(self, body: Mapping[str, Any]) -> bool:
        """The same of a template with two limits; False where Google takes one alone, and the absolute end was kept."""
        try:
            self.insert(body)
        except ProviderError as exc:
            if "maxRunDuration" not in str(exc) and "terminationTime" not in str(exc):
                raise
            self.insert(with_one_limit(body))
            return False
        return True

    def delete(self, name: str) -> None:
        """Idempotent; one that is still in use stays, and costs nothing."""
        request = {"project": self.project, "instance_template": name}
        doing, stays = f"delete the instance template {name}", (exceptions.NotFound, exceptions.BadRequest)
        send_unless_refused(self.clock, lambda: self.client.delete_unary(request=request), doing, stays)
