"""Machines of the user's own on simulated time. They answer what `startup/host/remote_ops.py` answers on real ones, and what
runs on them is the script that rented machines follow; their weather befalls them, and some are hostile."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

from orchestrator.core.errors import Unavailable
from orchestrator.core.hosts import HostTarget, parse_target
from tests.search.chaos.deeds import Deeds, Stay
from tests.search.chaos.host_weather import Blow, Host
from tests.support.hostile_spool import forged_names
from tests.support.scripted_machines import Gone, HttpFailure, Script, ScriptedMachine, ScriptedVm
from tests.support.simulated_timeline import SimulatedTimeline

EXIT_S: Final = 10.0
STOP_S: Final = 45.0
SLOW_S: Final = 30.0
SPOOL: Final = "/spool"
NONSENSE: Final[tuple[Any, ...]] = (
    [], "x", None, {}, {"exists": 1, "status": {}}, {"exists": True}, {"exists": True, "status": "gone", "now": "x"},
    {"exists": True, "status": "running", "deadline_s": -1, "now": 1e400, "files": {}, "spool": 7},
    {"exists": True, "status": "running", "deadline_s": "\x1b[2J", "files": [None, [1, 2], ["a", "b", "c"]]},
    {"trouble": "failed", "message": "\x1b]0;x\x07", "path": "../.."},
)  # fmt: skip


class HostVm(ScriptedVm):
    """What runs on a host: the steward stands between it and the bucket, and what it stores waits in the spool."""

    def __init__(self, guest: Any, put: Callable[[str, bytes, bool], bool], stay: Visit) -> None:
        super().__init__(guest)
        self._put, self.stay = put, stay

    def put(self, name: str, data: bytes, kind: str = "", *, create: bool = False) -> None:
        if self.dead:
            raise Gone(self.name)
        if not self._put(name, data, create):
            raise HttpFailure(412, b"it is there")

    def read(self, name: str) -> bytes | None:
        return self.stay.spool[name][0] if name in self.stay.spool else None

    def names(self, prefix: str) -> list[str]:
        return [name for name in {*self.stay.known, *self.stay.spool} if name.startswith(prefix)]

    def delete_self(self) -> None:
        self.stay.ended_by = self.stay.ended_by or "itself"
        self.guest.timeline.call_later(EXIT_S, lambda: self.stay.end("itself"))

    def request(self, *_: Any, **__: Any) -> bytes:
        raise AssertionError("a host's machine reaches nothing but its steward")


@dataclass
class Visit:
    """One run on a host."""

    order: Mapping[str, Any]
    timeline: SimulatedTimeline
    deeds: Deeds
    began: datetime
    known: frozenset[str]
    spool: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    ended_by: str = ""
    ended: datetime | None = None
    buried: bool = True
    machine: ScriptedMachine = field(init=False)
    stay: Stay = field(init=False)

    def start(self, script: Script) -> None:
        order = self.order
        guest: Any = SimpleNamespace(
            id=str(order["id"]), name=order["vm"], zone=order["zone"], metadata=order["metadata"],
            labels=order["labels"], timeline=self.timeline, preempted=False, tasks=False, token="", project="",
            storage_url="", compute_url="", console=SimpleNamespace(write=lambda _: None),
        )  # fmt: skip
        told = (order["metadata"]["startup-script"], json.loads(order["metadata"]["bench-payload"])["sha256"])
        self.stay = Stay(order["labels"]["bench-run"], order["vm"], self.began, told)
        self.deeds.stays.append(self.stay)
        self.machine = ScriptedMachine(guest, script)
        self.machine.vm = HostVm(guest, self.store, self)
        self.machine.done = lambda _: self.end("exit")
        self.timeline.call_later(order["deadline_s"], lambda: self.end("deadline"))
        self.machine.boot()

    def store(self, name: str, data: bytes, create: bool) -> bool:
        if create and (name in self.known or name in self.spool):
            return False
        self.spool[name] = (data, int(self.timeline.now().timestamp() * 1e9))
        return True

    def stop(self) -> None:
        if self.ended is None:
            self.ended_by = self.ended_by or "stop"
            self.machine.shut_down()
            self.timeline.call_later(STOP_S, lambda: self.end("stop"))

    def end(self, by: str) -> None:
        if self.ended is None:
            self.ended, self.ended_by = self.timeline.now(), self.ended_by or by
            self.stay.ended = self.ended
            self.machine.kill()

    def kill(self) -> None:
        """The steward is gone and its run with it; whoever looks next buries it."""
        if self.ended is None:
            self.ended_by, self.buried = "", False
            self.end("lost")


@dataclass
class Box:
    """One host, and a connection to it."""

    name: str
    host: Host
    timeline: SimulatedTimeline
    deeds: Deeds
    script: Script
    others: list[str]
    """Every run of the scenario."""
    stored: Callable[[str], bool]
    """Whether an object is in the bucket."""
    visits: dict[str, Visit] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    forged: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    fair: bool = False
    asked: int = 0
    dark_until: datetime | None = None
    stopped: int = 0
    began: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.timeline.now()
        for blow in self.host.blows:
            if blow.how in ("power", "steward"):
                self.timeline.call_later(blow.at_s, self.loses_all)

    @property
    def target(self) -> HostTarget:
        return parse_target(f"me@{self.name}")

    @property
    def busy(self) -> str:
        return next((name for name, visit in self.visits.items() if visit.ended is None), "")

    def loses_all(self) -> None:
        self.deeds.hosts["lost"] += bool(self.busy)
        for visit in self.visits.values():
            visit.kill()

    def clears_up(self) -> None:
        """Fair weather: it is there, and honest."""
        self.fair, self.dark_until = True, None

    # --- the connection ---------------------------------------------------------------------------------------------

    def ask(self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60) -> Any:
        self.asked += 1
        self.reached()
        if operation == "stop" and (blow := self.next_stop()) is not None:
            self.stopped += 1
            self.dark_until = self.timeline.now() + timedelta(seconds=blow.lasts_s)
            self.deeds.hosts["switched off at stop"] += 1
            self.reached()
        if self.blowing("slow"):
            self.deeds.hosts["slow"] += 1
            self.timeline.advance(SLOW_S)
        answer = getattr(self, f"_{operation}")(json.loads(json.dumps(arguments)))
        if self.blowing("deaf"):
            self.deeds.hosts["unheard"] += 1
            raise Unavailable(f"{self.name} was lost in the middle of an answer")
        if self.blowing("lies") and operation in ("state", "stop", "forget", "start"):
            self.deeds.hosts["lies"] += 1
            return random.Random(f"{self.host.hostile} {self.asked}").choice(NONSENSE)
        return json.loads(json.dumps(answer))

    def put(self, data: bytes, path: str) -> None:
        self.reached()
        self.files[path] = data

    def get(self, path: str, *, limit: int) -> bytes | None:
        self.reached()
        name = path.removeprefix(f"{SPOOL}/")
        known = self.forged.get(name) or next((v.spool[name] for v in self.visits.values() if name in v.spool), None)
        return None if known is None else known[0][: limit + 1]

    def close(self) -> None: ...

    def reached(self) -> None:
        now = self.timeline.now()
        if self.dark_until is not None and now >= self.dark_until:
            self.dark_until = None
        if self.dark_until is not None or self.blowing("off") or self.blowing("power"):
            self.deeds.hosts["out of reach"] += 1
            raise Unavailable(f"{self.name} cannot be reached")

    def next_stop(self) -> Blow | None:
        """What befalls it now that it is asked to stop a run: each such blow once."""
        there = [one for one in self.host.blows if one.how == "stop"]
        return there[self.stopped] if self.stopped < len(there) and not self.fair else None

    def blowing(self, how: str) -> Blow | None:
        passed = (self.timeline.now() - self.began).total_seconds()
        there = (one for one in self.host.blows if one.how == how and 0 <= passed - one.at_s < one.lasts_s)
        return None if self.fair else next(there, None)

    # --- the operations ---------------------------------------------------------------------------------------------

    def _probe(self, _: Any) -> dict[str, Any]:
        gpu = {"name": "NVIDIA L4", "uuid_sha256": "ab" * 32, "driver": "580.1", "compute_capability": "8.9",
               "memory_mib": "23034"}  # fmt: skip
        return {
            "platform": "linux", "python": "3.12.3", "executable": "/usr/bin/python3", "os": "Linux", "machine": "x86",
            "cpu": "a processor", "user": "me", "cache": "/cache", "free_gb": 500.0, "compiler": "g++ 13",
            "missing": [], "busy": self.busy, "gpus": [gpu], "no_gpu": "",
        }  # fmt: skip

    def _validate(self, _: Any) -> dict[str, Any]:
        return {"torch": "2.13.0", "numpy": "2.0", "cuda": "12.9", "usable": True, "error": "", "pythons": [],
                "writable": "", "compiles": ""}  # fmt: skip

    def _prepare(self, asked: Any) -> dict[str, Any]:
        present = asked["sha256"] in self.files
        return {"present": present, "incoming": "" if present or not asked["size"] else f"/incoming/{asked['vm']}"}

    def _accept(self, asked: Any) -> dict[str, Any]:
        data = self.files.pop(asked["incoming"], b"")
        if hashlib.sha256(data).hexdigest() != asked["sha256"]:
            return {"trouble": "checksum", "message": "it was damaged on the way", "path": asked["incoming"]}
        self.files[asked["sha256"]] = data
        return {}

    def _start(self, asked: Any) -> dict[str, Any]:
        order = asked["run"]
        if order["vm"] in self.visits:
            return self._state(order)
        if order["sha256"] not in self.files:
            return {"trouble": "checksum", "message": "the payload is missing", "path": ""}
        if self.busy:
            return {"trouble": "busy", "message": self.busy, "path": ""}
        visit = Visit(order, self.timeline, self.deeds, self.timeline.now(), frozenset(order["known"]))
        self.visits[order["vm"]] = visit
        visit.start(self.script)
        return self._state(order)

    def _state(self, asked: Any) -> dict[str, Any]:
        visit = self.visits.get(asked["vm"])
        if visit is None:
            return {"exists": False}
        visit.buried = True
        told: dict[str, Any] = {"status": "running", "started_at": self.moment(visit.began)}
        if visit.ended is not None:
            told |= {"status": "gone", "ended_at": self.moment(visit.ended), "ended_by": visit.ended_by}
        files: list[Any] = [[name, len(data), at] for name, (data, at) in sorted(visit.spool.items())]
        return {
            "exists": True, **told, "vm": asked["vm"], "labels": visit.order["labels"], "spool": SPOOL, "log_size": 0,
            "deadline_s": visit.order["deadline_s"], "now": self.moment(self.timeline.now()),
            "files": [*files, *self.offers(visit)],
        }  # fmt: skip

    def _stop(self, asked: Any) -> dict[str, Any]:
        if asked["vm"] in self.visits:
            self.visits[asked["vm"]].stop()
        return self._state(asked)

    def _forget(self, asked: Any) -> dict[str, Any]:
        visit = self.visits.get(asked["vm"])
        if visit is not None and visit.ended is None:
            return {"trouble": "busy", "message": "it still runs", "path": ""}
        self.visits.pop(asked["vm"], None)
        return {"exists": False}

    def _read_log(self, _: Any) -> dict[str, Any]:
        return {"exists": True, "text": "a line\n", "next": 7}

    def moment(self, at: datetime) -> float:
        """By its own clock."""
        return at.timestamp() + self.host.off_s

    # --- what is not its to store -----------------------------------------------------------------------------------

    def offers(self, visit: Visit) -> list[Any]:
        """Files that a hostile host offers beside those of its run; some of them replace what is in the bucket."""
        dice = random.Random(f"{self.host.hostile} {self.asked} offers")
        if not self.host.hostile or self.fair or dice.random() < 0.5:
            return []
        run, at = visit.stay.run, int(self.timeline.now().timestamp() * 1e9)
        other = dice.choice([one for one in self.others if one != run] or ["20261121-030000-l4-0002"])
        data = json.dumps({"hostile": self.asked}).encode()
        made: list[tuple[str, bytes, int]] = [
            (name, data, len(data)) for name in dice.sample(forged_names(run, other, visit.stay.vm), 4)
        ]
        stamp = f"{self.timeline.now():%Y%m%dT%H%M%S.%fZ}-vm-1-{900000 + self.asked:06d}"
        made.append((f"runs/{run}/events/{stamp}-phase_started.json", data + b" " * 300_000, 2))
        made.append((f"runs/{run}/artifacts/large-{self.asked}.txt", data, 10**12))
        if there := [
            name for name in visit.spool if not name.startswith(f"runs/{run}/artifacts") and self.stored(name)
        ]:
            made.append((dice.choice(there), data, len(data)))
        for name, content, _ in made:
            self.forged[name] = (content, at)
            self.deeds.forged.append((name, content))
        self.deeds.hosts["hostile files"] += len(made)
        self.own_words(run, stamp, dice, visit)
        return [*([name, size, at] for name, _, size in made), "x", [1], None, ["a", -1, True]]

    def own_words(self, run: str, stamp: str, dice: random.Random, visit: Visit) -> None:
        """Events under a machine's name that only clients may tell: they are stored, and nobody believes them."""
        kind = dice.choice(("settled", "run_closed", "stop_requested", "run_resumed", "instance_gone", "budget_held"))
        said = {"cost_usd": "0", "released_usd": "9", "outcome": "succeeded", "by": "eve", "reason": "x", "attempt": 1,
                "vm": visit.stay.vm, "ended_at": "2026-11-21T04:00:00Z", "how": "deleted", "hold_usd": "0",
                "generation": dice.choice((0, 1, 7)), "attempts": 9}  # fmt: skip
        event = {"schema": 1, "run_id": run, "kind": kind, "writer": "vm-1", "seq": 900000 + self.asked, "data": said,
                 "time": f"{self.timeline.now():%Y-%m-%dT%H:%M:%S.%fZ}"}  # fmt: skip
        visit.store(f"runs/{run}/events/{stamp}-{kind}.json", json.dumps(event).encode(), create=True)
        self.deeds.hosts["hostile files"] += 1
