"""Looking over every machine of ours, judging each, and deleting those that should not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.machines import Instance
from orchestrator.core.naming import RUN_LABEL, is_run_id
from orchestrator.core.reap import Keep, Orphan, cost_so_far, flags, judge, owner
from orchestrator.core.run import Run, replay
from orchestrator.engine import Engine, World

PriceOf = Callable[[Instance], Decimal | None]
"""Dollars per hour of a machine that no run knows the price of."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One machine, what is known of it, and the verdict."""

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


def survey(
    world: World, instances: Sequence[Instance] | None = None, price: PriceOf = lambda _: None
) -> tuple[Finding, ...]:
    """Every machine of ours with the verdict on it. The machines are listed before their runs are read: what exists
    was recorded before it was asked for, so a machine whose run does not know it is nobody's."""
    listed = world.cloud().instances() if instances is None else instances
    now = world.clock.now()
    runs: dict[str, Run | None] = {}
    findings = []
    for instance in sorted(listed, key=lambda one: (one.created_at, one.zone, one.name)):
        run_id = instance.labels.get(RUN_LABEL, "")
        if run_id not in runs:
            runs[run_id] = read_run(world, run_id)
        run = runs[run_id]
        vm = owner(instance, run)
        rate = vm.usd_per_hour if vm is not None else price(instance)
        findings.append(
            Finding(
                instance=instance,
                run_id=run_id,
                verdict=judge(instance, run, world.bucket.name, now, world.policy),
                flags=flags(instance, run, now),
                usd_per_hour=rate,
                cost_usd=cost_so_far(instance, rate, now),
                run=run,
            )
        )
    return tuple(findings)


def read_run(world: World, run_id: str) -> Run | None:
    return replay(world.log(run_id).read()) if is_run_id(run_id) else None


def reap(world: World, findings: Sequence[Finding], say: Callable[[Finding], None] = lambda _: None) -> int:
    """Deletes every orphan among `findings`, and lets each run that lost one record it. Returns how many are gone."""
    orphans = [finding for finding in findings if finding.orphan]
    for finding in orphans:
        instance = finding.instance
        world.cloud().delete(instance.zone, instance.name, request_id(instance))
        say(finding)
    for run_id in dict.fromkeys(finding.run_id for finding in orphans):
        run = read_run(world, run_id)
        if run is not None and not run.over:
            settle(world, run_id)
    return len(orphans)


def settle(world: World, run_id: str) -> None:
    """Turns of an engine that starts nothing, until there is nothing more to do at once."""
    engine = Engine(world, run_id)
    for _ in range(8):
        run, pause = engine.step()
        if pause or (run.over and run.settled is not None):
            return


def request_id(instance: Instance) -> str:
    """Of this one machine: another that has its name and zone later is another wish."""
    return str(uuid5(NAMESPACE_URL, f"spotbench:reap/{instance.zone}/{instance.name}/{instance.id}"))
