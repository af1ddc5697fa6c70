"""VMs that check what they measure, and runs that another client resumes."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from decimal import Decimal
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from orchestrator.core.naming import Mode
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import LaunchContext, PayloadSource, RunOrder, begin_launch
from tests.integration.stories.stage import RUN, Stage, same_to_the_cent
from tests.support.scripted_machines import ScriptedVm, ShutDown, Steps

CASES = 6
THREE = "run.attempts=3"


def stored(vm: ScriptedVm) -> set[str]:
    """What the machine finds in the bucket, as the agent does."""
    prefix = f"runs/{vm.spec['run_id']}/cases/"
    url = f"{vm.guest.storage_url}/storage/v1/b/{vm.spec['bucket']}/o?prefix={quote(prefix, safe='')}"
    names = [entry["name"] for entry in json.loads(vm.request("GET", url)).get("items", [])]
    return {name.removeprefix(prefix).removesuffix(".csv") for name in names}


def careful_vm(*, loses_word_of: str = "") -> Callable[[ScriptedVm], Steps]:
    """A machine that leaves out what is stored. The first one dies between storing one case and saying so."""

    def script(vm: ScriptedVm) -> Steps:
        attempt = int(vm.labels["bench-attempt"])
        vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": attempt})
        try:
            for phase in ("preflight", "environment", "build", "correctness"):
                vm.event("phase_started", {"phase": phase, "limit_s": 300})
                yield 10
                vm.event("phase_finished", {"phase": phase, "exit_code": 0, "seconds": 10})
            vm.event("phase_started", {"phase": "measure", "limit_s": 1500})
            done = stored(vm)
            cases = [f"case-{n}" for n in range(1, CASES + 1) if f"case-{n}" not in done]
            facts: dict[str, Any] = {"cases": len(cases), "total": CASES, "measurements_per_implementation": 12}
            vm.event("measurement_planned", facts)
            for index, case in enumerate(cases, 1):
                vm.event("case_started", {"case_id": case, "index": index, "of": len(cases)})
                yield 20
                body = f"{case} by {vm.name}\n".encode()
                vm.put(f"runs/{vm.spec['run_id']}/cases/{case}.csv", body, "text/csv", create=True)
                if case == loses_word_of and attempt == 1:
                    while True:
                        yield 5
                vm.event(
                    "case_measured",
                    {"case_id": case, "index": index, "of": len(cases), "rows": 2, "seconds": 20, "median_us": {}},
                )
            vm.event("finished", {"outcome": "succeeded", "exit_code": 0})
        except ShutDown:
            outcome = "preempted" if vm.preempted else "terminated"
            vm.event("finished", {"outcome": outcome, "exit_code": 143})
        vm.delete_self()
        yield 1

    return script


def assert_sound(stage: Stage, run: Run) -> None:
    """No machine, every hold settled, what was settled is the bill, and every case was measured by one machine only."""
    assert run.over
    assert stage.cloud.instances() == []
    entries = [entry for key, entry in stage.ledger().runs.items() if key.startswith(run.run_id)]
    assert all(entry.held == 0 and entry.spent <= entry.hold_usd for entry in entries)
    assert same_to_the_cent(sum((entry.spent for entry in entries), Decimal(0)), stage.billed(run.run_id))
    assert run.cases_done == len(stage.world().bucket.list(f"runs/{run.run_id}/cases/"))
    assert len({fact.case_id for fact in run.measured}) == len(run.measured)


def packed() -> PayloadSource:
    """A payload that can be found again by its name."""
    script = b"#!/bin/bash\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("startup/startup.sh")
        member.size = len(script)
        archive.addfile(member, io.BytesIO(script))
    data = buffer.getvalue()
    return PayloadSource(sha256(data).hexdigest(), data, script.decode())


PAYLOAD = packed()


def where(stage: Stage) -> LaunchContext:
    return LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)


def begun(stage: Stage, *, dies_after: int = 0, attempts: str = THREE) -> Engine:
    world = stage.world(dies_after=dies_after)
    return begin_launch(world, RunOrder(RUN, stage.plan(attempts), PAYLOAD, where(stage)))
