"""How a request reaches Compute Engine and its answer comes back: one client a service, and bounded patience."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import google.api_core.exceptions as api
from google.protobuf import json_format

from orchestrator.adapters.google.compute_library import compute_v1
from orchestrator.adapters.google.errors import (
    FOREIGN,
    Garbled,
    is_rate_limit,
    is_transient,
    never,
    patiently,
    retry_after_s,
    translate_error,
)
from orchestrator.adapters.google.market import CallPatience, parse_time
from orchestrator.adapters.google.network import Session
from orchestrator.core.errors import Unavailable
from orchestrator.ports import Clock

Answer = TypeVar("Answer")
Judge = Callable[[Exception], bool]


RATE_PAUSE_S, MOST_RATE_PAUSE_S = 8.0, 60.0


@contextmanager
def parse_guard() -> Iterator[None]:
    """Raises `Garbled` where Google's library cannot read an answer, such as a proxy's page. Nothing but a request and
    the reading of its answer belongs in here: a mistake of our own would be taken for the server's."""
    try:
        yield
    except (json_format.Error, ValueError) as exc:
        if isinstance(exc, FOREIGN):
            raise
        message = " ".join(str(exc).split())
        raise Garbled(f"the answer is not one that the service gives ({type(exc).__name__}: {message})") from exc


def require_operation(operation: compute_v1.Operation, name: str = "") -> compute_v1.Operation:
    """The operation in an answer, if it is one that can be asked for by its name, and is the one called `name`. Raises
    `ValueError`."""
    if not operation.name or (name and operation.name != name):
        raise ValueError(f"it is about the operation {operation.name[:80]!r}")
    return operation


def rate_pause_s(exc: Exception, planned_s: float) -> float:
    """The pause before the next try. Requests are counted by the minute: a quick next try only uses up the quota."""
    if not is_rate_limit(exc):
        return planned_s
    return min(MOST_RATE_PAUSE_S, max(RATE_PAUSE_S + 10 * planned_s, retry_after_s(exc)))


class Calls:
    """Sends requests for one project, again when an answer is lost, a bounded number of times."""

    def __init__(self, project: str, session: Session, clock: Clock, patience: CallPatience) -> None:
        self.project = project
        self.clock = clock
        self._session = session
        self._patience = patience
        self._clients: dict[type[Any], Any] = {}

    @property
    def once(self) -> dict[str, Any]:
        """One try by the client: its own policy repeats some requests for ten minutes, and others never."""
        return {"retry": None, "timeout": self._patience.request_s}

    def client(self, kind: type[Answer]) -> Any:
        if kind not in self._clients:
            self._clients[kind] = self._session.client(kind)
        return self._clients[kind]

    def persist(self, send: Callable[[], Answer], *, final: Judge = never) -> Answer:
        """Sends until an answer comes that can be read, a bounded number of times. Lets Google's exceptions out as they
        are. `send` raises `ValueError` and its like for an answer that it finds wrong."""

        def once() -> Answer:
            with parse_guard():
                return send()

        return patiently(
            self.clock, once, self._patience.pauses_s, passing=is_transient, final=final, pause_for=rate_pause_s
        )

    def ask(self, send: Callable[[], Answer], doing: str) -> Answer:
        try:
            return self.persist(send)
        except FOREIGN as exc:
            raise translate_error(exc, doing) from exc

    def unless_gone(self, send: Callable[[], Answer], doing: str, *, through: Judge = never) -> Answer | None:
        """The answer, or None when the VM is gone. A missing project or zone is an error: the VM might well exist."""
        try:
            return self.persist(send, final=through)
        except api.NotFound as exc:
            if re.search(r"'projects/[^/']+(?:/zones/[^/']+)?' was not found", str(exc)):
                raise translate_error(exc, doing) from exc
            return None
        except FOREIGN as exc:
            if through(exc):
                raise
            raise translate_error(exc, doing) from exc

    def list_operations(self, zone: str, wanted: str) -> list[compute_v1.Operation]:
        operations = self.client(compute_v1.ZoneOperationsClient)
        request = compute_v1.ListZoneOperationsRequest(project=self.project, zone=zone, filter=wanted, max_results=500)
        doing = f"read the operation log of {zone}"
        found: list[compute_v1.Operation] = self.ask(lambda: list(operations.list(request, **self.once)), doing)
        return sorted(found, key=lambda one: parse_time(one.insert_time) or self.clock.now())

    def wait(
        self, zone: str, operation: compute_v1.Operation, doing: str, *, enough: Callable[[], bool] = lambda: False
    ) -> compute_v1.Operation:
        """The operation once it is done, or it is `enough`. Raises `Unavailable` when that takes too long; it may well
        go on.

        `insert_unary` and a client of our own are used because the client's operation objects ask Google's address
        whatever endpoint they came from, and call an operation a success that has errors but no HTTP status.
        """
        operations = self.client(compute_v1.ZoneOperationsClient)
        begun, pause = self.clock.now(), 0.1
        while operation.status != compute_v1.Operation.Status.DONE:
            if self.clock.now() - begun > timedelta(seconds=self._patience.operation_s):
                raise Unavailable(
                    f"cannot {doing}: operation {operation.name} is not done after {self._patience.operation_s:g} s",
                    hint="it may still succeed: `bench status` shows the VM if it does",
                )
            if enough():
                break
            name = operation.name
            operation = self.ask(
                lambda name=name: require_operation(  # type: ignore[misc]
                    operations.wait(
                        project=self.project, zone=zone, operation=name, retry=None, timeout=self._patience.long_poll_s
                    ),
                    name,
                ),
                doing,
            )
            if operation.status != compute_v1.Operation.Status.DONE:
                self.clock.sleep(pause)  # a server that does not hold the answer back must not be flooded
                pause = min(2 * pause, 2.0)
        return operation
