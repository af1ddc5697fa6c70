"""Makes the commands for Slurm and reads their output, as text: no process, no connection."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import formatdate
from typing import Final

from orchestrator.core.fleet.jobs import JobSpec, JobState, JobStatus
from orchestrator.core.fleet.sweep import Cluster
from orchestrator.core.names import JobName
from orchestrator.core.text import clean_line

SLACK_S: Final = 180
"""Seconds added to the child's own deadline: `--time` has a resolution of a minute, and TERM may come a minute
early."""
WARNING_S: Final = 60
FORMAT: Final = "%j|%F|%K|%T|%r|%N"
RUNNING: Final = frozenset(("RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED"))
QUEUED: Final = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
DEFAULT_ARRAY: Final = 1001


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """One line of squeue: the array task of one child."""

    job: str
    """The job's name, which we chose."""
    id: str
    place: int
    """The index in the job's array."""
    state: str
    reason: str
    node: str

    @property
    def sign(self) -> str:
        """The name of its sign of life in the shared folder. A task that starts again on another node gets another
        name."""
        return f"{self.job.rpartition('-')[2]}-{self.place}.{self.node}"

    @property
    def rank(self) -> tuple[bool, bool]:
        """A sort key: of several tasks of one child, the one with the largest rank counts."""
        return self.running, self.queued

    @property
    def queued(self) -> bool:
        return self.state in QUEUED

    @property
    def at_work(self) -> bool:
        """Whether its processes should be running or ending now. A suspended task gives no signs of life."""
        return self.state in ("RUNNING", "COMPLETING")

    @property
    def running(self) -> bool:
        return self.state in RUNNING


def sbatch(job: JobSpec, cluster: Cluster, fleet_folder: str, now: datetime) -> tuple[str, ...]:
    """The command that submits a job. It contains no id of Slurm's, and none is stored."""
    left_s = max(60, int((job.ends_at - now).total_seconds()))
    minutes = math.ceil((min(job.child_s, left_s) + SLACK_S) / 60)
    gres = cluster.gres.get(job.gpu, "none" if job.gpu == "cpu" else f"gpu:{job.gpu}:1")
    options = {
        "job-name": job.name,
        "comment": f"spotbench {job.fleet}",
        "array": f"0-{len(job.children) - 1}%{job.parallel}",
        "export": "NONE",
        "time": str(minutes),
        # Slurm removes a job that could not end by this time, instead of starting it.
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
    """The script that a node runs. `exec` replaces the shell by the interpreter, so that Slurm's signals reach it. The
    first child stores the compiled modules in the shared folder for all others: compiling is a sixth of what one costs.
    If the payload has signs of life, the script makes an empty one first, for a node that dies before the interpreter
    begins."""
    name = '"$1-${SLURM_ARRAY_TASK_ID:-0}.${SLURMD_NODENAME:-$SLURM_JOB_NODELIST}"'
    return (
        "#!/bin/bash\n"
        f"cd {shlex.quote(fleet_folder + '/node')} || exit 1\n"
        f"[ -e startup/host/heartbeats.py ] && : > {shlex.quote(fleet_folder + '/alive')}/{name}\n"
        f'exec {cluster.python} -m startup.host.child {shlex.quote(fleet_folder)} "$1"\n'
    )


def squeue(names: Sequence[str]) -> tuple[str, ...]:
    return ("squeue", "--noheader", "--array", "--states=all", f"--name={','.join(names)}", f"--format={FORMAT}")


def scancel(job: str, found: Iterable[SlurmTask]) -> tuple[str, ...]:
    """The command that ends these tasks if they belong to `job`: a controller that died may have reused their ids."""
    return ("scancel", "--quiet", f"--name={job}", *(f"{task.id}_{task.place}" for task in found))


def parse_tasks(text: str) -> tuple[SlurmTask, ...]:
    """The tasks in the output of squeue. Lines in another format are left out."""
    task_list = []
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) != len(FORMAT.split("|")):
            continue
        name, number, place, state, reason, node = cells
        if place.isdecimal():
            task_list.append(SlurmTask(name, number, int(place), state, clean_line(reason, 200), clean_line(node, 100)))
    return tuple(task_list)


def sinfo(nodes: Iterable[str]) -> tuple[str, ...]:
    return ("sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(nodes))}", "--format=%N|%T")


