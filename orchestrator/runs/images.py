"""Prepared images: made by a run that ends with a seal, listed, validated, and deleted when they are due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.config.model import Config
from orchestrator.core.errors import BenchError, ConfigError, NotFound, RunFailed
from orchestrator.core.images import (
    EXPIRES_LABEL,
    GPU_LABEL,
    CloudImage,
    ImageRecord,
    cost_of,
    environment_of,
    expires_label,
    family_of,
    image_name,
    is_expired,
    storage_usd,
)
from orchestrator.core.ledger.unlisted import most_of
from orchestrator.core.names import NO_IMAGE, ImageName, ImageUrl
from orchestrator.core.naming import BUCKET_LABEL, RUN_LABEL, is_label_of, is_run_id, machine_labels
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Run, replay
from orchestrator.core.run.state import Vm
from orchestrator.core.run.status import StatusLine
from orchestrator.core.text import count
from orchestrator.ports import ImageRequest
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.holds import HoldRequest, acquire, settle_storage
from orchestrator.runs.image_builds import finish_image, give_back
from orchestrator.runs.launch import LaunchContext, RunOrder, begin_launch
from orchestrator.store.documents import Shelf

MARGIN_S: Final = 90.0
"""Between the end of a seal and the deadline of the machine whose disk it copies."""


@dataclass(frozen=True, slots=True)
class ImageWish:
    """The image to build: for which GPU, from which base image, for how long, and with what on it."""

    gpu: str
    base: ImageUrl
    torch: str
    days: int
    disk_gb: int
    requirements: tuple[str, ...] = ()
    """Those of a workload."""


def wish_of(config: Config, base: ImageUrl, days: int) -> ImageWish:
    """The image from which launches with this configuration would boot."""
    needs = () if config.workload is None else config.workload.needs
    return ImageWish(config.gpu, base, config.environment.torch, days, config.machine.disk_gb, needs)


def build_plan(plan: LaunchPlan, wish: ImageWish) -> LaunchPlan:
    """The plan of a run on a small machine that prepares its own disk instead of measuring."""
    prepare = {"ncu": True, "wait_s": max(300, plan.ttl_s - 900)}
    return replace(
        plan, image=wish.base, base_image=NO_IMAGE, prepare=prepare, cases=(), measurements_per_implementation=0
    )


def build_image(
    world: World,
    order: RunOrder,
    wish: ImageWish,
    *,
    say: Callable[[str], None] = lambda _: None,
    watch: Callable[[Run], None] | None = None,
) -> ImageRecord:
    """An image, sealed while its machine lives and recorded. Raises `BudgetExceeded` before anything is asked for where
    its storage does not fit, `RunFailed` where the machine did not get ready, and `ProviderError` where the cloud did
    not make it; whatever happened, the machine is gone, and what was not made costs nothing."""
    shelf_of(world)  # refuses before anything is asked for
    run_id = order.run_id
    name = image_name(wish.gpu, run_id)
    try:
        _hold_storage(world, wish, order.plan.mode == "embedded", name)
        engine = begin_launch(world, order, say=say, cold=True)
        run = engine.follow(watch=watch, until=lambda run: run.prepared is not None)
        if run.prepared is None or run.vm is None or not run.vm.open:
            detail = run.closed.detail if run.closed is not None else "its machine is gone"
            raise RunFailed(
                f"no image was made: {run.phase.value}, {detail}", hint=f"`bench diagnose {run_id}` says why"
            )
        engine.log.append(ev.SealRequested(image=ImageUrl(name)))
        record = _sealed(world, run, run.prepared, wish, name, order.where, say)
    except (Exception, KeyboardInterrupt):
        _undo(world, run_id, name, order.where.user, say)
        raise
    finish_image(world, record)
    Engine(world, run_id).follow()
    return record


def _undo(world: World, run_id: str, name: str, by: str, say: Callable[[str], None]) -> None:
    """Ends a build that was interrupted or failed. That it is to end is recorded first: if this is interrupted too,
    whoever looks next goes on with it (`look_after_builds`)."""
    record = _recorded(world, name)
    if record is not None:
        finish_image(world, record)
        return
    run = replay(world.log(run_id).read())
    if run is None:
        give_back(world, name)
        return
    say(f"deleting the machine of image {name}, which was not finished")
    engine = Engine(world, run_id)
    if run.closed is None:
        engine.request_stop(by, "no image was made")
    if run.sealing is None or _unmade(world, name):
        give_back(world, name)
    engine.follow()


def _recorded(world: World, name: str) -> ImageRecord | None:
    return next((one for one in shelf_of(world).records.every()[0] if one.name == name), None)


def _hold_storage(world: World, wish: ImageWish, pretend: bool, name: str) -> None:
    """Hold the most that the storage of an image can cost. Raise `BudgetExceeded`."""
    request = HoldRequest(
        most_of(name),
        storage_usd(wish.disk_gb * 2**30, wish.days * 86_400),
        f"an image that is kept for {count(wish.days, 'day')}",
        note=f"storage of {name}, at most, until it is made",
        pretend=pretend,
        storage=True,
        remedy="a smaller --days costs less",
    )
    acquire(world.accounts, request)


def _request(name: str, wish: ImageWish, run_id: str, vm: Vm, marks: Mapping[str, str], left_s: float) -> ImageRequest:
    """The request to the cloud. Sent twice, it makes one image."""
    return ImageRequest(
        name=ImageName(name),
        family=ImageName(family_of(wish.gpu)),
        zone=vm.zone,
        disk=vm.name,
        labels=marks,
        description=f"made by spotbench from {wish.base}",
        request_id=str(uuid5(NAMESPACE_URL, f"spotbench:{run_id}/seal/{name}")),
        patience_s=max(left_s, 30.0),
    )


def _sealed(
    world: World,
    run: Run,
    told: ev.ImagePrepared,
    wish: ImageWish,
    name: str,
    where: LaunchContext,
    say: Callable[[str], None],
) -> ImageRecord:
    """The image, once it is READY and recorded."""
    shelf, vm, began = shelf_of(world), run.vm, world.clock.now()
    assert vm is not None, "waiting for the run's last word before its disk is copied"
    expires = began + timedelta(days=wish.days)
    left_s = (vm.deadline_at - began).total_seconds() - MARGIN_S if vm.deadline_at is not None else 600.0
    say(f"{vm.name} is ready; copying its disk into image {name}")
    vm_labels = machine_labels(run.run_id, vm.attempt, where.user, where.bucket)
    marks = vm_labels | {EXPIRES_LABEL: expires_label(expires), GPU_LABEL: wish.gpu}
    image = shelf.cloud().seal(_request(name, wish, run.run_id, vm, marks, left_s))
    now = world.clock.now()
    usd = storage_usd(image.archive_bytes, (expires - now).total_seconds())
    record = ImageRecord(
        name=name,
        gpu=wish.gpu,
        url=image.url,
        image_id=image.id,
        base=wish.base,
        torch=told.torch,
        driver=told.driver,
        kernel=told.kernel,
        ncu=told.ncu,
        environment=environment_of(wish.torch, wish.requirements),
        requirements=wish.requirements,
        disk_gb=image.disk_gb,
        archive_bytes=image.archive_bytes,
        run=run.run_id,
        created_at=now,
        expires_at=expires,
        usd=usd,
    )
    shelf.records.create(record)
    return record


def _unmade(world: World, name: str) -> bool:
    """Whether nothing is left of an image that was asked for and is not recorded. `bench reap` tries again where this
    cannot; until then what it costs at most stays set aside."""
    try:
        shelf_of(world).cloud().delete(ImageName(name))
    except BenchError:
        return False
    return True


def shelf_of(world: World) -> Shelf:
    """Raises `ConfigError` if there can be no images."""
    if world.shelf is None:
        raise ConfigError(
            "machines of your own cannot have prepared images",
            hint="`bench init` sets up a Google project, and `bench init --embedded` the embedded cloud",
        )
    return world.shelf


# --- the end of an image ---------------------------------------------------------------------------------------------


def remove_image(world: World, name: str, lines: Sequence[StatusLine]) -> ImageRecord:
    """Deletes an image that no live run boots from, and what is left of its cost. Raises `NotFound`, `ConfigError`."""
    shelf = shelf_of(world)
    pinned = [line.run_id for line in lines if line.image == name and not line.over]
    if pinned:
        raise ConfigError(
            f"{name} is in use: {pinned[0]} boots from it",
            hint=f"wait until that run is over, or end it: `bench stop {pinned[0]}`",
        )
    records, _ = shelf.records.every()
    if name not in {one.name for one in records}:
        raise NotFound(f"image not found in this bucket: {name}", hint="`bench image list` lists them")
    cloud = shelf.cloud()
    cloud.deprecate(ImageName(name))
    cloud.delete(ImageName(name))
    return _gone(world, shelf, name)


def _gone(world: World, shelf: Shelf, name: str) -> ImageRecord:
    """Records the end of an image. Its cost becomes what its storage has really cost."""
    now = world.clock.now()
    record = shelf.records.update(
        name, lambda record: record if record.gone_at is not None else record.model_copy(update={"gone_at": now})
    )
    usd = storage_usd(record.archive_bytes, ((record.gone_at or now) - record.created_at).total_seconds())
    settle_storage(world.accounts, cost_of(name), f"{cost_of(name)}-kept", usd, f"storage of {name}, now gone")
    return record


@dataclass(frozen=True, slots=True)
class ImageFinding:
    """One image of ours in the cloud, and why it should go; empty: it stays."""

    image: CloudImage
    why: str


def survey_images(world: World) -> tuple[ImageFinding, ...]:
    """Every image of this bucket with the verdict on it."""
    shelf = shelf_of(world)
    listed = shelf.cloud().images()
    recorded_names = {one.name for one in shelf.records.every()[0]} if listed else set()
    return tuple(
        ImageFinding(image, _verdict(world, image, recorded_names))
        for image in listed
        if is_label_of(image.labels.get(BUCKET_LABEL, ""), world.bucket.name)
    )


def _verdict(world: World, image: CloudImage, known: set[str]) -> str:
    now = world.clock.now()
    if is_expired(image.labels, now):
        return "it has expired"
    if image.name in known:
        return ""
    if image.status == "FAILED":
        return "the cloud could not make it"
    run_id = image.labels.get(RUN_LABEL, "")
    run = replay(world.log(run_id).read()) if is_run_id(run_id) else None
    return "the run that made it is over and recorded no image" if run is None or run.over else ""


def reap_images(world: World, findings: Sequence[ImageFinding]) -> tuple[tuple[str, ...], tuple[BenchError, ...]]:
    """Deletes those that should go, and records it; the names, and what could not be done."""
    shelf = shelf_of(world)
    gone: list[str] = []
    failed: list[BenchError] = []
    for finding in findings:
        if not finding.why:
            continue
        try:
            shelf.cloud().delete(ImageName(finding.image.name))
            gone.append(finding.image.name)
            _gone(world, shelf, finding.image.name)
        except NotFound:
            continue  # it was never recorded
        except BenchError as error:
            failed.append(error)
    return tuple(gone), tuple(failed)
