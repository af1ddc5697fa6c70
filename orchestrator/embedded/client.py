"""Finds, starts and stops the embedded cloud's daemon, and sends requests to its control API. It is quick to import.

The daemon of a home directory holds a lock there for as long as it lives, and writes its addresses to `cloud.json`.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orchestrator

ADDRESS = "cloud.json"
TOKEN = "token"
LOCK = "daemon.lock"
UP = "up"
"""The word after the process id in the lock file, for as long as `cloud.json` has the daemon's addresses."""
LONGEST = 100_000
IDLE_STOP_S = 600.0
STOP_S = 40.0
HEARD_S = 5.0
"""How long a cloud may take to answer that it stops. If it takes longer, it is stopped by signals."""
KILL_S = 10.0
FULL = 28
"""The exit code of the command that starts a cloud, if the disk is full."""
PATIENT_S = 30.0
"""How long a client waits for an answer: a busy machine may be slow."""
QUIET_S = 2.0
"""How long a client waits for an answer before it tells the user."""
Say = Callable[[str], None]
"""Shows the user a message."""


class CloudUnavailable(RuntimeError):
    """The embedded cloud cannot be started or does not answer; the message says what to look at."""


class NoRoom(CloudUnavailable):
    """The embedded cloud cannot be started because its disk is full."""


@dataclass(frozen=True, slots=True)
class CloudAddress:
    """The addresses of a running cloud. The three URLs have no trailing slash."""

    pid: int
    compute: str
    storage: str
    control: str
    project: str
    bucket: str
    started_at: str
    token: str = field(default="", repr=False)
    """The bearer token that every request must have. It is stored in a file beside `cloud.json`."""
    gpu: str = ""
    """The GPU of this computer, which the cloud's machines measure; empty if it has none."""


def running_cloud(home: Path | str) -> CloudAddress | None:
    """The address of the cloud that runs in `home`; None if there is none or it does not answer."""
    try:
        return living_cloud(home)
    except CloudUnavailable:
        return None


def living_cloud(home: Path | str, say: Say = lambda _: None) -> CloudAddress | None:
    """The address of the cloud that runs in `home`; None if there is none, or it is starting or ending. `say` gets a
    message if the client has to wait.

    Raises `CloudUnavailable` if the cloud runs, but its address cannot be read or it does not answer.
    """
    home = Path(home)
    if not is_locked(home):
        return None
    try:
        address = read_record(home)
    except FileNotFoundError as exc:
        if not is_up(home) or not is_locked(home):
            return None
        raise CloudUnavailable(f"the embedded cloud in {home} runs, but {exc.filename} is missing") from exc
    except (OSError, ValueError) as exc:
        raise CloudUnavailable(f"the embedded cloud in {home} runs, but {exc}") from exc
    if lock_holder(home) != address.pid and not is_up(home):
        return None  # the record of a dead cloud, which the one that is starting has not removed yet
    try:
        ask_control(address, "/control/status", say=say)
    except CloudUnavailable:
        if not is_locked(home) or published_address(home) != address:
            return None  # the cloud ended, or began to end, during the request
        raise
    return address


def ensure_running(home: Path | str, weather: Path | str | None = None, say: Say = lambda _: None) -> CloudAddress:
    """The address of the cloud in `home`. It is started if it does not run, with the faults in the file `weather`.
    `say` gets a message if the client has to wait.

    Raises `CloudUnavailable`, and its subclass `NoRoom` if the disk is full.
    """
    home = Path(home).absolute()
    address = living_cloud(home, say)
    if address is not None:
        return address
    command = [sys.executable, "-m", "orchestrator.embedded.daemon", "--home", str(home)]
    if weather is not None:
        command += ["--weather", str(Path(weather).absolute())]
    root = str(Path(orchestrator.__file__).parent.parent)
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    address = running_cloud(home)
    if done.returncode or address is None:
        why = done.stderr.strip() or f"what {home / ADDRESS} and {TOKEN} beside it say is not what answers"
        kind = NoRoom if done.returncode == FULL else CloudUnavailable
        raise kind(f"the embedded cloud in {home} did not start: {why}")
    return address


def stop_cloud(home: Path | str) -> bool:
    """Ends the cloud in `home` and all its VMs, and waits until it is gone. Returns whether there was one. Raises
    `CloudUnavailable` if it does not end."""
    home = Path(home)
    if not is_locked(home):
        return False
    address, pid = published_address(home), lock_holder(home)
    try:
        if address is None:
            raise CloudUnavailable(f"{home / ADDRESS} has no address of the embedded cloud")
        ask_control(address, "/control/stop", {}, timeout_s=HEARD_S)
    except CloudUnavailable:
        _signal(pid, signal.SIGCONT, signal.SIGTERM)  # a suspended process handles no other signal before SIGCONT
        if not _gone(home, KILL_S):
            _signal(pid, signal.SIGKILL)  # this ends its VMs too
    if not _gone(home, STOP_S):
        raise CloudUnavailable(f"the embedded cloud in {home} (process {pid or 'unknown'}) did not stop")
    return True


