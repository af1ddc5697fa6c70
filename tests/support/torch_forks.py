"""Processes that have torch imported when they begin: a session imports it once, and each of them is a fork.

What runs is `python -m MODULE` in every other respect: a process of its own, with its own folder, environment, handles
and arguments. The server of workers that it would start is a fork of it, as it is where the harness serves steps.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

LONGEST: Final = 1 << 17
"""Bytes of a request."""
LAST: Final = 1 << 10
"""Handles above this one are nobody's."""


class Fork:
    """One process, with pipes for its standard input and output, as `subprocess.Popen` has them."""

    def __init__(
        self, server: TorchForks, module: str, arguments: Sequence[str], told: Mapping[str, Any], log: IO[str]
    ):
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self.word, theirs = socket.socketpair()
        asked = json.dumps({"module": module, "arguments": list(arguments), **told}).encode()
        assert len(asked) < LONGEST
        handles = [theirs.fileno(), theirs_in, theirs_out, log.fileno()]
        socket.send_fds(server.control, [asked], handles)
        theirs.close()
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin: IO[str] = os.fdopen(ours_in, "w")
        self.stdout: IO[str] = os.fdopen(ours_out)
        self.returncode: int | None = None
        said = self.word.recv(16, socket.MSG_WAITALL)
        assert said, "the process that forks has ended"
        self.pid = int(said)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it. Raises TimeoutError."""
        if self.returncode is None:
            self.word.settimeout(timeout)
            self.returncode = int(self.word.recv(16, socket.MSG_WAITALL))
            self.word.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        try:
            return self.wait(0)
        except (TimeoutError, BlockingIOError):
            return None

    def kill(self) -> None:
        if self.returncode is None:  # else its number may be somebody else's by now
            os.kill(self.pid, signal.SIGKILL)


class TorchForks:
    """The process that imported torch. It ends with whoever made it."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=null, stdout=null, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, module: str, *arguments: str, cwd: Path, environ: Mapping[str, str], log: IO[str]) -> Fork:
        """`python -m module arguments`, with its standard error in `log`."""
        return Fork(self, module, arguments, {"cwd": str(cwd), "environ": dict(environ)}, log)


def forked(control: socket.socket) -> dict[str, Any]:
    """Returns in each new process, with what was asked of it; the caller itself ends with the control."""
    control.setblocking(True)  # sockets of a process with a default timeout are not
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, handles, _, _ = socket.recv_fds(control, LONGEST, 4)
        if not asked:
            os._exit(0)
        if os.fork():
            for handle in handles:
                os.close(handle)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        word = socket.socket(fileno=handles[0])
        word.setblocking(True)
        pid = os.fork()
        if pid:
            supervise(word, pid, handles[1:])
        word.close()
        for target, handle in enumerate(handles[1:]):
            os.dup2(handle, target)
        os.closerange(3, LAST)
        told: dict[str, Any] = json.loads(asked)
        return told


def supervise(word: socket.socket, pid: int, handles: Sequence[int]) -> None:
    """Says the number of a process, and its exit code when it has one. It is a zombie for as long as somebody listens."""
    for handle in handles:
        os.close(handle)
    try:
        word.sendall(b"%16d" % pid)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        word.sendall(b"%16d" % (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
        word.recv(1)
    finally:
        os._exit(0)


def run(told: Mapping[str, Any]) -> None:
    """As `python -m` does."""
    os.environ.clear()
    os.environ.update(told["environ"])
    os.chdir(told["cwd"])
    tempfile.tempdir = None
    above = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [told["cwd"], *above, *(path for path in sys.path[1:] if path not in OURS)]
    sys.argv = [told["module"], *told["arguments"]]
    if "--spec" in sys.argv:  # the harness: where it has workers, their server is a fork made as early as this
        serving = importlib.import_module("kernels.harness.serving")
        own = serving.own_workload(Path(sys.argv[sys.argv.index("--spec") + 1]))
        if own is not None and not (serving.import_for_steps(own) or serving.import_for_workers(own)):
            importlib.import_module("kernels.harness.processes").fork_worker_server()
    runpy.run_module(told["module"], run_name="__main__", alter_sys=True)


# What this process was told to import from: each fork is told anew.
OURS: Final = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
if __name__ == "__main__":
    import numpy as np  # noqa: F401
    import torch  # noqa: F401

    gc.freeze()  # what all forks share is looked through by none of them: each look would copy it
    run(forked(socket.socket(fileno=int(sys.argv[1]))))
