"""How a client that drives the runs of a fleet leaves them at Ctrl-C, in steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from orchestrator.core.errors import Unavailable
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import Engine


def awaited(workers: Sequence[Future[None]], first: Callable[[], None], second: Callable[[], None]) -> None:
    """Waits for the workers. Ctrl-C calls `first`; one that comes while that answers calls `second`."""
    while True:
        try:
            wait(workers)
        except KeyboardInterrupt:
            try:
                first()
            except KeyboardInterrupt:
                second()
        else:
            return


def followed(
    engine: Engine,
    left: threading.Event,
    watch: Callable[[Run], None] = lambda _: None,
    trouble: Callable[[Unavailable, float], None] = lambda _error, _pause: None,
    until: Callable[[Run], bool] = lambda _: False,
) -> Run:
    """The run as it is when it is over, when `until` says so, or once it is `left`, even if the cloud is silent."""

    def troubled(error: Unavailable, pause: float) -> None:
        trouble(error, pause)
        if left.is_set():
            raise error

    try:
        return engine.follow(watch=watch, trouble=troubled, until=lambda run: left.is_set() or until(run))
    except Unavailable:
        if not left.is_set():
            raise
        return engine.look()
