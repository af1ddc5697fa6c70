"""Records what a run shows about its prepared image: that it is valid, that it changed, or that it is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.errors import BenchError
from orchestrator.core.images import ImageRecord, differs, short
from orchestrator.core.market.machines import InstanceRequest, Refusal
from orchestrator.core.naming import artifacts_prefix, is_prepared
from orchestrator.core.run.fold import Run
from orchestrator.core.text import document
from orchestrator.ports import Bucket
from orchestrator.store.images import Shelf

OF_THE_IMAGE: Final = frozenset(
    {"no_cuda", "torch_missing", "torch_without_cuda", "numpy_mismatch", "driver_too_old", "no_python", "disk_full"}
)
"""Causes of a failure that come from the image that a machine booted from."""


def lacks_image(refusal: Refusal, request: InstanceRequest) -> bool:
    """Whether a machine was refused because its prepared image is gone, and there is another to boot from."""
    named = request.image.rpartition("/")[2]
    return bool(request.base_image) and request.image != request.base_image and f"/images/{named}" in refusal.message


def on_base_image(request: InstanceRequest) -> InstanceRequest:
    """The same request with the base image. It has a request id of its own, which is the same for each retry."""
    own = str(uuid5(NAMESPACE_URL, f"spotbench:{request.request_id}/on/{request.base_image}"))
    return replace(request, image=request.base_image, base_image="", request_id=own)


def note_validation(shelf: Shelf | None, bucket: Bucket, run: Run, now: datetime) -> None:
    """Records what a run that is over shows about its prepared image. It is only a hint to later launches, so it never
    raises."""
    if shelf is None or not is_prepared(run.image):
        return
    try:
        told = _environment(bucket, run) if run.measured else {}
        shelf.records.update(short(run.image), lambda record: validated(record, run, told, now))
    except BenchError:
        return


def validated(record: ImageRecord, run: Run, told: Mapping[str, Any], now: datetime) -> ImageRecord:
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
    if differs(record, told):
        changed = {key: str(told.get(key) or getattr(record, key)) for key in ("kernel", "driver", "torch")}
    elif not record.driver and told.get("driver"):
        changed = {"driver": str(told["driver"])}  # where the image was made there was no GPU to ask
    return record.model_copy(update={"validated_at": now, "validated_by": run.run_id, **changed})


def _environment(bucket: Bucket, run: Run) -> Mapping[str, Any]:
    blob = bucket.read(f"{artifacts_prefix(run.run_id)}environment.json")
    try:
        return document(blob.data) if blob is not None else {}
    except (ValueError, json.JSONDecodeError):
        return {}
