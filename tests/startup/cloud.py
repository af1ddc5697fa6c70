"""A cloud as seen from inside one VM: metadata, one bucket and the VM's own deletion, on one loopback port."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

RUN = "20261121-040506-l4-7f3a"
VM = f"bench-{RUN}-1"
BUCKET = "my-bench"
TOKEN = "ya29.token-of-the-vm"
INSTANCE = f"/compute/v1/projects/my-project/zones/us-central1-a/instances/{VM}"


@dataclass
class Fault:
    """What happens to the next `times` requests whose `METHOD path` matches: a status, a cut line, or a delay."""

    pattern: str
    status: int = 0
    cut: str = ""  # "before" nothing is done, "after" it is done and only the answer is lost
    body: bytes = b'{"error": "injected"}'
    stall_s: float = 0.0
    times: float = 1
    fired: int = 0


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
        cloud = self

        class Handler(CloudHandler):
            pass

        Handler.cloud = cloud
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
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
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

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


class CloudHandler(BaseHTTPRequestHandler):
    cloud: Cloud
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + self.cloud.clock_ahead_s, usegmt=True)

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def do_DELETE(self) -> None:
        self.serve()

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.matching_fault(body)
        if fault is not None:
            if fault.stall_s:
                self.cloud.closing.wait(fault.stall_s)
            if fault.cut == "before":
                self.close_connection = True
                return
            if fault.status:
                self.answer(fault.status, fault.body)
                return
        status, content, headers = self.route(body)
        if fault is not None and fault.cut == "after":
            self.close_connection = True
            return
        self.answer(status, content, headers)

    def matching_fault(self, body: bytes) -> Fault | None:
        """The first fault that fits. A multipart upload has its object's name in the body: it counts as part of the path."""
        line = f"{self.command} {unquote(self.path)} {self.object_in(body)}".strip()
        with self.cloud.lock:
            self.cloud.requests.append(line)
            for fault in self.cloud.faults:
                if fault.fired < fault.times and re.search(fault.pattern, line):
                    fault.fired += 1
                    return fault
        return None

    def object_in(self, body: bytes) -> str:
        found = re.search(rb'"name": "([^"]+)"', body) if "multipart" in self.path else None
        return found.group(1).decode() if found else ""

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def route(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.startswith("/computeMetadata/v1/"):
            return self.read_metadata(url.path.removeprefix("/computeMetadata/v1/"), query)
        if self.headers.get("Authorization") != f"Bearer {self.cloud.token}":
            self.cloud.refused.append(self.path)
            return 401, b"", {}
        if url.path.startswith("/upload/"):
            return self.store(query, body)
        if self.command == "DELETE" and url.path == INSTANCE:
            self.cloud.deleted += 1
            self.cloud.takes_effect("DELETE instance")
            return 200, b'{"kind": "compute#operation"}', {}
        objects = f"/storage/v1/b/{BUCKET}/o"
        if url.path == objects:
            return self.list(query)
        if url.path.startswith(objects + "/") and query.get("alt") == "media":
            content = self.cloud.objects.get(unquote(url.path.removeprefix(objects + "/")))
            name = unquote(url.path.removeprefix(objects + "/"))
            generation = {"x-goog-generation": str(self.cloud.generations.get(name, 1))}
            return (200, content, generation) if content is not None else (404, b"", {})
        return 404, b"", {}

    def read_metadata(self, key: str, query: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        cloud = self.cloud
        if self.headers.get("Metadata-Flavor") != "Google":
            return 403, b"", {}
        if key == "instance/service-accounts/default/token":
            grant = {"access_token": cloud.token, "expires_in": 3599, "token_type": "Bearer"}
            return 200, json.dumps(grant).encode(), {}
        if key == "instance/preempted":
            if query.get("wait_for_change") == "true" and query.get("last_etag") != "other":
                cloud.preemption.wait(float(query.get("timeout_sec", "60")))
            preempted = cloud.preemption.is_set() and not cloud.closing.is_set()
            return 200, b"TRUE" if preempted else b"FALSE", {"ETag": "1" if preempted else "0"}
        value = cloud.metadata.get(key)
        return (200, value.encode(), {}) if value is not None else (404, b"", {})

    def store(self, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if query["uploadType"] == "multipart":
            boundary = self.headers["Content-Type"].split("boundary=")[1].encode()
            _, head, media, _ = body.split(b"--" + boundary)
            resource = json.loads(head.split(b"\r\n\r\n", 1)[1])
            name, content = resource["name"], media.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")
            if base64.b64encode(hashlib.md5(content).digest()).decode() != resource["md5Hash"]:
                return 400, b"the content does not have this md5Hash", {}
        else:
            name, content = query["name"], body
        with self.cloud.lock:
            there = self.cloud.generations.get(name, 1) if name in self.cloud.objects else 0
            if query.get("ifGenerationMatch") not in (None, str(there)):
                return 412, b"", {}
            self.cloud.objects[name] = content
            self.cloud.generations[name] = there + 1
            self.cloud.written_at[name] = time.monotonic()
            self.cloud.takes_effect("STORE " + name.removeprefix(f"runs/{RUN}/"))
        self.cloud.on_stored(name)
        return 200, json.dumps({"name": name, "generation": str(there + 1)}).encode(), {}

    def list(self, query: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        names = sorted(name for name in self.cloud.objects if name.startswith(query["prefix"]))
        begin = int(query.get("pageToken", "0"))
        page = {"items": [{"name": name} for name in names[begin : begin + self.cloud.page_size]]}
        if begin + self.cloud.page_size < len(names):
            page["nextPageToken"] = str(begin + self.cloud.page_size)  # type: ignore[assignment]
        return 200, json.dumps(page).encode(), {}
