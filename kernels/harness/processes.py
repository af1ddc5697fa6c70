"""Processes for code that is not ours. They start quickly, requests to them have a time limit, and nothing is left of
them."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

from kernels.forms.definition import is_own
from kernels.harness.ending import close_files_except, describe_exit, end_with_parent, list_descendants
from kernels.harness.facts import log_line
from kernels.harness.input_sets import free_memory
from kernels.harness.progress import PROGRESS
from kernels.harness.settings import FRAMES_SIGNAL, NATIVE_FRAMES_SIGNAL, apply_worker_settings
from kernels.harness.users import is_running

apply_worker_settings()
SPAWN = multiprocessing.get_context("forkserver")
"""One process imports torch, and every worker is a fork of it. Hundreds of workers start in less time than one
import."""
LONGEST_REPLY = 8 << 20
LONGEST_FOLDER = 50
OPEN_FILES = Path("/proc/self/fd")
FRAMES_S = 1.0
SLOW_S = (10.0, 60.0)
"""A request that takes so long is named in the log, and again each time that the last of these has passed."""


IMPORTED_FOR = {"torch._dynamo": (b"torch.compile", b"class Model"), "kernels.harness.triton_modules": (b"triton",)}
"""Modules that take a worker long to import, and what in a workload's files says that it will. The compiler's backend,
`torch._inductor`, is not among them: what forks compiled with a backend imported before them did not launch on an H100
(too many resources requested)."""


def worker_modules(workload: Path) -> list[str]:
    """What every worker for a workload has imported before it begins. None of it touches a device."""
    folder = workload if workload.is_dir() else workload.parent
    sources = [one.read_bytes() for one in folder.glob("*.py")]
    wanted = [name for name, marks in IMPORTED_FOR.items() if any(mark in text for text in sources for mark in marks)]
    device_code = ["kernels.device_code"] if torch.version.cuda else []
    return ["kernels.harness.worker", *device_code, *wanted]


def prepare_workers(workload: Path) -> None:
    """Sets what the server of workers imports, unless it runs already. It is called before the first worker starts."""
    SPAWN.set_forkserver_preload(worker_modules(workload))


def fork_worker_server() -> None:
    """Makes the server of workers a fork of this process, which must have imported `worker_modules` and have touched no
    device. It holds no file of this process but its log. Where Python's own server needs a key, it is started later, as
    if this had not been called."""
    server: Any = forkserver._forkserver
    if hasattr(server, "_forkserver_authkey"):
        return
    resource_tracker.ensure_running()
    with nameless_listener(), socket.socket(socket.AF_UNIX) as listener:
        address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
        listener.bind(address)
        Path(address).chmod(0o600)
        listener.listen()
        alive, ours = os.pipe()
        pid = os.fork()
        if not pid:
            serve_forks(listener.fileno(), alive)
        os.close(alive)
        server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, ours, pid


def start_worker_server() -> None:
    """Starts Python's server of workers, unless a server runs already."""
    pid = cast(Any, forkserver)._forkserver._forkserver_pid
    if pid is None or not is_running(pid):
        with nameless_listener():
            forkserver.ensure_running()


@contextlib.contextmanager
def nameless_listener() -> Iterator[None]:
    """Removes the socket of the server of workers that the block starts. This process and its forks reach the server by
    a descriptor, so that nothing of it is left, however they end. Where there is no /proc, Python removes the socket at
    its exit. The path of a socket may have at most a hundred bytes, and that of the temporary folder may be longer."""
    server = cast(Any, forkserver)._forkserver
    config: dict[str, Any] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    before = tempfile.gettempdir()
    tempfile.tempdir = before if len(before) <= LONGEST_FOLDER else "/tmp"
    folder = config["tempdir"] = tempfile.mkdtemp(prefix="bench-listener-") if OPEN_FILES.is_dir() else None
    try:
        yield
        if folder is not None:
            server._forkserver_address = str(OPEN_FILES / str(os.open(server._forkserver_address, os.O_PATH)))
    finally:
        tempfile.tempdir = before
        if folder is not None:
            config["tempdir"] = None
            shutil.rmtree(folder, ignore_errors=True)


def serve_forks(listener: int, alive: int) -> NoReturn:
    """Forks a worker upon each request, until `alive` ends."""
    try:
        end_with_parent()
        os.dup2(2, 1)  # the facts are not its own
        close_files_except(listener, alive)
        forkserver.main(listener, alive, [])
    finally:
        os._exit(0)


class Lost(Exception):
    """A worker is gone: `how` says why, and `hung` that it did not answer and was ended."""

    def __init__(self, how: str, *, hung: bool = False) -> None:
        super().__init__(how)
        self.how, self.hung = how, hung

    def reason(self, when: str) -> str:
        """A reason fit for a row."""
        return f"{self.how} {when}"


