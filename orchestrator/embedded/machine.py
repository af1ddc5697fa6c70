"""A VM as real processes: it runs the startup script from its metadata with bash, in a scratch directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from orchestrator.embedded.guest import Guest
from orchestrator.embedded.metadata import MetadataServer
from orchestrator.embedded.supervisor import list_descendants

SUPERVISOR = Path(__file__).with_name("supervisor.py")
DOCKER = Path(__file__).with_name("docker.py")
MARK = "BENCH_VM_ID"

# The processes that a fault can hit are recognised by one argument of their command lines.
TARGETS = {"harness": b"kernels.harness", "agent": b"startup.agent"}
SIGNALS = {"hang": signal.SIGSTOP, "kill": signal.SIGKILL}


def start_supervised(
    command: list[str], *, stay: bool, environment: dict[str, str], output: int | IO[bytes]
) -> Supervised:
    """Starts a command under a supervisor. The supervisor ends the command when told to, and when this process ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), *(["--stay"] if stay else []), *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    return Supervised(process)


class Supervised:
    """A supervisor and its descendants."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lock = threading.Lock()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def pids(self) -> list[int]:
        """The ids of all its processes except the supervisor."""
        return [] if self.ended else list_descendants(self.process.pid)

    def term(self) -> None:
        """Sends SIGTERM to all its processes."""
        self._say(b"term\n")

    def kill(self) -> None:
        """Sends SIGKILL to all its processes, and waits until they are gone."""
        with self.lock:
            lifeline = self.process.stdin
            if lifeline is not None and not lifeline.closed:
                try:
                    lifeline.close()
                except OSError:
                    pass  # it ended by itself
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _say(self, word: bytes) -> None:
        with self.lock:
            lifeline = self.process.stdin
            if lifeline is None or lifeline.closed:
                return
            try:
                lifeline.write(word)
                lifeline.flush()
            except OSError:
                pass  # it ended by itself


class ProcessMachine:
    """A `Machine` that runs real processes.

    The startup script gets `GCE_METADATA_HOST`, `BENCH_VM_DIR`, its own `HOME` and `TMPDIR`, and a `PATH` on which
    `python3` is the interpreter that runs the cloud. It gets nothing else of the host's environment.
    """

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.metadata: MetadataServer | None = None
        self.supervised: Supervised | None = None
        self.reader: threading.Thread | None = None
        self.dead = False
        self.lock = threading.Lock()

    def boot(self) -> None:
        with self.lock:
            script = self.guest.metadata.get("startup-script")
            if self.dead or script is None:
                return
            path = self._store("startup-script", script)
            self.supervised = start_supervised(
                ["bash", str(path)], stay=True, environment=self._environment(), output=subprocess.PIPE
            )
            self.reader = threading.Thread(target=self._read, name=f"serial-{self.guest.name}", daemon=True)
            self.reader.start()

    def run_task(self, script: str, environment: Mapping[str, str], done: Callable[[int], None]) -> None:
        with self.lock:
            if self.dead:
                return
            path = self._store("task-script", script)
            path.chmod(0o700)
            command = [str(path)] if script.startswith("#!") else ["/bin/sh", str(path)]
            supervised = start_supervised(
                command, stay=False, environment=self._environment() | dict(environment), output=subprocess.PIPE
            )
            self.supervised = supervised

            def follow() -> None:
                self._read(supervised)
                done(supervised.process.wait())

            self.reader = threading.Thread(target=follow, name=f"task-{self.guest.name}", daemon=True)
            self.reader.start()

    def end_task(self) -> None:
        if self.supervised is not None:
            self.supervised.kill()

    def _store(self, name: str, script: str) -> Path:
        """Writes a script to the scratch directory, and prepares the folders and the metadata server that it uses."""
        scratch = self.guest.scratch
        for folder in ("home", "tmp", "bench", "bin"):
            (scratch / folder).mkdir(parents=True, exist_ok=True)
        docker = scratch / "bin" / "docker"
        docker.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{DOCKER}" "$@"\n')
        docker.chmod(0o755)
        path = scratch / name
        path.unlink(missing_ok=True)
        path.write_text(script, "utf-8")
        if self.metadata is None:
            self.metadata = MetadataServer(self.guest)
        return path

    def running(self) -> bool:
        return self.supervised is not None and bool(self.supervised.pids())

    def shut_down(self) -> None:
        with self.lock:
            self.dead = self.dead or self.supervised is None  # what has not booted never will
        if self.supervised is not None:
            self.supervised.term()

    def kill(self) -> None:
        with self.lock:
            self.dead = True
        if self.supervised is not None:
            self.supervised.kill()
            self._sweep()
        if self.reader is not None:
            self.reader.join(timeout=5)
        if self.metadata is not None:
            self.metadata.close()
        shutil.rmtree(self.guest.scratch, ignore_errors=True)

    def strike(self, fault: str, target: str) -> bool:
        argument = TARGETS[target]
        struck = False
        for pid in self.supervised.pids() if self.supervised is not None else ():
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if argument in arguments:
                    os.kill(pid, SIGNALS[fault])
                    struck = True
            except OSError:
                continue  # the process has ended
        return struck

    def _environment(self) -> dict[str, str]:
        assert self.metadata is not None
        scratch = self.guest.scratch
        host_path = os.environ.get("PATH", os.defpath)
        return {
            "PATH": f"{scratch / 'bin'}:{Path(sys.executable).parent}:{host_path}",
            "HOME": str(scratch / "home"),
            "TMPDIR": str(scratch / "tmp"),
            "LANG": "C.UTF-8",
            "USER": "root",
            "GCE_METADATA_HOST": self.metadata.host,
            "GCE_METADATA_IP": self.metadata.host,
            "BENCH_VM_DIR": str(scratch / "bench"),
            MARK: self.guest.id,
        }

    def _read(self, supervised: Supervised | None = None) -> None:
        supervised = supervised or self.supervised
        assert supervised is not None
        output = supervised.process.stdout
        assert output is not None
        with output:
            while data := os.read(output.fileno(), 65536):
                self.guest.console.write(data)

    def _sweep(self) -> None:
        """Kills processes that remain if the supervisor itself was killed. They have the VM's mark in their
        environment."""
        mark = f"{MARK}={self.guest.id}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        os.kill(int(entry.name), signal.SIGKILL)
                except OSError:
                    continue  # we may not read it, or it has ended
