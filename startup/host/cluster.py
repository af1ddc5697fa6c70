"""`python3 -m startup.host.cluster OPERATION FLEET [FILE]`: what a client does on a cluster's login node for a fleet.

`look` says what children have done since a client last brought everything home; `pack` puts what they stored into one
archive, which the client fetches; `homed` notes how far that is. What an operation is asked is in the file, as JSON;
the answer is on a line that begins with a mark, as a login shell may print before it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from startup.host.heartbeats import read_heartbeats, silent_tasks
from startup.host.paths import read_json, read_known_keys, write_json
from startup.host.remote_ops import ANSWER

PART_BYTES = 48 << 20
OLD_S = 3600.0
MARGIN_S = 60.0
"""How far the clocks of nodes and of the shared folder may be apart."""


def look_at_fleet(fleet: Path, _: dict[str, Any]) -> dict[str, Any]:
    """Every claim and every end, what was stored since everything was brought home, by child, and whose nodes have gone
    silent."""
    home = read_known_keys(fleet / "home.json", {"since": float})[0]
    since = float(home.get("since", 0)) - MARGIN_S
    began = time.time()
    alive = read_heartbeats(fleet / "alive")
    stored = {folder.name: changed_files(folder, since) for folder in sorted((fleet / "spool").glob("*"))}
    return {
        "now": began,
        "claims": read_documents(fleet / "claims"),
        "ended": read_documents(fleet / "ended"),
        "signs": sorted(alive),
        "silent": silent_tasks(fleet, alive, began),
        "stored": {child: found for child, found in stored.items() if found},
    }


def mark_synced(fleet: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """Everything that was stored before `since` is in the bucket."""
    home, _ = read_known_keys(fleet / "home.json", {"since": float})
    since = max(float(arguments["since"]), float(home.get("since", 0)))
    write_json(fleet / "home.json", {"since": since})
    return {"since": since}


def changed_files(folder: Path, since: float) -> list[list[Any]]:
    """Name, size and time of change in nanoseconds of what is in a spool and has changed since."""
    rows: list[list[Any]] = []
    for above, _, names in os.walk(folder):
        for name in names:
            if name.startswith("."):
                continue
            path = Path(above) / name
            try:
                status = path.stat()
            except OSError:
                continue  # replaced while we looked
            if status.st_mtime >= since or status.st_ctime >= since:
                rows.append([path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns])
    return sorted(rows)


def read_documents(folder: Path) -> list[dict[str, Any]]:
    try:
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    return [document for path in entries if (document := read_json(path)) is not None]


def pack_files(fleet: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """An archive of the files that are named (by child), as many as fit into one part; how many of them it has."""
    spool = fleet / "spool"
    into = fleet / "incoming"
    into.mkdir(exist_ok=True)
    for old in into.iterdir():
        if time.time() - old.stat().st_mtime > OLD_S:
            old.unlink(missing_ok=True)
    archive = into / f"{os.getpid()}-{time.time_ns()}.tar.gz"
    size = count = 0
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name in arguments["names"]:
            path = spool / str(name)
            if spool not in path.parents or ".." in path.parts or not path.is_file() or path.is_symlink():
                count += 1
                continue
            if size and size + path.stat().st_size > PART_BYTES:
                break
            size += path.stat().st_size
            tar.add(path, arcname=str(name), recursive=False)
            count += 1
    return {"path": str(archive), "count": count, "size": archive.stat().st_size}


OPERATIONS = {"look": look_at_fleet, "pack": pack_files, "homed": mark_synced}


def main(operation: str, fleet: Path, asked: str) -> dict[str, Any]:
    try:
        arguments = (read_json(Path(asked)) or {}) if asked else {}
        return OPERATIONS[operation](fleet, arguments)
    except OSError as error:
        return {"trouble": "failed", "message": error.strerror or str(error), "path": str(error.filename or "")}
    except (KeyError, TypeError, ValueError, tarfile.TarError) as error:
        return {"trouble": "failed", "message": f"{type(error).__name__}: {error}", "path": ""}


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    answer = main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
    sys.stdout.write("\n" + ANSWER + json.dumps(answer) + "\n")
