"""Lists every machine of ours, judges each, and deletes those that should not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.errors import BenchError, Unavailable
from orchestrator.core.market.machines import Instance
from orchestrator.core.names import FLEET_LABEL, is_fleet_id
from orchestrator.core.naming import RUN_LABEL, is_run_id, run_of
from orchestrator.core.run.decide import Settle
from orchestrator.core.run.fold import Run, replay
from orchestrator.core.run.orphans import (
    Keep,
    Orphan,
    cost_so_far,
    judge_alone,
    judge_machine,
    judge_of_fleet,
    machine_flags,
    requesting_vm,
)
from orchestrator.runs.engine import Engine, World

PriceOf = Callable[[Instance], Decimal | None]
"""Returns the dollars per hour of a machine whose price no run knows."""
TRIES: Final = 12
PAUSE_S: Final = 5.0
"""How long a machine that was deleted may still be listed."""


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """One machine, what is known about it, and the verdict."""

    instance: Instance
    run_id: str
    verdict: Keep | Orphan
    flags: tuple[str, ...]
    usd_per_hour: Decimal | None
    cost_usd: Decimal | None
    run: Run | None = None

    @property
    def orphan(self) -> bool:
        return isinstance(self.verdict, Orphan)


@dataclass(frozen=True, slots=True)
class ReapFailure:
    """Something that could not be done: to what, and why."""

    what: str
    error: BenchError


@dataclass(frozen=True, slots=True)
class Reaped:
    """The result of deleting the orphans. Every one was tried."""

    gone: tuple[MachineFinding, ...]
    failed: tuple[ReapFailure, ...]
    """Machines that are still there, and runs whose end could not be recorded."""


def survey_machines(
    world: World, instances: Sequence[Instance] | None = None, price: PriceOf = lambda _: None
) -> tuple[MachineFinding, ...]:
    """Every machine of ours with the verdict on it. The machines are listed before their runs are read: what exists
    was recorded before it was asked for, so a machine whose run does not know it is nobody's. One whose run cannot be
    read is judged by what the cloud alone says of it, and hides no other."""
    listed = world.cloud().instances() if instances is None else instances
    runs: dict[str, Run | BenchError | None] = {}
    findings = []
    for instance in sorted(listed, key=lambda one: (one.created_at, one.zone, one.name)):
        run_id = instance.labels.get(RUN_LABEL, "")
        if run_id not in runs:
            runs[run_id] = _readable(world, run_id)
        owning_run = runs[run_id]
        run = owning_run if isinstance(owning_run, Run) else None
        now = world.clock.now()  # the server's, which the answers so far have told
        vm = requesting_vm(instance, run)
        rate = vm.usd_per_hour if vm is not None else price(instance)
        findings.append(
            MachineFinding(
                instance=instance,
                run_id=run_id,
                verdict=_verdict(world, instance, owning_run, now),
                flags=machine_flags(instance, run, now),
                usd_per_hour=rate,
                cost_usd=cost_so_far(instance, rate, now),
                run=run,
            )
        )
    return tuple(findings)


def _verdict(world: World, instance: Instance, verdict: Run | BenchError | None, now: datetime) -> Keep | Orphan:
    bucket, fleet = world.bucket.name, instance.labels.get(FLEET_LABEL, "")
    try:
        if is_fleet_id(fleet):
            entries = world.ledger.read().runs.items()
            held = any(run_of(key) == fleet and entry.settled_usd is None for key, entry in entries)
            return judge_of_fleet(instance, fleet, held=held, bucket=bucket, now=now, policy=world.policy)
    except BenchError as error:
        verdict = error
    if isinstance(verdict, BenchError):
        return judge_alone(instance, str(verdict), bucket, now, world.policy)
    return judge_machine(instance, verdict, bucket, now, world.policy)


def read_run(world: World, run_id: str) -> Run | None:
    return replay(world.log(run_id).read()) if is_run_id(run_id) else None


def _readable(world: World, run_id: str) -> Run | BenchError | None:
    try:
        return read_run(world, run_id)
    except BenchError as error:
        return error


def reap_orphans(world: World, findings: Sequence[MachineFinding]) -> Reaped:
    """Deletes every orphan among `findings`, and lets each run that lost one record it. One machine that cannot be
    deleted, or one run that cannot be settled, keeps nothing else from being done."""
    gone: list[MachineFinding] = []
    failed: list[ReapFailure] = []
    for finding in findings:
        if not finding.orphan:
            continue
        instance = finding.instance
        try:
            world.cloud().delete(instance.zone, instance.name, request_id(instance))
        except BenchError as error:
            failed.append(ReapFailure(f"{instance.zone}/{instance.name} was not deleted yet", error))
        else:
            gone.append(finding)
    for run_id in dict.fromkeys(finding.run_id for finding in gone):
        try:
            run = read_run(world, run_id)
            if run is not None and not run.over:
                Engine(world, run_id).catch_up()
            elif run is not None and run.settled is not None:
                _add_cost(world, run_id)
        except BenchError as error:
            failed.append(ReapFailure(f"the end of run {run_id} could not be recorded", error))
    return Reaped(tuple(gone), tuple(failed))


def _add_cost(world: World, run_id: str) -> None:
    """Records the cost of a machine that appeared after its run was settled, once it is gone. Raises `Unavailable`."""
    engine = Engine(world, run_id)
    for _ in range(TRIES):
        run = engine.look()
        if engine.perform(Settle(run.due(world.clock.now())), run):
            return
        world.clock.sleep(PAUSE_S)
    raise Unavailable("its machine was not deleted yet", hint="run `bench reap --yes` again in a minute")


def request_id(instance: Instance) -> str:
    """Of this one machine: another that has its name and zone later is another wish."""
    return str(uuid5(NAMESPACE_URL, f"spotbench:reap/{instance.zone}/{instance.name}/{instance.id}"))
