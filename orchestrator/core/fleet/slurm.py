"""What Slurm is asked and what it says, as text: no process, no connection."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orchestrator.core.fleet.jobs import JobSpec, JobState, JobStatus
from orchestrator.core.fleet.sweep import Cluster
from orchestrator.core.foreign import words

SLACK_S: Final = 180
"""More than the child's own deadline: `--time` has a resolution of a minute, and TERM may come a minute early."""
WARNING_S: Final = 60
FORMAT: Final = "%j|%F|%K|%T|%r|%N"
RUNNING: Final = frozenset(("RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED"))
QUEUED: Final = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
DEFAULT_ARRAY: Final = 1001


@dataclass(frozen=True, slots=True)
class Task:
    """One line of squeue: one child's job."""

    job: str
    """Our name of the job."""
    id: str
    place: int
    """In the job's array."""
    state: str
    reason: str
    node: str

    @property
    def sign(self) -> str:
        """What its sign of life is called in the shared folder. A task that starts again on another node has another
        one there."""
        return f"{self.job.rpartition('-')[2]}-{self.place}.{self.node}"

    @property
    def rank(self) -> tuple[bool, bool]:
        """Of several that a child has had, the one that counts is the largest."""
        return self.running, self.queued

    @property
    def queued(self) -> bool:
        return self.state in QUEUED

    @property
    def at_work(self) -> bool:
        """Whether its processes are to be running, or ending, now: one that is suspended gives no signs."""
        return self.state in ("RUNNING", "COMPLETING")

    @property
    def running(self) -> bool:
        return self.state in RUNNING


def sbatch(job: JobSpec, cluster: Cluster, fleet_folder: str, now: datetime) -> tuple[str, ...]:
    """The command that submits a job. No id of Slurm's is in it, and none is kept."""
    left_s = max(60, int((job.ends_at - now).total_seconds()))
    minutes = math.ceil((min(job.child_s, left_s) + SLACK_S) / 60)
    gres = cluster.gres.get(job.gpu, "none" if job.gpu == "cpu" else f"gpu:{job.gpu}:1")
    options = {
        "job-name": job.name,
        "comment": f"spotbench {job.fleet}",
        "array": f"0-{len(job.children) - 1}%{job.parallel}",
        "export": "NONE",
        "time": str(minutes),
        # A job that could not end by then is removed instead of started.
        "deadline": f"now+{left_s + SLACK_S}",
        "signal": f"B:TERM@{WARNING_S}",
        "open-mode": "append",
        "output": f"{fleet_folder}/log/job-{job.number}-%a.txt",
        "chdir": fleet_folder,
        "nice": str(max(0, (50 - job.priority) * 100)),
        "gres": "" if gres == "none" else gres,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
    }
    flags = [f"--{name}={value}" for name, value in options.items() if value]
    alone = ["--exclusive"] if cluster.exclusive else []
    return ("sbatch", "--parsable", "--requeue", *alone, *flags, f"{fleet_folder}/child.sh", str(job.number))


def child_script(cluster: Cluster, fleet_folder: str) -> str:
    """What a node runs. The interpreter takes the shell's place, so that Slurm's signals reach it. The first child
    leaves the compiled modules in the shared folder, for all others: compiling is a sixth of what one costs. A node
    that dies before the interpreter has begun leaves an empty sign of life, where the program gives any."""
    name = '"$1-${SLURM_ARRAY_TASK_ID:-0}.${SLURMD_NODENAME:-$SLURM_JOB_NODELIST}"'
    return (
        "#!/bin/bash\n"
        f"cd {shlex.quote(fleet_folder + '/node')} || exit 1\n"
        f"[ -e startup/host/alive.py ] && : > {shlex.quote(fleet_folder + '/alive')}/{name}\n"
        f'exec {cluster.python} -m startup.host.child {shlex.quote(fleet_folder)} "$1"\n'
    )


def squeue(names: Sequence[str]) -> tuple[str, ...]:
    return ("squeue", "--noheader", "--array", "--states=all", f"--name={','.join(names)}", f"--format={FORMAT}")


def scancel(job: str, found: Iterable[Task]) -> tuple[str, ...]:
    """Ends these tasks, as far as they are that job's: a controller that died may have given their ids to others."""
    return ("scancel", "--quiet", f"--name={job}", *(f"{task.id}_{task.place}" for task in found))


def tasks(text: str) -> tuple[Task, ...]:
    """The lines of squeue. What is no line of ours is left out."""
    found = []
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) != len(FORMAT.split("|")):
            continue
        name, number, place, state, reason, node = cells
        if place.isdecimal():
            found.append(Task(name, number, int(place), state, words(reason, 200), words(node, 100)))
    return tuple(found)


def sinfo(nodes: Iterable[str]) -> tuple[str, ...]:
    return ("sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(nodes))}", "--format=%N|%T")


def not_answering(text: str) -> frozenset[str]:
    """The nodes whose state sinfo marks: they have not answered the controller of late."""
    lines = [line.strip().partition("|") for line in text.splitlines()]
    return frozenset(node for node, _, state in lines if state.endswith("*"))


def max_array(text: str) -> int:
    """How many tasks an array may have, from `scontrol show config`; the default where it does not say."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else DEFAULT_ARRAY


def status(name: str, seen: Iterable[Task]) -> JobStatus:
    """What all lines of one job come to."""
    mine = [task for task in seen if task.job == name]
    pending = sum(task.queued for task in mine)
    running = sum(task.running for task in mine)
    done = sum(task.state == "COMPLETED" for task in mine)
    failed = len(mine) - pending - running - done
    cancelled = bool(mine) and all(task.state == "CANCELLED" for task in mine)
    states: tuple[tuple[JobState, bool], ...] = (
        ("absent", not mine),
        ("running", bool(running)),
        ("queued", bool(pending)),
        ("cancelled", cancelled),
        ("failed", bool(failed)),
        ("succeeded", True),
    )
    state = next(state for state, holds in states if holds)
    reasons = [task.reason for task in mine if task.queued and task.reason not in ("None", "JobArrayTaskLimit", "")]
    return JobStatus(name, state, pending, running, done, failed, reason=reasons[0] if reasons else "")
