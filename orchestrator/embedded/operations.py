"""The log of long-running operations, in Google's form."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any

from orchestrator.embedded.documents import google_stamp, self_link
from orchestrator.embedded.errors import OperationError
from orchestrator.embedded.store import Store

DONE = "DONE"
MAKING = ("insert", "start")
GLOBAL = ""
"""The place of operations on global resources, such as images."""


class Ids:
    """Makes ids: decimal uint64 numbers that grow with time."""

    def __init__(self) -> None:
        self.counter = count(1)

    def new(self, now: datetime) -> str:
        return str(int(now.timestamp() * 1_000_000) * 1000 + next(self.counter) % 1000)


@dataclass(frozen=True, slots=True)
class OperationTarget:
    """The resource of an operation, by its path. `zone` is empty for a global resource."""

    zone: str
    path: str
    id: str


@dataclass(frozen=True, slots=True)
class Sender:
    """Who asks for an operation. `by` is the kind of sender in the bill: `client`, `vm` or `batch`."""

    user: str
    request_id: str = ""
    by: str = "client"


class Operations:
    """All operations that ever began. Thread-safe. Each change is on disk before the call returns, if the disk is not
    full. On a full disk an operation that makes something does not begin, and one that ends something does."""

    def __init__(self, project: str, store: Store, ids: Ids) -> None:
        self.project = project
        self.store = store
        self.ids = ids
        self.lock = threading.Lock()
        self.listed: dict[str, dict[str, Any]] = {}
        self.requests: dict[tuple[str, str], str] = {}
        for document in store.all("operation"):
            self._remember(document)

    def begin(self, kind: str, target: OperationTarget, now: datetime, sender: Sender, message: str = "") -> str:
        """Begins an operation and returns its name."""
        number = self.ids.new(now)
        name = f"operation-{int(now.timestamp() * 1000)}-{int(number):x}"
        at = self.place(target.zone)
        document = {
            "kind": "compute#operation",
            "id": number,
            "name": name,
            "operationType": kind,
            "targetLink": self_link(target.path),
            "targetId": target.id,
            "status": "RUNNING",
            "user": sender.user,
            "progress": 0,
            "insertTime": google_stamp(now),
            "startTime": google_stamp(now),
            "selfLink": self_link(at, "operations", name),
        }
        if target.zone:
            document["zone"] = self_link(at)
        if sender.request_id:
            document["clientOperationId"] = sender.request_id
        if message:
            document["statusMessage"] = message
        with self.lock:
            if kind in MAKING:
                self.store.put("operation", name, document)
            else:
                self.store.owe("operation", name, document)
            self._remember(document)
        return name

    def finish(self, name: str, now: datetime, error: OperationError | None = None) -> None:
        """Notes that the operation is done. Calling it again has no effect."""
        with self.lock:
            if self.listed[name]["status"] == DONE:
                return
            document = {**self.listed[name], "status": DONE, "progress": 100, "endTime": google_stamp(now)}
            if error is not None:
                document["error"] = {
                    "errors": [{"code": error.code, "message": error.message, "errorDetails": error.details}]
                }
                document["httpErrorStatusCode"] = error.http_status
                document["httpErrorMessage"] = error.http_message
            self.listed[name] = document
            self.store.owe("operation", name, document)

    def get(self, zone: str, name: str) -> dict[str, Any] | None:
        """The present state of the operation, or None if there is none."""
        with self.lock:
            operation = self.listed.get(name)
        return operation if operation is not None and self._is_at(operation, zone) else None

    def in_zone(self, zone: str) -> list[dict[str, Any]]:
        """The zone's operations, oldest first."""
        with self.lock:
            return [document for document in self.listed.values() if self._is_at(document, zone)]

    def place(self, zone: str) -> str:
        """The parent path of operations: that of a zone, or the global one if `zone` is empty."""
        return f"projects/{self.project}/zones/{zone}" if zone else f"projects/{self.project}/global"

    def _is_at(self, document: dict[str, Any], zone: str) -> bool:
        return str(document["selfLink"]).startswith(self_link(self.place(zone)) + "/")

    def replayed(self, kind: str, sender: Sender) -> dict[str, Any] | None:
        """The operation that began when this request came for the first time, or None."""
        with self.lock:
            name = self.requests.get((kind, sender.request_id)) if sender.request_id else None
            return self.listed[name] if name else None

    def close_all(self, now: datetime) -> None:
        """Finishes all open operations. After a restart nothing else would finish them."""
        for name in [name for name, document in self.listed.items() if document["status"] != DONE]:
            self.finish(name, now)

    def _remember(self, document: dict[str, Any]) -> None:
        self.listed[document["name"]] = document
        if "clientOperationId" in document:
            self.requests[(document["operationType"], document["clientOperationId"])] = document["name"]