def _signal(pid: int, *numbers: signal.Signals) -> None:
    for number in numbers if pid else ():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def _gone(home: Path, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while is_locked(home):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def ask_control(
    address: CloudAddress, path: str, body: Any = None, timeout_s: float = PATIENT_S, say: Say = lambda _: None
) -> Any:
    """GETs a path of the control API, or POSTs `body` to it, and returns the JSON answer. Raises `CloudUnavailable` if
    there is no answer (soon, if the cloud's process is suspended), `LookupError` for status 404, and `ValueError` for
    any other refusal."""
    split = urlsplit(address.control)
    bearer = {"Authorization": f"Bearer {address.token}"}
    connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=timeout_s)
    try:
        if body is None:
            connection.request("GET", path, headers=bearer)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **bearer})
        _await(connection, address, min(QUIET_S, timeout_s), say)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, http.client.HTTPException) as exc:
        raise CloudUnavailable(f"the embedded cloud at {address.control} does not answer: {exc}") from exc
    finally:
        connection.close()
    if response.status in (401, 403):
        why = answer["error"]["message"]
        raise CloudUnavailable(f"the embedded cloud at {address.control} refuses this user: {why}")
    if response.status == 404:
        raise LookupError(answer["error"])
    if response.status >= 400:
        raise ValueError(answer["error"])
    return answer


def _await(connection: http.client.HTTPConnection, address: CloudAddress, quiet_s: float, say: Say) -> None:
    """Returns when an answer can be read, or after `quiet_s` seconds and a message to the user: a slow cloud may still
    answer. Raises `CloudUnavailable` if its process is suspended, because it will not answer."""
    answers = select.poll()  # `select` knows no file whose number is above 1,023
    answers.register(connection.sock, select.POLLIN)
    if answers.poll(quiet_s * 1000):
        return
    if is_suspended(address.pid):
        raise CloudUnavailable(
            f"the embedded cloud (process {address.pid}) is suspended; `kill -CONT {address.pid}` continues it"
        )
    say(f"waiting for the embedded cloud (process {address.pid}), which has not answered for {quiet_s:.0f} s")


def is_suspended(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(") ")[2][:1] in ("T", "t")
    except OSError:
        return False


def published_address(home: Path) -> CloudAddress | None:
    """The address in `cloud.json`, which may be outdated; None if it cannot be read."""
    try:
        return read_record(home)
    except (OSError, ValueError):
        return None


def read_record(home: Path) -> CloudAddress:
    """The address in `cloud.json`, which may be outdated, with the token from the file beside it. Raises `OSError`, and
    `ValueError` if a file is damaged."""
    try:
        document = json.loads(_small(home / ADDRESS))
        if document.get("schema", 1) != 1:
            raise ValueError("a newer version of bench wrote it")
        types = {entry.name: {"int": int, "str": str}[str(entry.type)] for entry in fields(CloudAddress)}
        for key in types.keys() & document.keys():
            if type(document[key]) is not types[key]:
                raise ValueError(f"{key} is {document[key]!r:.50}")
        address = CloudAddress(**{key: document[key] for key in types.keys() & document.keys()})
        datetime.fromisoformat(address.started_at)
        for url in (address.compute, address.storage, address.control):
            if not url.startswith("http://") or not urlsplit(url).port:
                raise ValueError(f"{url!r:.50} is not an address")
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise ValueError(f"{home / ADDRESS} is damaged: {exc}") from exc
    try:
        token = _small(home / TOKEN).decode("ascii")
        if not token.isprintable() or not token:
            raise ValueError("it does not have a token")
    except ValueError as exc:
        raise ValueError(f"{home / TOKEN} is damaged: {exc}") from exc
    return replace(address, token=token)


def _small(file: Path) -> bytes:
    with file.open("rb") as opened:
        data = opened.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} bytes")
    return data


def is_locked(home: Path) -> bool:
    """Whether a daemon holds the lock of `home`."""
    try:
        with (home / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def lock_holder(home: Path) -> int:
    """The id of the process that holds the lock, from the lock file; 0 if it is not there, as in older versions."""
    try:
        return int((home / LOCK).read_text("ascii").partition(" ")[0])
    except (OSError, ValueError):
        return 0


def is_up(home: Path) -> bool:
    """Whether the process that holds the lock has written its addresses and has not begun to end."""
    try:
        return (home / LOCK).read_text("ascii").endswith(f" {UP}")
    except (OSError, ValueError):
        return False


def cloud_standing(home: Path, newest_source: Callable[[Path], float]) -> tuple[str, str]:
    """(state, detail for the user) of the cloud in `home`. The state is `up`, `down`, `stale` (it died and its address
    file is still there), `lost` (it runs but cannot be reached) or `old` (it was started before the installed version
    was written). `newest_source` returns the time of the newest source file in a folder, in seconds since 1970."""
    try:
        address = living_cloud(home)
    except CloudUnavailable as exc:
        return "lost", str(exc)
    if address is None:
        address_left = published_address(home)
        return ("stale", f" (process {address_left.pid})") if address_left else ("down", "")
    started = datetime.fromisoformat(address.started_at).timestamp()
    if started < newest_source(Path(__file__).parent):
        return "old", f" (since {address.started_at[:19]})"
    return "up", f" since {address.started_at[11:16]} UTC"
