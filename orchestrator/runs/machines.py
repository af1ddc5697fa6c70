"""What a run's machines have cost, not on the word of its log alone: every machine can write there, in any name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.errors import BenchError, DocumentUnreadable, PermissionDenied
from orchestrator.core.hosts import is_host
from orchestrator.core.images import ImageRecord, first_difference, short_url
from orchestrator.core.market.machines import Accepted, CloudRefusal, Instance, InstanceRequest, Operation
from orchestrator.core.names import NO_IMAGE
from orchestrator.core.naming import artifacts_prefix, is_prepared
from orchestrator.core.run import decide as do
from orchestrator.core.run.fold import Run, Vm
from orchestrator.core.text import parse_document
from orchestrator.ports import Bucket, Cloud
from orchestrator.store.documents import Shelf

# Records what a run shows about its prepared image: that it is valid, that it changed, or that it is gone.


OF_THE_IMAGE: Final = frozenset(
    {"no_cuda", "torch_missing", "torch_without_cuda", "numpy_mismatch", "driver_too_old", "no_python", "disk_full"}
)
"""Causes of a failure that come from the image that a machine booted from."""


def lacks_image(refusal: CloudRefusal, request: InstanceRequest) -> bool:
    """Whether a machine was refused because its prepared image is gone, and there is another to boot from."""
    named = request.image.rpartition("/")[2]
    return bool(request.base_image) and request.image != request.base_image and f"/images/{named}" in refusal.message


def on_base_image(request: InstanceRequest) -> InstanceRequest:
    """The same request with the base image. It has a request id of its own, which is the same for each retry."""
    request_id = str(uuid5(NAMESPACE_URL, f"spotbench:{request.request_id}/on/{request.base_image}"))
    return replace(request, image=request.base_image, base_image=NO_IMAGE, request_id=request_id)


def note_validation(shelf: Shelf | None, bucket: Bucket, run: Run, now: datetime) -> None:
    """Records what a run that is over shows about its prepared image. It is only a hint to later launches, so it never
    raises."""
    if shelf is None or not is_prepared(run.image):
        return
    try:
        environment = _environment(bucket, run) if run.measured else {}
        shelf.records.update(short_url(run.image), lambda record: validate_image(record, run, environment, now))
    except BenchError:
        return


def validate_image(record: ImageRecord, run: Run, told: Mapping[str, Any], now: datetime) -> ImageRecord:
    """The record after a run on the image. A case that was measured has all gates behind it; where the machine then
    tells of another kernel, driver or torch than before, this run is what the image is judged by from now on."""
    cause = next((one.cause for one in run.diagnoses if one.cause in OF_THE_IMAGE), "")
    installed = next((heal.detail for heal in run.heals if heal.what == "torch"), "")
    if cause and not run.measured:
        return record.model_copy(update={"broken": f"{run.run_id} failed on it: {cause}", "validated_at": None})
    if installed:
        return record.model_copy(update={"broken": f"{run.run_id} had to install torch on it", "validated_at": None})
    if not run.measured or (record.validated_at is not None and record.validated_at >= now):
        return record
    changed = {}
    if first_difference(record, told):
        changed = {key: str(told.get(key) or getattr(record, key)) for key in ("kernel", "driver", "torch")}
    elif not record.driver and told.get("driver"):
        changed = {"driver": str(told["driver"])}  # where the image was made there was no GPU to ask
    return record.model_copy(update={"validated_at": now, "validated_by": run.run_id, **changed})


def _environment(bucket: Bucket, run: Run) -> Mapping[str, Any]:
    try:
        blob = bucket.read(f"{artifacts_prefix(run.run_id)}environment.json")
        return parse_document(blob.data) if blob is not None else {}
    except (DocumentUnreadable, ValueError):
        return {}


# One request for a machine. A right that this client lacks is a refusal like any other: it ends the run.


DENIED = "PERMISSION_DENIED"


def request_machine(cloud: Cloud, request: InstanceRequest) -> Accepted | CloudRefusal:
    """The cloud's answer. Where this client may not ask for machines, no other zone will do, and the run need not wait
    for a machine: unless the cloud shows one all the same, of an earlier try whose answer was lost. Raises what the
    port raises; `PermissionDenied` only for a host, or where a machine may still come."""
    try:
        return cloud.insert(request)
    except PermissionDenied as exc:
        if is_host(request.zone):
            raise
        made = cloud.instance(request.zone, request.name)
        if made is not None:
            return Accepted(made)
        if cloud.operations_by_name(request.zone, request.name):
            raise
        return CloudRefusal(DENIED, str(exc), "all", exc.hint)


# Looks at one machine: its state or, if it does not exist, what the cloud's operation log says about it.


def looked_for(cloud: Cloud, vm: Vm) -> tuple[Instance | None, tuple[Operation, ...]]:
    """The machine, or None and its operations. Raises what the port raises.

    What the log calls made is looked for once more: another client's request may have been done since the first look,
    and a machine that runs must not be taken for one that is gone."""
    instance = cloud.instance(vm.zone, vm.name)
    if instance is not None:
        return instance, ()
    operations = cloud.operations(vm.zone, vm.instance_id) if vm.instance_id else ()
    if any(op.kind == "insert" for op in operations):
        return None, operations
    operations = cloud.operations_by_name(vm.zone, vm.name)  # never seen, or by an id that the cloud never gave
    return (cloud.instance(vm.zone, vm.name) if operations else None), operations


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
        instance, answered = looked_for(cloud(), vm)
        if instance is not None:
            if instance.status != "STOPPING":
                delete(vm)
            return None
        started = vm.started_at or do.start_of(answered)
        ended, how = do.end_of(vm, answered, started, now)
        gone_at = vm.gone_at if how == "lost" else max(vm.gone_at, ended)
        total += replace(vm, started_at=started, gone_at=gone_at).cost(now)
    return total
