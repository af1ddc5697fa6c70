"""Faults as data: what shall go wrong, to what, and when; each used up as often as it says, in order, and seen to be.

A weather document is `{"faults": [{"fault": <name>, ...}, ...]}`. Every fault happens `times` times (1 by default). A
thing that can fail asks for the first fault that matches it, so two faults of one kind befall two things.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.embedded import climate

Params = Mapping[str, Any]

REQUEST_KEYS = frozenset({"service", "method", "path"})
VM_KEYS = frozenset({"vm", "zone", "run_id"})
BATCH_KEYS = frozenset({"job", "region"})

# What each fault may carry, beside `fault`, `times` and a free-text `note`.
KEYS: dict[str, frozenset[str]] = {
    "stockout": frozenset({"zone", "zones_available", "machine_type"}),
    "quota": frozenset({"metric", "region", "global", "zone", "limit"}),
    "http": REQUEST_KEYS | {"status", "reason", "message", "after"},
    "reset": REQUEST_KEYS | {"after"},
    "stall": REQUEST_KEYS | {"seconds"},
    "slow_boot": VM_KEYS | {"seconds"},
    "never_boots": VM_KEYS,
    "preempt": VM_KEYS | {"at", "notice_s"},
    "lost": VM_KEYS | {"at"},
    "hang": VM_KEYS | {"at", "target"},
    "kill": VM_KEYS | {"at", "target"},
    "image_gone": frozenset({"family"}),
    "image_failed": frozenset({"image"}),
    "image_pending": frozenset({"image"}),
    "image_vanishes": frozenset({"image"}),
    "late_insert": frozenset({"zone", "seconds"}),
    "batch_silent": BATCH_KEYS | {"cause", "seconds"},
    "batch_no_tasks": BATCH_KEYS,
    "batch_recreate": VM_KEYS | {"seconds"},
    "batch_mute": VM_KEYS | {"seconds"},
}
REQUIRED: dict[str, frozenset[str]] = {
    "quota": frozenset({"metric"}),
    "http": frozenset({"status"}),
    "stall": frozenset({"seconds"}),
    "slow_boot": frozenset({"seconds"}),
    "late_insert": frozenset({"seconds"}),
}
WORDS = {
    "after": ("request", "response"),
    "service": ("compute", "storage", "serviceusage", "cloudresourcemanager", "iam", "cloudbilling", "batch"),
    "target": ("harness", "agent"),
    "cause": ("quota", "stockout"),
}
"""What some keys may say; the first where nothing is said."""


MOST_VICTIMS = 100
"""A condition meets every request, and its record must not grow with each."""
EVERY_KEY = KEYS | climate.CONDITIONS


class BadWeather(ValueError):
    """A weather document that cannot be meant."""


@dataclass(slots=True)
class Fault:
    """One fault and how often it has happened. `reserved` counts those promised to a VM and not yet due."""

    id: int
    kind: str
    params: dict[str, Any]
    times: int = 1
    fired: int = 0
    reserved: int = 0
    victims: list[str] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        return self.fired + self.reserved < self.times

    @property
    def condition(self) -> bool:
        """Whether it holds, and is not used up."""
        return self.kind in climate.CONDITIONS

    def document(self) -> dict[str, Any]:
        """The fault as given, with its id, how often it fired and upon whom."""
        return {
            "fault": self.kind,
            **self.params,
            **({} if self.times == climate.FOREVER else {"times": self.times}),
            "id": self.id,
            "fired": self.fired,
            "victims": list(self.victims),
        }


class Weather:
    """What is still to go wrong, and what has. Thread-safe; `changed` is called after every change."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.lock = threading.Lock()
        self.listed: list[Fault] = []
        self.next_id = 1
        self.ahead: list[Fault] = []
        """Those of `listed` that have not happened as often as they may: what is looked through at every request."""
        self.kinds: frozenset[str] = frozenset()
        """Of what is listed. Conditions are asked for at every request, and mostly there is none of a kind."""
        self.changed = changed

    def replace(self, document: Any) -> None:
        """Forget what is waiting and expect this instead; what has fired stays on record."""
        faults = parse(document)
        with self.lock:
            kept = [fault for fault in self.listed if fault.fired or fault.reserved]
            for fault in kept:
                fault.times = fault.fired + fault.reserved
            self.listed = kept
            self._append(faults)
        self.changed()

    def add(self, *faults: Mapping[str, Any]) -> None:
        """Expect these too."""
        parsed = parse({"faults": list(faults)})
        with self.lock:
            self._append(parsed)
        self.changed()

    def _append(self, faults: list[Fault]) -> None:
        for fault in faults:
            fault.id = self.next_id
            self.next_id += 1
            self.listed.append(fault)
        self._sort()

    def _sort(self) -> None:
        self.ahead = [fault for fault in self.listed if fault.fired < fault.times]
        self.kinds = frozenset(fault.kind for fault in self.ahead)

    def document(self) -> dict[str, Any]:
        """Everything, fired or not."""
        with self.lock:
            return {"faults": [fault.document() for fault in self.listed]}

    def restore(self, document: Any) -> None:
        """Take up a saved `document()`, with what has fired."""
        with self.lock:
            for entry in document["faults"]:
                given = {key: value for key, value in entry.items() if key not in ("id", "fired", "victims")}
                (fault,) = parse({"faults": [given]}, replayed=True)
                fault.id, fault.fired, fault.victims = entry["id"], entry["fired"], list(entry["victims"])
                self.listed.append(fault)
                self.next_id = max(self.next_id, fault.id + 1)
            self._sort()

    @property
    def pending(self) -> tuple[Fault, ...]:
        """What has not happened as often as it should, and the conditions that nothing has met."""
        with self.lock:
            return tuple(fault for fault in self.listed if fault.fired < (1 if fault.condition else fault.times))

    def fired(self, kind: str) -> int:
        """How often faults of this kind have happened."""
        with self.lock:
            return sum(fault.fired for fault in self.listed if fault.kind == kind)

    def holds(self, victim: str, kind: str, **thing: str) -> Fault | None:
        """The condition of that kind that `victim` meets, on record as met; None when there is none."""
        if kind not in self.kinds:
            return None
        return self.take(victim, lambda fault: fault.kind == kind and climate.concerns(fault.params, **thing))

    def end(self, kind: str, **thing: str) -> None:
        """Somebody has mended what this condition was about."""
        with self.lock:
            for fault in self.listed:
                if fault.kind == kind and climate.concerns(fault.params, **thing):
                    fault.times = fault.fired + fault.reserved
            self._sort()
        self.changed()

    def take(self, victim: str, matches: Callable[[Fault], bool]) -> Fault | None:
        """Use up the first waiting fault that matches; None when there is none."""
        fault = self.reserve(matches)
        if fault is not None:
            self.fire(fault, victim)
        return fault

    def reserve(self, matches: Callable[[Fault], bool]) -> Fault | None:
        """Keep the first waiting fault that matches for one victim, until `fire` or `release`."""
        with self.lock:
            for fault in self.ahead:
                if fault.waiting and matches(fault):
                    fault.reserved += 1
                    return fault
        return None

    def fire(self, fault: Fault, victim: str) -> None:
        """A reserved fault happens."""
        with self.lock:
            fault.reserved -= 1
            fault.fired += 1
            if len(fault.victims) < MOST_VICTIMS:
                fault.victims.append(victim)
            if fault.fired >= fault.times:
                self._sort()
        self.changed()

    def release(self, fault: Fault) -> None:
        """A reserved fault will not happen to whom it was kept for."""
        with self.lock:
            fault.reserved -= 1


