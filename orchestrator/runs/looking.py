"""Looks at one machine: its state or, if it does not exist, what the cloud's operation log says about it."""

from __future__ import annotations

from orchestrator.core.market.machines import Instance, Operation
from orchestrator.core.run.fold import Vm
from orchestrator.ports import Cloud


def looked_for(cloud: Cloud, vm: Vm) -> tuple[Instance | None, tuple[Operation, ...]]:
    """The machine, or None and its operations. Raises what the port raises.

    What the log calls made is looked for once more: another client's request may have been done since the first look,
    and a machine that runs must not be taken for one that is gone."""
    instance = cloud.instance(vm.zone, vm.name)
    if instance is not None:
        return instance, ()
    told = cloud.operations(vm.zone, vm.instance_id) if vm.instance_id else ()
    if any(op.kind == "insert" for op in told):
        return None, told
    told = cloud.operations_by_name(vm.zone, vm.name)  # never seen, or by an id that the cloud never gave
    return (cloud.instance(vm.zone, vm.name) if told else None), told
