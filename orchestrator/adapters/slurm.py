"""Fleets on a Slurm cluster: real sbatch, squeue and scancel, on the login node or over SSH to it; never sacct.

Compute nodes have no credentials: a child stores what it measures in the folder that all nodes share, and a client
copies it from there to the bucket. If a controller dies, Slurm forgets jobs and reuses their ids. So a job is known by
the name that bench gave it, and the state of a child by what the child wrote.
"""

from __future__ import annotations

import io
import json
import secrets
import shlex
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from orchestrator.adapters.clock import Offset
from orchestrator.adapters.hosts.host_operations import ANSWER
from orchestrator.core.errors import BenchError, ConfigError, HostUnfit, PermissionDenied, Unavailable
from orchestrator.core.fleet.jobs import ELSEWHERE, ChildSeen, JobSpec, JobStatus, SchedulerTraits
from orchestrator.core.fleet.slurm import (
    SlurmTask,
    child_script,
    controller_date,
    controller_settings,
    job_status,
    max_array,
    not_answering,
    parse_tasks,
    partitions,
    sbatch,
    scancel,
    sinfo,
    squeue,
    time_limits,
    time_problem,
)
from orchestrator.core.fleet.sweep import Cluster
from orchestrator.core.host_answers import Spooled, sort_spool
from orchestrator.core.names import FleetId, JobName, job_name
from orchestrator.core.text import clean_line, log_text
from orchestrator.ports import Bucket, Clock, FleetDriver, HostShell
from orchestrator.store.copies import Copies
from orchestrator.store.documents import ATTEMPTS

# Copies to the bucket what the children of a fleet keep on a cluster, many files in one archive.


WRITERS: Final = 16


def select_copies(copies: Copies, stored: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Spooled], list[str]]:
    """What is left to copy, by its path below all spools; and each file that a child offers although it may not store
    it, with the reason. `stored` has the files of each child."""
    to_copy: dict[str, Spooled] = {}
    odd: list[str] = []
    for child, files in stored.items():
        runs = Counter(str(one[0]).split("/")[1] for one in files if str(one[0]).startswith("runs/"))
        for run_id in runs:
            if run_id.rpartition("-")[2] != f"{int(child):04x}":
                odd.append(f"child {clean_line(str(child), 20)} has stored objects of {clean_line(run_id, 60)}")
                continue
            judged = sort_spool(run_id, [one for one in files if str(one[0]).startswith(f"runs/{run_id}/")])
            odd += judged.refused
            to_copy |= {f"{child}/{one.name}": one for one in judged.taken if not copies.has(one)}
    return to_copy, odd


