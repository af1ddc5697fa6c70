"""Machines of the user's own behind the `Cloud` port: a run on one is asked for, looked at and ended like any other.

A host has no credentials for the bucket and need not reach it. What a run stores waits in a spool on the host; whoever
looks at the run brings it home first, under the names that it has, so that a copy repeated changes nothing. A run is
gone for this port only once everything of it is in the bucket and nothing of it is on the host any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.errors import BenchError, HostUnfit, NotFound, Unavailable
from orchestrator.core.hosts import (
    HOST_KEY,
    RECORD_PREFIX,
    HostRecord,
    HostRun,
    RecordUnreadable,
    Target,
    parse_target,
    record_object,
    with_run,
)
from orchestrator.core.market.machines import (
    Accepted,
    Instance,
    InstanceRequest,
    Operation,
    Quota,
    Refusal,
    SerialChunk,
)
from orchestrator.core.market.offers import Advice, Offer
from orchestrator.core.naming import RUN_LABEL, cases_prefix
from orchestrator.hosts.answers import looked, said, seconds, trouble
from orchestrator.hosts.homecoming import Home, bring_home
from orchestrator.ports import Bucket, Clock, RemoteShell
from orchestrator.store.hosts import update_host

REFUSED: Final = "refused"
ABSENT: Final = "absent"
"""How a run ended that its host never began, and one that it knows nothing of."""
STOP_S: Final = 75.0
"""A steward ends its run within less (`startup/host/steward.py`)."""
LATE: Final = timedelta(minutes=5)
"""A host that is silent for so long after the deadline it enforces itself is taken to have ended the run."""
DEAF_S: Final = 0.8
"""A host that was just not to be reached is not tried again for so long: one command looks several times."""


@dataclass
class HostCloud:
    """The `Cloud` of machines that are somebody's own. Zones are those of `core.hosts.Target`."""

    bucket: Bucket
    clock: Clock
    connect: Callable[[Target], RemoteShell]
    machine: str = ""
    """What `local` stands for: the machine that this client runs on."""
    _shells: dict[str, RemoteShell] = field(default_factory=dict)
    _deaf: dict[str, tuple[datetime, Unavailable]] = field(default_factory=dict)
    _home: Home = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    """By object or host: what could not be read, or was refused, in words for a person. Nothing stops for it."""

    # --- the Cloud port ---

    def insert(self, request: InstanceRequest) -> Accepted | Refusal:
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
            return Refusal(code="HOST_UNFIT", message=str(exc), scope="all", hint=exc.hint)
        try:
            return self._start(target, python, request, run, payload)
        except HostUnfit as exc:
            self._end_what_may_have_begun(request)
            return Refusal(code="HOST_UNFIT", message=str(exc), scope="all", hint=exc.hint)

    def _start(
        self, target: Target, python: str, request: InstanceRequest, run: HostRun, payload: Mapping[str, str]
    ) -> Accepted | Refusal:
        """Raises `HostUnfit` where something of the run may have begun: trouble, or an answer that says nothing."""
        answer = self._ask(target, "start", {"run": self._told(request, run, payload)}, python=python)
        if answer.get("trouble") == "busy":
            never = {"ended_at": run.created_at, "how": REFUSED, "removed": True}
            self._record(target, python, request.name, run.model_copy(update=never))
            other = answer.get("message") or "another run"
            message = f"{target} measures for {other}; two runs at once would disturb each other"
            return Refusal(code="HOST_BUSY", message=message, scope="zone", hint=f"`bench status` shows {target}")
        if (error := trouble(answer, target)) is not None:
            raise error
        instance = self._instance(request.zone, request.name, run, answer)
        known = {"deadline_at": instance.deadline_at, "created_at": instance.started_at or run.created_at}
        self._record(target, python, request.name, run.model_copy(update=known))
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
                raise Unavailable(f"{name} on {target} does not end", hint=f"{target.entry}it ends by its deadline")
            self.clock.sleep(0.5)
            answer = self._state(target, "state", name)
        self._settle(record, name, run, answer)

    def instance(self, zone: str, name: str) -> Instance | None:
        """The run's machine, after what it has stored so far was brought home; None once nothing of it is there."""
        record = self.record(zone)
        run = record.runs.get(name) if record is not None else None
        if record is None or run is None or run.removed:
            return None
        target = parse_target(record.target)
        if run.ended_at is not None:
            self._remove(target, record, name, run)
            return None
        try:
            answer = self._state(target, "state", name)
        except Unavailable:
            if self.clock.now() > run.deadline_at + LATE:
                return None  # it ended by itself; what it stored is brought home when it is seen again
            raise
        if answer.get("exists") and answer.get("status") != "gone":
            self._bring_home(target, run, answer)
            return self._instance(zone, name, run, answer)
        self._settle(record, name, run, answer)
        return None

    def instances(self) -> tuple[Instance, ...]:
        """Every run that may be on a host. One that cannot be asked is listed as the bucket knows it."""
        found = []
        for zone, name, run in self._open_runs():
            try:
                seen = self.instance(zone, name)
            except BenchError:
                seen = self._unseen(zone, name, run)
            found += [seen] if seen is not None else []
        return tuple(found)

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
        return SerialChunk(str(answer["text"]), int(seconds(answer, "next")), lost=False)

    def image(self, project: str, family: str) -> str:
        raise NotFound(f"a host has no image {project}/{family}")

    def advice(self, offers: Sequence[Offer]) -> tuple[Advice, ...]:  # noqa: ARG002
        return ()

    def quotas(self, region: str) -> tuple[Quota, ...]:  # noqa: ARG002
        return ()

    # --- what only hosts have ---

    def record(self, zone: str) -> HostRecord | None:
        """What the bucket keeps of a host; None for one that it does not know. Raises `RecordUnreadable`."""
        blob = self.bucket.read(record_object(zone))
        return HostRecord.parse(zone, blob.data) if blob is not None else None

    def probe(self, target: Target, python: str = "") -> Mapping[str, Any]:
        """What the host is and has, now. Raises what `RemoteShell` raises."""
        return looked(self._checked(target, "probe", {}, python=python), "probe")

    def validate(self, target: Target, python: str = "") -> Mapping[str, Any]:
        """What only trying can tell: torch is imported, a program is built, the cache folder is written to."""
        return looked(self._checked(target, "validate", {}, python=python, timeout_s=300), "packages")

    def remember(self, target: Target, change: Callable[[HostRecord], HostRecord]) -> None:
        """Changes what the bucket keeps of a host, by compare-and-swap."""
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
            except RecordUnreadable as exc:  # one that cannot be read hides no other
                self.odd[entry.name] = str(exc)
                continue
            for name, run in record.open_runs().items() if record is not None else ():
                yield zone, name, run

    def _shell(self, target: Target) -> RemoteShell:
        key = str(target)
        if key not in self._shells:
            self._shells[key] = self.connect(target)
        return self._shells[key]

    def _ask(
        self, target: Target, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60
    ) -> Mapping[str, Any]:
        until, error = self._deaf.get(str(target), (None, None))
        if until is not None and error is not None and self.clock.now() < until:
            raise error
        try:
            answer = self._shell(target).ask(
                operation, arguments, python=python or self._python(target), timeout_s=timeout_s
            )
            return said(answer)
        except Unavailable as exc:
            self._deaf[str(target)] = (self.clock.now() + timedelta(seconds=DEAF_S), exc)
            raise

    def _python(self, target: Target) -> str:
        """The interpreter that the bucket remembers; what runs on this machine itself is never the bucket's choice."""
        record = self.record(target.zone) if not target.machine else None
        return record.python if record is not None else ""

    def _checked(self, target: Target, operation: str, arguments: Mapping[str, Any], **how: Any) -> Mapping[str, Any]:
        answer = self._ask(target, operation, arguments, **how)
        if (error := trouble(answer, target)) is not None:
            raise error
        return answer

    def _state(self, target: Target, operation: str, name: str) -> Mapping[str, Any]:
        """What the host says of a run. Nothing but its clear word that it knows of none means that there is none, and
        that it is over counts only with a list of what it stored. Raises `HostUnfit` for trouble and for nonsense."""
        answer = self._checked(target, operation, {"vm": name})
        there = answer.get("exists")
        whole = operation == "forget" or (
            isinstance(answer.get("files"), list) and answer.get("status", "running") in ("running", "gone")
        )
        if not isinstance(there, bool) or (there and not whole):
            raise HostUnfit(f"{target} does not say what became of {name}", hint=f"{target.entry}look at it there")
        if odd := answer.get("odd"):
            self.odd[name] = f"{odd}, on {target}; what {name} stored comes home all the same"
        return answer

    def _ship(self, target: Target, python: str, name: str, payload: Mapping[str, str]) -> None:
        """Has the payload on the host. It is sent once, whole, and counts only when its sha256 is right."""
        about: dict[str, Any] = {"vm": name, "sha256": payload["sha256"], "size": 0}
        if self._checked(target, "prepare", about, python=python)["present"]:
            return
        blob = self.bucket.read(payload["object"])
        if blob is None:
            raise NotFound(f"there is no {payload['object']} in the bucket", hint="launch again")
        about["size"] = len(blob.data)
        place = self._checked(target, "prepare", about, python=python)
        if not place["present"]:
            self._shell(target).put(blob.data, str(place["incoming"]))
            self._checked(target, "accept", {**about, "incoming": place["incoming"]}, python=python)

    def _bring_home_earlier(self, zone: str, run_id: str, but: str) -> None:
        """What earlier attempts of a run have left on its host, which may have come back after it was given up: what is
        in the bucket is not measured again."""
        record = self.record(zone)
        for name, earlier in (record.open_runs() if record is not None else {}).items():
            if earlier.run_id == run_id and name != but:
                self.instance(zone, name)

    def _end_what_may_have_begun(self, request: InstanceRequest) -> None:
        """After trouble with the start of a run. Where the host does not say that nothing of it is there, the bucket
        goes on knowing of it, and `bench reap` lists it."""
        try:
            self.delete(request.zone, request.name, request.request_id)
        except BenchError as exc:
            self.odd[request.name] = f"{request.name} may still be on its host: {exc}"

    def _told(self, request: InstanceRequest, run: HostRun, payload: Mapping[str, str]) -> dict[str, Any]:
        """What the host is told of a run: what a VM finds in its metadata, and what the bucket has of it already."""
        metadata = {key: value for key, value in request.metadata.items() if key not in (HOST_KEY, "bench-endpoints")}
        return {
            "vm": request.name,
            "zone": request.zone,
            "id": run.id,
            "labels": run.labels,
            "sha256": payload["sha256"],
            "deadline_s": request.max_run_s,
            "metadata": metadata,
            "known": [entry.name for entry in self.bucket.list(cases_prefix(run.run_id))],
            "client_time": self.clock.now().timestamp(),
        }

    def _record(self, target: Target, python: str, name: str, run: HostRun) -> None:
        now = self.clock.now()

        def change(record: HostRecord) -> HostRecord:
            return with_run(record.model_copy(update={"python": python}), name, run, now)

        self.remember(target, change)

    def _instance(self, zone: str, name: str, run: HostRun, answer: Mapping[str, Any]) -> Instance:
        started = self._at(answer, "started_at") or run.created_at
        # Its own word on its deadline, if its record of it is whole, but never much later than what it was told.
        told = seconds(answer, "deadline_s")
        deadline = min(started + timedelta(seconds=told), run.deadline_at + LATE) if told else run.deadline_at
        return Instance(
            name, zone, run.id, "RUNNING", "host", run.labels, started, started, deadline, preemptible=False
        )

    def _at(self, answer: Mapping[str, Any], key: str) -> datetime | None:
        """A moment of the host's, on our clock: theirs may be off, but how long ago it was is not."""
        if answer.get(key) is None:
            return None
        return self.clock.now() - timedelta(seconds=max(seconds(answer, "now") - seconds(answer, key), 0.0))

    def _unseen(self, zone: str, name: str, run: HostRun) -> Instance:
        at = run.created_at
        return Instance(
            name, zone, run.id, "UNREACHABLE", "host", run.labels, at, at, run.deadline_at, preemptible=False
        )

    def _ended(self, run: HostRun) -> tuple[Operation, ...]:
        """What a cloud's log would say of it: that it began, and when it ended, where it was not lost. Nothing of one
        that the host knows nothing of."""
        if run.ended_at is None or run.how == ABSENT:
            return ()
        ended = max(run.ended_at, run.deadline_at) if run.how == "deadline" else run.ended_at
        began = Operation("insert", "DONE", run.created_at, run.created_at)
        end = Operation("delete", "DONE", ended, ended)
        return (end,) if run.how == REFUSED else (began,) if run.how == "lost" else (began, end)

    def _bring_home(self, target: Target, run: HostRun, answer: Mapping[str, Any]) -> None:
        """Copies what is new in the spool, as far as it is the run's own."""
        refused = bring_home(self.bucket, self._shell(target), run.run_id, answer, self._home)
        if refused:
            more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            self.odd[str(target)] = f"{target} offers what is not its to store: {refused[0]}{more}"

    def _settle(self, record: HostRecord, name: str, run: HostRun, answer: Mapping[str, Any]) -> None:
        """The run is over on the host: everything home, then a note of its end, then nothing of it there any more."""
        target = parse_target(record.target)
        if answer.get("exists"):
            self._bring_home(target, run, answer)
        ended = self._at(answer, "ended_at") or self.clock.now()
        how = str(answer.get("ended_by") or "lost") if answer["exists"] else ABSENT
        over = run.model_copy(update={"ended_at": max(ended, run.created_at), "how": how})
        # Before it is removed there the bucket has all that is to be said of it: a client may die in between.
        self._record(target, record.python, name, over)
        self._remove(target, record, name, over)

    def _remove(self, target: Target, record: HostRecord, name: str, run: HostRun) -> None:
        """Removes what is left of a run that is over. A host that is out of reach is asked again another time."""
        try:
            if self._state(target, "forget", name)["exists"]:
                return
        except (Unavailable, HostUnfit):
            return
        self._record(target, record.python, name, run.model_copy(update={"removed": True}))
