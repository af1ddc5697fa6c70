"""What bootstrap and agent find around them in a task: the metadata of one child on loopback, and their own deletion.

Everything else (tokens, preemption, where the machine stands) is the real metadata server's, passed on. A machine of
Batch that deletes itself is made again, so the deletion ends here: it is the end of the task.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from startup.agent.http_client import Unreachable, send_request
from startup.host.services import OwnServer, QuietHandler

METADATA = "/computeMetadata/v1/"
PASSED_ON = ("content-type", "etag", "metadata-flavor")
WAIT_S = 330.0
"""Longer than the metadata server lets anybody wait for a change."""


class Around(OwnServer):
    """Serves one child. `host` is the real metadata server's."""

    def __init__(self, host: str, name: str, attributes: Mapping[str, str], storage: str) -> None:
        super().__init__(MetadataHandler)
        self.host = host
        self.name = name
        self.deleted = threading.Event()
        endpoints = json.dumps({"storage": storage, "compute": self.url})
        self.own = {f"instance/attributes/{key}": value for key, value in attributes.items()}
        self.own.update({"instance/name": name, "instance/attributes/bench-endpoints": endpoints})

    def serve(self) -> None:
        threading.Thread(target=self.serve_forever, name="around", daemon=True).start()


class MetadataHandler(QuietHandler):
    server: Around

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        url = urlsplit(self.path)
        key = url.path[len(METADATA) :]
        if not url.path.startswith(METADATA):
            self.answer(404)
        elif self.headers.get("Metadata-Flavor") != "Google":
            self.answer(403)
        elif key in self.server.own:
            self.answer(200, self.server.own[key].encode(), content_type="application/text")
        else:
            self.pass_on()

    def do_DELETE(self) -> None:  # noqa: N802
        if self.path.startswith("/compute/v1/") and self.path.rpartition("/")[2] == self.server.name:
            self.server.deleted.set()
            self.answer(200, b"{}")
        else:
            self.answer(404)

    def pass_on(self) -> None:
        try:
            answer = send_request(
                "GET", f"http://{self.server.host}{self.path}", {"Metadata-Flavor": "Google"}, timeout_s=WAIT_S
            )
        except Unreachable:
            self.answer(503)
        else:
            kept = {name.replace("-", "_"): answer.headers[name] for name in PASSED_ON if name in answer.headers}
            self.answer(answer.status, answer.body, **kept)
