"""Machines that are kept, as scripts on simulated time: they speak the slot's protocol as the agent does."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from orchestrator.core.naming import slot_object
from orchestrator.embedded.documents import utc_stamp
from tests.support.scripted_machines import Script, ScriptedVm, ShutDown, Steps, Struck

POLL_S = 2.0
LATER_S = 10.0
"""How often a machine looks once it has waited for a minute: each look is a request, and nothing is claimed by then."""


def kept_vm(cases: int = 3, seconds_each: float = 20.0, *, deaf: bool = False, stuck: bool = False) -> Script:
    """A machine that waits after its run, if it was asked to. A deaf one never looks at its slot; a stuck one waits for
    ever, beyond its limit too."""

    def script(vm: ScriptedVm) -> Steps:
        own, spec = str(vm.spec["run_id"]), vm.spec
        outcome = ""
        try:
            while True:
                yield from one_run(vm, spec, cases, seconds_each)
                if spec["run_id"] == own:
                    outcome = "succeeded"
                else:
                    vm.event("finished", {"outcome": "succeeded", "exit_code": 0}, spec["run_id"])
                if "keep" not in spec:
                    break
                claim = yield from waiting(vm, spec["keep"]["idle_limit_s"], deaf=deaf, stuck=stuck)
                if claim is None:
                    break
                vm.event("lent", {"to": claim["run_id"]})
                spec = claim["spec"]
        except ShutDown:
            word = {"outcome": "preempted" if vm.preempted else "terminated", "exit_code": 143}
            if spec["run_id"] != own or not outcome:
                vm.event("finished", word, spec["run_id"])
        except Struck:  # the bootstrap speaks for an agent that was killed
            if not outcome:
                outcome = "failed"
        vm.event("finished", {"outcome": outcome or "terminated", "exit_code": 0})
        vm.delete_self()
        yield 1

    return script


def one_run(vm: ScriptedVm, spec: dict[str, Any], cases: int, seconds_each: float) -> Steps:
    run = spec["run_id"]
    if "taken" in spec:
        vm.event("machine_taken", {"vm": vm.name, "zone": vm.zone, "attempt": 1, **spec["taken"]}, run)
    vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": 1}, run)
    cold = "taken" not in spec
    for phase in ("preflight", "environment", "build", "correctness"):
        vm.event("phase_started", {"phase": phase, "limit_s": 300}, run)
        yield 10 if cold else 1
        vm.event("phase_finished", {"phase": phase, "exit_code": 0, "seconds": 10}, run)
    vm.event("phase_started", {"phase": "measure", "limit_s": 1500}, run)
    facts: dict[str, Any] = {"cases": cases, "total": cases, "measurements_per_implementation": 2 * cases}
    vm.event("measurement_planned", facts, run)
    for index in range(1, cases + 1):
        case = {"case_id": f"case-{index}", "index": index, "of": cases}
        vm.event("case_started", case, run)
        yield seconds_each
        body = f"case-{index} of {run} by {vm.name}\n".encode()
        vm.put(f"runs/{run}/cases/case-{index}.csv", body, "text/csv", create=True)
        vm.event("case_measured", case | {"rows": 2, "seconds": seconds_each, "median_us": {"bench": 10.0}}, run)


def waiting(vm: ScriptedVm, limit_s: float, *, deaf: bool, stuck: bool) -> Any:
    own = str(vm.spec["run_id"])
    since = vm.guest.timeline.now()
    until = since + timedelta(seconds=limit_s)
    slot = {"schema": 1, "vm": vm.name, "zone": vm.zone, "owner": own, "idle_until": utc_stamp(until), "claim": None}
    vm.put(slot_object(vm.name), json.dumps(slot | {"state": "idle"}).encode(), "application/json")
    vm.event("kept", {"outcome": "succeeded", "exit_code": 0, "idle_limit_s": limit_s})
    while vm.guest.timeline.now() < until or deaf or stuck:
        yield POLL_S if vm.guest.timeline.now() < since + timedelta(minutes=1) else LATER_S
        there = json.loads(vm.read(slot_object(vm.name)) or b"{}")
        if there.get("state") == "claimed" and not deaf:
            vm.put(slot_object(vm.name), json.dumps(there | {"state": "running"}).encode(), "application/json")
            return there["claim"]
    vm.put(slot_object(vm.name), json.dumps(slot | {"state": "closed"}).encode(), "application/json")
    return None