def unpack_archive(copies: Copies, bucket: Bucket, archive: bytes, left: Mapping[str, Spooled]) -> list[str]:
    """Stores the files of an archive, events last. Returns the paths of those that must be packed again."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar, ThreadPoolExecutor(WRITERS) as pool:
        members = [(entry.name, file.read()) for entry in tar if entry.isfile() and (file := tar.extractfile(entry))]
        again: list[str] = []
        for events in (False, True):
            part = [(name, body) for name, body in members if ("/events/" in name) is events and name in left]
            done = pool.map(lambda file: copies.store(bucket, left[file[0]], file[1]), part)
            again += [name for (name, _), stored in zip(part, done, strict=True) if not stored]
    return again


COMMAND_S: Final = 60.0
PACK_BYTES: Final = 96 << 20
SUBMITS: Final = 5
PAUSE_S: Final = 2.0
UNHEARD: Final = timedelta(seconds=60)
"""How long a child may be without any sign of life before bench checks whether its node answers."""


@dataclass(slots=True)
class Slurm:
    """The `Scheduler` of one cluster."""

    shell: HostShell
    cluster: Cluster
    bucket: Bucket
    clock: Clock
    name: str = "slurm"
    traits: SchedulerTraits = ELSEWHERE
    odd: list[str] = field(default_factory=list)
    """What children offered that is not theirs to store."""
    _copies: Copies = field(default_factory=Copies)
    _most: int = 0
    _unheard: dict[str, datetime] = field(default_factory=dict)
    """Since when tasks are running, for Slurm, that have given no sign."""

    @property
    def most_children(self) -> int:
        if not self._most:
            self._most = max(1, max_array(self._run(controller_settings())))
        return self._most

    def _client_ahead_s(self) -> float:
        """By how many seconds the client's clock is ahead of the controller's."""
        offset, asked = Offset(), self.clock.now()
        offset.learn(controller_date(self._run(controller_settings())), asked, self.clock.now())
        return -offset.value.total_seconds()

    def time_problem(self, child_s: int) -> str:
        """Why no child that may take `child_s` seconds can start here; empty if one can. Raises as `most_children`."""
        return time_problem(time_limits(self._run(partitions())), self.cluster.partition, child_s)

    def submit(self, jobs: Sequence[JobSpec]) -> Sequence[str]:
        there = {task.job for task in self._queue([job.name for job in jobs])}
        notices: list[str] = []
        for job in jobs:
            folder = self._folder(job.fleet)
            if job.name in there or self._noted(folder, job):
                continue
            self._spread(folder, job)
            self._withdraw(folder, job)
            number = self._sbatch(job, folder).partition(";")[0]
            self._run(
                ("sh", "-c", f"echo {shlex.quote(number)} > {shlex.quote(f'{folder}/jobs/{job.number}.submitted')}")
            )
        return notices

    def _withdraw(self, folder: str, job: JobSpec) -> None:
        """Ends what is left of a job's children in earlier ones: on a node that Slurm holds for alive, or for dead and
        would requeue, it would be a second copy."""
        names = [job_name(job.fleet, number) for number in range(job.number)]
        wanted, orders = {child.index for child in job.children}, self._children(folder, names)
        tasks_by_job: dict[str, list[SlurmTask]] = {}
        for task in self._queue(names):
            order = orders.get(task.job, ())
            if (task.queued or task.running) and task.place < len(order) and order[task.place] in wanted:
                tasks_by_job.setdefault(task.job, []).append(task)
        for name, found in tasks_by_job.items():
            self._run(scancel(name, found))

    def _sbatch(self, job: JobSpec, folder: str) -> str:
        """Submits a job. Where the answer is lost the queue is asked for it by name before it is sent again."""
        for _ in range(SUBMITS - 1):
            try:
                return self._run(sbatch(job, self.cluster, folder, self.clock.now()), again=False).strip()
            except Unavailable:
                self.clock.sleep(PAUSE_S)
                if tasks := self._queue([job.name]):
                    return tasks[0].id
        return self._run(sbatch(job, self.cluster, folder, self.clock.now()), again=False).strip()

    def wait(self, seconds: float, driver: FleetDriver) -> bool:  # noqa: ARG002 - its children need no client
        self.clock.sleep(seconds)
        return True

    def counts(self, names: Sequence[JobName]) -> Sequence[JobStatus]:
        seen = self._queue(names)
        return [job_status(name, seen) for name in names]

    def reconcile(self, fleet: FleetId, names: Sequence[JobName], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        if not names:
            return [ChildSeen(index, "absent") for index in indexes]
        folder, seen = self._folder(fleet), self._queue(names)
        answer = self._ask(fleet, "look", {})
        self._bring_home(fleet, answer)
        wanted = set(indexes)
        children = self._children(folder, names)
        quiet = self._quiet(answer, seen)
        queue: dict[int, SlurmTask] = {}
        silent: dict[int, str] = {}
        for task in seen:
            order = children.get(task.job, ())
            if task.place < len(order):
                index = order[task.place]
                if task.at_work and task.sign in quiet:
                    silent[index] = quiet[task.sign]
                elif index not in queue or task.rank > queue[index].rank:
                    queue[index] = task
        claims, ended = _latest(answer.get("claims"), "machine"), _latest(answer.get("ended"), "machine")
        return [
            _seen(index, queue.get(index), claims.get(index), ended.get(index), silent.get(index, ""))
            for index in sorted(wanted)
        ]

    def _quiet(self, found: Mapping[str, Any], seen: Sequence[SlurmTask]) -> Mapping[str, str]:
        """Why tasks do not count that Slurm holds for running, by their signs' names: silent, or never begun on a node
        that answers Slurm no more. That alone would be a long prologue's, or a slurmd's that restarts."""
        quiet = {
            name: f"{name.partition('.')[2]} has sent no sign of life for {seconds} s"
            for name, seconds in _numbers(found.get("silent")).items()
        }
        if not isinstance(signs := found.get("signs"), list):
            return quiet  # the fleet's programs give none
        now, unheard = self.clock.now(), {task.sign: task for task in seen if task.at_work and task.sign not in signs}
        self._unheard = {name: self._unheard.get(name, now) for name in unheard}
        late = [unheard[name] for name, since in self._unheard.items() if now - since >= UNHEARD]
        if late and (dead := not_answering(self._run(sinfo({task.node for task in late})))):
            quiet |= {
                one.sign: f"{one.node} does not answer, and no child began there" for one in late if one.node in dead
            }
        return quiet

    def cancel(self, names: Sequence[JobName]) -> None:
        for name in names:
            self._run(("scancel", f"--name={name}"))

    # --- the shared folder ---

    def _folder(self, fleet: str) -> str:
        return f"{self.cluster.folder.rstrip('/')}/{fleet}"

    def _noted(self, folder: str, job: JobSpec) -> bool:
        """Whether this job was submitted before, and answered: it may have left the queue since."""
        return self.shell.get(f"{folder}/jobs/{job.number}.submitted", limit=100) is not None

    def _spread(self, folder: str, job: JobSpec) -> None:
        """Puts what a job's children need into the shared folder: one archive, unpacked there."""
        files: dict[str, bytes] = {
            "child.sh": child_script(self.cluster, folder).encode(),
            f"payloads/{job.payload.sha256}.tar.gz": job.payload.data,
            f"jobs/{job.number}.json": json.dumps({"children": [child.index for child in job.children]}).encode(),
        }
        payload = {"bucket": job.payload.bucket, "object": job.payload.object, "sha256": job.payload.sha256}
        metadata = {"startup-script": job.payload.startup_script, "bench-payload": json.dumps(payload)}
        ahead_s = self._client_ahead_s()
        for child in job.children:
            order = {
                "run_id": child.run_id,
                "attempt": child.attempt,
                "spec": dict(child.spec),
                "metadata": metadata,
                "payload": job.payload.sha256,
                "deadline_s": job.child_s,
                "client_ahead_s": ahead_s,
            }
            files[f"children/{child.index}.json"] = json.dumps(order).encode()
        files |= _steward(job.payload.data)
        parcel = f"{self.cluster.folder.rstrip('/')}/.{job.name}-{secrets.token_hex(4)}.tar.gz"
        base = shlex.quote(folder)
        self._run(("sh", "-c", f"umask 077; mkdir -p {base}"))
        self.shell.put(_archive(files), parcel)
        inside = "mkdir -p claims ended done spool log incoming jobs alive"
        self._run(("sh", "-c", f"cd {base} && tar xzf {shlex.quote(parcel)} && rm {shlex.quote(parcel)} && {inside}"))

    def _children(self, folder: str, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        ended_children = {}
        for name in names:
            number = name.rpartition("-")[2]
            data = self.shell.get(f"{folder}/jobs/{number}.json", limit=4 << 20)
            if data is not None:
                try:
                    ended_children[name] = tuple(int(index) for index in json.loads(data)["children"])
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue  # torn, or another's: its children are told by their own words
        return ended_children

    def _bring_home(self, fleet: str, found: Mapping[str, Any]) -> None:
        """Stores what is new in the children's spools, as far as it is their own run's. Only when all of it is in the
        bucket is it noted as brought home."""
        new, odd = select_copies(self._copies, found.get("stored") or {})
        self.odd += odd
        # Cases before the events that tell of them.
        copy_order = sorted(new, key=lambda name: ("/events/" in name, name))
        rounds = len(copy_order) + ATTEMPTS  # another client may have stored a file since it was packed
        while copy_order and rounds:
            rounds -= 1
            answer = self._ask(fleet, "pack", {"names": copy_order})
            data = self.shell.get(str(answer["path"]), limit=PACK_BYTES)
            if data is None or not 0 < int(answer["count"]) <= len(copy_order):
                raise Unavailable(f"{answer['path']} was deleted while it was fetched", hint=AGAIN)
            again = unpack_archive(self._copies, self.bucket, data, new)
            self._run(("rm", "-f", str(answer["path"])))
            copy_order = copy_order[int(answer["count"]) :] + again
        if found and not copy_order:
            self._ask(fleet, "homed", {"since": found.get("now", 0)})

    # --- commands ---

    def _queue(self, names: Sequence[str]) -> tuple[SlurmTask, ...]:
        return parse_tasks(self._run(squeue(names))) if names else ()

    def _ask(self, fleet: str, operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        folder = self._folder(fleet)
        asked = f"{folder}/incoming/ask-{secrets.token_hex(4)}.json" if arguments else ""
        if asked:
            self.shell.put(json.dumps(arguments).encode(), asked)
        redirection = f" {shlex.quote(asked)}; rm -f {shlex.quote(asked)}" if asked else ""
        # A client that died before it put anything there leaves nothing to look at.
        line = (
            f"cd {shlex.quote(folder + '/node')} 2>/dev/null || {{ echo '{ANSWER}{{}}'; exit 0; }}; "
            f"python3 -m startup.host.cluster {operation} {shlex.quote(folder)}{redirection}"
        )
        out = self._run(("sh", "-c", line))
        answer = next((one for one in reversed(out.splitlines()) if one.startswith(ANSWER)), "")
        try:
            document = json.loads(answer.removeprefix(ANSWER))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise Unavailable(f"{operation} in {folder} gave no answer: {log_text(out[-300:])}", hint=AGAIN)
        if document.get("trouble"):
            what = clean_line(str(document.get("message")), 300)
            raise HostUnfit(f"{folder}: {what}", hint=f"`ls -la {folder}` on the login node shows its files")
        return document

    def _run(self, argv: Sequence[str], *, again: bool = True) -> str:
        """What a command on the login node prints. A controller that is away is asked again for a while."""
        began, pause = time.monotonic(), 0.5
        while True:
            code, out, err = self.shell.run(shlex.join(argv), timeout_s=COMMAND_S)
            if code == 0:
                return out
            away = any(text in err for text in AWAY)
            if not away or not again or time.monotonic() - began > COMMAND_S:
                raise _error(argv, code, err.strip() or out.strip(), away=away)
            self.clock.sleep(pause)
            pause = min(2 * pause, 5.0)


AGAIN: Final = "run the same command again: nothing is lost"
AWAY: Final = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "temporarily unavailable",
)
DENIED: Final = ("Invalid account", "Access/permission denied", "Invalid qos", "User's group not permitted")


def _error(argv: Sequence[str], code: int, said: str, *, away: bool) -> BenchError:
    command, what = argv[2] if argv[0] == "env" else argv[0], clean_line(said, 400) or f"exit code {code}"
    if code == 127 or "Could not establish a configuration source" in said:
        return HostUnfit(f"there is no {command} here: {what}", hint="name the login node in slurm.login of the sweep")
    if away:
        return Unavailable(
            f"{command}: {what}",
            hint="`scontrol ping` says whether the controller is up; if it is, run the same command again",
        )
    if any(text in said for text in DENIED):
        return PermissionDenied(
            f"{command}: {what}", hint="set slurm.account, slurm.qos and slurm.partition to what you may use"
        )
    if command == "sbatch":
        return ConfigError(f"the cluster refused the job: {what}", hint="`sinfo -o '%P %G %l'` shows what it has")
    return Unavailable(f"{command}: {what}", hint=f"run `{command}` by hand on the login node")


def _archive(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as tar:
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(body), 0o700 if name.endswith(".sh") else 0o600
            tar.addfile(entry, io.BytesIO(body))
    return made.getvalue()


def _steward(payload: bytes) -> dict[str, bytes]:
    """`startup/` of the payload, for nodes to run from the shared folder."""
    with tarfile.open(fileobj=io.BytesIO(payload)) as tar:
        return {
            f"node/{entry.name}": file.read()
            for entry in tar
            if entry.isfile() and entry.name.startswith("startup/") and (file := tar.extractfile(entry))
        }


def _numbers(found: Any) -> dict[str, int]:
    """For how long tasks have been silent, by their signs' names."""
    return {name: value for name, value in found.items() if type(value) is int} if isinstance(found, dict) else {}


def _latest(documents: Any, required: str) -> dict[int, Mapping[str, Any]]:
    """The document of each child's latest attempt."""
    found: dict[int, Mapping[str, Any]] = {}
    for one in documents if isinstance(documents, Iterable) else ():
        child, attempt = one.get("child"), one.get("attempt")
        if type(child) is int and type(attempt) is int and isinstance(one.get(required), str):
            previous = found.get(child)
            if previous is None or previous["attempt"] < attempt:
                found[child] = one
    return found


def _seen(
    index: int, task: SlurmTask | None, claim: Mapping[str, Any] | None, end: Mapping[str, Any] | None, silent: str = ""
) -> ChildSeen:
    """What is known of a child. What it wrote counts before what Slurm says; a job that is gone without a word of its
    child's has lost it. `silent`: why one that Slurm holds for running does not count."""
    attempt = int(claim["attempt"]) if claim else 0
    machine = clean_line(str(claim["machine"]), 100) if claim else ""
    if end is not None and (end["attempt"] == attempt or end.get("exit_code") in (0, 10)):
        code = end.get("exit_code")
        state = "succeeded" if code in (0, 10) else "lost" if code == 75 else "failed"
        if state == "succeeded" or task is None or not (task.queued or task.running):
            detail = clean_line(str(end.get("detail", "")), 400)
            machine = clean_line(str(end["machine"]), 100)
            return ChildSeen(index, state, attempt, machine, detail, code if isinstance(code, int) else None)  # type: ignore[arg-type]
    if task is not None and task.running:
        return ChildSeen(index, "running", attempt, machine or task.node)
    if task is not None and task.queued:
        return ChildSeen(index, "queued", attempt, "", task.reason)
    if silent:
        return ChildSeen(index, "lost", attempt, machine, silent, silent=True)
    if claim is not None:
        return ChildSeen(
            index, "lost", attempt, machine, task.state if task else "the cluster does not know its job any more"
        )
    return ChildSeen(index, "absent", 0, "", task.state if task else "")
