"""Machines that the user owns behind the `Cloud` port: a run there is started, observed and ended like any other.

A host has no credentials for the bucket and need not reach it. What a run stores waits in a spool on the host. A client
that looks at the run first copies the spool to the bucket, under the same names, so that copying twice changes nothing.
For this port a run is gone only when all that it stored is in the bucket and none of its files is left on the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.errors import BenchError, DocumentUnreadable, HostUnfit, NotFound, Unavailable
from orchestrator.core.host_answers import (
    RUN_FILES,
    Spooled,
    answer_error,
    answer_seconds,
    busy_error,
    clean_answer,
    look_at,
    sort_spool,
    validate_answer,
)
from orchestrator.core.hosts import (
    HOST_KEY,
    RECORD_PREFIX,
    HostRecord,
    HostRun,
    HostTarget,
    is_host,
    parse_target,
    record_object,
    with_run,
)
from orchestrator.core.market.machines import (
    Accepted,
    CloudRefusal,
    Instance,
    InstanceRequest,
    Operation,
    Quota,
    SerialChunk,
)
from orchestrator.core.market.offers import Offer, ZoneAdvice
from orchestrator.core.names import ImageName, ImageUrl, MachineName, ProjectId, Region, ResourceId, Zone
from orchestrator.core.naming import RUN_LABEL, SESSION_LABEL, candidates_prefix, cases_prefix, verdict_object
from orchestrator.ports import PAYLOAD_BYTES, Bucket, Clock, Cloud, Market, RemoteShell
from orchestrator.store.copies import Copies
from orchestrator.store.documents import ATTEMPTS, update_host

# Copies what waits in a host's spool to the bucket, with the client's rights: only what the run may store.


def bring_home(bucket: Bucket, shell: RemoteShell, run_id: str, answer: Mapping[str, Any], copies: Copies) -> list[str]:
    """Copies what is new in the spool of a run: cases before the events that mention them. Returns what was refused,
    each with the reason, in words for the user. Raises `Unavailable` when an object could not be copied."""
    files = answer.get("files")
    spool_files = sort_spool(run_id, files if isinstance(files, list) else ())
    refused = list(spool_files.refused)
    for one in spool_files.taken:
        if copies.has(one):
            continue
        path = f"{answer.get('spool', '')}/{one.name}"
        data = shell.get(path, limit=one.limit)
        if data is None:
            continue
        if len(data) > one.limit:
            refused.append(f"{one.name}: more than {one.limit} bytes came")
            continue
        _store_newest(bucket, shell, path, one, data, copies)
    return refused


def _store_newest(bucket: Bucket, shell: RemoteShell, path: str, one: Spooled, data: bytes, copies: Copies) -> None:
    """Stores an object; fetches it again as often as another client has stored it meanwhile."""
    for _ in range(ATTEMPTS):
        if copies.store(bucket, one, data):
            return
        newer = shell.get(path, limit=one.limit)
        if newer is None or len(newer) > one.limit:
            copies.note(one)  # another client has copied it, and the host has deleted it
            return
        data = newer
    raise Unavailable(
        f"gs://{bucket.name}/{one.name} changed {ATTEMPTS} times while it was stored",
        hint="many clients copy it at the same time: run the same command again",
    )


REFUSED: Final = "refused"
ABSENT: Final = "absent"
"""How a run ended that its host never started, and one that the host does not know."""
STOP_S: Final = 75.0
"""A steward ends its run within less (`startup/host/supervisor.py`)."""
LATE: Final = timedelta(minutes=5)
"""A host enforces the deadline itself. If it is unreachable for so long after it, the run is taken to have ended."""
DEAF_S: Final = 0.8
"""How long a host that was just unreachable is not tried again: one command looks at it several times."""


@dataclass
class HostCloud:
    """The `Cloud` of machines that the user owns. Zones are those of `core.hosts.Target`."""

    bucket: Bucket
    clock: Clock
    connect: Callable[[HostTarget], RemoteShell]
    machine: str = ""
    """What `local` stands for: the machine that this client runs on."""
    _shells: dict[str, RemoteShell] = field(default_factory=dict)
    _deaf: dict[str, tuple[datetime, Unavailable]] = field(default_factory=dict)
    _copies: Copies = field(default_factory=Copies)
    _given: dict[str, str] = field(default_factory=dict)
    """The last candidate that each run was given."""
    _awaited: dict[str, str] = field(default_factory=dict)
    """The verdict that each run owes."""
    odd: dict[str, str] = field(default_factory=dict)
    """By object or host: what could not be read or was refused, in words for the user. It stops nothing."""

    # --- the Cloud port ---

    def insert(self, request: InstanceRequest) -> Accepted | CloudRefusal:
        where = json.loads(request.metadata[HOST_KEY])
        target, python = parse_target(where["target"]), str(where["python"])
        now = self.clock.now()
        run = HostRun(
            run_id=request.labels[RUN_LABEL],
            labels=dict(request.labels),
            id=str(uuid5(NAMESPACE_URL, f"spotbench:{request.zone}/{request.name}").int >> 65),
            created_at=now,
            deadline_at=now + timedelta(seconds=request.max_run_s),
        )
        payload = json.loads(request.metadata["bench-payload"])
        try:
            self._ship(target, python, request.name, payload)
            self._bring_home_earlier(request.zone, run.run_id, request.name)
            # From here on something of the run may be on the host, so the bucket knows of it first.
            self._record(target, python, request.name, run)
        except HostUnfit as exc:
            return CloudRefusal(code="HOST_UNFIT", message=str(exc), scope="all", hint=exc.hint)
        try:
            return self._start(target, python, request, run, payload)
        except HostUnfit as exc:
            self._end_what_may_have_begun(request)
            return CloudRefusal(code="HOST_UNFIT", message=str(exc), scope="all", hint=exc.hint)

    def _start(
        self, target: HostTarget, python: str, request: InstanceRequest, run: HostRun, payload: Mapping[str, str]
    ) -> Accepted | CloudRefusal:
        """Raises `HostUnfit` if the run may have started all the same: for trouble, or an answer that is unreadable."""
        answer = self._ask(target, "start", {"run": self._told(request, run, payload)}, python=python)
        if answer.get("trouble") == "busy":
            never = {"ended_at": run.created_at, "how": REFUSED, "removed": True}
            self._record(target, python, request.name, run.model_copy(update=never))
            other = answer.get("message") or "another run"
            full = busy_error(target, str(other))
            return CloudRefusal(code="HOST_BUSY", message=str(full), scope="zone", hint=full.hint)
        if (error := answer_error(answer, target)) is not None:
            raise error
        instance = self._instance(request.zone, request.name, run, answer)
        known_times = {"deadline_at": instance.deadline_at, "created_at": instance.started_at or run.created_at}
        self._record(target, python, request.name, run.model_copy(update=known_times))
        return Accepted(instance)

    def delete(self, zone: str, name: str, request_id: str) -> None:  # noqa: ARG002
        record = self.record(zone)
        run = record.runs.get(name) if record is not None else None
        if record is None or run is None or run.ended_at is not None:
            return
        target = parse_target(record.target)
        answer = self._state(target, "stop", name)
        until = self.clock.now() + timedelta(seconds=STOP_S)
        while answer.get("exists") and answer.get("status") != "gone":
            if self.clock.now() > until:
                raise Unavailable(
                    f"{name} on {target} did not end within {STOP_S:g} s",
                    hint="`bench reap --yes` tries again; at the latest it ends by itself at its deadline",
                )
            self.clock.sleep(0.5)
            answer = self._state(target, "state", name)
        self._record_end(record, name, run, answer)

    def instance(self, zone: str, name: str) -> Instance | None:
        """The run's machine, after copying what it has stored so far to the bucket; None once it is gone."""
        record = self.record(zone)
        run = record.runs.get(name) if record is not None else None
        if record is None or run is None or run.removed:
            return None
        target = parse_target(record.target)
        if run.ended_at is not None:
            self._remove(target, record, name, run)
            return None
        try:
            answer = self._state(target, "state", name, self._session_arguments(name, run))
        except Unavailable:
            if self.clock.now() > run.deadline_at + LATE:
                return None  # it ended by itself; what it stored is copied when the host is reachable again
            raise
        if answer.get("exists") and answer.get("status") != "gone":
            self._bring_home(target, run, answer)
            return self._instance(zone, name, run, answer)
        self._record_end(record, name, run, answer)
        return None

    def instances(self) -> tuple[Instance, ...]:
        """Every run that may be on a host. If a host cannot be asked, its runs are listed as the bucket knows them."""
        instances = []
        for zone, name, run in self._open_runs():
            try:
                seen = self.instance(zone, name)
            except BenchError:
                seen = machine_of(zone, name, run, "UNREACHABLE", run.created_at, run.deadline_at)
            instances += [seen] if seen is not None else []
        return tuple(instances)

    def operations(self, zone: str, instance_id: str) -> tuple[Operation, ...]:
        record = self.record(zone)
        runs = record.runs.values() if record is not None else ()
        return tuple(op for run in runs if run.id == instance_id for op in self._ended(run))

    def operations_by_name(self, zone: str, name: str) -> tuple[Operation, ...]:
        record = self.record(zone)
        run = record.runs.get(name) if record is not None else None
        return self._ended(run) if run is not None else ()

    def serial_output(self, zone: str, name: str, start: int) -> SerialChunk | None:
        record = self.record(zone)
        run = record.runs.get(name) if record is not None else None
        if record is None or run is None or run.ended_at is not None:
            return None
        answer = self._ask(parse_target(record.target), "read_log", {"vm": name, "start": start})
        if not answer.get("exists"):
            return None
        return SerialChunk(str(answer["text"]), int(answer_seconds(answer, "next")), lost=False)

    def image(self, project: ProjectId, family: ImageName) -> ImageUrl:
        raise NotFound(f"a host has no image {project}/{family}")

    def advice(self, offers: Sequence[Offer]) -> tuple[ZoneAdvice, ...]:  # noqa: ARG002
        return ()

    def quotas(self, region: Region) -> tuple[Quota, ...]:  # noqa: ARG002
        return ()

    # --- what only hosts have ---

    def record(self, zone: str) -> HostRecord | None:
        """What the bucket has about a host; None if it has nothing. Raises `RecordUnreadable`."""
        blob = self.bucket.read(record_object(zone))
        return HostRecord.parse(zone, blob.data) if blob is not None else None

    def probe(self, target: HostTarget, python: str = "") -> Mapping[str, Any]:
        """What the host reports about itself now. Raises what `RemoteShell` raises."""
        return validate_answer(self._checked(target, "probe", {}, python=python), "probe")

    def validate(self, target: HostTarget, python: str = "") -> Mapping[str, Any]:
        """Tries what a run needs: imports torch, builds a program, writes to the cache folder."""
        return validate_answer(self._checked(target, "validate", {}, python=python, timeout_s=300), "packages")

    def remember(self, target: HostTarget, change: Callable[[HostRecord], HostRecord]) -> None:
        """Changes what the bucket has about a host, by compare-and-swap."""
        update_host(self.bucket, self.clock, target, change)

    def bring_home(self, run_id: str) -> None:
        """Brings home what hosts have of one run that is not known to be removed there."""
        for zone, name, run in self._open_runs():
            if run.run_id == run_id:
                self.instance(zone, name)

    def close(self) -> None:
        for shell in self._shells.values():
            shell.close()

    # --- how ---

    def _open_runs(self) -> Iterator[tuple[str, str, HostRun]]:
        """Zone, name and entry of every run that a host may have anything of."""
        for entry in self.bucket.list(RECORD_PREFIX):
            zone = entry.name.removeprefix(RECORD_PREFIX).removesuffix(".json")
            try:
                record = self.record(zone)
            except DocumentUnreadable as exc:  # one that cannot be read hides no other
                self.odd[entry.name] = str(exc)
                continue
            for name, run in record.open_runs().items() if record is not None else ():
                yield zone, name, run

    def _shell(self, target: HostTarget) -> RemoteShell:
        key = str(target)
        if key not in self._shells:
            self._shells[key] = self.connect(target)
        return self._shells[key]

    def _ask(
        self,
        target: HostTarget,
        operation: str,
        arguments: Mapping[str, Any],
        *,
        python: str = "",
        timeout_s: float = 60,
    ) -> Mapping[str, Any]:
        until, error = self._deaf.get(str(target), (None, None))
        if until is not None and error is not None and self.clock.now() < until:
            raise error
        try:
            answer = self._shell(target).ask(
                operation, arguments, python=python or self._python(target), timeout_s=timeout_s
            )
            return clean_answer(answer)
        except Unavailable as exc:
            self._deaf[str(target)] = (self.clock.now() + timedelta(seconds=DEAF_S), exc)
            raise

    def _python(self, target: HostTarget) -> str:
        """The interpreter that the bucket remembers; what runs on this machine itself is never the bucket's choice."""
        record = self.record(target.zone) if not target.machine else None
        return record.python if record is not None else ""

    def _checked(
        self, target: HostTarget, operation: str, arguments: Mapping[str, Any], **how: Any
    ) -> Mapping[str, Any]:
        answer = self._ask(target, operation, arguments, **how)
        if (error := answer_error(answer, target)) is not None:
            raise error
        return answer

    def _session_arguments(self, name: str, run: HostRun) -> Mapping[str, Any]:
        """What a look at a session's run brings along: the candidates that the bucket has and the host has not, and,
        unless it is this client's first look, the verdict for which the host may wait a moment."""
        if SESSION_LABEL not in run.labels:
            return {}
        is_first, prefix = name not in self._given, candidates_prefix(run.run_id)
        names = [entry.name for entry in self.bucket.list(prefix, after=self._given.get(name, ""))]
        candidates = {one: blob.data.decode() for one, blob in sorted(self.bucket.read_many(names).items())}
        if candidates and not is_first:
            self._awaited[name] = verdict_object(run.run_id, int(max(candidates)[-11:-5]))
        return {
            "given": {one.rpartition("/")[2]: text for one, text in candidates.items()},
            "awaits": self._awaited.get(name, ""),
            "last": max(candidates, default=self._given.get(name, "")),
        }

    def _state(
        self, target: HostTarget, operation: str, name: str, session: Mapping[str, Any] = MappingProxyType({})
    ) -> Mapping[str, Any]:
        """What the host says about a run. Only the answer `exists: false` means that there is no such run, and a run is
        over only if the answer lists what it stored. Raises `HostUnfit` for trouble and for any other answer."""
        answer = self._checked(target, operation, {"vm": name, **session})
        if session:
            self._given[name] = session["last"]
        there = answer.get("exists")
        is_complete = operation == "forget" or (
            isinstance(answer.get("files"), list) and answer.get("status", "running") in ("running", "gone")
        )
        if not isinstance(there, bool) or (there and not is_complete):
            raise HostUnfit(f"{target} does not say whether {name} is still there", hint=look_at(target))
        if self._awaited.get(name, "-") in (
            entry[0] for entry in answer.get("files", ()) if isinstance(entry, list) and entry
        ):
            del self._awaited[name]
        if odd := answer.get("odd"):
            self.odd[name] = f"{odd}, on {target}; what {name} stored is copied to the bucket all the same"
        return answer

    def _ship(self, target: HostTarget, python: str, name: str, payload: Mapping[str, str]) -> None:
        """Sends the payload to the host unless it is there. The host accepts it only if its sha256 is right."""
        about: dict[str, Any] = {"vm": name, "sha256": payload["sha256"], "size": 0}
        if self._checked(target, "prepare", about, python=python)["present"]:
            return
        blob = self.bucket.read(payload["object"], largest=PAYLOAD_BYTES)
        if blob is None:
            raise NotFound(
                f"there is no {payload['object']} in the bucket",
                hint=f"a new launch uploads it again: `bench launch --host {target}` with the options of this run",
            )
        about["size"] = len(blob.data)
        place = self._checked(target, "prepare", about, python=python)
        if not place["present"]:
            self._shell(target).put(blob.data, str(place["incoming"]))
            self._checked(target, "accept", {**about, "incoming": place["incoming"]}, python=python)

    def _bring_home_earlier(self, zone: str, run_id: str, but: str) -> None:
        """Copies to the bucket what earlier attempts of a run have left on its host. The host may be reachable again
        after it was given up, and what is in the bucket is not measured again."""
        record = self.record(zone)
        for name, earlier in (record.open_runs() if record is not None else {}).items():
            if earlier.run_id == run_id and name != but:
                self.instance(zone, name)

    def _end_what_may_have_begun(self, request: InstanceRequest) -> None:
        """Ends a run whose start failed. Unless the host confirms that nothing is left there, the bucket keeps its
        entry, and `bench reap` lists it."""
        try:
            self.delete(request.zone, request.name, request.request_id)
        except BenchError as exc:
            self.odd[request.name] = f"{request.name} may still be on its host: {exc}"

    def _told(self, request: InstanceRequest, run: HostRun, payload: Mapping[str, str]) -> dict[str, Any]:
        """What the host is told about a run: what a VM finds in its metadata, and the cases that the bucket has."""
        metadata = {key: value for key, value in request.metadata.items() if key not in (HOST_KEY, "bench-endpoints")}
        return {
            "vm": request.name,
            "zone": request.zone,
            "id": run.id,
            "labels": run.labels,
            "sha256": payload["sha256"],
            "deadline_s": request.max_run_s,
            "metadata": metadata,
            "known": [entry.name for entry in self.bucket.list(cases_prefix(run.run_id), most=RUN_FILES)],
            "client_time": self.clock.now().timestamp(),
        }

    def _record(self, target: HostTarget, python: str, name: str, run: HostRun) -> None:
        now = self.clock.now()

        def change(record: HostRecord) -> HostRecord:
            return with_run(record.model_copy(update={"python": python}), name, run, now)

        self.remember(target, change)

    def _instance(self, zone: str, name: str, run: HostRun, answer: Mapping[str, Any]) -> Instance:
        started = self._at(answer, "started_at") or run.created_at
        # The deadline that the host reports, if it has one, but never much later than what it was told.
        deadline_s = answer_seconds(answer, "deadline_s")
        deadline = (
            min(started + timedelta(seconds=deadline_s), run.deadline_at + LATE) if deadline_s else run.deadline_at
        )
        return machine_of(zone, name, run, "RUNNING", started, deadline)

    def _at(self, answer: Mapping[str, Any], key: str) -> datetime | None:
        """A time that the host reports, on our clock: the host's clock may be wrong, but its time differences count."""
        if answer.get(key) is None:
            return None
        return self.clock.now() - timedelta(
            seconds=max(answer_seconds(answer, "now") - answer_seconds(answer, key), 0.0)
        )

    def _ended(self, run: HostRun) -> tuple[Operation, ...]:
        """What a cloud's log would say: that it began, and when it ended unless it was lost. Empty if `ABSENT`."""
        if run.ended_at is None or run.how == ABSENT:
            return ()
        ended = max(run.ended_at, run.deadline_at) if run.how == "deadline" else run.ended_at
        began = Operation("insert", "DONE", run.created_at, run.created_at)
        end = Operation("delete", "DONE", ended, ended)
        return (end,) if run.how == REFUSED else (began,) if run.how == "lost" else (began, end)

    def _bring_home(self, target: HostTarget, run: HostRun, answer: Mapping[str, Any]) -> None:
        """Copies what is new in the spool, if the run may store it."""
        refused = bring_home(self.bucket, self._shell(target), run.run_id, answer, self._copies)
        if refused:
            suffix = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            self.odd[str(target)] = (
                f"{target} has files in its spool that its run may not store; they were not copied: "
                f"{refused[0]}{suffix}"
            )

    def _record_end(self, record: HostRecord, name: str, run: HostRun, answer: Mapping[str, Any]) -> None:
        """For a run that is over on its host: copies its files, records its end, then deletes its files there."""
        target = parse_target(record.target)
        if answer.get("exists"):
            self._bring_home(target, run, answer)
        ended = self._at(answer, "ended_at") or self.clock.now()
        how = str(answer.get("ended_by") or "lost") if answer["exists"] else ABSENT
        over = run.model_copy(update={"ended_at": max(ended, run.created_at), "how": how})
        # The bucket has everything about the run before it is removed there: a client may die in between.
        self._record(target, record.python, name, over)
        self._remove(target, record, name, over)

    def _remove(self, target: HostTarget, record: HostRecord, name: str, run: HostRun) -> None:
        """Removes what is left of a run that is over. If the host is unreachable, a later command tries again."""
        try:
            if self._state(target, "forget", name)["exists"]:
                return
        except (Unavailable, HostUnfit):
            return
        self._record(target, record.python, name, run.model_copy(update={"removed": True}))