class Answered(Exception):
    """A worker reports a failure: `kind` is `raised`, `memory`, `unavailable`, `build`, `workload` or `untrusted`.
    `sticky` means that its device refuses everything from now on."""

    def __init__(self, kind: str, text: str, *, sticky: bool = False, remedy: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.sticky, self.remedy = kind, text, sticky, remedy

    def reason(self, when: str) -> str:
        """A reason fit for a row."""
        return f"{self.text} {when}" if self.kind == "memory" else self.text


class Worker:
    """One process, and our end of its pipe. Only data comes back: JSON of a bounded size."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.frames = tempfile.TemporaryFile()  # noqa: SIM115 - it ends with the worker
        path = Path(str(settings.get("path", ".")))
        self.folder = (path if path.is_dir() else path.parent).resolve()
        with theirs, Connection(os.dup(self.frames.fileno()), readable=False) as frames:  # as which it can be sent
            self.process = SPAWN.Process(target=worker_main, args=(theirs, frames, settings), daemon=True)
            start_worker_server()
            self.process.start()

    def ask(self, op: str, limit_s: float, /, **arguments: Any) -> Mapping[str, Any]:
        """The answer to one request. Raises `Lost` and `Answered`."""
        self.send(op, **arguments)
        return self.receive(op, limit_s)

    def send(self, op: str, /, **arguments: Any) -> None:
        """Sends a request. Where the process is gone, `receive` says so."""
        request = {"op": op, **arguments} if op in ("import", "load") else {"op": op, "with": arguments}
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(json.dumps(request).encode())

    def receive(self, op: str, limit_s: float) -> Mapping[str, Any]:
        """The answer to the request that was sent last. Raises `Lost` and `Answered`."""
        try:
            if not self.answers(op, limit_s):
                place = self.current_place()
                self.end()
                raise Lost(f"hung: no answer within {limit_s:g} s" + (f" in {place}" if place else ""), hung=True)
            reply = json.loads(self.pipe.recv_bytes(LONGEST_REPLY))
        except (EOFError, OSError, ValueError) as exc:
            raise Lost(self.fate()) from exc
        if not isinstance(reply, dict):
            self.end()
            raise Lost("untrusted: its process sent something that is not an answer")
        if "error" in reply:
            raise Answered(
                str(reply["error"]),
                str(reply.get("text", ""))[:2000],
                sticky=bool(reply.get("sticky")),
                remedy=str(reply.get("remedy", "")),
            )
        return reply

    def answers(self, op: str, limit_s: float) -> bool:
        """Whether there is an answer within a time. Until then the log and the agent are told what runs for long."""
        began, logged_s = time.monotonic(), SLOW_S[0]
        while (waited_s := time.monotonic() - began) < limit_s:
            pause_s = min(limit_s, logged_s) - waited_s
            if self.pipe.poll(min(pause_s, PROGRESS.wait_s())):
                return True
            waited_s, is_due = time.monotonic() - began, not PROGRESS.wait_s()
            if waited_s < limit_s and (waited_s >= logged_s or is_due):
                place = self.current_place() or op
                PROGRESS.note(place)
                if waited_s >= logged_s:
                    log_line(f"{place} has been running for {waited_s:.0f} s")
                    logged_s += SLOW_S[-1]
        return False

    def current_place(self) -> str:
        """The function of the workload that the process is in, and the line, as `kernel_mine (mine.py:12)`; empty if
        that cannot be known."""
        before = self.frames_size()
        if not self.writes_frames(FRAMES_SIGNAL):
            self.writes_frames(NATIVE_FRAMES_SIGNAL)
        content = os.pread(self.frames.fileno(), 1 << 20, before).decode(errors="replace")
        for name, line, function in re.findall(r'File "(.+?)", line (\d+) in (\S+)', content):
            if is_own(Path(name), self.folder):
                return f"{function} ({Path(name).name}:{line})"
        return ""

    def writes_frames(self, number: signal.Signals) -> bool:
        """Whether the process writes where it is upon a signal, soon and without answering first."""
        pid, before = self.process.pid, self.frames_size()
        if pid is None or not catches(pid, number):
            return False
        with contextlib.suppress(OSError):
            os.kill(pid, number)
        deadline, size = time.monotonic() + FRAMES_S, before
        while time.monotonic() < deadline and not self.pipe.poll(0.05):
            if size == (size := self.frames_size()) > before:
                return True
        return False

    def frames_size(self) -> int:
        """How many bytes the process has written of where it was."""
        return os.fstat(self.frames.fileno()).st_size

    def fate(self) -> str:
        """How the process ended, in words."""
        self.process.join(5)
        code = self.process.exitcode
        self.end()
        if code is None:
            return "untrusted: it closed its pipe"
        return describe_exit(code)

    def kill(self) -> None:
        """Kills the process and everything that it started, and waits for nothing."""
        for pid in list_descendants(self.process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self.process.is_alive():
            self.process.kill()

    def end(self) -> None:
        """Ends the process and everything that it started."""
        self.kill()
        self.process.join(5)
        self.pipe.close()
        self.frames.close()


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    try:
        mask = re.search(r"(?m)^SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    except OSError:
        return False
    return bool(mask and int(mask[1], 16) >> (number - 1) & 1)


def worker_main(pipe: Connection, frames: Connection, settings: Mapping[str, Any]) -> None:
    """The main function of a worker."""
    from kernels.harness.worker import serve_requests

    serve_requests(pipe, frames, settings)


def free_bytes(device: torch.device) -> int:
    """The bytes that the input sets of all implementations together may take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) // 2
    return free_memory(device) // 4
