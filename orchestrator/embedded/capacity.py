"""Why an admitted insert fails all the same: there is no machine left, or the project may not have that much."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from orchestrator.embedded.admission import Admitted
from orchestrator.embedded.errors import OperationError, quota_exceeded, stockout
from orchestrator.embedded.inventory import Inventory, region_of
from orchestrator.embedded.vm import Vm
from orchestrator.embedded.weather import Fault, Weather


def used(vms: Iterable[Vm], inventory: Inventory, weather: Weather, region: str | None) -> dict[str, float]:
    """How much of each quota is used, in a region or in the project (None). A stopped VM uses its disk only."""
    total: dict[str, float] = {}
    for vm in vms:
        stopped = vm.status == "TERMINATED"
        if region is None:
            amounts = {} if stopped else project_wide(vm.admitted)
        elif region_of(vm.zone) == region:
            amounts = vm.admitted.usage(inventory, partial(limited, inventory, weather))
        else:
            continue
        for metric, amount in amounts.items():
            if not stopped or metric.endswith("_GB") or metric == "INSTANCES":
                total[metric] = total.get(metric, 0) + amount
    return total


def project_wide(admitted: Admitted) -> dict[str, float]:
    """What a VM takes of the quotas of the whole project."""
    return {"GPUS_ALL_REGIONS": admitted.gpu_count, "CPUS_ALL_REGIONS": admitted.machine.vcpus}


def limited(inventory: Inventory, weather: Weather, metric: str, region: str | None) -> float | None:
    """The limit of a quota as the weather leaves it; None where there is no such quota."""
    listed = inventory.limit(metric, region)
    short = weather.holds(metric, "quota_limit", metric=metric, region=region or "") if listed is not None else None
    return listed if short is None else float(short.params.get("limit", 0))


def over_quota(admitted: Admitted, vms: list[Vm], inventory: Inventory, weather: Weather) -> OperationError | None:
    """The first quota that the insert would exceed, as the operation's error."""
    region = region_of(admitted.zone)
    of_region = admitted.usage(inventory, partial(limited, inventory, weather))
    for place, wanted in ((region, of_region), (None, project_wide(admitted))):
        taken = used(vms, inventory, weather, place)
        for metric, amount in wanted.items():
            limit = limited(inventory, weather, metric, place) or 0
            if taken.get(metric, 0) + amount > limit:
                return quota_exceeded(metric, limit, place)
    return None


def foul_weather(admitted: Admitted, project: str, weather: Weather) -> OperationError | None:
    """The fault that awaits this insert, used up, as the operation's error."""
    fault = weather.take(admitted.name, lambda fault: refuses(fault, admitted))
    if fault is None:
        return None
    if fault.kind == "stockout":
        available = fault.params.get("zones_available")
        return stockout(project, admitted.zone, admitted.machine.name, admitted.attachment, available)
    whole = bool(fault.params.get("global"))
    limit = float(fault.params.get("limit", 0))
    return quota_exceeded(fault.params["metric"], limit, None if whole else region_of(admitted.zone))


def refuses(fault: Fault, admitted: Admitted) -> bool:
    """Whether a fault is meant for this insert."""
    params = fault.params
    if fault.kind not in ("stockout", "quota") or params.get("zone", admitted.zone) != admitted.zone:
        return False
    if params.get("region", region_of(admitted.zone)) != region_of(admitted.zone):
        return False
    return bool(params.get("machine_type", admitted.machine.name) == admitted.machine.name)