def machine_of(zone: str, name: str, run: HostRun, status: str, started: datetime, deadline: datetime) -> Instance:
    """A run on a host, as an instance of a cloud."""
    return Instance(
        MachineName(name), Zone(zone), ResourceId(run.id), status, "host", run.labels, started, started, deadline,
        preemptible=False,
    )  # fmt: skip


@dataclass
class ZoneRouter:
    """Rented machines and hosts as one `Cloud`: the zone tells which it is. Google's client is made when needed."""

    rented: Callable[[], Cloud]
    hosts: HostCloud
    market: Callable[[], Market]
    """Answers the questions of a plan, without the client that makes machines."""

    def _of(self, zone: str) -> Cloud:
        return self.hosts if is_host(zone) else self.rented()

    def ready(self, zone: str) -> None:
        """Makes the client that a machine in this zone is asked of."""
        self._of(zone)

    def insert(self, request: InstanceRequest) -> Accepted | CloudRefusal:
        return self._of(request.zone).insert(request)

    def delete(self, zone: Zone, name: MachineName, request_id: str) -> None:
        self._of(zone).delete(zone, name, request_id)

    def instance(self, zone: Zone, name: MachineName) -> Instance | None:
        return self._of(zone).instance(zone, name)

    def instances(self) -> tuple[Instance, ...]:
        return (*self.rented().instances(), *self.hosts.instances())

    def operations(self, zone: Zone, instance_id: ResourceId) -> tuple[Operation, ...]:
        return self._of(zone).operations(zone, instance_id)

    def operations_by_name(self, zone: Zone, name: MachineName) -> tuple[Operation, ...]:
        return self._of(zone).operations_by_name(zone, name)

    def serial_output(self, zone: Zone, name: MachineName, start: int) -> SerialChunk | None:
        return self._of(zone).serial_output(zone, name, start)

    def image(self, project: ProjectId, family: ImageName) -> ImageUrl:
        return self.market().image(project, family)

    def advice(self, offers: Sequence[Offer]) -> tuple[ZoneAdvice, ...]:
        rented = [offer for offer in offers if not is_host(offer.zone)]
        return self.market().advice(rented) if rented else ()

    def quotas(self, region: Region) -> tuple[Quota, ...]:
        return self.market().quotas(region)
