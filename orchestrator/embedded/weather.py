"""Faults as data: what goes wrong, what it hits, and when. It is recorded how often each fault has happened.

A weather document is `{"faults": [{"fault": <name>, ...}, ...]}`. Every fault happens `times` times (1 by default). A
part that can fail takes the first fault that matches it, so that two faults of one kind hit two things.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# Conditions: lasting faults of a project. They are in the same document as the faults of `weather`, but they are not
# used up: a condition affects every request that it concerns, until the weather is replaced or a request repairs it.
# `bench doctor` can see each of them.


FOREVER = 1_000_000
"""How many requests a condition affects unless it names a number."""


def read_keys(table: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The keys of each kind in a table of words, of which `!` marks those that are required."""
    return {kind: frozenset(words.replace("!", "").split()) for kind, words in table.items()}


# The keys that each kind may have, in addition to `fault`, `times` and a free-text `note`; `!` marks required ones.
CONDITION_WORDS = {
    "project_missing": "",
    "billing_off": "",
    "api_disabled": "api!",
    "permission_missing": "permission!",
    "quota_limit": "metric! region limit",
    "image_renamed": "family! to!",
    "image_deprecated": "family! state replacement",
    "bucket_missing": "bucket",
    "bucket_elsewhere": "bucket location!",
    "network_missing": "network",
    "no_nat": "region",
    "no_private_access": "region",
    "service_account_missing": "email",
    "service_account_disabled": "email",
    "clock_skew": "seconds! service",
    "one_time_limit": "",
    "api_propagation": "minutes! api",
    "api_settling": "api! until!",
}
REQUEST, VM, JOB = "service method path", "vm zone run_id", "job region"
FAULT_WORDS = {
    "stockout": "zone zones_available machine_type",
    "quota": "metric! region global zone limit",
    "http": f"{REQUEST} status! reason message after",
    "reset": f"{REQUEST} after",
    "stall": f"{REQUEST} seconds!",
    "slow_boot": f"{VM} seconds!",
    "queue": f"{VM} seconds!",
    "never_boots": VM,
    "preempt": f"{VM} at notice_s",
    "lost": f"{VM} at",
    "hang": f"{VM} at target",
    "kill": f"{VM} at target",
    "image_gone": "family",
    "image_failed": "image",
    "image_pending": "image",
    "image_vanishes": "image",
    "late_insert": "zone seconds!",
    "batch_silent": f"{JOB} cause seconds",
    "batch_no_tasks": JOB,
    "batch_recreate": f"{VM} seconds",
    "batch_mute": f"{VM} seconds",
}
CONDITIONS = read_keys(CONDITION_WORDS)
KEYS = read_keys(FAULT_WORDS)
EVERY_KEY = KEYS | CONDITIONS
REQUIRED = {
    kind: {word[:-1] for word in words.split() if word.endswith("!")}
    for kind, words in (FAULT_WORDS | CONDITION_WORDS).items()
}
STATES = ("DEPRECATED", "OBSOLETE")


def condition_matches(params: Mapping[str, Any], **thing: str) -> bool:
    """Whether a condition concerns this thing. A key that the condition does not have matches every value."""
    return all(params.get(key, value) == value for key, value in thing.items())


Params = Mapping[str, Any]

WORDS = {
    "after": ("request", "response"),
    "service": ("compute", "storage", "serviceusage", "cloudresourcemanager", "iam", "cloudbilling", "batch"),
    "target": ("harness", "agent"),
    "cause": ("quota", "stockout"),
}
"""The values that some keys may have. The first is the default."""


MOST_VICTIMS = 100
"""The most victims that are recorded. A condition may hit every request, and its record must not grow with each."""


class BadWeather(ValueError):
    """A weather document is not valid."""


@dataclass(slots=True)
class Fault:
    """One fault. `fired` is how often it has happened. `reserved` is how often it is reserved for a VM and not yet
    due."""

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
        """Whether it is a condition, which is not used up."""
        return self.kind in CONDITIONS

    def document(self) -> dict[str, Any]:
        """The fault as it was given, with its id, how often it happened, and what it hit."""
        return {
            "fault": self.kind,
            **self.params,
            **({} if self.times == FOREVER else {"times": self.times}),
            "id": self.id,
            "fired": self.fired,
            "victims": list(self.victims),
        }


