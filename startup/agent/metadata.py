"""The VM's metadata server: the VM's name, its run spec, and its access token."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from startup.agent.clock import AgentClock, Patience
from startup.agent.http_client import HttpResponse, Unreachable, repeat_request, send_request

HEADERS = {"Metadata-Flavor": "Google"}
RENEW_BEFORE_S = 120.0


class Metadata:
    """Reads the metadata server at `host`, e.g. `metadata.google.internal`."""

    def __init__(self, host: str, clock: AgentClock) -> None:
        self.root = f"http://{host}/computeMetadata/v1/"
        self.clock = clock
        self.lock = threading.Lock()
        self.cached = ""
        self.renew_at = 0.0

    def read(self, path: str, timeout_s: float = 10.0) -> HttpResponse:
        return send_request("GET", self.root + path, HEADERS, timeout_s=timeout_s)

    def get(self, path: str, patience_s: float = 20.0) -> str | None:
        """A value, or None when there is none of that name. Raises Unreachable."""
        answer = repeat_request(lambda: self.read(path), Patience(self.clock, patience_s), 0.2, 2.0)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise Unreachable(f"metadata {path}: HTTP {answer.status}")
        return answer.body.decode("utf-8")

    def attribute(self, key: str) -> str | None:
        """A key of the instance's own metadata."""
        return self.get("instance/attributes/" + key)

    def token(self) -> str:
        """An access token of the VM's service account, kept until shortly before it expires. Raises Unreachable."""
        with self.lock:
            if not self.cached or self.clock.monotonic() >= self.renew_at:
                answer = self.read("instance/service-accounts/default/token")
                try:
                    grant = json.loads(answer.body)
                    self.cached = str(grant["access_token"])
                    self.renew_at = self.clock.monotonic() + float(grant["expires_in"]) - RENEW_BEFORE_S
                except (ValueError, KeyError, TypeError) as error:
                    raise Unreachable(f"metadata: no access token (HTTP {answer.status})") from error
            return self.cached

    def forget_token(self) -> None:
        """Drops the token, because it was refused. The next call of `token` requests a new one."""
        with self.lock:
            self.cached = ""

    def preempted(self, timeout_s: float = 2.0) -> bool:
        """Whether this VM is being preempted, as far as can be seen within that time."""
        try:
            return is_true(self.read("instance/preempted", timeout_s=timeout_s))
        except Unreachable:
            return False


def is_true(answer: HttpResponse) -> bool:
    return answer.status == 200 and answer.body.strip().upper() == b"TRUE"


class PreemptionWatcher:
    """A thread that waits for the metadata server to say that this VM is being preempted."""

    def __init__(self, metadata: Metadata, on_preempted: Callable[[], None], wait_s: float, poll_s: float) -> None:
        self.metadata = metadata
        self.on_preempted = on_preempted
        self.wait_s = wait_s
        self.poll_s = poll_s
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="preemption", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def close(self) -> None:
        """Asks the thread to end; it does when the request it is waiting on is answered."""
        self.closed.set()

    def watch(self) -> None:
        # The first look does not wait: the VM may have been preempted before anyone watched.
        query = ""
        while not self.closed.is_set():
            asked = self.metadata.clock.monotonic()
            try:
                answer = self.metadata.read("instance/preempted" + query, timeout_s=self.wait_s + 10.0)
            except Unreachable:
                self.closed.wait(self.poll_s)
                continue
            if is_true(answer):
                self.on_preempted()
                return
            etag = answer.headers.get("etag")
            first = not query
            query = f"?wait_for_change=true&timeout_sec={max(1, int(self.wait_s))}"
            query += f"&last_etag={etag}" if etag else ""
            # A server that answers at once although nothing changed must not be asked in a tight loop.
            if not first and self.metadata.clock.monotonic() - asked < self.poll_s:
                self.closed.wait(self.poll_s)