def not_answering(text: str) -> frozenset[str]:
    """The nodes whose state sinfo marks with `*`: they do not answer the controller."""
    lines = [line.strip().partition("|") for line in text.splitlines()]
    return frozenset(node for node, _, state in lines if state.endswith("*"))


def controller_settings() -> tuple[str, ...]:
    """What the controller is set to; the first line says what time it is there, as seconds since 1970."""
    return ("env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "config")


def controller_date(text: str) -> str:
    """The time of the controller as an HTTP date, from the output of `controller_settings`; empty if it says none."""
    match = re.search(r"data as of (\d{1,11})\n", text)
    return formatdate(int(match[1]), usegmt=True) if match else ""


def max_array(text: str) -> int:
    """How many tasks an array may have, from the output of `controller_settings`; the default if it does not say."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else DEFAULT_ARRAY


def partitions() -> tuple[str, ...]:
    return ("scontrol", "show", "partition", "--oneliner")


def time_limits(text: str) -> Mapping[str, int | None]:
    """The longest time of a job in seconds by partition, from the output of `partitions`; None for one without a limit.
    The default partition is also there under an empty name."""
    limits: dict[str, int | None] = {}
    for line in text.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if "PartitionName" in fields and "MaxTime" in fields:
            names = [fields["PartitionName"], *([""] if fields.get("Default") == "YES" else [])]
            limits |= dict.fromkeys(names, _seconds(fields["MaxTime"]))
    return limits


def _seconds(text: str) -> int | None:
    """The seconds in a time of Slurm's (`5`, `12:00:00`, `2-00:00:00`, `1-6`); None if it is none, as `UNLIMITED`."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1]:
        return ((days * 24 + first) * 60 + second) * 60 + third
    return (first * 60 + second) * 60 + third if match[4] else first * 60 + second


def time_problem(limits: Mapping[str, int | None], partition: str, child_s: int) -> str:
    """Why no child that may take `child_s` seconds can start in a partition, or in any of several that are named with
    commas; empty if one can, or if their limits are not known."""
    known = [limits[name] for name in partition.split(",") if name in limits]
    longest = max((limit for limit in known if limit is not None), default=0)
    asked_s = 60 * math.ceil((child_s + SLACK_S) / 60)
    if not known or None in known or longest >= asked_s:
        return ""
    where = f"partition {partition}" if partition else "the default partition"
    return (
        f"{where} allows a job {longest // 60} min, and a child asks for {asked_s // 60} min, so Slurm would start none"
    )


WAITING: Final[Mapping[str, str]] = {
    "PartitionTimeLimit": "the partition allows less time than a child asks for",
    "PartitionNodeLimit": "the partition allows fewer nodes",
    "PartitionConfig": "the partition's settings do not allow the job",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "QOSMaxWallDurationPerJobLimit": "the QOS allows less time than a child asks for",
    "AssocGrpGRES": "the account has no GPU left",
    "ReqNodeNotAvail": "a node that fits is down, drained or reserved",
    "Resources": "no node that fits is free",
    "Priority": "other jobs come first",
    "BeginTime": "its time to begin has not come",
}
"""Slurm's reasons why a job does not start, in words."""


def waiting_reason(reason: str) -> str:
    """A reason of Slurm's with what it means."""
    plain = reason.partition(",")[0].strip("() ")
    return f"{reason}: {WAITING[plain]}" if plain in WAITING else reason


def job_status(name: JobName, seen: Iterable[SlurmTask]) -> JobStatus:
    """The status of one job, from all its tasks."""
    listed = [task for task in seen if task.job == name]
    pending = sum(task.queued for task in listed)
    running = sum(task.running for task in listed)
    done = sum(task.state == "COMPLETED" for task in listed)
    failed = len(listed) - pending - running - done
    cancelled = bool(listed) and all(task.state == "CANCELLED" for task in listed)
    states: tuple[tuple[JobState, bool], ...] = (
        ("absent", not listed),
        ("running", bool(running)),
        ("queued", bool(pending)),
        ("cancelled", cancelled),
        ("failed", bool(failed)),
        ("succeeded", True),
    )
    state = next(state for state, holds in states if holds)
    reasons = [task.reason for task in listed if task.queued and task.reason not in ("None", "JobArrayTaskLimit", "")]
    return JobStatus(name, state, pending, running, done, failed, reason=reasons[0] if reasons else "")
