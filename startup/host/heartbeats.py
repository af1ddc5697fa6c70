"""Signs of life of a fleet's children, in the folder that they share with the login node.

    alive/<job>-<place>.<node>  made by a job's shell, empty; touched every few seconds by the child
    alive.json                  the looks at it: what was there, since when, and since when it has been doubted

A scheduler may hold a node for alive that has been dead for minutes. Clocks of nodes are compared with nothing: a sign
is a file that has changed between two looks, and only the login node's clock says how far these are apart. Children of
programs that made no signs have no file, and are left to the scheduler.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from startup.host.paths import read_json, write_json

BEAT_S = 5.0
SILENT_S = 60.0
"""A child that has given no sign for so long is doubted."""
UNBEGUN_S = 180.0
"""So is one whose interpreter has not given its first: a shared folder may take a while to give out its files."""
SURE_S = 15.0
"""Held for dead is what has been doubted for so long: where the folder itself stood still, all are doubted, and the
first seconds after it show who is there."""

Known = Mapping[str, Mapping[str, Any]]


@contextmanager
def keep_heartbeat(path: Path) -> Iterator[None]:
    """Gives signs of life while the block lasts; afterwards the file is gone."""
    over = threading.Event()

    def beat() -> None:
        with suppress(OSError):
            path.write_text("begun")
        while not over.wait(BEAT_S):
            with suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(BEAT_S)
        with suppress(OSError):
            path.unlink()


def read_heartbeats(folder: Path) -> dict[str, list[int]]:
    """What each file says now, by its name: when it changed, and its size. Opened, as a client of a network's folder
    may know a file's times from a minute ago."""
    beats: dict[str, list[int]] = {}
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError), path.open("rb") as file:
                status = os.fstat(file.fileno())
                beats[path.name] = [status.st_mtime_ns, status.st_size]
    return beats


def judge_heartbeats(known: Known, there: Mapping[str, list[int]], now: float) -> dict[str, dict[str, Any]]:
    """What is known after a look, by what was known before it."""
    after: dict[str, dict[str, Any]] = {}
    for name, sign in there.items():
        was = known.get(name, {})
        since, doubted = _past(was.get("since"), now), _past(was.get("doubted"), now)
        if was.get("sign") != sign or since is None:
            after[name] = {"sign": sign, "since": now}
        elif doubted is not None:
            after[name] = {"sign": sign, "since": since, "doubted": doubted}
        else:
            doubtful = now - since >= (SILENT_S if sign[1] else UNBEGUN_S)
            after[name] = {"sign": sign, "since": since, **({"doubted": now} if doubtful else {})}
    return after


def _past(value: object, now: float) -> float | None:
    """A time that may be one; what stands in the folder may be torn, or another clock's."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= now else None


def silent_tasks(fleet: Path, there: Mapping[str, list[int]], now: float) -> dict[str, int]:
    """For how many seconds the tasks, named `<job>-<place>.<node>`, have given no sign that are held for dead, by the
    `signs` that are there now."""
    alive_document = read_json(fleet / "alive.json") or {}
    known_nodes = {name: one for name, one in alive_document.items() if isinstance(one, dict)}
    after = judge_heartbeats(known_nodes, there, now)
    if after != known_nodes:
        with suppress(OSError):  # two clients at once: the other one's is as good
            write_json(fleet / "alive.json", after)
    dead = {name: one for name, one in after.items() if "doubted" in one and now - one["doubted"] >= SURE_S}
    return {name: int(now - one["since"]) for name, one in dead.items()}
