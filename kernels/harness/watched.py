"""Runs a step of the harness in a process that may be lost, and starts it again without the implementation at fault.

This process makes no context of a device and runs no code of an implementation. It holds nothing that the step needs,
so it can end the step's process at any time. If it has imported PyTorch, as in a served step, the step's process is a
fork of it and does not import PyTorch again. Facts and acknowledgements go past it: the process has its standard
streams.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from kernels.harness.calls import (
    AGAIN,
    BUILD,
    WATCHED,
    Failure,
    append_record,
    busy_page,
    content_of,
    parse_records,
    read_page,
)
from kernels.harness.ending import describe_exit, end_with_descendants, fork_process
from kernels.harness.facts import CRASHED, log_line

LOOK_S = 0.5
STEPS = ("correctness", "measure")
"""The steps in which implementations that share a process are called one after another."""
ASKED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals by which others end a step."""
DEVICE = Path("/dev/nvidiactl")


def is_watched(step: str, document: Path, device: Path = DEVICE) -> bool:
    """Whether a step is to be watched: the device is one that code can break, and the workload is ours. Those of users
    have processes of their own."""
    if step not in STEPS or not device.exists():
        return False
    spec = read_spec(document)
    return spec is not None and not isinstance(spec.get("workload"), dict)


def read_spec(document: Path) -> Mapping[str, object] | None:
    """The spec in a file; None for anything else, of which the step itself says what is wrong."""
    try:
        spec = json.loads(document.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return spec if isinstance(spec, dict) else None


@dataclass
class Watch:
    """Follows how long one call has taken. Time in which this process did not run is not counted: then the other one
    may not have run either."""

    limit_s: float
    serial: int = 0
    busy_s: float = 0.0

    def look(self, content: bytes, passed_s: float) -> Failure | None:
        """The failure of a call that has taken too long; `passed_s` is the time since the last look."""
        read = read_page(content)
        if read is None:
            return None
        serial, implementation, case_id = read
        if serial != self.serial or not implementation or case_id == BUILD:
            self.serial, self.busy_s = serial, 0.0
            return None
        self.busy_s += min(passed_s, 2 * LOOK_S)
        if self.busy_s < self.limit_s:
            return None
        return Failure(implementation, case_id, f"hung: no answer within {self.limit_s:g} s while it was called", True)


class StepProcess(Protocol):
    """What this process does with the step's process."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class ForkedStep:
    """A step's process that is a fork of this one, where `perform` is called with more in the environment."""

    def __init__(self, perform: Callable[[], int], environ: Mapping[str, str]) -> None:
        def perform_in_fork() -> int:
            os.environ.update(environ)
            return perform()

        self.returncode: int | None = None
        self.pid = fork_process(perform_in_fork)

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self.look(os.WNOHANG)

    def wait(self) -> int:
        """Waits for its end. Returns its exit code, or minus the signal that ended it."""
        code = self.look(0)
        assert code is not None
        return code

    def look(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def run_watched(
    command: Sequence[str] | Callable[[], int], limit_s: float, clock: Callable[[], float] = time.monotonic
) -> int:
    """Runs a command, or a function in a fork, that tells whom it calls, again after each failure of one of those.
    Returns its exit code; if a signal ended it, that signal ends this process too. Raises `OSError` where there is no
    room for two small files."""
    with tempfile.TemporaryFile() as page, tempfile.TemporaryFile() as past:
        files = page.fileno(), past.fileno()
        environ = {WATCHED: ":".join(map(str, (os.getpid(), *files)))}
        while True:
            os.pwrite(files[0], busy_page(0), 0)
            before = len(content_of(files[1]))
            child: StepProcess
            if callable(command):
                child = ForkedStep(command, environ)
            else:
                child = subprocess.Popen(command, env={**os.environ, **environ}, pass_fds=files)
            try:
                failure = attend_child(child, files[0], limit_s, clock)
            finally:
                if child.poll() is None:
                    end_with_descendants(child.pid)
                code = child.wait()
            if failure is not None:
                append_record(files[1], asdict(failure))
            elif code != AGAIN:
                break
            failures, _ = parse_records(content_of(files[1])[before:])
            if not failures:
                log_line("the step asks for another start, but says no reason")
                return CRASHED
            for one in failures:
                log_line(
                    f"{one.implementation} {one.reason} ({one.case_id or 'build'}); starting the step again without it"
                )
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


@contextlib.contextmanager
def end_of(child: StepProcess) -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds for the end of a process, and says whether it has ended. It sleeps all the
    while, as it runs beside measurements; `Popen.wait` would wake up twenty times a second."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # an old kernel, or another system than Linux

        def is_ended(seconds: float) -> bool:
            time.sleep(seconds)
            return child.poll() is not None

        yield is_ended
        return
    try:
        yield lambda seconds: bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def attend_child(child: StepProcess, page: int, limit_s: float, clock: Callable[[], float]) -> Failure | None:
    """Waits for the end of the process, or for a call that takes too long. Returns the failure of an implementation."""
    watch, last = Watch(limit_s), clock()
    with end_of(child) as is_ended:
        while not is_ended(min(LOOK_S, limit_s / 4)):
            now = clock()
            if failure := watch.look(content_of(page), now - last):
                return failure
            last = now
    code, page_state = child.wait(), read_page(content_of(page))
    if page_state is None or not page_state[1] or code == AGAIN or -code in ASKED:
        return None
    when = "while it was called" if page_state[2] != BUILD else "while it was built"
    return Failure(page_state[1], page_state[2], f"{describe_exit(code)} {when}", hung=False)


def watch_step(
    arguments: list[str], document: Path, answer_limit_s: float, perform: Callable[[list[str]], int]
) -> int | None:
    """Runs the step of these arguments, which `perform` performs. None where it cannot be watched."""
    limit_s = (read_spec(document) or {}).get("answer_limit_s")
    if not isinstance(limit_s, (int, float)) or limit_s <= 0:  # none is given, or one that the step itself refuses
        limit_s = answer_limit_s
    is_forked = "torch" in sys.modules
    command = partial(perform, arguments) if is_forked else [sys.executable, "-m", "kernels.harness", *arguments]
    try:
        return run_watched(command, limit_s)
    except OSError as exc:
        log_line(f"the step is not watched: {exc}")
        return None
