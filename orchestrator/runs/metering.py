"""What a run's machines have cost, not on the word of its log alone: every machine can write there, in any name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from orchestrator.core.hosts import is_host
from orchestrator.core.run import decide as do
from orchestrator.core.run.fold import Run, Vm
from orchestrator.ports import Cloud
from orchestrator.runs.looking import looked_for


def cost_by_the_cloud(
    cloud: Callable[[], Cloud],
    run: Run,
    now: datetime,
    found_gone: Collection[tuple[str, str]],
    delete: Callable[[Vm], None],
) -> Decimal | None:
    """Dollars for the machines of this generation; None while one of them exists that the log calls gone, which is
    deleted. The cloud is asked for each that is not in `found_gone`, by zone and name. Raises what the ports raise."""
    total = Decimal(0)
    for vm in run.vms:
        if vm.generation != run.generation or vm.refused or vm.gone_at is None:
            continue
        if is_host(vm.zone) or (vm.zone, vm.name) in found_gone:
            total += vm.cost(now)
            continue
        instance, told = looked_for(cloud(), vm)
        if instance is not None:
            if instance.status != "STOPPING":
                delete(vm)
            return None
        started = vm.started_at or do.start_of(told)
        ended, how = do.end_of(vm, told, started, now)
        gone_at = vm.gone_at if how == "lost" else max(vm.gone_at, ended)
        total += replace(vm, started_at=started, gone_at=gone_at).cost(now)
    return total
