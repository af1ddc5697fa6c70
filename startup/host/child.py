"""`python3 -m startup.host.child FLEET_FOLDER JOB`: one child of a fleet, as a job of a cluster starts it on a node.

The node has no credentials and may reach nothing but the folder that it shares with the login node. The child claims an
attempt, and then the steward looks after its run as on any host; what it stores goes to the shared folder:

    jobs/<number>.json        the children of a job, by the place in its array
    children/<index>.json     what is to be measured: the run spec, what its machine is told, the first free attempt
    claims/<index>-<n>.json   created once by whoever measures attempt n
    spool/<index>/            objects by name, of all attempts: a case that is there is not measured again
    ended/<index>-<n>.json    how an attempt ended
    done/<index>.json         created once, when there is nothing left to measure
    alive/<job>-<place>.<node> touched every few seconds while a child is at it (`heartbeats.py`)
    log/                      what each attempt has printed

Exit codes: 0 measured, 10 measured and an implementation was wrong, 75 ended by a signal, 1 anything else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from startup.host.heartbeats import keep_heartbeat
from startup.host.paths import Trouble, own_folder, read_json, write_json
from startup.host.spool import Spool
from startup.host.supervisor import Steward

MEASURED, WRONG, TAKEN, FAILED = 0, 10, 75, 1
ATTEMPTS = 12
CONTROLLER_S = 20.0
OUTCOMES = {"succeeded": MEASURED, "incorrect": WRONG, "preempted": TAKEN, "stopped": TAKEN, "terminated": TAKEN}


def create_once(path: Path, document: dict[str, Any]) -> bool:
    """Creates a file whole, once, on whichever machine; False when somebody was first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


def node_name() -> str:
    """What the cluster calls this machine."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("SLURM_JOB_NODELIST") or os.uname().nodename


def claim_attempt(fleet: Path, index: int, first: int) -> int | None:
    """The attempt that this process may measure; None when there have been too many."""
    for attempt in range(first, ATTEMPTS + 1):
        claim = {
            "schema": 1,
            "child": index,
            "attempt": attempt,
            "machine": node_name(),
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "started_at": time.time(),
            "job": os.environ.get("SLURM_JOB_ID", ""),
        }
        if create_once(fleet / "claims" / f"{index}-{attempt}.json", claim):
            return attempt
    return None


def child_order(order: dict[str, Any], fleet: Path, attempt: int) -> dict[str, Any]:
    """The run as a steward takes it: `order` with the name of this attempt's machine in it."""
    spec = {**order["spec"], "attempt": attempt, "vm": f"bench-{order['run_id']}-{attempt}"}
    asked = time.time()
    controller_s = controller_time_s()
    now = time.time()
    # The smallest correction that agrees with an answer in whole seconds, which took a while.
    ahead_s = min(max(0.0, controller_s - now), controller_s + 1 - asked) if controller_s else 0.0
    return {
        "vm": spec["vm"],
        "zone": "cluster",
        "id": f"{order['run_id']}-{attempt}",
        "labels": {},
        "deadline_s": order["deadline_s"],
        "metadata": {**order["metadata"], "bench-run": json.dumps(spec)},
        "executable": sys.executable,
        "payload": str(fleet / "payloads" / f"{order['payload']}.tar.gz"),
        "client_time": now + ahead_s + float(order.get("client_ahead_s", 0)),
        "host_time": now,
    }


def controller_time_s() -> float:
    """The time of the cluster's controller, in whole seconds, since a node's own clock may be wrong; 0 if the
    controller does not answer."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    argv = ("scontrol", "show", "config")
    try:
        text = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=CONTROLLER_S).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0.0
    found = re.search(r"data as of (\d{1,12})\n", text)
    return float(found[1]) if found else 0.0


def attempt_outcome(spool: Path, run_id: str, attempt: int) -> tuple[int, str]:
    """Exit code and detail of an attempt, from its machine's last word in the spool: the agent's, or else the
    bootstrap's."""
    events = spool / "runs" / run_id / "events"
    names = sorted([*events.glob(f"*-vm-{attempt}-*.json"), *events.glob(f"*-boot-{attempt}-*.json")])
    last_words = {"finished": {}, "vm_exiting": {}, "diagnosed": {}}  # type: dict[str, dict[str, Any]]
    for path in names:
        event = read_json(path) or {}
        kind, data = event.get("kind"), event.get("data")
        if isinstance(kind, str) and kind in last_words and isinstance(data, dict):
            last_words[kind] = data
    last = last_words["finished"] or last_words["vm_exiting"]
    if not last:
        return FAILED, "it ended without reporting why"
    why = last_words["diagnosed"]
    detail = f"{why.get('cause', '')}: {why.get('detail', '')}" if why else str(last.get("detail", ""))
    return OUTCOMES.get(str(last.get("outcome")), FAILED), detail


def scratch_folder() -> Path:
    """Local to the node, the same for every child of this user, so that what one built the next one finds; a new one
    where another user has put something of that name there first: a folder, a link or a file."""
    folder = usual_scratch()
    try:
        own_folder(folder)
    except (Trouble, FileExistsError, NotADirectoryError, PermissionError):
        folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    return folder


def usual_scratch() -> Path:
    base = Path(os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir())
    return base / f"spotbench-{os.getuid()}"


def measure_child(fleet: Path, index: int) -> int:
    """Measures one child; its exit code."""
    done = read_json(fleet / "done" / f"{index}.json")
    if done is not None:
        code = done.get("exit_code")
        return code if isinstance(code, int) else MEASURED
    order = read_json(fleet / "children" / f"{index}.json")
    if order is None:
        sys.stderr.write(f"{fleet}/children/{index}.json is not there\n")
        return FAILED
    attempt = claim_attempt(fleet, index, int(order["attempt"]))
    if attempt is None:
        sys.stderr.write(f"child {index} was tried {ATTEMPTS} times\n")
        return FAILED
    run = child_order(order, fleet, attempt)
    scratch = scratch_folder()
    folder = scratch / "runs" / run["vm"]
    spool = fleet / "spool" / str(index)
    try:
        for path in (folder.parent, folder, scratch / "build"):
            own_folder(path)
        for path in (spool, fleet / "log"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(folder / "run.json", run)
        (folder / "alive").touch()
        fresh = spool / f".unfinished-{attempt}"
        Steward(folder, Spool(spool, fresh=fresh)).work()
        code, detail = attempt_outcome(spool, order["run_id"], attempt)
        state = read_json(folder / "state.json") or {}
        ended = {
            "child": index,
            "attempt": attempt,
            "machine": node_name(),
            "exit_code": code,
            "detail": detail[:500],
            "ended_by": state.get("ended_by", ""),
            "started_at": state.get("started_at"),
            "ended_at": time.time(),
        }
        shutil.copyfile(folder / "serial.log", fleet / "log" / f"{index}-{attempt}.txt")
        create_once(fleet / "ended" / f"{index}-{attempt}.json", ended)
        if code in (MEASURED, WRONG):
            create_once(fleet / "done" / f"{index}.json", ended)
        return code
    finally:
        shutil.rmtree(folder if scratch == usual_scratch() else scratch, ignore_errors=True)


def main(fleet: Path, number: str) -> int:
    job = read_json(fleet / "jobs" / f"{number}.json")
    place = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    if job is None or not 0 <= place < len(job["children"]):
        sys.stderr.write(f"job {number} has no child {place}\n")
        return FAILED
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with keep_heartbeat(fleet / "alive" / f"{number}-{place}.{node_name()}"):
        return measure_child(fleet, int(job["children"][place]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
