"""Lists every machine of ours, judges each, and deletes those that should not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.errors import BenchError, Unavailable
from orchestrator.core.fleet.names import FLEET_LABEL, is_fleet_id
from orchestrator.core.market.machines import Instance
from orchestrator.core.naming import RUN_LABEL, is_run_id, run_of
from orchestrator.core.run.decide import Settle
from orchestrator.core.run.fold import Run, replay
from orchestrator.core.run.orphans import Keep, Orphan, cost_so_far, flags, judge, judge_alone, judge_of_fleet, owner
from orchestrator.runs.engine import Engine, World

PriceOf = Callable[[Instance], Decimal | None]
"""Returns the dollars per hour of a machine whose price no run knows."""
TRIES: Final = 12
PAUSE_S: Final = 5.0
"""How long a machine that was deleted may still be listed."""


@dataclass(frozen=True, slots=True)
class Finding:
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
class Failure:
    """Something that could not be done: to what, and why."""

    what: str
    error: BenchError


@dataclass(frozen=True, slots=True)
class Reaped:
    """The result of deleting the orphans. Every one was tried."""

    gone: tuple[Finding, ...]
    failed: tuple[Failure, ...]
    """Machines that are still there, and runs whose end could not be recorded."""


def survey(
    world: World, instances: Sequence[Instance] | None = None, price: PriceOf = lambda _: None
) -> tuple[Finding, ...]:
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
        found = runs[run_id]
        run = found if isinstance(found, Run) else None
        now = world.clock.now()  # the server's, which the answers so far have told
        vm = owner(instance, run)
        rate = vm.usd_per_hour if vm is not None else price(instance)
        findings.append(
            Finding(
                instance=instance,
                run_id=run_id,
                verdict=_verdict(world, instance, found, now),
                flags=flags(instance, run, now),
                usd_per_hour=rate,
                cost_usd=cost_so_far(instance, rate, now),
                run=run,
            )
        )
    return tuple(findings)


def _verdict(world: World, instance: Instance, found: Run | BenchError | None, now: datetime) -> Keep | Orphan:
    bucket, fleet = world.bucket.name, instance.labels.get(FLEET_LABEL, "")
    try:
        if is_fleet_id(fleet):
            entries = world.ledger.read().runs.items()
            held = any(run_of(key) == fleet and entry.settled_usd is None for key, entry in entries)
            return judge_of_fleet(instance, fleet, held=held, bucket=bucket, now=now, policy=world.policy)
    except BenchError as error:
        found = error
    if isinstance(found, BenchError):
        return judge_alone(instance, str(found), bucket, now, world.policy)
    return judge(instance, found, bucket, now, world.policy)


def read_run(world: World, run_id: str) -> Run | None:
    return replay(world.log(run_id).read()) if is_run_id(run_id) else None


def _readable(world: World, run_id: str) -> Run | BenchError | None:
    try:
        return read_run(world, run_id)
    except BenchError as error:
        return error


def reap(world: World, findings: Sequence[Finding]) -> Reaped:
    """Deletes every orphan among `findings`, and lets each run that lost one record it. One machine that cannot be
    deleted, or one run that cannot be settled, keeps nothing else from being done."""
    gone: list[Finding] = []
    failed: list[Failure] = []
    for finding in findings:
        if not finding.orphan:
            continue
        instance = finding.instance
        try:
            world.cloud().delete(instance.zone, instance.name, request_id(instance))
        except BenchError as error:
            failed.append(Failure(f"{instance.zone}/{instance.name} was not deleted yet", error))
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
            failed.append(Failure(f"the end of run {run_id} could not be recorded", error))
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