def parse(document: Any, *, replayed: bool = False) -> list[Fault]:
    """The faults of a weather document. Raises `BadWeather` with the place and the remedy."""
    if not isinstance(document, dict) or not isinstance(document.get("faults"), list):
        raise BadWeather('a weather document is {"faults": [...]}')
    return [_fault(index, entry, replayed) for index, entry in enumerate(document["faults"])]


def _fault(index: int, entry: Any, replayed: bool) -> Fault:
    place = f"faults[{index}]"
    kind = entry.get("fault") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in EVERY_KEY:
        raise BadWeather(f"{place}: fault must be one of {', '.join(EVERY_KEY)}, not {kind!r}")
    params = {key: value for key, value in entry.items() if key not in ("fault", "times", "note")}
    unknown = sorted(map(str, set(params) - EVERY_KEY[kind]))
    if unknown:
        raise BadWeather(f"{place}: {kind} takes {', '.join(sorted(EVERY_KEY[kind]))}, not {', '.join(unknown)}")
    missing = sorted((REQUIRED | climate.REQUIRED).get(kind, frozenset()) - set(params))
    if missing:
        raise BadWeather(f"{place}: {kind} needs {', '.join(missing)}")
    times = entry.get("times", climate.FOREVER if kind in climate.CONDITIONS else 1)
    if not isinstance(times, int) or times < (0 if replayed else 1):
        raise BadWeather(f"{place}: times must be a positive whole number, not {times!r}")
    _check_values(place, params, signed=kind == "clock_skew")
    return Fault(id=0, kind=kind, params=params, times=times)


