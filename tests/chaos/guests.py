"""Scripted machines of every temper. What they have stored is remembered here, on the cloud's side of the world."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlencode

from orchestrator.core.results import COLUMNS
from orchestrator.embedded.scripted import HttpFailure, Script, ScriptedVm, ShutDown, Steps, Struck

CASE = "b2-h8-kv8-q{}-k512-d64-full-float16"


def case_ids(count: int) -> tuple[str, ...]:
    return tuple(CASE.format(128 * index) for index in range(1, count + 1))


@dataclass
class Deeds:
    """What the machines of a scenario have done, whether or not anybody heard of it."""

    started: list[tuple[str, str, str]] = field(default_factory=list)
    """(run, machine, case), in order."""
    stored: list[tuple[str, str, str]] = field(default_factory=list)
    at_work: dict[str, datetime] = field(default_factory=dict)
    """When each machine last took up a case."""


def case_csv(run_id: str, vm: str, case_id: str) -> bytes:
    values = {
        "run_id": run_id, "vm": vm, "case_id": case_id, "device": "a scripted machine", "implementation": "bench",
        "dtype": "float16", "batch": "2", "heads": "8", "kv_heads": "8", "seq_q": case_id.split("-q")[1].split("-")[0],
        "seq_k": "512", "head_dim": "64", "causal": "false", "regime": "burst", "block": "1", "repeat": "1",
        "latency_us": "10.0",
    }  # fmt: skip
    return (",".join(COLUMNS) + "\n" + ",".join(values.get(name, "") for name in COLUMNS) + "\n").encode()


def guest(temper: str, cases: int, seconds_each: float, deeds: Deeds) -> Script:
    """A machine that works as the agent does, up to what its temper keeps it from."""

    def script(vm: ScriptedVm) -> Steps:
        if temper == "silent":
            while True:
                vm.log("cloud-init: waiting for a network that does not come")
                yield 60
        done = [0]
        try:
            with storage_may_fail():
                vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": int(vm.labels["bench-attempt"])})
            yield 2
            yield from phases(vm, temper)
            yield from measure(vm, temper, cases, seconds_each, deeds, done)
            ending = {"wrong": ("incorrect", 10), "failing": ("failed", 1)}.get(temper, ("succeeded", 0))
        except ShutDown:
            ending = ("preempted" if vm.preempted else "terminated", 143)
        except Struck as fault:
            if str(fault) == "agent":  # the bootstrap finishes, and knows only that its child is dead
                ending = ("failed", 137)
            else:
                ending = ("failed", 137)
        yield from finish(vm, temper, *ending)

    return script


def phases(vm: ScriptedVm, temper: str) -> Steps:
    for phase in ("preflight", "environment", "build", "correctness"):
        vm.event("phase_started", {"phase": phase, "limit_s": 300})
        yield 10
        if temper == "dying" and phase == "build":
            while True:  # the bootstrap itself is gone, and the machine is there
                yield 60
        if temper == "failing" and phase == "environment":
            vm.log("ImportError: something nobody has seen before")
            raise Struck("harness")
        if temper == "wrong" and phase == "correctness":
            wrong = {"implementation": "bench", "case_id": CASE.format(128), "passed": False, "reason": "NaN"}
            vm.event("case_checked", wrong)
        vm.event("phase_finished", {"phase": phase, "exit_code": 0, "seconds": 10})


def measure(vm: ScriptedVm, temper: str, cases: int, seconds_each: float, deeds: Deeds, done: list[int]) -> Steps:
    """Stores each case before it begins the next, and skips what its spec says is done."""
    run_id = vm.spec["run_id"]
    skipped = set(vm.spec["harness"].get("skip_cases", ())) | set(stored_cases(vm))
    ids = case_ids(cases)
    left = [case for case in ids if case not in skipped]
    vm.event("phase_started", {"phase": "measure", "limit_s": 1500})
    planned = {"cases": len(left), "total": cases, "measurements_per_implementation": cases}
    vm.event("measurement_planned", planned)
    for case in left:
        index = ids.index(case) + 1
        deeds.started.append((run_id, vm.name, case))
        deeds.at_work[vm.name] = vm.guest.timeline.now()
        vm.event("case_started", {"case_id": case, "index": index, "of": cases})
        yield seconds_each
        try:
            name = f"runs/{run_id}/cases/{case}.csv"
            vm.put(name, case_csv(run_id, vm.name, case), "text/csv", create=True)
        except HttpFailure as refusal:
            if refusal.status != 412:  # stored by a try whose answer was lost
                raise
        deeds.stored.append((run_id, vm.name, case))
        facts = {"case_id": case, "index": index, "of": cases, "rows": 1, "seconds": seconds_each}
        vm.event("case_measured", facts | {"median_us": {"bench": 10.0}})
        done[0] += 1
    vm.event("phase_finished", {"phase": "measure", "exit_code": 0, "seconds": 1})


def stored_cases(vm: ScriptedVm) -> list[str]:
    """What earlier machines have measured, as the agent finds out: by listing the bucket."""
    prefix = f"runs/{vm.spec['run_id']}/cases/"
    query = urlencode({"prefix": prefix, "fields": "items(name),nextPageToken"})
    listed = json.loads(vm.request("GET", f"{vm.guest.storage_url}/storage/v1/b/{vm.spec['bucket']}/o?{query}"))
    return [item["name"].removeprefix(prefix).removesuffix(".csv") for item in listed.get("items", ())]


def finish(vm: ScriptedVm, temper: str, outcome: str, exit_code: int) -> Steps:
    """The last word, and the machine's own end; each is tried whatever became of the other."""
    if temper != "mute":
        with storage_may_fail():
            vm.event("finished", {"outcome": outcome, "exit_code": exit_code})
    if temper == "lingering":
        while True:
            yield 60
    for _ in range(20):
        try:
            vm.delete_self()
            break
        except (HttpFailure, OSError):
            yield 10
    yield 1


@contextmanager
def storage_may_fail() -> Iterator[None]:
    """A word that cannot be delivered does not keep a machine from its duty."""
    try:
        yield
    except (HttpFailure, OSError):
        pass