class Weather:
    """The faults that will happen, and those that have. Thread-safe. `changed` is called after every change."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.lock = threading.Lock()
        self.listed: list[Fault] = []
        self.next_id = 1
        self.ahead: list[Fault] = []
        """The faults of `listed` that may still happen. They are searched for every request."""
        self.kinds: frozenset[str] = frozenset()
        """The kinds in `ahead`. Each request looks for several conditions, and usually there is none of their kinds."""
        self.changed = changed

    def replace(self, document: Any) -> None:
        """Replaces the faults that have not happened by those in `document`. Faults that have happened stay on record.
        Raises `BadWeather`."""
        faults = parse_weather(document)
        with self.lock:
            kept = [fault for fault in self.listed if fault.fired or fault.reserved]
            for fault in kept:
                fault.times = fault.fired + fault.reserved
            self.listed = kept
            self._append(faults)
        self.changed()

    def add(self, *faults: Mapping[str, Any]) -> None:
        """Adds faults. Raises `BadWeather`."""
        parsed = parse_weather({"faults": list(faults)})
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
        """All faults, whether they have happened or not."""
        with self.lock:
            return {"faults": [fault.document() for fault in self.listed]}

    def restore(self, document: Any) -> None:
        """Restores the faults of a saved `document()`, with how often they have happened."""
        with self.lock:
            for entry in document["faults"]:
                given = {key: value for key, value in entry.items() if key not in ("id", "fired", "victims")}
                (fault,) = parse_weather({"faults": [given]}, replayed=True)
                fault.id, fault.fired, fault.victims = entry["id"], entry["fired"], list(entry["victims"])
                self.listed.append(fault)
                self.next_id = max(self.next_id, fault.id + 1)
            self._sort()

    @property
    def pending(self) -> tuple[Fault, ...]:
        """The faults that have not happened as often as they should, and the conditions that have hit nothing."""
        with self.lock:
            return tuple(fault for fault in self.listed if fault.fired < (1 if fault.condition else fault.times))

    def fired(self, kind: str) -> int:
        """How often faults of this kind have happened."""
        with self.lock:
            return sum(fault.fired for fault in self.listed if fault.kind == kind)

    def holds(self, victim: str, kind: str, **thing: str) -> Fault | None:
        """The condition of this kind that hits `victim`, which is recorded; None if there is none."""
        if kind not in self.kinds:
            return None
        return self.take(victim, lambda fault: fault.kind == kind and condition_matches(fault.params, **thing))

    def end(self, kind: str, **thing: str) -> None:
        """Ends the conditions of this kind that concern this thing: a request has repaired it."""
        with self.lock:
            for fault in self.listed:
                if fault.kind == kind and condition_matches(fault.params, **thing):
                    fault.times = fault.fired + fault.reserved
            self._sort()
        self.changed()

    def take(self, victim: str, matches: Callable[[Fault], bool]) -> Fault | None:
        """Uses up the first waiting fault that matches and returns it; None if there is none."""
        fault = self.reserve(matches)
        if fault is not None:
            self.fire(fault, victim)
        return fault

    def reserve(self, matches: Callable[[Fault], bool]) -> Fault | None:
        """Reserves the first waiting fault that matches, until `fire` or `release`; None if there is none."""
        with self.lock:
            for fault in self.ahead:
                if fault.waiting and matches(fault):
                    fault.reserved += 1
                    return fault
        return None

    def fire(self, fault: Fault, victim: str) -> None:
        """Records that a reserved fault happens."""
        with self.lock:
            fault.reserved -= 1
            fault.fired += 1
            if len(fault.victims) < MOST_VICTIMS:
                fault.victims.append(victim)
            if fault.fired >= fault.times:
                self._sort()
        self.changed()

    def release(self, fault: Fault) -> None:
        """Ends a reservation without the fault: it can hit another victim."""
        with self.lock:
            fault.reserved -= 1


def parse_weather(document: Any, *, replayed: bool = False) -> list[Fault]:
    """The faults in a weather document. Raises `BadWeather` that names the place and what is valid there."""
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
    missing = sorted(REQUIRED[kind] - set(params))
    if missing:
        raise BadWeather(f"{place}: {kind} needs {', '.join(missing)}")
    times = entry.get("times", FOREVER if kind in CONDITIONS else 1)
    if not isinstance(times, int) or times < (0 if replayed else 1):
        raise BadWeather(f"{place}: times must be a positive whole number, not {times!r}")
    _check_values(place, params, signed=kind == "clock_skew")
    return Fault(id=0, kind=kind, params=params, times=times)


def _check_values(place: str, params: Params, *, signed: bool) -> None:
    def check(good: bool, key: str, wanted: str, value: Any = None) -> None:
        if not good:
            raise BadWeather(f"{place}: {key} must be {wanted}, not {params.get(key, value)!r}")

    check(params.get("state", "DEPRECATED") in STATES, "state", " or ".join(STATES))
    for key, wanted in AMOUNTS.items():
        check(is_amount(params.get(key, 0), signed=signed and key == "seconds"), key, wanted)
    if "until" in params:
        try:
            datetime.fromisoformat(str(params["until"]))
        except ValueError:
            check(False, "until", "a time such as 2026-11-21T04:05:06Z")
    status = params.get("status", 500)
    check(isinstance(status, int) and 400 <= status <= 599, "status", "an HTTP error")
    for key, words in WORDS.items():
        which = " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"
        check(params.get(key, words[0]) in words, key, which)
    try:
        re.compile(params.get("path", ""))
    except (re.error, TypeError):
        check(False, "path", "a regular expression")
    at = params.get("at", {"seconds": 0})
    valid = isinstance(at, dict) and len(at) == 1 and set(at) <= {"phase", "case", "seconds"}
    check(valid, "at", '{"phase": ...}, {"case": n} or {"seconds": s}')
    seconds = at.get("seconds", 0)
    check(is_amount(seconds), "at: seconds", "a number of seconds", seconds)


AMOUNTS = {"minutes": "a number", "limit": "a number"} | dict.fromkeys(("seconds", "notice_s"), "a number of seconds")


def is_amount(value: Any, *, signed: bool = False) -> bool:
    """Whether a value is a number, and not negative unless it may be."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and (signed or value >= 0)


