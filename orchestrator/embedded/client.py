"""Finding, starting and stopping the embedded cloud's daemon, and asking its control API; light to import.

The daemon of a home directory holds a lock there for as long as it lives, and says in `cloud.json` where it listens.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orchestrator

ADDRESS = "cloud.json"
TOKEN = "token"
LOCK = "daemon.lock"
IDLE_STOP_S = 600.0
STOP_S = 40.0


class CloudUnavailable(RuntimeError):
    """The embedded cloud cannot be started or does not answer; the message says what to look at."""


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
    address = published(Path(home))
    if address is None or not locked(Path(home)):
        return None
    try:
        ask(address, "/control/status")
    except CloudUnavailable:
        return None
    return address


def ensure_running(
    home: Path | str, weather: Path | str | None = None, idle_stop_s: float = IDLE_STOP_S
) -> CloudAddress:
    """The address of the cloud in `home`, started if need be; `weather` (a file) is for one that starts.

    Raises `CloudUnavailable`.
    """
    home = Path(home).absolute()
    found = running(home)
    if found is not None:
        return found
    command = [sys.executable, "-m", "orchestrator.embedded.daemon", "--home", str(home)]
    command += ["--idle-stop", str(idle_stop_s)]
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
        raise CloudUnavailable(f"the embedded cloud in {home} did not start: {why}")
    return found


def stop(home: Path | str) -> bool:
    """End the cloud in `home` and every VM of it; whether there was one. Returns when it is gone."""
    home = Path(home)
    if not locked(home):
        return False
    address, pid = published(home), holder(home)
    try:
        if address is None:
            raise CloudUnavailable(f"{home / ADDRESS} does not say where it is")
        ask(address, "/control/stop", {})
    except CloudUnavailable:
        try:
            if pid:
                os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
    end = time.monotonic() + STOP_S
    while locked(home):
        if time.monotonic() > end:
            raise CloudUnavailable(f"the embedded cloud in {home} (process {pid or 'unknown'}) does not stop")
        time.sleep(0.01)
    return True


def ask(address: CloudAddress, path: str, body: Any = None, timeout_s: float = 30.0) -> Any:
    """GET a path of the control API, or POST `body` to it. Raises `CloudUnavailable`; `LookupError`
    if it names what is not there; `ValueError` if it is refused."""
    split = urlsplit(address.control)
    bearer = {"Authorization": f"Bearer {address.token}"}
    connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=timeout_s)
    try:
        if body is None:
            connection.request("GET", path, headers=bearer)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **bearer})
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, http.client.HTTPException) as exc:
        raise CloudUnavailable(f"the embedded cloud at {address.control} does not answer: {exc}") from exc
    finally:
        connection.close()
    if response.status in (401, 403):
        why = answer["error"]["message"]
        raise CloudUnavailable(f"the embedded cloud at {address.control} does not serve us: {why}")
    if response.status == 404:
        raise LookupError(answer["error"])
    if response.status >= 400:
        raise ValueError(answer["error"])
    return answer


def published(home: Path) -> CloudAddress | None:
    """What `cloud.json` says, true or not."""
    try:
        address = CloudAddress(**json.loads((home / ADDRESS).read_text("utf-8")))
        return replace(address, token=(home / TOKEN).read_text("ascii"))
    except (OSError, ValueError, TypeError):
        return None


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
        return int((home / LOCK).read_text("ascii"))
    except (OSError, ValueError):
        return 0


def standing(home: Path, newest_source: Callable[[Path], float]) -> tuple[str, str]:
    """`up`, `down`, `stale` (it says that it is up, and does not answer) or `old` (it was started before what is
    installed now, whose newest file `newest_source` tells of a folder), and a detail for a person."""
    address = published(home)
    if address is None:
        return "down", ""
    if running(home) is None:
        return "stale", f" (process {address.pid})"
    started = datetime.fromisoformat(address.started_at).timestamp()
    if started < newest_source(Path(__file__).parent):
        return "old", f" (since {address.started_at[:19]})"
    return "up", f" since {address.started_at[11:16]} UTC"
