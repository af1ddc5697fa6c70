"""Processes that share a command's work. Ctrl-C reaches every process of a terminal, but only the command answers it.
However the command ends, they end too."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from orchestrator.cli import interrupts

Submit = Callable[..., Future[Any]]


@contextmanager
def workers(number: int) -> Iterator[Submit]:
    """Yields a function that is called with another function and its arguments, and has a worker call it. If the
    context is left by an exception, calls that no worker has begun are cancelled."""
    context = multiprocessing.get_context("spawn")  # No fork: the bucket's client has threads.
    pool = ProcessPoolExecutor(number, context, initializer=_end_with_the_command)

    def submit(*call: Any) -> Future[Any]:
        with interrupts.held_back():  # a worker that starts now never receives Ctrl-C
            return pool.submit(*call)

    try:
        yield submit
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _end_with_the_command() -> None:
    """Ends this worker when its command has ended: one that was killed cannot tell its workers that no work is left."""
    command = multiprocessing.parent_process()
    assert command is not None, "it is called in a worker"

    def wait() -> None:
        command.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
