"""The metadata server of one VM, on its own loopback port."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from orchestrator.embedded.device import cpu_name
from orchestrator.embedded.guard import Guard
from orchestrator.embedded.guest import Guest
from orchestrator.embedded.listener import HttpRequest, Listener, Reply

ROOT = "/computeMetadata/v1"
HERE = "embedded"
FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


class MetadataServer:
    """The server, which runs until it is closed. `host` is the value for GCE_METADATA_HOST."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.closed = False
        # The VM's processes belong to this user. Other users are refused, because the server gives out the VM's token.
        self.listener = Listener(f"metadata-{guest.name}", self.answer, Guard())
        self.host = self.listener.url.removeprefix("http://")

    def close(self) -> None:
        self.closed = True
        with self.guest.changed:
            self.guest.changed.notify_all()
        self.listener.close()

    def answer(self, request: HttpRequest) -> Reply:
        """The answer to one request. It is 403 without the header `Metadata-Flavor: Google`, which a web page in a
        browser cannot send."""
        if request.path == "/":
            return Reply(200, b"computeMetadata/\n", FLAVOR)
        if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
            return Reply(403, b"Missing Metadata-Flavor:Google header.\n", FLAVOR)
        if request.method != "GET":
            return Reply(405, b"", FLAVOR)
        if not request.path.startswith(ROOT):
            return Reply(404, b"", FLAVOR)
        if request.query.get("wait_for_change", "").lower() == "true":
            self._wait(request)
        return self._value(request)

    def _wait(self, request: HttpRequest) -> None:
        end = time.monotonic() + float(request.query.get("timeout_sec") or 300)
        known_etag = request.query.get("last_etag") or self._value(request).headers.get("ETag")
        with self.guest.changed:
            while not self.closed and self._value(request).headers.get("ETag") == known_etag:
                seconds_left = end - time.monotonic()
                if seconds_left <= 0:
                    return
                self.guest.changed.wait(seconds_left)

    def _value(self, request: HttpRequest) -> Reply:
        path = [part for part in request.path[len(ROOT) :].split("/") if part]
        if path[:2] == ["instance", "service-accounts"] and path[3:] == ["token"]:
            return self._token(path[2])
        value: Any = self.tree()
        for part in path:
            if not isinstance(value, Mapping) or part not in value:
                return Reply(404, b"", FLAVOR)
            value = value[part]
        recursive = request.query.get("recursive", "").lower() == "true"
        as_json = request.query.get("alt") == "json" or (recursive and request.query.get("alt") != "text")
        if as_json and (recursive or not isinstance(value, Mapping)):
            kind, body = "application/json", json.dumps(to_camel_case(value))
        else:
            kind, body = "application/text", as_text(value)
        etag = hashlib.sha256(body.encode()).hexdigest()[:16]
        return Reply(200, body.encode(), FLAVOR | {"Content-Type": kind, "ETag": etag})

    def _token(self, account: str) -> Reply:
        if account not in ("default", self.guest.service_account) or self.guest.service_account is None:
            return Reply(404, b"", FLAVOR)
        token = {"access_token": self.guest.token, "expires_in": 3599, "token_type": "Bearer"}
        return Reply(200, json.dumps(token).encode(), FLAVOR | {"Content-Type": "application/json"})

    def tree(self) -> dict[str, Any]:
        """All values, as nested directories."""
        guest = self.guest
        accounts: dict[str, Any] = {}
        if guest.service_account is not None:
            account = {"aliases": ["default"], "email": guest.service_account, "scopes": list(guest.scopes)}
            accounts = {"default": account, guest.service_account: account}
        return {
            "instance": {
                "attributes": dict(guest.metadata),
                "cpu-platform": cpu_name(),
                "hostname": f"{guest.name}.{guest.zone}.c.{guest.project}.internal",
                "id": int(guest.id),
                # This computer runs it, whatever was requested. So results must not name the requested machine.
                "image": "",
                "machine-type": f"projects/{guest.project_number}/machineTypes/{HERE}",
                "maintenance-event": "NONE",
                "name": guest.name,
                "preempted": "TRUE" if guest.preempted else "FALSE",
                "scheduling": {"automatic-restart": "FALSE", "preemptible": "TRUE" if guest.spot else "FALSE"},
                "service-accounts": accounts,
                "tags": [],
                "zone": f"projects/{guest.project_number}/zones/{guest.zone}",
            },
            "project": {"attributes": {}, "numeric-project-id": int(guest.project_number), "project-id": guest.project},
            "universe": {"universe-domain": "googleapis.com"},
        }


def as_text(value: Any) -> str:
    """A value as text: a list has one item on each line, and a directory is shown as its entries."""
    if isinstance(value, Mapping):
        return "".join(f"{key}/\n" if isinstance(inner, Mapping) else f"{key}\n" for key, inner in value.items())
    if isinstance(value, list):
        return "".join(f"{item}\n" for item in value)
    return str(value)


def to_camel_case(value: Any) -> Any:
    """A value with directory names in camelCase, as the server's JSON has them. The user's own keys are not changed."""
    if not isinstance(value, Mapping):
        return value
    return {
        key.partition("-")[0] + "".join(part.title() for part in key.split("-")[1:]): inner
        if key in ("attributes", "service-accounts")
        else to_camel_case(inner)
        for key, inner in value.items()
    }
