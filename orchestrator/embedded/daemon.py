"""The embedded cloud as a background process: `python -m orchestrator.embedded.daemon --home DIR`.

It detaches, and the command returns once the cloud answers. Each home directory has at most one daemon. It ends when
nothing has used it for a while, on SIGTERM, or on request, and ends all its VMs and child processes.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from orchestrator.embedded.client import ADDRESS, FULL, IDLE_STOP_S, LOCK, UP, published_address
from orchestrator.embedded.documents import load_yaml, private_file, private_folder, utc_stamp, write_json
from orchestrator.embedded.errors import no_room
from orchestrator.embedded.server import EmbeddedCloud

LOOK_S = 0.25
LOCK_S = 30.0
READY = b"ready"


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    home = Path(options.home).absolute()
    try:
        private_folder(home)
        lock = acquire_lock(home)
    except OSError as exc:
        code, why = _failure(exc)
        sys.stderr.write(f"{why}\n")
        return code
    if lock is None:
        return 0  # another daemon was started first, and it answers
    if options.foreground:
        serve_cloud(home, options.idle_stop, options.weather, lambda: None)
        return 0
    return detach_daemon(home, options)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="orchestrator.embedded.daemon", description=__doc__)
    parser.add_argument("--home", required=True, help="directory of everything the cloud keeps")
    parser.add_argument("--idle-stop", type=float, default=IDLE_STOP_S, help="seconds without a VM or a request")
    parser.add_argument("--weather", default=os.environ.get("BENCH_WEATHER"), help="YAML file of faults")
    parser.add_argument("--foreground", action="store_true", help="do not detach")
    return parser.parse_args(arguments)


def acquire_lock(home: Path) -> IO[bytes] | None:
    """The lock file of the home, which the daemon holds until it ends; None if another daemon runs. If another daemon
    is ending, this waits for it. Raises `SystemExit` if that takes too long."""
    private_file(home / LOCK)
    file = (home / LOCK).open("ab")
    end = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if published_address(home) is not None:
                file.close()
                return None
            if time.monotonic() > end:
                raise SystemExit(f"another process holds {home / LOCK} but does not answer") from None
            time.sleep(0.01)
        else:
            file.truncate(0)  # remove what an earlier daemon wrote about itself
            return file


def detach_daemon(home: Path, options: argparse.Namespace) -> int:
    """Forks. The child serves; the parent returns 0 once the child is ready, or prints why it is not and returns its
    exit code."""
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        with os.fdopen(read_end, "rb") as file:
            message = file.read()
        if message == READY:
            return 0
        number, _, message_text = message.decode("utf-8", "replace").partition(" ")
        sys.stderr.write(message_text or "the daemon died\n")
        return int(number or 1)
    os.close(read_end)
    os.setsid()
    os.chdir(home)
    log = os.open(home / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def ready() -> None:
        os.write(write_end, READY)
        os.close(write_end)

    code = 0
    try:
        serve_cloud(home, options.idle_stop, options.weather, ready)
    except BaseException as exc:
        code, why = _failure(exc)
        with suppress(OSError):  # it was ready before it failed
            os.write(write_end, f"{code} {why}\n".encode())
        with suppress(OSError):  # the log is on the same disk
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(code)


def _failure(exc: BaseException) -> tuple[int, str]:
    """(exit code, message) for an error that keeps the cloud from starting."""
    full = no_room(exc)
    return (1, f"{type(exc).__name__}: {exc}") if full is None else (FULL, full.message)


def serve_cloud(home: Path, idle_stop_s: float, weather: str | None, ready: Callable[[], None]) -> None:
    """Runs the cloud of `home` until it is told to stop, or was not used for `idle_stop_s` seconds. Calls `ready` once
    it answers."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    signals: list[int] = []  # a list, because a signal handler must take no lock: this thread may hold it
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: signals.append(number))
    with published_cloud(home, os.getpid(), weather) as cloud:
        ready()
        while not (signals or cloud.stop_requested.is_set() or cloud.idle_s > idle_stop_s):
            cloud.stop_requested.wait(LOOK_S)


@contextmanager
def published_cloud(home: Path, pid: int, weather: str | None = None) -> Iterator[EmbeddedCloud]:
    """The cloud of `home`, which clients find there. The caller holds the lock of `home`.

    pid: the process that a client may end if the cloud does not answer; 0 for none.
    weather: a YAML file of faults.
    """
    address = home / ADDRESS
    (home / LOCK).write_text(str(pid), "ascii")  # so that it can be stopped even if the address file is lost
    address.unlink(missing_ok=True)
    faults = load_yaml(Path(weather)) if weather else None
    with EmbeddedCloud(home, weather=faults) as cloud:
        write_json(
            address,
            {
                "pid": pid,
                "compute": cloud.compute_url,
                "storage": cloud.storage_url,
                "control": cloud.control_url,
                "project": cloud.project,
                "bucket": cloud.bucket,
                "started_at": utc_stamp(cloud.started_at),
                "gpu": cloud.gpu,
            },
        )
        (home / LOCK).write_text(f"{pid} {UP}", "ascii")
        try:
            yield cloud
        finally:
            # A client that looks for a cloud from now on starts a new one, which waits for this one's lock.
            (home / LOCK).write_text(str(pid), "ascii")
            address.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
