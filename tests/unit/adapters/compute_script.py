"""Just enough of Compute Engine to play the adapter a trick: answers lost before or after the deed, odd operations."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.support.scripted_server import Answer, Reply, Request, google_error

HOST = "https://www.googleapis.com/compute/v1/"
Json = dict[str, Any]


@dataclass
class Compute:
    """Handles requests for `scripted_server`. What is queued in the lists is used up one by one."""

    before: list[Answer] = field(default_factory=list)
    """Given instead of doing anything."""
    after: list[Answer] = field(default_factory=list)
    """Given instead of the true answer, once the deed is done."""
    failures: list[Json] = field(default_factory=list)
    """What the next operations end with: fields of an operation."""
    polls: int = 1
    """How often an operation is waited for before it is done."""
    vms: dict[str, Json] = field(default_factory=dict)
    operations: dict[str, Json] = field(default_factory=dict)
    inserted: int = 0
    queue: bool = False
    """A VM waits for capacity; the operation of its insert stays open."""
    vanish: bool = False
    """A VM is gone as soon as its insert is done."""
    keep: int = 0
    """How many deletes delete nothing."""

    def __call__(self, request: Request) -> Answer:
        if self.before:
            return self.before.pop(0)
        answer = self.answer(request)
        return self.after.pop(0) if self.after else answer

    def answer(self, request: Request) -> Answer:
        found = re.fullmatch(
            r"/compute/v1/projects/([^/]+)/zones/([^/]+)/(instances|operations)(?:/(.+))?", request.path
        )
        if found is None:
            return google_error(404, f"no such method: {request.path}", "notFound")
        project, zone, kind, rest = found[1], found[2], found[3], found[4] or ""
        if kind == "operations":
            return self.about_operations(request, rest)
        if request.method == "POST":
            return self.insert(request, f"projects/{project}/zones/{zone}")
        path = f"projects/{project}/zones/{zone}/instances/{rest}"
        if rest not in self.vms:
            return google_error(404, f"The resource '{path}' was not found", "notFound")
        if request.method == "DELETE":
            if self.keep:
                self.keep -= 1
            else:
                del self.vms[rest]
            return self.operation("delete", path, request)
        return Reply(json=self.vms[rest])

    def insert(self, request: Request, place: str) -> Answer:
        for operation in self.operations.values():
            if operation["clientOperationId"] == request.query.get("requestId"):
                return Reply(json=operation)
        body = request.json
        name = body["name"]
        path = f"{place}/instances/{name}"
        if name in self.vms:
            return google_error(409, f"The resource '{path}' already exists", "alreadyExists")
        self.inserted += 1
        if not self.failures and not self.vanish:
            self.vms[name] = vm(body, path, number=1000 + self.inserted)
            if self.queue:
                self.vms[name].update(status="PENDING", lastStartTimestamp=None)
        return self.operation("insert", path, request)

    def operation(self, kind: str, path: str, request: Request) -> Answer:
        name = f"operation-{len(self.operations) + 1}"
        self.operations[name] = {
            "name": name,
            "id": str(7000 + len(self.operations)),
            "operationType": kind,
            "targetLink": HOST + path,
            "targetId": "1001",
            "status": "RUNNING",
            "clientOperationId": request.query.get("requestId"),
            "insertTime": f"2026-11-20T20:05:0{len(self.operations)}.000-08:00",
            "startTime": f"2026-11-20T20:05:0{len(self.operations)}.500-08:00",
            "user": "ann@example.org",
            "_left": self.polls,
            "_end": self.failures.pop(0) if self.failures else {},
        }
        return Reply(json=self.operations[name])

    def about_operations(self, request: Request, rest: str) -> Answer:
        name = rest.removesuffix("/wait")
        if not rest:
            return Reply(json={"items": list(self.operations.values())})
        if name not in self.operations:
            return google_error(404, f"The resource 'operations/{name}' was not found", "notFound")
        operation = self.operations[name]
        operation["_left"] -= 1
        if operation["_left"] <= 0:
            operation.update(status="DONE", progress=100, endTime="2026-11-20T20:05:20.000-08:00", **operation["_end"])
        return Reply(json=operation)


def vm(body: Json, path: str, number: int) -> Json:
    return {
        **body,
        "id": str(number),
        "zone": HOST + path.partition("/instances/")[0],
        "status": "RUNNING",
        "creationTimestamp": "2026-11-20T20:05:06.000-08:00",
        "lastStartTimestamp": "2026-11-20T20:05:16.000-08:00",
        "selfLink": HOST + path,
    }
