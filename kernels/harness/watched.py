"""Runs a step of the harness in a process that may be lost, and starts it again without the implementation at fault.

This process loads neither PyTorch nor any code of an implementation. It holds nothing that the step needs, so it can
end the step's process at any time. Facts and acknowledgements go past it: the process has its standard streams.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernels.harness.calls import AGAIN, PAGE, PAST, Failure, busy_page, read_page
from kernels.harness.facts import CRASHED, log

LOOK_S = 0.5
STEPS = ("correctness", "measure")
"""The steps in which implementations that share a process are called one after another."""
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
DEVICE = Path("/dev/nvidiactl")


def is_watched(step: str, document: Path, device: Path = DEVICE) -> bool:
    """Whether a step is to be watched: the device is one that code can break, and the workload is ours. Those of users
    have processes of their own."""
    if PAST in os.environ or step not in STEPS or not device.exists():
        return False
    try:
        spec = json.loads(document.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # the step itself says what is wrong with it
    return isinstance(spec, dict) and not isinstance(spec.get("workload"), dict)


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
        if serial != self.serial or not implementation:
            self.serial, self.busy_s = serial, 0.0
            return None
        self.busy_s += min(passed_s, 2 * LOOK_S)
        if self.busy_s < self.limit_s:
            return None
        return Failure(implementation, case_id, f"hung: no answer within {self.limit_s:g} s while it was called", True)


def run(command: Sequence[str], limit_s: float, clock: Callable[[], float] = time.monotonic) -> int:
    """Runs a command that tells whom it calls, as often as one of those fails in another way. Returns its exit code;
    if a signal ended it, that signal ends this process too."""
    with tempfile.TemporaryDirectory(prefix="bench-watched-") as folder:
        page, past = Path(folder) / "page", Path(folder) / "past"
        past.touch()
        env = {**os.environ, PAGE: str(page), PAST: str(past)}
        while True:
            page.write_bytes(busy_page(0))
            before = past.read_text(encoding="utf-8")
            child = subprocess.Popen(command, env=env)
            try:
                failure = attended(child, page, limit_s, clock)
            finally:
                child.kill()
                child.wait()
            if failure is not None:
                log(f"{failure.case_id}: {failure.implementation}: {failure.reason}")
                with past.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(failure)) + "\n")
            elif child.returncode != AGAIN:
                break
            if past.read_text(encoding="utf-8") == before:
                log("the step asks for another start, but says no reason")
                return CRASHED
            log("starting the step again without it")
    if child.returncode < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-child.returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -child.returncode)
    return child.returncode


@contextlib.contextmanager
def end_of(child: subprocess.Popen[bytes]) -> Iterator[Callable[[float], bool]]:
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


def attended(child: subprocess.Popen[bytes], page: Path, limit_s: float, clock: Callable[[], float]) -> Failure | None:
    """Waits for the end of the process, or for a call that takes too long. Returns the failure of an implementation."""
    watch, last = Watch(limit_s), clock()
    with end_of(child) as is_ended:
        while not is_ended(min(LOOK_S, limit_s / 4)):
            now = clock()
            if failure := watch.look(page.read_bytes(), now - last):
                return failure
            last = now
    child.wait()
    read = read_page(page.read_bytes())
    if read is None or not read[1] or -child.returncode not in CRASHES:
        return None
    return Failure(read[1], read[2], f"crashed ({signal.Signals(-child.returncode).name}) while it was called", False)


def watched(arguments: Sequence[str], document: Path, answer_limit_s: float) -> int:
    """Runs the step of these arguments."""
    limit_s = json.loads(document.read_text(encoding="utf-8")).get("answer_limit_s")
    usable = isinstance(limit_s, (int, float)) and limit_s > 0  # the step itself refuses any other
    return run([sys.executable, "-m", "kernels.harness", *arguments], float(limit_s) if usable else answer_limit_s)
