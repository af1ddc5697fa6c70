"""Finding, starting and stopping the embedded cloud's daemon, and asking its control API; light to import.

The daemon of a home directory holds a lock there for as long as it lives, and says in `cloud.json` where it listens.
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
"""Stands behind the process in the lock for as long as there is a record of where it listens."""
LONGEST = 100_000
IDLE_STOP_S = 600.0
STOP_S = 40.0
HEARD_S = 5.0
"""A cloud that is told to stop answers at once; one that does not is stopped by signals."""
KILL_S = 10.0
FULL = 28
"""What the command that starts a cloud ends with where the disk is full."""
PATIENT_S = 30.0
"""So long an answer is waited for: a machine that is busy may be slow."""
QUIET_S = 2.0
"""So long without a word to whoever waits."""
Say = Callable[[str], None]


class CloudUnavailable(RuntimeError):
    """The embedded cloud cannot be started or does not answer; the message says what to look at."""


class NoRoom(CloudUnavailable):
    """It cannot be started, for the disk that it keeps everything on is full."""


@dataclass(frozen=True, slots=True)
class CloudAddress:
    """Where a running cloud listens; the three URLs have no trailing slash."""

    pid: int
    compute: str
    storage: str
    control: str
    project: str
    bucket: str
    started_at: str
    token: str = field(default="", repr=False)
    """What every request must carry as its bearer token; it stands in a file beside `cloud.json`."""
    gpu: str = ""
    """The GPU of this computer, which its machines measure; empty when it has none."""


def running(home: Path | str) -> CloudAddress | None:
    """The address of the cloud that lives in `home`, if one does and it answers."""
    try:
        return living(home)
    except CloudUnavailable:
        return None


def living(home: Path | str, say: Say = lambda _: None) -> CloudAddress | None:
    """The address of the cloud that lives in `home`; None where none does, or one comes up or goes down. What is waited
    for is told to `say`.

    Raises `CloudUnavailable` for one that lives and cannot be found, or does not answer.
    """
    home = Path(home)
    if not locked(home):
        return None
    try:
        address = record(home)
    except FileNotFoundError as exc:
        if not is_up(home) or not locked(home):
            return None
        raise CloudUnavailable(f"the embedded cloud in {home} runs, but {exc.filename} is missing") from exc
    except (OSError, ValueError) as exc:
        raise CloudUnavailable(f"the embedded cloud in {home} runs, but {exc}") from exc
    if holder(home) != address.pid and not is_up(home):
        return None  # another one's, that died; the one that comes up has not removed it yet
    try:
        ask(address, "/control/status", say=say)
    except CloudUnavailable:
        if not locked(home) or published(home) != address:
            return None  # it ended, or was on its way, while it was asked
        raise
    return address


def ensure_running(home: Path | str, weather: Path | str | None = None, say: Say = lambda _: None) -> CloudAddress:
    """The address of the cloud in `home`, started if need be; `weather` (a file) is for one that starts. What is waited
    for is told to `say`.

    Raises `CloudUnavailable`.
    """
    home = Path(home).absolute()
    found = living(home, say)
    if found is not None:
        return found
    command = [sys.executable, "-m", "orchestrator.embedded.daemon", "--home", str(home)]
    if weather is not None:
        command += ["--weather", str(Path(weather).absolute())]
    root = str(Path(orchestrator.__file__).parent.parent)
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    found = running(home)
    if done.returncode or found is None:
        why = done.stderr.strip() or f"what {home / ADDRESS} and {TOKEN} beside it say is not what answers"
        kind = NoRoom if done.returncode == FULL else CloudUnavailable
        raise kind(f"the embedded cloud in {home} did not start: {why}")
    return found


def stop(home: Path | str) -> bool:
    """End the cloud in `home` and every VM of it; whether there was one. Returns when it is gone."""
    home = Path(home)
    if not locked(home):
        return False
    address, pid = published(home), holder(home)
    try:
        if address is None:
            raise CloudUnavailable(f"{home / ADDRESS} has no address of the embedded cloud")
        ask(address, "/control/stop", {}, timeout_s=HEARD_S)
    except CloudUnavailable:
        _signal(pid, signal.SIGCONT, signal.SIGTERM)  # one that was suspended hears nothing else
        if not _gone(home, KILL_S):
            _signal(pid, signal.SIGKILL)  # its VMs go with it all the same
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
    while locked(home):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def ask(
    address: CloudAddress, path: str, body: Any = None, timeout_s: float = PATIENT_S, say: Say = lambda _: None
) -> Any:
    """GET a path of the control API, or POST `body` to it. Raises `CloudUnavailable`, soon for a cloud whose process is
    suspended; `LookupError` if it names what is not there; `ValueError` if it is refused."""
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
    """Returns when there is an answer to read, or somebody was told that there is none yet. One that is slow is waited
    for; only of one that the kernel says is suspended nothing is to be expected."""
    if select.select([connection.sock], [], [], quiet_s)[0]:
        return
    if suspended(address.pid):
        raise CloudUnavailable(
            f"the embedded cloud (process {address.pid}) is suspended; `kill -CONT {address.pid}` continues it"
        )
    say(f"waiting for the embedded cloud (process {address.pid}), which has not answered for {quiet_s:.0f} s")


def suspended(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger, and does nothing until it is told to go on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(") ")[2][:1] in ("T", "t")
    except OSError:
        return False


def published(home: Path) -> CloudAddress | None:
    """What `cloud.json` says, true or not."""
    try:
        return record(home)
    except (OSError, ValueError):
        return None


def record(home: Path) -> CloudAddress:
    """What `cloud.json` says, true or not. Raises `OSError`, and `ValueError` for what no cloud writes there."""
    try:
        told = json.loads(_small(home / ADDRESS))
        if told.get("schema", 1) != 1:
            raise ValueError("a newer version of bench wrote it")
        known = {one.name: {"int": int, "str": str}[str(one.type)] for one in fields(CloudAddress)}
        for key in known.keys() & told.keys():
            if type(told[key]) is not known[key]:
                raise ValueError(f"{key} is {told[key]!r:.50}")
        address = CloudAddress(**{key: told[key] for key in known.keys() & told.keys()})
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


def locked(home: Path) -> bool:
    """Whether a daemon lives in `home`."""
    try:
        with (home / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def holder(home: Path) -> int:
    """The process that holds the lock, as it wrote there; 0 where it has not, or one of an older version holds it."""
    try:
        return int((home / LOCK).read_text("ascii").partition(" ")[0])
    except (OSError, ValueError):
        return 0


def is_up(home: Path) -> bool:
    """Whether the process that holds the lock has said where it listens, and has not begun to end."""
    try:
        return (home / LOCK).read_text("ascii").endswith(f" {UP}")
    except (OSError, ValueError):
        return False


def standing(home: Path, newest_source: Callable[[Path], float]) -> tuple[str, str]:
    """`up`, `down`, `stale` (it died and left its address), `lost` (it runs, and cannot be asked) or `old` (it was
    started before what is installed now, whose newest file `newest_source` tells of a folder), and a detail for a
    person."""
    try:
        address = living(home)
    except CloudUnavailable as exc:
        return "lost", str(exc)
    if address is None:
        left = published(home)
        return ("stale", f" (process {left.pid})") if left else ("down", "")
    started = datetime.fromisoformat(address.started_at).timestamp()
    if started < newest_source(Path(__file__).parent):
        return "old", f" (since {address.started_at[:19]})"
    return "up", f" since {address.started_at[11:16]} UTC"
