"""Why a valid request for an instance fails: no machine is left, or a quota of the project is too small."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from orchestrator.embedded.admission import Admitted
from orchestrator.embedded.errors import OperationError, quota_exceeded, stockout_error
from orchestrator.embedded.inventory import Inventory, region_of
from orchestrator.embedded.vm import EmbeddedVm
from orchestrator.embedded.weather import Fault, Weather


def quota_usage(
    vms: Iterable[EmbeddedVm], inventory: Inventory, weather: Weather, region: str | None
) -> dict[str, float]:
    """How much of each quota is used, by metric, in a region or in the project (None). A stopped VM uses only its disk
    and counts as an instance."""
    total: dict[str, float] = {}
    for vm in vms:
        stopped = vm.status == "TERMINATED"
        if region is None:
            amounts = {} if stopped else project_wide(vm.admitted)
        elif region_of(vm.zone) == region:
            amounts = vm.admitted.usage(inventory, partial(quota_limit, inventory, weather))
        else:
            continue
        for metric, amount in amounts.items():
            if not stopped or metric.endswith("_GB") or metric == "INSTANCES":
                total[metric] = total.get(metric, 0) + amount
    return total


def project_wide(admitted: Admitted) -> dict[str, float]:
    """How much of the quotas of the whole project a VM uses."""
    return {"GPUS_ALL_REGIONS": admitted.gpu_count, "CPUS_ALL_REGIONS": admitted.machine.vcpus}


def quota_limit(inventory: Inventory, weather: Weather, metric: str, region: str | None) -> float | None:
    """The limit of a quota, as far as the weather does not lower it; None if there is no such quota."""
    listed = inventory.limit(metric, region)
    lowered = weather.holds(metric, "quota_limit", metric=metric, region=region or "") if listed is not None else None
    return listed if lowered is None else float(lowered.params.get("limit", 0))


def over_quota(
    admitted: Admitted, vms: list[EmbeddedVm], inventory: Inventory, weather: Weather
) -> OperationError | None:
    """The operation's error for the first quota that the instance would exceed; None if it exceeds none."""
    region = region_of(admitted.zone)
    of_region = admitted.usage(inventory, partial(quota_limit, inventory, weather))
    for place, wanted in ((region, of_region), (None, project_wide(admitted))):
        in_use = quota_usage(vms, inventory, weather, place)
        for metric, amount in wanted.items():
            listed = quota_limit(inventory, weather, metric, place)
            if listed is None and admitted.gpu and metric.endswith(inventory.accelerators[admitted.gpu].metric):
                continue  # the lists of Compute Engine lack this GPU
            limit = listed or 0
            if in_use.get(metric, 0) + amount > limit:
                return quota_exceeded(metric, limit, place)
    return None


def foul_weather(admitted: Admitted, project: str, weather: Weather) -> OperationError | None:
    """The operation's error for the fault that hits this request; None if there is none. The fault is used up."""
    fault = weather.take(admitted.name, lambda fault: fault_refuses(fault, admitted))
    if fault is None:
        return None
    if fault.kind == "stockout":
        available = fault.params.get("zones_available")
        return stockout_error(project, admitted.zone, admitted.machine.name, admitted.attachment, available)
    project_quota = bool(fault.params.get("global"))
    limit = float(fault.params.get("limit", 0))
    return quota_exceeded(fault.params["metric"], limit, None if project_quota else region_of(admitted.zone))


def fault_refuses(fault: Fault, admitted: Admitted) -> bool:
    """Whether a fault hits this request."""
    params = fault.params
    if fault.kind not in ("stockout", "quota") or params.get("zone", admitted.zone) != admitted.zone:
        return False
    if params.get("region", region_of(admitted.zone)) != region_of(admitted.zone):
        return False
    return bool(params.get("machine_type", admitted.machine.name) == admitted.machine.name)
