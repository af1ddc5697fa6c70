"""What a machine of a cloud would find around it, on loopback, for one run: metadata, storage, and its own deletion.

The paths are those of `docs/contracts.md`, section 2, so that bootstrap and agent run here as they do on a rented VM.
There are no credentials: whoever connects must be the user who owns the run, which the kernel says of each connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from startup.host.spool import BadName, Spool

LOOPBACK = "127.0.0.1"
LONGEST_BODY = 64 << 20
NO_TOKEN = "none"
PROJECT = "host"


@dataclass
class ServedMachine:
    """What the run is told of its machine. `now` is the client's time: this host's clock may be off."""

    run: Mapping[str, Any]
    spool: Spool
    now: Callable[[], float] = time.time
    preempted: threading.Event = field(default_factory=threading.Event)
    deleted: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def given(self, name: str) -> tuple[bytes, int] | None:
        """A candidate that a client has brought here (`runs.py`), and its generation; None if there is none."""
        try:
            return (self.spool.folder.parent / "given" / self.spool.path(name).name).read_bytes(), 1
        except (OSError, BadName):
            return None

    @property
    def attributes(self) -> dict[str, str]:
        endpoints = json.dumps({"storage": self.url, "compute": self.url})
        return {**self.run["metadata"], "bench-endpoints": endpoints}


def owns_peer(peer: tuple[str, int], server: tuple[str, int], table: Path = Path("/proc/net/tcp")) -> bool:
    """Whether the process at the other end of a loopback connection is of our own user, or of root.

    Of a connection that no process holds any more the table says root, whoever made it: it has no inode, and is
    nobody's.
    """
    wanted = [table_cell(peer), table_cell(server)]
    try:
        with table.open(encoding="ascii") as file:
            for line in file:
                cells = line.split()
                if len(cells) > 9 and cells[1:3] == wanted:
                    return cells[9] != "0" and int(cells[7]) in (0, os.getuid())
    except OSError:
        return False
    return False


def table_cell(address: tuple[str, int]) -> str:
    """How the kernel writes an address there."""
    host = "".join(f"{int(part):02X}" for part in reversed(address[0].split(".")))
    return f"{host}:{address[1]:04X}"


class OwnServer(ThreadingHTTPServer):
    """For our own user alone, on loopback, from threads that end with the process."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((LOOPBACK, 0), handler)
        self.url = f"http://{LOOPBACK}:{self.server_address[1]}"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        try:
            return owns_peer(client_address, request.getsockname())
        except OSError:  # it is gone already
            return False


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing: what matters is in the run's own log."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """`headers` over those that every answer has; a name's hyphens are underscores."""
        try:
            self.send_response(status)
            for name, value in {"content_type": "application/json", "metadata_flavor": "Google", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # whoever asked is gone


class ServicesServer(OwnServer):
    """Serves one machine."""

    def __init__(self, machine: ServedMachine) -> None:
        self.machine = machine
        super().__init__(ServicesHandler)
        machine.url = self.url


class ServicesHandler(QuietHandler):
    server: ServicesServer

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.server.machine.now() if timestamp is None else timestamp, usegmt=True)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.startswith("/computeMetadata/v1/"):
            self.metadata(url.path.removeprefix("/computeMetadata/v1/"), parse_qs(url.query))
        elif url.path.startswith("/storage/v1/b/"):
            self.storage(url.path.removeprefix("/storage/v1/b/"), parse_qs(url.query))
        else:
            self.answer(404)

    def do_POST(self) -> None:
        length_text = self.headers.get("Content-Length") or "0"
        length = int(length_text) if length_text.isdecimal() and len(length_text) < 12 else -1
        if not 0 <= length <= LONGEST_BODY:  # fewer than none would be read to the end, which may never come
            self.close_connection = True
            self.answer(413)
            return
        body, url = self.rfile.read(length), urlsplit(self.path)
        if len(body) < length:  # whoever sent it was killed: half an object is none
            self.close_connection = True
            return
        if not url.path.startswith("/upload/storage/v1/b/"):
            self.answer(404)
            return
        query = parse_qs(url.query)
        try:
            name, data = self.parse_upload(query, body)
            over = query.get("ifGenerationMatch")
            generation = self.server.machine.spool.put(name, data, None if over is None else int(over[0]))
        except (BadName, ValueError, KeyError) as error:
            self.answer(400, str(error).encode())
        except OSError as error:
            # The agent insists for a while on what may pass: a disk can be cleared while it does.
            self.answer(503, f"the spool cannot be written: {error.strerror}".encode())
        else:
            object_facts = {"name": name, "generation": str(generation)}
            self.answer(200 if generation else 412, json.dumps(object_facts).encode())

    def do_DELETE(self) -> None:
        ours = self.path.rpartition("/")[2] == self.server.machine.run["vm"]
        if ours and self.path.startswith("/compute/v1/"):
            self.server.machine.deleted.set()
            self.answer(200, b"{}")
        else:
            self.answer(404)

    # --- each service ---

    def metadata(self, key: str, query: Mapping[str, list[str]]) -> None:
        machine = self.server.machine
        if self.headers.get("Metadata-Flavor") != "Google":
            self.answer(403)
            return
        if key == "instance/preempted":
            if query.get("wait_for_change") == ["true"]:
                machine.preempted.wait(float(query.get("timeout_sec", ["60"])[0]))
            self.answer(200, b"TRUE" if machine.preempted.is_set() else b"FALSE")
            return
        run = machine.run
        metadata_values = {
            "instance/id": run["id"],
            "instance/name": run["vm"],
            "instance/zone": f"projects/{PROJECT}/zones/{run['zone']}",
            "project/project-id": PROJECT,
            "instance/service-accounts/default/token": json.dumps({"access_token": NO_TOKEN, "expires_in": 86400}),
        }
        attribute = key.removeprefix("instance/attributes/")
        value = machine.attributes.get(attribute) if attribute != key else metadata_values.get(key)
        self.answer(404 if value is None else 200, (value or "").encode(), content_type="text/plain")

    def storage(self, path: str, query: Mapping[str, list[str]]) -> None:
        machine = self.server.machine
        _, _, object_path = path.partition("/")
        if object_path == "o":
            names = machine.spool.names(query.get("prefix", [""])[0])[: int(query.get("maxResults", ["1000000"])[0])]
            self.answer(200, json.dumps({"items": [{"name": name} for name in names]}).encode())
            return
        name = unquote(object_path.removeprefix("o/"))
        payload = json.loads(machine.run["metadata"]["bench-payload"])["object"]
        stored = (Path(machine.run["payload"]).read_bytes(), 1) if name == payload else machine.spool.read(name)
        if stored is None and name.startswith("payloads/sessions/"):
            stored = machine.given(name)
        if stored is None:
            self.answer(404)
        else:
            data, generation = stored
            self.answer(200, data, content_type="application/octet-stream", x_goog_generation=str(generation))

    def parse_upload(self, query: Mapping[str, list[str]], body: bytes) -> tuple[str, bytes]:
        """Name and bytes of an upload. Raises ValueError for one that was damaged on the way."""
        if query.get("uploadType") == ["media"]:
            return query["name"][0], body
        boundary = b"--" + str(self.headers.get_param("boundary")).encode()
        _, resource_part, after_resource = body.split(boundary, 2)
        resource = json.loads(resource_part.partition(b"\r\n\r\n")[2])
        data = after_resource.partition(b"\r\n\r\n")[2].rpartition(b"\r\n" + boundary + b"--")[0]
        name = str(resource["name"])
        if base64.b64encode(hashlib.md5(data).digest()).decode() != resource.get("md5Hash"):
            raise ValueError(f"{name} was damaged on the way")
        return name, data
