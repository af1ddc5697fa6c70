"""The compute adapter, connected to a scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.market import CallPatience
from tests.support.patience import PATIENCE_S
from tests.support.scripted_server import ScriptedServer, scripted_server
from tests.support.simulated_clock import SimulatedClock
from tests.unit.adapters.compute_script import Compute

PROJECT = "bench-project"


def cloud(url: str, clock: SimulatedClock | None = None, **patience: Any) -> GoogleCloud:
    limits = CallPatience(**{"request_s": PATIENCE_S, "long_poll_s": PATIENCE_S, **patience})
    return GoogleCloud(PROJECT, url, clock=clock or SimulatedClock(), patience=limits)


@contextmanager
def compute(**behaviour: Any) -> Iterator[tuple[Compute, ScriptedServer, GoogleCloud]]:
    script = Compute(**behaviour)
    with scripted_server(script) as server:
        yield script, server, cloud(server.url)


def failed(code: str, message: str = "", status: int = 0, **error: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"error": {"errors": [{"code": code, "message": message, **error}]}}
    return fields | ({"httpErrorStatusCode": status, "httpErrorMessage": "NO"} if status else {})
