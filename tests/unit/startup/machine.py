"""Builders: a run spec, a payload with the real agent and a played harness, and a VM that is a session of processes."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S, await_truth
from tests.unit.startup.cloud import BUCKET, RUN, VM, Cloud

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "startup" / "startup.sh"
CASES = [f"b1-h2-kv2-q{seq}-k{seq}-d64-full-float16" for seq in (64, 128)]

TIMING = {
    "request_timeout_s": 10,  # what is not answered is asked again, until the patience is used up
    "retry_first_s": 0.02,
    "retry_max_s": 0.1,
    "storage_patience_s": PATIENCE_S,
    "log_every_s": 0.1,
    "log_lag_s": PATIENCE_S,
    "kill_grace_s": 0.2,
    "driver_wait_s": 1,
    "driver_poll_s": 0.05,
    "preempted_wait_s": 5,
    "preempted_poll_s": 0.02,
    "preempted_ask_s": PATIENCE_S,
    "hurried_finish_s": PATIENCE_S,
    "hurried_grace_s": 0.1,
}


def run_spec(script: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A spec for two cases on a machine without CUDA where nothing may be installed; `script` is the harness's."""
    harness = {
        "implementations": changes.pop("implementations", ["bench", "sdpa:default"]),
        "cases": changes.pop("cases", CASES),
        "script": script or {},
        "skip_cases": changes.pop("skip_cases", []),
    }
    limits = dict.fromkeys(("preflight", "environment", "build", "correctness", "measure", "finish"), PATIENCE_S)
    limits.update(changes.pop("limits", {}))
    return {
        "schema": 1,
        "run_id": RUN,
        "vm": VM,
        "attempt": 1,
        "bucket": BUCKET,
        "gpu": "l4",
        "require_cuda": False,
        "deadline_s": 600,
        "phase_limits_s": limits,
        "environment": {"torch": "2.13.0", "allow_install": False, "min_free_gb": 0},
        "harness": harness,
        "timing": {**TIMING, **changes.pop("timing", {})},
        **changes,
    }


@functools.cache
def payload() -> bytes:
    """startup/ as it is in this tree, and the played harness in place of kernels/."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for path in sorted((ROOT / "startup").rglob("*")):
            if path.suffix in {".py", ".sh"}:
                tar.add(path, path.relative_to(ROOT).as_posix())
        add(tar, "kernels/__init__.py", b"")
        add(tar, "kernels/harness/__init__.py", b"")
        add(tar, "kernels/harness/__main__.py", (Path(__file__).parent / "played_harness.py").read_bytes())
        add(tar, "manifest.json", b'{"schema": 1, "git_commit": "abc"}')
    return archive.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def stub(directory: Path, name: str, body: str) -> Path:
    """An executable on a PATH of stubs, written in sh."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fast_python(directory: Path) -> Path:
    """A `python3` that is this interpreter, but answers the agent's probe without the seconds that torch needs."""
    probe = '{"torch": "2.13.0", "cuda": null, "usable": false, "numpy": "2.4.0", "exchange": true, "error": ""}'
    body = f"""case "$1 $2" in
-c*exchange*) echo '{probe}' ;;
*) exec {sys.executable} "$@" ;;
esac"""
    # The probe is many lines long: `case` must see all of it as one word.
    return stub(directory, "python3", body.replace("-c*exchange*)", '"-c "*exchange*)'))


def held_sleep(directory: Path, home: Path) -> Path:
    """A `sleep` that lets the watchdog wait for the test and for no clock: what would take more than 40 s lasts until
    `time_is_up`, what would take less lasts a second at most. Ahead of a deadline of ten minutes the watchdog waits for
    nine, less what the boot has taken, and then for 40 s until it kills what does not end."""
    os.mkfifo(home / "time")
    body = f"""seconds=${{1%%.*}}
if [ "$seconds" -gt 40 ]; then read -r _ <'{home / "time"}'
elif [ "$seconds" -gt 0 ]; then exec /usr/bin/sleep 1
else exec /usr/bin/sleep "$1"; fi"""
    return stub(directory, "sleep", body)


def time_is_up(home: Path) -> None:
    """Ends the wait that `held_sleep` holds, as soon as there is one."""

    def told() -> bool:
        try:
            handle = os.open(home / "time", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            return False
        os.write(handle, b"up\n")
        os.close(handle)
        return True

    await_truth(told)


class Machine:
    """A VM: the real startup.sh in a session of its own, under a directory of its own."""

    def __init__(self, cloud: Cloud, home: Path, path: str | None = None, **env: str) -> None:
        self.cloud = cloud
        self.home = home
        self.bin = home / "bin"
        fast_python(self.bin)
        self.env = {
            "PATH": path if path is not None else f"{self.bin}:/usr/bin:/bin",
            "HOME": str(home),
            "BENCH_VM_DIR": str(home / "vm"),
            "GCE_METADATA_HOST": cloud.host,
            "BENCH_RETRY_PAUSE_S": "0.02",
            "BENCH_REQUEST_TIMEOUT_S": "10",
            "BENCH_DELETE_TRIES": "20",
            **env,
        }

    def __enter__(self) -> Machine:
        home = Path(self.env["BENCH_VM_DIR"])
        home.mkdir(parents=True, exist_ok=True)
        self.console = (self.home / "console").open("wb")
        self.process = subprocess.Popen(
            ["/bin/bash", str(SCRIPT)],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=self.console,
            stderr=self.console,
            start_new_session=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself since
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.console.close()

    def processes(self) -> list[int]:
        """Every living process of this VM's session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                except OSError:
                    continue
                if int(session) == self.process.pid and state not in {"Z", "X"}:
                    found.append(int(entry.name))
        return found

    def leaves_nothing(self) -> None:
        """Returns once no process of it is left: one that was killed takes a moment to go."""
        await_truth(lambda: self.processes() == [], "the end of its processes")

    def hold_time(self) -> Machine:
        """From now on the watchdog waits for `time_is_up`. Before the VM boots."""
        held_sleep(self.bin, self.home)
        return self

    def time_is_up(self) -> None:
        """Ends the watchdog's wait, as soon as it waits."""
        time_is_up(self.home)

    def wait(self) -> int:
        """Until the script ends."""
        return self.process.wait(timeout=PATIENCE_S)

    def serial(self) -> str:
        return (self.home / "console").read_text(errors="replace")

    def vm_file(self, name: str) -> Path:
        return Path(self.env["BENCH_VM_DIR"]) / name

    def await_file(self, name: str) -> int:
        """The number in a file of the VM's directory, as soon as it is there."""
        await_truth(lambda: self.vm_file(name).exists() and self.vm_file(name).read_text().strip() != "")
        return int(self.vm_file(name).read_text())