def _check_values(place: str, params: Params, *, signed: bool) -> None:
    if wrong := climate.complaint(params):
        raise BadWeather(f"{place}: {wrong}")
    for key in ("seconds", "notice_s"):
        value = params.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (value < 0 and not signed):
            raise BadWeather(f"{place}: {key} must be a number of seconds, not {value!r}")
    status = params.get("status", 500)
    if not isinstance(status, int) or not 400 <= status <= 599:
        raise BadWeather(f"{place}: status must be an HTTP error, not {params['status']!r}")
    for key, words in WORDS.items():
        if params.get(key, words[0]) not in words:
            which = " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"
            raise BadWeather(f"{place}: {key} must be {which}, not {params[key]!r}")
    try:
        re.compile(params.get("path", ""))
    except (re.error, TypeError) as exc:
        raise BadWeather(f"{place}: path must be a regular expression, not {params['path']!r}") from exc
    at = params.get("at", {"seconds": 0})
    if not isinstance(at, dict) or len(at) != 1 or not set(at) <= {"phase", "case", "seconds"}:
        raise BadWeather(f'{place}: at must be {{"phase": ...}}, {{"case": n}} or {{"seconds": s}}, not {at!r}')
    seconds = at.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds < 0:
        raise BadWeather(f"{place}: at: seconds must be a number of seconds, not {seconds!r}")


def hits_request(fault: Fault, service: str, method: str, path: str) -> bool:
    """Whether an `http`, `reset` or `stall` fault is meant for this request. `path` is with its query."""
    params = fault.params
    return (
        fault.kind in ("http", "reset", "stall")
        and params.get("service", service) == service
        and str(params.get("method", method)).upper() == method
        and re.search(params.get("path", ""), path) is not None
    )


def hits_vm(fault: Fault, *kinds: str, vm: str, zone: str, run_id: str | None) -> bool:
    """Whether a fault of one of these kinds is meant for this VM."""
    params = fault.params
    return (
        fault.kind in kinds
        and params.get("vm", vm) == vm
        and params.get("zone", zone) == zone
        and params.get("run_id", run_id) == run_id
    )


def hits_job(fault: Fault, kind: str, *, job: str, region: str) -> bool:
    """Whether a fault of this kind is meant for this job of the batch service."""
    params = fault.params
    return fault.kind == kind and params.get("job", job) == job and params.get("region", region) == region


def due_after(fault: Fault) -> float | None:
    """Seconds after RUNNING at which a fault is due; None when it waits for a phase or a case."""
    seconds = fault.params.get("at", {"seconds": 0}).get("seconds")
    return None if seconds is None else float(seconds)


def due_upon(fault: Fault, kind: str, data: Params) -> bool:
    """Whether a fault waits for this event: `phase_started` of its phase, or `case_started` of its case number."""
    at = fault.params.get("at", {})
    if "phase" in at:
        return kind == "phase_started" and data.get("phase") == at["phase"]
    return "case" in at and kind == "case_started" and data.get("index") == at["case"]