def hits_request(fault: Fault, service: str, method: str, path: str) -> bool:
    """Whether an `http`, `reset` or `stall` fault hits this request. `path` includes the query."""
    params = fault.params
    return (
        fault.kind in ("http", "reset", "stall")
        and params.get("service", service) == service
        and str(params.get("method", method)).upper() == method
        and re.search(params.get("path", ""), path) is not None
    )


def hits_vm(fault: Fault, *kinds: str, vm: str, zone: str, run_id: str | None) -> bool:
    """Whether the fault is of one of these kinds and hits this VM."""
    params = fault.params
    return (
        fault.kind in kinds
        and params.get("vm", vm) == vm
        and params.get("zone", zone) == zone
        and params.get("run_id", run_id) == run_id
    )


def hits_job(fault: Fault, kind: str, *, job: str, region: str) -> bool:
    """Whether the fault is of this kind and hits this job of the batch service."""
    params = fault.params
    return fault.kind == kind and params.get("job", job) == job and params.get("region", region) == region


def due_after(fault: Fault) -> float | None:
    """How many seconds after RUNNING a fault is due; None if it waits for a phase or a case."""
    seconds = fault.params.get("at", {"seconds": 0}).get("seconds")
    return None if seconds is None else float(seconds)


def due_upon(fault: Fault, kind: str, data: Params) -> bool:
    """Whether a fault waits for this event: `phase_started` of its phase, or `case_started` of its case number."""
    at = fault.params.get("at", {})
    if "phase" in at:
        return kind == "phase_started" and data.get("phase") == at["phase"]
    return "case" in at and kind == "case_started" and data.get("index") == at["case"]
