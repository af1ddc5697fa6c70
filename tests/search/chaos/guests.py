"""Scripted machines of every temper, kept ones among them. What they have done is remembered in their deeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from kernels.harness.columns import measurement_columns
from orchestrator.core.bundled import AXES
from orchestrator.embedded.documents import utc_stamp
from tests.search.chaos.deeds import Deeds
from tests.support.scripted_machines import HttpFailure, Script, ScriptedVm, ShutDown, Steps, Struck

CASE = "b2-h8-kv8-q{}-k512-d64-full-float16"


def case_ids(count: int) -> tuple[str, ...]:
    return tuple(CASE.format(128 * index) for index in range(1, count + 1))


def case_csv(run_id: str, vm: str, case_id: str) -> bytes:
    values = {
        "run_id": run_id, "vm": vm, "case_id": case_id, "device": "a scripted machine", "implementation": "bench",
        "dtype": "float16", "batch": "2", "heads": "8", "kv_heads": "8", "seq_q": case_id.split("-q")[1].split("-")[0],
        "seq_k": "512", "head_dim": "64", "causal": "false", "regime": "burst", "block": "1", "repeat": "1",
        "latency_us": "10.0",
    }  # fmt: skip
    columns = measurement_columns(AXES)
    return (",".join(columns) + "\n" + ",".join(values.get(name, "") for name in columns) + "\n").encode()


def guest(temper: str, cases: int, seconds_each: float, deeds: Deeds) -> Script:
    """A machine that works as the agent does, up to what its temper keeps it from."""

    def script(vm: ScriptedVm) -> Steps:
        if temper == "silent":
            while True:
                vm.log("cloud-init: waiting for a network that does not come")
                yield 60
        own, spec, ending = str(vm.spec["run_id"]), vm.spec, ("", 0)
        try:
            while True:
                yield from one_run(vm, spec, temper, cases, seconds_each, deeds)
                if spec["run_id"] == own:
                    ending = {"wrong": ("incorrect", 10), "failing": ("failed", 1)}.get(temper, ("succeeded", 0))
                else:
                    word(vm, temper, "succeeded", 0, spec["run_id"])
                claim = (yield from waiting(vm, own, spec["keep"]["idle_limit_s"])) if "keep" in spec else None
                if claim is None:
                    break
                deeds.lent.append((claim["run_id"], vm.name))
                vm.event("lent", {"to": claim["run_id"]})
                spec = claim["spec"]
        except ShutDown:
            ending = ended_early(vm, temper, own, spec, ending, ("preempted" if vm.preempted else "terminated", 143))
        except Struck:  # the bootstrap finishes, and knows only that its child is dead
            ending = ended_early(vm, temper, own, spec, ending, ("failed", 137))
        yield from finish(vm, temper, *ending)

    return script


def ended_early(
    vm: ScriptedVm, temper: str, own: str, spec: dict[str, Any], done: tuple[str, int], now: tuple[str, int]
) -> tuple[str, int]:
    """How a machine's own run ended: as it had, if its work was done; a run that it was lent to is told of the end."""
    if spec["run_id"] != own:
        word(vm, temper, *now, spec["run_id"])
    return done if done[0] else now


def one_run(vm: ScriptedVm, spec: dict[str, Any], temper: str, cases: int, seconds_each: float, deeds: Deeds) -> Steps:
    run = str(spec["run_id"])
    with storage_may_fail():
        if "taken" in spec:
            vm.event("machine_taken", {"vm": vm.name, "zone": vm.zone, "attempt": 1, **spec["taken"]}, run)
        vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": int(vm.labels["bench-attempt"])}, run)
    yield 2
    yield from phases(vm, temper, run)
    yield from measure(vm, spec, cases, seconds_each, deeds)


def phases(vm: ScriptedVm, temper: str, run: str) -> Steps:
    for phase in ("preflight", "environment", "build", "correctness"):
        vm.event("phase_started", {"phase": phase, "limit_s": 300}, run)
        yield 10
        if temper == "dying" and phase == "build":
            while True:  # the bootstrap itself is gone, and the machine is there
                yield 60
        if temper == "failing" and phase == "environment":
            vm.log("ImportError: something nobody has seen before")
            raise Struck("harness")
        if temper == "wrong" and phase == "correctness":
            wrong = {"implementation": "bench", "case_id": CASE.format(128), "passed": False, "reason": "NaN"}
            vm.event("case_checked", wrong, run)
        vm.event("phase_finished", {"phase": phase, "exit_code": 0, "seconds": 10}, run)


