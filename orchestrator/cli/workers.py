"""Processes that share a command's work. Ctrl-C reaches every process of a terminal, but only the command answers it;
and whatever ends the command ends them too."""

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
    """Within it, what is called with a function and its arguments has a worker call it. If it is left early, what no
    worker has begun is never done."""
    context = multiprocessing.get_context("spawn")  # No fork: the bucket's client has threads.
    pool = ProcessPoolExecutor(number, context, initializer=_end_with_the_command)

    def submit(*call: Any) -> Future[Any]:
        with interrupts.held_back():  # a process that begins now never hears of it
            return pool.submit(*call)

    try:
        yield submit
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _end_with_the_command() -> None:
    """A worker waits for work for ever: a command that was killed cannot tell it that there is none."""
    command = multiprocessing.parent_process()
    assert command is not None, "it is called in a worker"

    def wait() -> None:
        command.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
