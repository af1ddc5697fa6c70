"""A cloud as seen from inside one VM: metadata, one bucket and the VM's own deletion, on one loopback port."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.support.patience import PATIENCE_S
from tests.support.scripted_server import Answer, Drop, Reply, Request, scripted_server

RUN = "20261121-040506-l4-7f3a"
VM = f"bench-{RUN}-1"
BUCKET = "my-bench"
TOKEN = "ya29.token-of-the-vm"
INSTANCE = f"/compute/v1/projects/my-project/zones/us-central1-a/instances/{VM}"


@dataclass
class Fault:
    """What happens to the next `times` requests whose `METHOD path` matches: a status, a cut line, or a delay, for a
    time or until an event. `done` counts those that were then carried out, whether or not anybody waits for the answer
    any more."""

    pattern: str
    status: int = 0
    cut: str = ""  # "before" nothing is done, "after" it is done and only the answer is lost
    body: bytes = b'{"error": "injected"}'
    stall_s: float = 0.0
    until: threading.Event | None = None
    times: float = 1
    fired: int = 0
    done: int = 0


@dataclass
class Cloud:
    """The state, open to tests. `journal` has `METHOD name` of everything that took effect, in order."""

    spec: dict[str, Any]
    payload: bytes = b""
    sha256: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    written_at: dict[str, float] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    journal: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    deleted: int = 0
    clock_ahead_s: float = 0.0
    page_size: int = 1000
    token: str = TOKEN
    on_stored: Callable[[str], None] = lambda name: None
    lock: threading.RLock = field(default_factory=threading.RLock)
    preemption: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Cloud:
        self.stack = ExitStack()
        self.url = self.stack.enter_context(scripted_server(self.serve, lambda: time.time() + self.clock_ahead_s)).url
        self.sha256 = self.sha256 or hashlib.sha256(self.payload).hexdigest()
        self.objects[f"payloads/{self.sha256}.tar.gz"] = self.payload
        where = {"storage": self.url, "compute": self.url}
        payload = {"bucket": BUCKET, "object": f"payloads/{self.sha256}.tar.gz", "sha256": self.sha256}
        self.metadata = {
            "instance/id": "4711",
            "instance/name": VM,
            "instance/zone": "projects/1234/zones/us-central1-a",
            "instance/machine-type": "projects/1234/machineTypes/g2-standard-4",
            "instance/image": "projects/images/global/images/common-cu129-v20261101",
            "project/project-id": "my-project",
            "instance/attributes/bench-run": json.dumps(self.spec),
            "instance/attributes/bench-payload": json.dumps(payload),
            "instance/attributes/bench-endpoints": json.dumps(where),
            **self.metadata,
        }
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self.preemption.set()
        self.stack.close()

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def fail(self, pattern: str, **what: Any) -> Fault:
        fault = Fault(pattern, **what)
        self.faults.append(fault)
        return fault

    def preempt(self) -> None:
        self.preemption.set()

    def events(self, run_id: str = RUN) -> list[dict[str, Any]]:
        """A run's event log, in the order of the objects' names."""
        prefix = f"runs/{run_id}/events/"
        return [json.loads(body) for name, body in sorted(self.objects.items()) if name.startswith(prefix)]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events() if event["kind"] == kind]

    def artifact(self, name: str) -> str:
        return self.objects[f"runs/{RUN}/artifacts/{name}"].decode()

    def takes_effect(self, what: str) -> None:
        with self.lock:
            self.journal.append(what)

    def serve(self, asked: Request) -> Answer:
        fault = self.matching_fault(asked)
        if fault is not None:
            if fault.stall_s:
                self.closing.wait(fault.stall_s)
            if fault.until is not None:
                fault.until.wait(PATIENCE_S)
            if fault.cut == "before":
                return Drop()
            if fault.status:
                return Reply(fault.status, data=fault.body)
        status, content, headers = self.route(asked)
        if fault is not None:
            fault.done += 1
        if fault is not None and fault.cut == "after":
            return Drop()
        return Reply(status, data=content, headers=headers)

    def matching_fault(self, asked: Request) -> Fault | None:
        """The first fault that fits. A multipart upload has its object's name in the body: it counts as part of the path."""
        found = re.search(rb'"name": "([^"]+)"', asked.body) if "multipart" in asked.target else None
        line = f"{asked.method} {unquote(asked.target)} {found[1].decode() if found else ''}".strip()
        with self.lock:
            self.requests.append(line)
            for fault in self.faults:
                if fault.fired < fault.times and re.search(fault.pattern, line):
                    fault.fired += 1
                    return fault
        return None

    def route(self, asked: Request) -> tuple[int, bytes, dict[str, str]]:
        path, query = asked.path, asked.query
        if path.startswith("/computeMetadata/v1/"):
            return self.read_metadata(path.removeprefix("/computeMetadata/v1/"), asked)
        if asked.header("Authorization") != f"Bearer {self.token}":
            self.refused.append(asked.target)
            return 401, b"", {}
        if path.startswith("/upload/"):
            return self.store(asked)
        if asked.method == "DELETE" and path == INSTANCE:
            self.deleted += 1
            self.takes_effect("DELETE instance")
            return 200, b'{"kind": "compute#operation"}', {}
        objects = f"/storage/v1/b/{BUCKET}/o"
        if path == objects:
            return self.list(query)
        if path.startswith(objects + "/") and query.get("alt") == "media":
            name = path.removeprefix(objects + "/")
            content = self.objects.get(name)
            generation = {"x-goog-generation": str(self.generations.get(name, 1))}
            return (200, content, generation) if content is not None else (404, b"", {})
        return 404, b"", {}

    def read_metadata(self, key: str, asked: Request) -> tuple[int, bytes, dict[str, str]]:
        query = asked.query
        if asked.header("Metadata-Flavor") != "Google":
            return 403, b"", {}
        if key == "instance/service-accounts/default/token":
            grant = {"access_token": self.token, "expires_in": 3599, "token_type": "Bearer"}
            return 200, json.dumps(grant).encode(), {}
        if key == "instance/preempted":
            if query.get("wait_for_change") == "true" and query.get("last_etag") != "other":
                self.preemption.wait(float(query.get("timeout_sec", "60")))
            preempted = self.preemption.is_set() and not self.closing.is_set()
            return 200, b"TRUE" if preempted else b"FALSE", {"ETag": "1" if preempted else "0"}
        value = self.metadata.get(key)
        return (200, value.encode(), {}) if value is not None else (404, b"", {})

    def store(self, asked: Request) -> tuple[int, bytes, dict[str, str]]:
        query, body = asked.query, asked.body
        if query["uploadType"] == "multipart":
            boundary = asked.header("Content-Type").split("boundary=")[1].encode()
            _, head, media, _ = body.split(b"--" + boundary)
            resource = json.loads(head.split(b"\r\n\r\n", 1)[1])
            name, content = resource["name"], media.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")
            if base64.b64encode(hashlib.md5(content).digest()).decode() != resource["md5Hash"]:
                return 400, b"the content does not have this md5Hash", {}
        else:
            name, content = query["name"], body
        with self.lock:
            there = self.generations.get(name, 1) if name in self.objects else 0
            if query.get("ifGenerationMatch") not in (None, str(there)):
                return 412, b"", {}
            self.objects[name] = content
            self.generations[name] = there + 1
            self.written_at[name] = time.monotonic()
            self.takes_effect("STORE " + name.removeprefix(f"runs/{RUN}/"))
        self.on_stored(name)
        return 200, json.dumps({"name": name, "generation": str(there + 1)}).encode(), {}

    def list(self, query: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]]:
        names = sorted(name for name in self.objects if name.startswith(query["prefix"]))
        begin = int(query.get("pageToken", "0"))
        page = {"items": [{"name": name} for name in names[begin : begin + self.page_size]]}
        if begin + self.page_size < len(names):
            page["nextPageToken"] = str(begin + self.page_size)  # type: ignore[assignment]
        return 200, json.dumps(page).encode(), {}
