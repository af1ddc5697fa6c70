"""`python3 -m kernels.harness serve`: imports torch once and performs each step in a fork of this process.

The agent writes `{"step": "build"}` to standard input; the step's facts and acknowledgements use the same streams as
when it is started by itself. After them comes `{"fact": "step_ended", "code": 0}`. This process runs no code of a user,
makes no CUDA context, and of a step it holds nothing but what the workload was found to be. The workers of a step are
forks of a process that the step forks before it does anything else, so they import torch as little as the step does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kernels.harness.ending import end_with_parent, fork_process, list_descendants, wait_for_fork
from kernels.harness.facts import log_line
from kernels.harness.settings import apply_worker_settings, without_collector
from kernels.harness.several_gpus import CaseQueue, GpuProcess, GpuSlot, shares_cases, slot_environment
from kernels.harness.users import own_workload, users_for_run

CHILD_SUBREAPER = 36
APART = "environment"
"""The step that needs no more than torch, nor do its workers."""
ENDED = "the step has ended"
"""The last line of a step's log."""


Perform = Callable[[list[str]], int]
"""Performs the step of these arguments and returns its exit code."""


def serve_steps(options: Sequence[str], perform: Perform, gpus: Sequence[str] = ()) -> int:
    """Performs the steps that are named on standard input, each with these options, until the input ends. `gpus` are
    the UUIDs of several GPUs; if none are given, those of the machine are used."""
    spec = Path(options[options.index("--spec") + 1])
    own = own_workload(spec)
    error = import_for_steps(own)
    adopt_orphans()
    read_answer = dict if error else ask_fork(probe_torch)
    with users_for_run(own):
        answer = read_answer()
        found_gpus = answer.pop("gpus", None)
        if not gpus and isinstance(found_gpus, list):
            gpus = found_gpus
        send("preloaded", error=error, **answer)
        perform_all(options, perform, error, own, gpus if shares_cases(spec) else ())
    return 0


def perform_all(options: Sequence[str], perform: Perform, error: str, own: Path | None, gpus: Sequence[str]) -> None:
    """Performs each step that is named on standard input, until the input ends. With several GPUs the measuring step
    is performed on each of them. What only workers need is imported while the environment is looked at, which needs
    none of them."""
    not_imported_for = None if error else own
    while line := read_line():
        step = str(json.loads(line)["step"])
        arguments = [step, *options]
        pid = fork_step(arguments, perform, own is not None) if step == APART and not error else None
        if not_imported_for is not None:
            error, not_imported_for = import_for_workers(not_imported_for), None
        if pid is not None:
            code = wait_for_fork(pid)
        elif error:
            code = start_step(arguments)
        elif step == "measure" and len(gpus) > 1:
            code = share_step(arguments, perform, own is not None, gpus)
        else:
            code = wait_for_fork(fork_step(arguments, perform, own is not None))
        end_descendants()
        log_line(ENDED)
        send("step_ended", code=code)


def send(fact: str, **keys: object) -> None:
    """Sends a fact of this process itself."""
    os.write(1, (json.dumps({"fact": fact, **keys}) + "\n").encode())


def import_for_steps(own: Path | None) -> str:
    """Imports what steps need. Returns why that fails, and an empty string otherwise. After a failed import each step
    is started by itself: an interpreter in which torch failed to import cannot say why it fails."""
    try:
        if own is not None:
            apply_worker_settings()
        with without_collector():
            import kernels.harness.steps  # noqa: F401

        if own is not None:
            from kernels.harness.starting import NOTE

            NOTE.open()
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    gc.freeze()  # a fork that looked through all objects would copy them
    return ""


def import_for_workers(own: Path) -> str:
    """Imports what the workers of a workload need besides. Returns why that fails, as `import_for_steps` does."""
    try:
        from kernels.harness.processes import worker_modules

        with without_collector():
            for name in worker_modules(own):
                __import__(name)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    gc.freeze()
    return ""


def probe_torch() -> dict[str, object]:
    """What the agent asks about an interpreter's torch, and the UUIDs of the GPUs if there are several. It may make a
    CUDA context."""
    import numpy
    import torch

    facts: dict[str, object] = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "numpy": numpy.__version__}
    facts |= {"usable": bool(torch.cuda.is_available()), "exchange": False}
    with contextlib.suppress(Exception):
        torch.from_numpy(numpy.zeros(1))
        torch.zeros(1).numpy()
        facts["exchange"] = True
    if torch.cuda.device_count() > 1:
        with contextlib.suppress(RuntimeError, AttributeError):
            facts["gpus"] = [str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())]
    return facts


def ask_fork(question: Callable[[], dict[str, object]]) -> Callable[[], dict[str, object]]:
    """Asks a fork a question. What is returned waits for the answer; without one, that is an `error`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os.write(writing, json.dumps(question()).encode())
        os._exit(0)
    os.close(writing)

    def read_answer() -> dict[str, object]:
        with os.fdopen(reading, "rb") as file:
            answer = file.read()
        os.waitpid(pid, 0)
        facts: dict[str, object] = json.loads(answer or '{"error": "no answer about torch"}')
        return facts

    return read_answer


def adopt_orphans() -> None:
    """Makes this process the parent of what its steps leave behind."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)


def read_line() -> bytes:
    """One line of standard input; empty at its end. It is read byte by byte, as what follows is for the step."""
    line = b""
    while (byte := os.read(0, 1)) and byte != b"\n":
        line += byte
    return line


def share_step(arguments: list[str], perform: Perform, has_workers: bool, gpus: Sequence[str]) -> int:
    """Performs a measuring step in a fork for each GPU. Returns its exit code, or minus the signal that ended it."""
    out = Path(arguments[arguments.index("--out") + 1])
    out.mkdir(parents=True, exist_ok=True)

    def start(slot: GpuSlot, others: Sequence[int]) -> GpuProcess:
        (facts, their_output), (their_input, answers) = os.pipe(), os.pipe()

        def enter() -> None:
            os.dup2(their_input, 0)
            os.dup2(their_output, 1)
            for end in (their_input, their_output, facts, answers, *others):
                os.close(end)
            os.environ.update(slot_environment(slot))

        pid = fork_step(arguments, perform, has_workers, enter)
        os.close(their_input)
        os.close(their_output)
        return GpuProcess(slot, pid, facts, answers)

    return CaseQueue(gpus, str(out / ".turns"), start).run()


def fork_step(
    arguments: list[str], perform: Perform, has_workers: bool, enter: Callable[[], None] = lambda: None
) -> int:
    """Performs a step in a fork, which calls `enter` first. Returns its process id."""

    def perform_in_fork() -> int:
        end_with_parent()
        enter()
        if has_workers:
            from kernels.harness.processes import fork_worker_server

            fork_worker_server()
        return perform(arguments)

    return fork_process(perform_in_fork)


def start_step(arguments: list[str]) -> int:
    """Performs a step in an interpreter of its own. Returns its exit code, or minus the signal that ended it."""
    return subprocess.run([sys.executable, "-m", "kernels.harness", *arguments], check=False).returncode


def end_descendants() -> None:
    """Ends every process that a step has left behind, whatever group or session it is in."""
    for pid in list_descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
