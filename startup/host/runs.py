"""A run on a host: its payload, its steward, what it stored, its log, its end."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from startup.host.places import Trouble, cache_folder, make, own, read_json, run_folder, write_json
from startup.host.processes import busy, is_held, locked, patiently_locked, sweep

START_S = 15.0
OLD_PAYLOAD_S = 30 * 86400.0
OLD_UPLOAD_S = 86400.0


def payload_path(cache: Path, sha256: str) -> Path:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise Trouble("unknown", f"{sha256!r} is no sha256")
    return cache / "payloads" / f"{sha256}.tar.gz"


def is_right(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
    """Whether the payload is here and right; if not, where to put it: a file of its size, so there is room for it."""
    cache, sha256 = cache_folder(arguments.get("cache", "")), str(arguments["sha256"])
    for folder in (cache, *(cache / name for name in ("payloads", "incoming", "runs", "build"))):
        own(folder)
    tidy(cache, sha256)
    if is_right(payload_path(cache, sha256), sha256):
        return {"present": True, "incoming": ""}
    if not arguments["size"]:  # only asked
        return {"present": False, "incoming": ""}
    # One name for every try of a run's, so that an upload that was cut short is written over by the next.
    incoming = cache / "incoming" / f"{run_folder(cache, vm_of(arguments)).name}.part"
    try:
        with incoming.open("wb") as file:
            file.write(b"\0" * int(arguments["size"]))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if incoming.exists():
            incoming.unlink()
        raise
    return {"present": False, "incoming": str(incoming)}


def tidy(cache: Path, sha256: str) -> None:
    """Throws away uploads that nobody finished and payloads that nobody has used for a month."""
    kept = payload_path(cache, sha256)
    for folder, age_s in (("incoming", OLD_UPLOAD_S), ("payloads", OLD_PAYLOAD_S)):
        for path in (cache / folder).iterdir():
            try:
                if path != kept and time.time() - path.stat().st_mtime > age_s:
                    shutil.rmtree(str(path)) if path.is_dir() else path.unlink()
            except OSError:
                continue  # another client was first


def accept(arguments: dict[str, Any]) -> dict[str, Any]:
    """An upload becomes a payload, if it is what its name says."""
    cache, sha256 = cache_folder(arguments.get("cache", "")), str(arguments["sha256"])
    incoming = Path(str(arguments["incoming"]))
    if incoming.parent != cache / "incoming":
        raise Trouble("unknown", f"{incoming} is no upload")
    if not is_right(incoming, sha256):
        incoming.unlink()
        raise Trouble("checksum", "the payload did not arrive as it was sent", str(incoming))
    incoming.replace(payload_path(cache, sha256))
    return {}


def start(arguments: dict[str, Any]) -> dict[str, Any]:
    """Starts the steward of a run, detached from this connection. Started twice it is one run."""
    cache, run = cache_folder(arguments.get("cache", "")), dict(arguments["run"])
    vm, sha256 = str(run["vm"]), str(run["sha256"])
    folder = run_folder(cache, vm)
    if (folder / "run.json").exists():
        return state(arguments)
    payload = payload_path(cache, sha256)
    if not is_right(payload, sha256):
        raise Trouble("checksum", "the payload is not here, or not what its name says", str(payload))
    os.utime(str(payload))
    whole = patiently_locked(cache / "lock")
    if whole is None:
        raise Trouble("busy", busy(cache) or "another run", str(cache))
    try:
        os.ftruncate(whole, 0)
        os.write(whole, vm.encode())
        fresh = folder.with_name(".new-" + vm)
        shutil.rmtree(str(fresh), ignore_errors=True)
        make(fresh / "spool")
        with tarfile.open(str(payload)) as archive:
            ours = [entry for entry in archive if entry.isfile() and entry.name.startswith("startup/")]
            archive.extractall(str(fresh / "steward"), members=ours)
        run.update(executable=sys.executable, payload=str(payload), host_time=time.time())
        write_json(fresh / "run.json", run)
        alone = locked(fresh / "alive")
        assert alone is not None, "a folder that is new has no other owner"
        fresh.rename(folder)
        launch_steward(folder, (whole, alone))
        os.close(alone)
    finally:
        os.close(whole)
    until = time.monotonic() + START_S
    while not (folder / "state.json").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return state(arguments)


def launch_steward(folder: Path, held: tuple[int, int]) -> None:
    """A session of its own and no terminal: a lost connection, or a shell that is closed, does not reach it."""
    with (folder / "steward.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "startup.host.steward", str(folder)],
            cwd=str(folder / "steward"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Held for as long as the steward lives: the locks go with its descriptors.
            pass_fds=held,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""},
        )


def state(arguments: dict[str, Any]) -> dict[str, Any]:
    """What became of one run, and what is in its spool. A run whose steward is dead is ended here."""
    cache = cache_folder(arguments.get("cache", ""))
    return told(run_folder(cache, vm_of(arguments)))


def vm_of(arguments: dict[str, Any]) -> str:
    return str(arguments["run"]["vm"]) if "run" in arguments else str(arguments["vm"])


def told(folder: Path) -> dict[str, Any]:
    run = read_json(folder / "run.json")
    if run is None:
        return {"exists": False}
    living = is_held(folder / "alive")
    known = read_json(folder / "state.json") or {}
    if not living and known.get("status") != "gone":
        known = read_json(folder / "state.json") or {}  # it may have ended between the two looks
        if known.get("status") != "gone":
            known = bury(folder, run, known)
    log = folder / "serial.log"
    return {
        "exists": True,
        **known,
        "vm": run["vm"],
        "labels": run.get("labels", {}),
        "deadline_s": run.get("deadline_s"),
        "now": time.time(),
        "files": spooled(folder / "spool"),
        "spool": str(folder / "spool"),
        "log_size": log.stat().st_size if log.exists() else 0,
    }


def bury(folder: Path, run: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """A run without its steward, killed or ended with the power: nothing of it goes on, and what it stored is kept."""
    sweep(str(run["vm"]))
    for name in ("scratch", "steward"):
        shutil.rmtree(str(folder / name), ignore_errors=True)
    ended = (folder / "alive").stat().st_mtime if (folder / "alive").exists() else time.time()
    began = float(known.get("started_at", run["host_time"]))
    known = {**known, "status": "gone", "started_at": began, "ended_at": max(ended, began), "ended_by": "lost"}
    write_json(folder / "state.json", known)
    return known


def spooled(spool: Path) -> list[list[Any]]:
    """Name, size and time of change of every object in the spool, in name order."""
    found = []
    for path in sorted(spool.rglob("*")):
        try:
            if path.is_file():
                status = path.stat()
                found.append([path.relative_to(spool).as_posix(), status.st_size, status.st_mtime_ns])
        except OSError:
            continue  # replaced while we looked
    return found


def read_log(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the run has printed, from byte `start` (negative: the last bytes), at most `most` bytes."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    try:
        with (folder / "serial.log").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            first = int(arguments["start"])
            begin = max(size + first, 0) if first < 0 else min(first, size)
            file.seek(begin)
            data = file.read(int(arguments.get("most", 262144)))
    except OSError:
        return {"exists": False, "text": "", "next": 0}
    return {"exists": True, "text": data.decode("utf-8", "replace"), "next": begin + len(data)}


def stop(arguments: dict[str, Any]) -> dict[str, Any]:
    """Asks the steward to end its run, with time to store what there is. What is gone is stopped."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    known = read_json(folder / "state.json")
    if known is not None and known.get("status") != "gone" and is_held(folder / "alive"):
        (folder / "stop").touch()
        try:
            os.kill(int(known["pid"]), signal.SIGTERM)
        except OSError:
            pass  # it ended first
    return told(folder)


def forget(arguments: dict[str, Any]) -> dict[str, Any]:
    """Removes what is left of a run that is over."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    until = time.monotonic() + 3
    while is_held(folder / "alive"):  # it says that it is gone a moment before it is
        if time.monotonic() > until:
            raise Trouble("busy", "it still runs", str(folder))
        time.sleep(0.05)
    sweep(vm_of(arguments))
    shutil.rmtree(str(folder), ignore_errors=True)
    return {"exists": folder.exists()}


def runs(arguments: dict[str, Any]) -> dict[str, Any]:
    """Every run that has left anything here."""
    folder = cache_folder(arguments.get("cache", "")) / "runs"
    there = sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    return {"runs": [one for one in map(told, there) if one["exists"]]}
