"""The embedded cloud as a background process: `python -m orchestrator.embedded.daemon --home DIR`.

It detaches, and the command returns once the cloud answers. One daemon lives in a home; it ends when nothing has used
it for a while, on SIGTERM, or when told to, and takes every VM and child with it.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from orchestrator.embedded.client import ADDRESS, FULL, IDLE_STOP_S, LOCK, UP, published
from orchestrator.embedded.documents import load_yaml, private_file, private_folder, stamp, write_json
from orchestrator.embedded.errors import no_room
from orchestrator.embedded.server import EmbeddedCloud

LOOK_S = 0.25
LOCK_S = 30.0
READY = b"ready"


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    home = Path(options.home).absolute()
    try:
        private_folder(home)
        lock = acquire(home)
    except OSError as exc:
        code, why = _told(exc)
        sys.stderr.write(f"{why}\n")
        return code
    if lock is None:
        return 0  # another one was faster, and that one answers
    if options.foreground:
        serve(home, options.idle_stop, options.weather, lambda: None)
        return 0
    return detach(home, options)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="orchestrator.embedded.daemon", description=__doc__)
    parser.add_argument("--home", required=True, help="directory of everything the cloud keeps")
    parser.add_argument("--idle-stop", type=float, default=IDLE_STOP_S, help="seconds without a VM or a request")
    parser.add_argument("--weather", default=os.environ.get("BENCH_WEATHER"), help="YAML file of faults")
    parser.add_argument("--foreground", action="store_true", help="do not detach")
    return parser.parse_args(arguments)


def acquire(home: Path) -> IO[bytes] | None:
    """The lock of the home, for life; None when another daemon is up. One that is on its way out is waited for."""
    private_file(home / LOCK)
    file = (home / LOCK).open("ab")
    end = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if published(home) is not None:
                file.close()
                return None
            if time.monotonic() > end:
                raise SystemExit(f"another process holds {home / LOCK} but does not answer") from None
            time.sleep(0.01)
        else:
            file.truncate(0)  # what the one before said of itself holds no more
            return file


def detach(home: Path, options: argparse.Namespace) -> int:
    """Fork; the child serves, the parent returns 0 when it is ready, or prints why it is not."""
    ears, mouth = os.pipe()
    if os.fork():
        os.close(mouth)
        with os.fdopen(ears, "rb") as file:
            said = file.read()
        if said == READY:
            return 0
        number, _, words = said.decode("utf-8", "replace").partition(" ")
        sys.stderr.write(words or "the daemon died\n")
        return int(number or 1)
    os.close(ears)
    os.setsid()
    os.chdir(home)
    log = os.open(home / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def ready() -> None:
        os.write(mouth, READY)
        os.close(mouth)

    code = 0
    try:
        serve(home, options.idle_stop, options.weather, ready)
    except BaseException as exc:
        code, why = _told(exc)
        with suppress(OSError):  # it was ready before it failed
            os.write(mouth, f"{code} {why}\n".encode())
        with suppress(OSError):  # the log is on the same disk
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(code)


def _told(exc: BaseException) -> tuple[int, str]:
    """The exit code for what keeps the cloud from coming up, and a line on it."""
    full = no_room(exc)
    return (1, f"{type(exc).__name__}: {exc}") if full is None else (FULL, full.message)


def serve(home: Path, idle_stop_s: float, weather: str | None, ready: Callable[[], None]) -> None:
    """Be the cloud of `home` until told to stop or left alone for `idle_stop_s`."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    address = home / ADDRESS
    (home / LOCK).write_text(str(os.getpid()), "ascii")  # whoever stops it finds it, whatever becomes of the address
    address.unlink(missing_ok=True)
    asked: list[int] = []  # a handler takes no lock: it may have come while this thread held it
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: asked.append(number))
    faults = load_yaml(Path(weather)) if weather else None
    with EmbeddedCloud(home, weather=faults) as cloud:
        write_json(
            address,
            {
                "pid": os.getpid(),
                "compute": cloud.compute_url,
                "storage": cloud.storage_url,
                "control": cloud.control_url,
                "project": cloud.project,
                "bucket": cloud.bucket,
                "started_at": stamp(cloud.started_at),
                "gpu": cloud.gpu,
            },
        )
        (home / LOCK).write_text(f"{os.getpid()} {UP}", "ascii")
        ready()
        while not (asked or cloud.stop_requested.is_set() or cloud.idle_s > idle_stop_s):
            cloud.stop_requested.wait(LOOK_S)
        # Whoever looks from now on starts a new one, which waits for our lock.
        (home / LOCK).write_text(str(os.getpid()), "ascii")
        address.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