def measure(vm: ScriptedVm, spec: dict[str, Any], cases: int, seconds_each: float, deeds: Deeds) -> Steps:
    """Stores each case before it begins the next, and skips what its spec says is done."""
    run_id = str(spec["run_id"])
    skipped = set(spec["harness"].get("skip_cases", ())) | set(stored_cases(vm, run_id))
    ids = case_ids(cases)
    left = [case for case in ids if case not in skipped]
    vm.event("phase_started", {"phase": "measure", "limit_s": 1500}, run_id)
    planned = {"cases": len(left), "total": cases, "measurements_per_implementation": cases}
    vm.event("measurement_planned", planned, run_id)
    for case in left:
        index = ids.index(case) + 1
        deeds.started.append((run_id, vm.name, case))
        deeds.at_work[vm.name] = vm.guest.timeline.now()
        vm.event("case_started", {"case_id": case, "index": index, "of": cases}, run_id)
        yield seconds_each
        data = case_csv(run_id, vm.name, case)
        deeds.contents.setdefault((run_id, case), set()).add(data)
        try:
            vm.put(f"runs/{run_id}/cases/{case}.csv", data, "text/csv", create=True)
        except HttpFailure as refusal:
            if refusal.status != 412:  # stored by a try whose answer was lost
                raise
        deeds.stored.append((run_id, vm.name, case))
        facts = {"case_id": case, "index": index, "of": cases, "rows": 1, "seconds": seconds_each}
        vm.event("case_measured", facts | {"median_us": {"bench": 10.0}}, run_id)
    vm.event("phase_finished", {"phase": "measure", "exit_code": 0, "seconds": 1}, run_id)


def waiting(vm: ScriptedVm, own: str, limit_s: float) -> Any:
    """Waits in its slot for the next run, as a kept machine does; what it finds there and cannot read claims nothing.
    Returns the claim, or None when its time is over."""
    until = vm.guest.timeline.now() + timedelta(seconds=limit_s)
    name = f"machines/{vm.name}.json"
    slot = {"schema": 1, "vm": vm.name, "zone": vm.zone, "owner": own, "idle_until": utc_stamp(until), "claim": None}
    vm.put(name, json.dumps(slot | {"state": "idle"}).encode(), "application/json")
    vm.event("kept", {"outcome": "succeeded", "exit_code": 0, "idle_limit_s": limit_s})
    while vm.guest.timeline.now() < until:
        yield 5
        try:
            there = json.loads(vm.read(name) or b"{}")
            if there.get("state") == "claimed" and there["claim"]["spec"]["run_id"] == there["claim"]["run_id"]:
                vm.put(name, json.dumps(there | {"state": "running"}).encode(), "application/json")
                return there["claim"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    vm.put(name, json.dumps(slot | {"state": "closed"}).encode(), "application/json")
    return None


def stored_cases(vm: ScriptedVm, run: str) -> list[str]:
    """What earlier machines have measured, as the agent finds out: by listing the bucket."""
    prefix = f"runs/{run}/cases/"
    return [name.removeprefix(prefix).removesuffix(".csv") for name in vm.names(prefix)]


def finish(vm: ScriptedVm, temper: str, outcome: str, exit_code: int) -> Steps:
    """The last word, and the machine's own end; each is tried whatever became of the other."""
    word(vm, temper, outcome, exit_code)
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


def word(vm: ScriptedVm, temper: str, outcome: str, exit_code: int, run: str = "") -> None:
    """The last word on a run: the machine's own, unless another is named."""
    if temper != "mute":
        with storage_may_fail():
            vm.event("finished", {"outcome": outcome, "exit_code": exit_code}, run)


@contextmanager
def storage_may_fail() -> Iterator[None]:
    """A word that cannot be delivered does not keep a machine from its duty."""
    try:
        yield
    except (HttpFailure, OSError):
        pass
