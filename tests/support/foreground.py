"""A command in this process as it is in one of its own: by its entry point, with its handlers of signals, and on file
descriptors that may be full or closed. To start a process and load Google's client in it takes seconds of a processor.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator.cli import entry


@dataclass(frozen=True)
class Ran:
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Listener(io.StringIO):
    """A standard output that calls `hear` with each text at once."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__()
        self._hear = hear

    def write(self, text: str, /) -> int:
        written = super().write(text)
        self._hear(text)
        return written


@contextmanager
def writing_to(number: int) -> Iterator[None]:
    """Within it, `number` is standard output: what a shell connects a command to."""
    kept = os.dup(1)
    os.dup2(number, 1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", open(1, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - the command's
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def run_here(*arguments: str, stdout: int | None = None, hear: Callable[[str], None] = lambda _: None) -> Ran:
    """Run `bench` in the main thread. Its output goes to the file descriptor `stdout` if there is one; else `hear` is
    called with each text of it, and may send Ctrl-C."""
    out, err = Listener(hear), io.StringIO()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where tests run in the background
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["bench", *arguments])
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            if stdout is None:
                return Ran(_exit_code(), out.getvalue(), err.getvalue())
            with writing_to(stdout):
                return Ran(_exit_code(), "", err.getvalue())
    finally:
        signal.signal(signal.SIGINT, before)


def _exit_code() -> int:
    try:
        entry.main()
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0


def run_unread(*arguments: str) -> Ran:
    """The same, where the reader of its output left before anything was written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return run_here(*arguments, stdout=writer)
    finally:
        os.close(writer)


def ctrl_c() -> None:
    """Ctrl-C, at this line of a main thread."""
    signal.raise_signal(signal.SIGINT)


def ctrl_c_at(text: str) -> Callable[[str], None]:
    """A `hear` that sends one Ctrl-C as soon as `text` is written."""
    awaited = [text]

    def hear(said: str) -> None:
        if awaited and awaited[0] in said:
            awaited.clear()
            ctrl_c()

    return hear


@contextmanager
def beside(action: Callable[[], None]) -> Iterator[None]:
    """Runs `action` in a thread meanwhile, and raises what it raises at the end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    if raised:
        raise raised[0]
