"""`python3 -m startup.host.supervisor RUN_FOLDER`: supervises one run on a host, from its start to its last file.

Serves metadata and storage to the run, as a cloud would, ends it at its deadline, and removes its processes and its
scratch folder. What the run stored stays in the spool until a client has copied it.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from startup.host.paths import boot_id, boot_seconds, read_json, write_json
from startup.host.processes import MARK, kill_run, run_processes
from startup.host.services import ServedMachine, ServicesServer
from startup.host.spool import Spool

PR_SET_CHILD_SUBREAPER = 36
EXIT_S = 10.0
"""How long the bootstrap may take to end after it has deleted itself."""
STOP_S = 45.0
"""How long a run that is asked to end may take to store what it has."""
TICK_S = 0.2
KEPT = ("PATH", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "USER", "LOGNAME", "SHELL", "CXX", "CC", "TZ")
KEPT_BEGINNINGS = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "MKL_")


class Steward:
    """One run. `folder` has run.json; the locks came with the process and go with it. What the run stores stays in
    `spool`, which is below `folder` unless it is named. `clock` is what the deadline goes by: it goes on while the
    machine sleeps, and nobody sets it."""

    def __init__(self, folder: Path, spool: Spool | None = None, clock: Callable[[], float] = boot_seconds) -> None:
        self.folder = folder
        run = read_json(folder / "run.json")
        if run is None:
            raise SystemExit(f"{folder} has no run.json")
        self.run: dict[str, Any] = run
        self.vm = str(run["vm"])
        self.scratch = folder / "scratch"
        self.clock = clock
        self.began = clock()
        self.started_at = time.time()
        clients = self.started_at + float(run["client_time"]) - float(run["host_time"])
        spool = spool or Spool(folder / "spool", frozenset(run.get("known", ())))
        self.machine = ServedMachine(run, spool, now=lambda: clients + clock() - self.began)
        self.server = ServicesServer(self.machine)
        self.signals: SimpleQueue[int] = SimpleQueue()
        self.ended_by = ""

    def work(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else self.on_signal)
        threading.Thread(target=self.server.serve_forever, name="services", daemon=True).start()
        for name in ("vm", "home", "tmp", "bin"):
            (self.scratch / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write_wrapper()
        self.write_state("running")
        try:
            self.run_to_its_end()
        finally:
            kill_run(self.vm, self.scratch, os.getpid())
            self.reap()
            for name in ("scratch", "steward"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self.write_state("gone")

    def on_signal(self, number: int, _frame: object) -> None:
        """Take no lock: the thread that the signal interrupts may hold it."""
        self.signals.put(number)

    def stop_requested(self, wait_s: float) -> bool:
        """Return whether a signal asks this process to end within `wait_s` seconds, or a client did before.

        A client requests a stop by creating the file `stop`; any other signal counts as a preemption.
        """
        requested = (self.folder / "stop").exists()
        try:
            self.signals.get(timeout=wait_s)
        except Empty:
            return requested  # its signal may have come before the handler was there
        if not (self.folder / "stop").exists():
            self.machine.preempted.set()
        return True

    def write_state(self, status: str) -> None:
        """Write state.json for clients. A full disk is reported but does not stop the run from ending."""
        state = {"status": status, "pid": os.getpid(), "started_at": self.started_at, "id": self.run["id"]}
        state |= {"boot": boot_id(), "started_steady": self.began}
        if status == "gone":
            state |= {"ended_at": time.time(), "ended_steady": self.clock(), "ended_by": self.ended_by or "failed"}
        try:
            write_json(self.folder / "state.json", state)
        except OSError as error:
            sys.stderr.write(f"cannot write state.json: {error}\n")

    def write_wrapper(self) -> None:
        """The python that this host was checked with is the one that the run finds first."""
        path = self.scratch / "bin" / "python3"
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(str(self.run["executable"]))} "$@"\n', encoding="utf-8")
        path.chmod(0o700)

    def environment(self) -> dict[str, str]:
        """Little of the user's, so that nothing of theirs leaks into a log, and no home but ours to write to."""
        build = self.folder.parent.parent / "build"
        kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_BEGINNINGS)}
        return {
            **kept,
            "PATH": f"{self.scratch / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.scratch / "home"),
            "TMPDIR": str(self.scratch / "tmp"),
            "XDG_CACHE_HOME": str(build),
            "BENCH_KERNEL_CACHE": str(build / "kernels"),
            "CUDA_CACHE_PATH": str(build / "cuda"),
            # torch may be among what the user installed with `pip install --user`.
            "PYTHONUSERBASE": site.getuserbase(),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GCE_METADATA_HOST": self.machine.url.removeprefix("http://"),
            "BENCH_VM_DIR": str(self.scratch / "vm"),
            "BENCH_DELETE_TRIES": "5",
            MARK: self.vm,
        }

    def run_to_its_end(self) -> None:
        script = self.scratch / "startup.sh"
        script.write_text(self.run["metadata"]["startup-script"], encoding="utf-8")
        with (self.folder / "serial.log").open("ab") as log:
            bootstrap = subprocess.Popen(
                ["bash", str(script)],
                cwd=self.scratch,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        alive = self.folder / "alive"
        deadline = self.began + float(self.run["deadline_s"])
        limit, stop_was_sent = deadline, False
        while bootstrap.poll() is None:
            now = self.clock()
            if self.machine.deleted.is_set() and not self.ended_by:
                self.ended_by, limit = "itself", min(limit, now + EXIT_S)
            if now >= limit:
                self.ended_by = self.ended_by or ("stop" if stop_was_sent else "deadline")
                return
            if self.stop_requested(TICK_S) and not stop_was_sent:
                stop_was_sent, limit = True, min(limit, self.clock() + STOP_S)
                bootstrap.send_signal(signal.SIGTERM)
            os.utime(alive)
        self.ended_by = self.ended_by or ("itself" if self.machine.deleted.is_set() else "exit")

    def reap(self) -> None:
        """Reap orphans of the run, which became children of this process."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                if not run_processes(self.vm, self.scratch, os.getpid()):
                    return
                time.sleep(TICK_S)


if __name__ == "__main__":
    Steward(Path(sys.argv[1])).work()
