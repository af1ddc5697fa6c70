"""A VM that is a Python generator, for simulated time: it does what a script says, at the moments that it says.

A script is `def script(vm: ScriptedVm) -> Steps`; each `yield s` lets `s` seconds pass. It asks the cloud by
HTTP as a real VM does. An operating system's shutdown is raised in it as `ShutDown`, a struck harness or agent as `Struck`;
both may be caught. A killed VM's generator is closed, and whatever it asks of the cloud after that raises `Gone`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from orchestrator.embedded.documents import utc_stamp
from orchestrator.embedded.guest import Guest, GuestMachine, MachineFactory
from orchestrator.embedded.listener import Reset
from orchestrator.embedded.timeline import Alarm
from tests.support.direct import answer, listener_at
from tests.support.patience import PATIENCE_S

Steps = Generator[float, None, int | None]
Script = Callable[["ScriptedVm"], Steps]

TRIES = 5


class ShutDown(Exception):
    """The operating system is told to power off."""


class Struck(Exception):
    """A fault has killed the `harness` or the `agent`; its argument says which."""


class Gone(Exception):
    """The VM is dead; nothing of it happens any more."""


class HttpFailure(Exception):
    """The cloud answered with an error status."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:200]!r}")
        self.status = status


class ScriptedVm:
    """What a script can see and do."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.name = guest.name
        self.zone = guest.zone
        self.metadata = guest.metadata
        self.labels = guest.labels
        self.dead = False
        self.sequence = 0
        self.environment: Mapping[str, str] = {}
        """Of the task that it runs, on a VM that waits for tasks."""

    @property
    def preempted(self) -> bool:
        """What the metadata server says."""
        return self.guest.preempted

    @property
    def spec(self) -> dict[str, Any]:
        """The run spec of the metadata."""
        return dict(json.loads(self.metadata["bench-run"]))

    @property
    def bucket(self) -> str:
        """The one that the run or the task is to write to."""
        if "BENCH_BUCKET" in self.environment:
            return self.environment["BENCH_BUCKET"]
        bucket = json.loads(self.metadata["bench-payload"])["bucket"] if "bench-payload" in self.metadata else None
        return str(bucket or self.spec["bucket"])

    def log(self, line: str) -> None:
        """Write a line to the serial port."""
        self.guest.console.write(line.encode() + b"\n")

    def put(self, name: str, data: bytes, kind: str = "application/octet-stream", *, create: bool = False) -> None:
        """Store an object in the run's bucket; with `create` only if there is none (412 otherwise)."""
        bucket = self.bucket
        boundary = "embedded-part"
        head = json.dumps({"name": name, "contentType": kind})
        opening = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{head}\r\n--{boundary}\r\n"
        body = f"{opening}Content-Type: {kind}\r\n\r\n".encode() + data + f"\r\n--{boundary}--\r\n".encode()
        condition = "&ifGenerationMatch=0" if create else ""
        self.request(
            "POST",
            f"{self.guest.storage_url}/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}",
            body,
            {"Content-Type": f"multipart/related; boundary={boundary}"},
        )

    def read(self, name: str) -> bytes | None:
        """An object of the run's bucket, or None."""
        url = f"{self.guest.storage_url}/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}?alt=media"
        try:
            return self.request("GET", url)
        except HttpFailure as failure:
            if failure.status != 404:
                raise
            return None

    def names(self, prefix: str) -> list[str]:
        """The objects of the run's bucket below a prefix."""
        query = urlencode({"prefix": prefix, "fields": "items(name),nextPageToken"})
        listed = json.loads(self.request("GET", f"{self.guest.storage_url}/storage/v1/b/{self.bucket}/o?{query}"))
        return [str(item["name"]) for item in listed.get("items", ())]

    def event(self, kind: str, data: dict[str, Any] | None = None, run_id: str = "") -> None:
        """Append an event to the run, or to another that is measured on this VM, as the agent does."""
        self.sequence += 1
        run_id, attempt = run_id or self.labels["bench-run"], self.labels["bench-attempt"]
        moment = utc_stamp(self.guest.timeline.now())
        writer = f"vm-{attempt}-{hashlib.sha256(self.guest.id.encode()).hexdigest()[:8]}"
        event = {
            "schema": 1,
            "run_id": run_id,
            "kind": kind,
            "time": moment,
            "writer": writer,
            "seq": self.sequence,
            "data": data or {},
        }
        compact = moment.replace("-", "").replace(":", "")
        name = f"runs/{run_id}/events/{compact}-{writer}-{self.sequence:06d}-{kind}.json"
        try:
            self.put(name, json.dumps(event).encode(), "application/json", create=True)
        except HttpFailure as failure:
            if failure.status != 412:  # stored by a try whose answer was lost
                raise

    def delete_self(self) -> None:
        """Ask the compute API to delete this VM."""
        guest = self.guest
        path = f"/compute/v1/projects/{guest.project}/zones/{guest.zone}/instances/{quote(guest.name)}"
        self.request("DELETE", guest.compute_url + path)

    def request(self, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        """One HTTP request with the VM's token, tried again when the connection breaks or the server is unwell.

        Raises `HttpFailure`, `Gone`, or the `OSError` or `HTTPException` of the last try.
        """
        for left in reversed(range(TRIES)):
            try:
                return self._try(method, url, body, headers or {})
            except HttpFailure as failure:
                if left == 0 or (failure.status != 429 and failure.status < 500):
                    raise
            except (OSError, http.client.HTTPException):
                if left == 0:
                    raise
        raise AssertionError("a loop over no tries")

    def _try(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        if self.dead:
            raise Gone(self.name)
        split, token = urlsplit(url), {"Authorization": f"Bearer {self.guest.token}"}
        target = f"{split.path}?{split.query}" if split.query else split.path
        status, data = self._exchange(split.netloc, method, target, body, token | headers)
        if self.dead:
            raise Gone(self.name)
        if status >= 400:
            raise HttpFailure(status, data)
        return data

    def _exchange(
        self, netloc: str, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        if (listener := listener_at(netloc)) is not None:
            try:
                reply = answer(listener, method, target, headers, body or b"")
            except Reset as exc:
                raise ConnectionResetError("the connection was cut") from exc
            return reply.status, b"".join(reply.pieces())
        connection = http.client.HTTPConnection(netloc, timeout=PATIENCE_S)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


class ScriptedMachine:
    """A `Machine` that follows a script."""

    def __init__(self, guest: Guest, script: Script) -> None:
        self.vm = ScriptedVm(guest)
        self.timeline = guest.timeline
        self.script = script
        self.steps: Steps | None = None
        self.alarm: Alarm | None = None
        self.frozen = False
        self.stepping = threading.RLock()
        self.owner: int | None = None
        self.done: Callable[[int], None] | None = None

    def boot(self) -> None:
        if not self.vm.guest.tasks:
            self._start()

    def run_task(self, script: str, environment: Mapping[str, str], done: Callable[[int], None]) -> None:
        """The script of these machines stands for that of every task; what it returns is the exit code (None: 0)."""
        self.vm.environment, self.done = dict(environment), done
        self._start()

    def end_task(self) -> None:
        self.timeline.call_later(0, lambda: self._throw(Struck("task")))

    def _start(self) -> None:
        if self.vm.dead:
            return
        self.steps = self.script(self.vm)
        self.alarm = self.timeline.call_later(0, self._next)

    def _ended(self, code: int) -> None:
        self.steps = None
        done, self.done = self.done, None
        if done is not None:
            done(code)

    def running(self) -> bool:
        return self.steps is not None and not self.vm.dead

    def shut_down(self) -> None:
        self.timeline.call_later(0, lambda: self._throw(ShutDown()))

    def kill(self) -> None:
        self.vm.dead = True
        # In the middle of a step the generator cannot be closed; its next request raises Gone instead.
        if self.stepping.acquire(blocking=False):
            try:
                if self.owner is None:
                    self._close()
            finally:
                self.stepping.release()

    def strike(self, fault: str, target: str) -> bool:
        if not self.running():
            return False
        if fault == "hang":
            self.frozen = True
        else:
            self.timeline.call_later(0, lambda: self._throw(Struck(target)))
        return True

    def _next(self) -> None:
        self._step(next)

    def _throw(self, error: Exception) -> None:
        def raise_in(steps: Steps) -> float:
            return steps.throw(error)

        self._step(raise_in)

    def _step(self, move: Callable[[Steps], float]) -> None:
        with self.stepping:
            steps = self.steps
            if steps is None or self.vm.dead or self.frozen:
                return
            self.owner = threading.get_ident()
            try:
                pause = move(steps)
            except StopIteration as end:
                self._ended(int(end.value or 0))
                return
            except (Gone, ShutDown, Struck) as end:
                self._ended(143 if isinstance(end, ShutDown) else 137)
                return
            except Exception as exc:
                self.vm.log(f"startup-script failed: {type(exc).__name__}: {exc}")
                self._ended(1)
                raise
            finally:
                self.owner = None
            if self.vm.dead:
                self._close()
            else:
                if self.alarm is not None:
                    self.alarm.cancel()  # an exception raised in the script has cut its pause short
                self.alarm = self.timeline.call_later(pause, self._next)

    def _close(self) -> None:
        if self.steps is not None:
            self.steps.close()
            self.steps = None


def scripted(script: Script) -> MachineFactory:
    """Machines that all follow one script."""

    def make(guest: Guest) -> GuestMachine:
        return ScriptedMachine(guest, script)

    return make
