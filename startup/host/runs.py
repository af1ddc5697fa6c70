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

from startup.host.machine import interpreter
from startup.host.paths import (
    Trouble,
    boot_id,
    boot_seconds,
    cache_folder,
    keep_names,
    make_private,
    own_folder,
    read_known_keys,
    run_folder,
    write_json,
)
from startup.host.processes import find_supervisors, is_held, kill_run, lock_patiently, measuring_machine, try_lock

START_S = 15.0
OLD_PAYLOAD_S = 30 * 86400.0
OLD_UPLOAD_S = 86400.0
AWAIT_S = 2.0
RECORD = {"id": str, "labels": dict, "deadline_s": float, "host_time": float}  # type: dict[str, type]
STATE = {
    **dict.fromkeys(("id", "status", "boot", "ended_by"), str),
    **dict.fromkeys(("started_at", "started_steady", "ended_at", "ended_steady"), float),
    "pid": int,
}  # type: dict[str, type]
"""Of run.json and state.json what is told of a run, and of which kind."""


def payload_path(cache: Path, sha256: str) -> Path:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise Trouble("unknown", f"{sha256!r} is not a sha256")
    return cache / "payloads" / f"{sha256}.tar.gz"


def is_right(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def prepare_payload(arguments: dict[str, Any]) -> dict[str, Any]:
    """Whether the payload is here and right; if not, where to put it: a file of its size, so there is room for it."""
    cache, sha256 = cache_folder(arguments.get("cache", "")), str(arguments["sha256"])
    for folder in (cache, *(cache / name for name in ("payloads", "incoming", "runs", "build"))):
        own_folder(folder)
    remove_stale_uploads(cache, sha256)
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


def remove_stale_uploads(cache: Path, sha256: str) -> None:
    """Throws away uploads that nobody finished and payloads that nobody has used for a month."""
    kept = payload_path(cache, sha256)
    for folder, age_s in (("incoming", OLD_UPLOAD_S), ("payloads", OLD_PAYLOAD_S)):
        for path in (cache / folder).iterdir():
            try:
                if path != kept and time.time() - path.stat().st_mtime > age_s:
                    shutil.rmtree(str(path)) if path.is_dir() else path.unlink()
            except OSError:
                continue  # another client was first


def accept_upload(arguments: dict[str, Any]) -> dict[str, Any]:
    """An upload becomes a payload, if it is what its name says."""
    cache, sha256 = cache_folder(arguments.get("cache", "")), str(arguments["sha256"])
    incoming = Path(str(arguments["incoming"]))
    if incoming.parent != cache / "incoming":
        raise Trouble("unknown", f"{incoming} is not an upload")
    if not is_right(incoming, sha256):
        incoming.unlink()
        raise Trouble("checksum", "the payload was damaged on the way", str(incoming))
    incoming.replace(payload_path(cache, sha256))
    return {}


def start_run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Starts the steward of a run, detached from this connection. Started twice it is one run."""
    cache, run = cache_folder(arguments.get("cache", "")), dict(arguments["run"])
    vm, sha256 = str(run["vm"]), str(run["sha256"])
    folder = run_folder(cache, vm)
    if (folder / "run.json").exists():
        return run_state(arguments)
    payload = payload_path(cache, sha256)
    if not is_right(payload, sha256):
        raise Trouble("checksum", "the payload is missing, or does not have the checksum in its name", str(payload))
    os.utime(str(payload))
    cache_lock = lock_patiently(cache / "lock")
    if cache_lock is None:
        return existing_run(cache, folder, vm)
    fresh = folder.with_name(".new-" + vm)
    try:
        os.ftruncate(cache_lock, 0)
        os.write(cache_lock, vm.encode())
        shutil.rmtree(str(fresh), ignore_errors=True)
        make_private(fresh / "spool")
        with tarfile.open(str(payload)) as archive:
            ours = [entry for entry in archive if entry.isfile() and entry.name.startswith("startup/")]
            archive.extractall(str(fresh / "steward"), members=ours)
        run.update(executable=interpreter(), payload=str(payload), host_time=time.time())
        write_json(fresh / "run.json", run)
        alone = try_lock(fresh / "alive")
        assert alone is not None, "a folder that is new has no other owner"
        fresh.rename(folder)
        keep_names(folder.parent)
        launch_steward(folder, (cache_lock, alone))
        os.close(alone)
    finally:
        shutil.rmtree(str(fresh), ignore_errors=True)  # of a start that failed, on a disk that is full say
        os.close(cache_lock)
    until = time.monotonic() + START_S
    while not (folder / "state.json").exists() and is_held(folder / "alive") and time.monotonic() < until:
        time.sleep(0.02)
    return run_state(arguments)


def existing_run(cache: Path, folder: Path, vm: str) -> dict[str, Any]:
    """What somebody else who holds the host has started: this very run, when an earlier try was only slow to answer.
    Raises `Trouble` for any other."""
    until = time.monotonic() + START_S
    while not (folder / "run.json").exists():
        holder = measuring_machine(cache) or "another run"
        if holder != vm:
            raise Trouble("busy", holder, str(cache))
        if time.monotonic() > until:
            raise Trouble("failed", f"an earlier attempt to start {vm} is still running", str(cache))
        time.sleep(0.05)
    return read_state(folder)


def launch_steward(folder: Path, held: tuple[int, int]) -> None:
    """A session of its own and no terminal: a lost connection, or a shell that is closed, does not reach it."""
    with (folder / "steward.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "startup.host.supervisor", str(folder)],
            cwd=str(folder / "steward"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Held for as long as the steward lives: the locks go with its descriptors.
            pass_fds=held,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""},
        )


def run_state(arguments: dict[str, Any]) -> dict[str, Any]:
    """What became of one run, and what is in its spool. A run whose steward is dead is ended here."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    for name, content in dict(arguments.get("given", {})).items():
        give_document(folder, str(name), str(content))
    wait_for_object(folder, str(arguments.get("awaits", "")))
    return read_state(folder)


def wait_for_object(folder: Path, name: str) -> None:
    """Waits for a moment until the run has stored an object, if it names one, or is over: an answer that has it saves
    the client another question."""
    until = time.monotonic() + AWAIT_S
    while name and not (folder / "spool" / name).exists() and is_held(folder / "alive") and time.monotonic() < until:
        time.sleep(0.03)


def give_document(folder: Path, name: str, content: str) -> None:
    """Keeps a candidate of a session for its run, whole or not at all."""
    if len(name) != 11 or not name[:6].isdigit() or not name.endswith(".json"):
        raise Trouble("unknown", f"{name!r} is not the name of a candidate")
    if folder.is_dir() and not (folder / "given" / name).exists():
        make_private(folder / "given")
        fresh = folder / f".given-{name}"
        fresh.write_text(content, encoding="utf-8")
        fresh.replace(folder / "given" / name)


def vm_of(arguments: dict[str, Any]) -> str:
    return str(arguments["run"]["vm"]) if "run" in arguments else str(arguments["vm"])


def read_state(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        return {"exists": False}
    run, odd = read_known_keys(
        folder / "run.json", RECORD
    )  # one that is damaged takes nothing from what is in the spool
    living = is_held(folder / "alive")
    state, odder = steward_state(folder)
    if not living and not is_over(state):
        state, odder = steward_state(folder)  # it may have ended between the two looks
        if not is_over(state):
            state = mark_dead(folder, run, state)
    log, now = folder / "serial.log", time.time()
    return {
        "exists": True,
        "status": "running",
        **state,
        **on_this_clock(state, now),
        "vm": folder.name,
        "labels": run.get("labels", {}),
        "deadline_s": run.get("deadline_s", 0),
        "now": now,
        "files": list_spool(folder / "spool"),
        "spool": str(folder / "spool"),
        "log_size": log.stat().st_size if log.exists() else 0,
        "odd": "; ".join(filter(None, (odd, odder))),
    }


def steward_state(folder: Path) -> tuple[dict[str, Any], str]:
    """What the steward wrote down of a run, and what is wrong with that. A steward that has only begun, or whose disk
    is full, has written nothing."""
    path = folder / "state.json"
    state, odd = read_known_keys(path, STATE)
    if state.get("status") not in ("running", "gone") and path.exists():
        state.pop("status", None)
        odd = odd or f"{path} has no usable value for status"
    return state, odd if path.exists() else ""


def is_over(known: dict[str, Any]) -> bool:
    """Whether its steward wrote down its end, and when that was."""
    return known.get("status") == "gone" and {"started_at", "ended_at"} <= known.keys()


def mark_dead(folder: Path, run: dict[str, Any], ended_state: dict[str, Any]) -> dict[str, Any]:
    """Mark a run whose supervisor is gone as ended. Its processes are killed, and what it stored is kept."""
    kill_run(folder.name, folder / "scratch")
    for name in ("scratch", "steward"):
        shutil.rmtree(str(folder / name), ignore_errors=True)
    ended_state, how = {**ended_state, **on_this_clock(ended_state, time.time())}, ended_state.get("ended_by", "lost")
    alive = folder / "alive"
    ended = float(ended_state.get("ended_at", alive.stat().st_mtime if alive.exists() else time.time()))
    began = float(ended_state.get("started_at", min(run.get("host_time", ended), ended)))
    ended_state = {"id": run.get("id", ""), "started_at": began, "ended_at": max(ended, began)}
    ended_state |= {"status": "gone", "ended_by": how}
    try:
        write_json(folder / "state.json", ended_state)
    except OSError:
        pass  # a disk that is full, or lets nothing be written any more: whoever looks next finds the same
    return ended_state


def on_this_clock(known: dict[str, Any], now: float) -> dict[str, float]:
    """When a run began and ended by what the clock says now: it may have been set in between. How long ago that was
    does not change by it, as long as the machine has not been started anew."""
    if not known.get("boot") or known["boot"] != boot_id():
        return {}
    here = boot_seconds()
    since = {name: known.get(name + "_steady") for name in ("started", "ended")}
    return {name + "_at": now - (here - at) for name, at in since.items() if at is not None}


def list_spool(spool: Path) -> list[list[Any]]:
    """Name, size and time of change of every object in the spool, in name order."""
    spool_entries = []
    for path in sorted(spool.rglob("*")):
        try:
            if path.is_file():
                status = path.stat()
                spool_entries.append([path.relative_to(spool).as_posix(), status.st_size, status.st_mtime_ns])
        except OSError:
            continue  # replaced while we looked
    return spool_entries


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


def stop_run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Asks the steward to end its run, with time to store what there is. What is gone is stopped."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    if steward_state(folder)[0].get("status") != "gone" and is_held(folder / "alive"):
        try:
            (folder / "stop").touch()
        except OSError:
            pass  # a disk that is full: the signal ends it all the same
        for pid in find_supervisors(folder):  # it may not have written down yet, or could not, that it is there
            try:
                os.kill(pid, signal.SIGTERM)
            except OSError:
                continue  # it ended first
    return read_state(folder)


def forget_run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Removes what is left of a run that is over."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    until = time.monotonic() + 3
    while is_held(folder / "alive"):  # it says that it is gone a moment before it is
        if time.monotonic() > until:
            raise Trouble("busy", "it still runs", str(folder))
        time.sleep(0.05)
    kill_run(folder.name, folder / "scratch")
    shutil.rmtree(str(folder), ignore_errors=True)
    return {"exists": folder.exists()}


def list_runs(arguments: dict[str, Any]) -> dict[str, Any]:
    """Every run that has left anything here."""
    folder = cache_folder(arguments.get("cache", "")) / "runs"
    there = sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    return {"runs": [one for one in map(read_state, there) if one["exists"]]}
