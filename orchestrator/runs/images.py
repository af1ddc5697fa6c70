"""Prepared images: made by a run that ends in a seal, listed, deleted, and looked after once they are due."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core.config.model import Config
from orchestrator.core.errors import BenchError, BudgetExceeded, ConfigError, NotFound, RunFailed
from orchestrator.core.images import (
    EXPIRES_LABEL,
    GPU_LABEL,
    CloudImage,
    ImageRecord,
    cost_of,
    environment_of,
    expired,
    expires_label,
    family_of,
    image_name,
    storage_usd,
)
from orchestrator.core.ledger.budget import Ledger, Refused, add_cost, authorize, counted, take_back
from orchestrator.core.naming import BUCKET_LABEL, RUN_LABEL, is_label_of, is_run_id, labels, run_prefix
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Run, replay
from orchestrator.core.run.state import Vm
from orchestrator.core.run.status import StatusLine
from orchestrator.core.wording import count
from orchestrator.ports import ImageRequest
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import LaunchContext, RunOrder, begin
from orchestrator.store.images import Shelf

CATEGORY: Final = "image"
MOST: Final = "-most"
"""What the id of an amount that is set aside for an image ends in."""
UNMADE_AFTER: Final = timedelta(hours=6)
MARGIN_S: Final = 90.0
"""Between the end of a seal and the deadline of the machine whose disk it copies."""


@dataclass(frozen=True, slots=True)
class ImageWish:
    """What an image is to be: for which GPU, from which base, for how long, with what on it."""

    gpu: str
    base: str
    torch: str
    days: int
    disk_gb: int
    requirements: tuple[str, ...] = ()
    """Those of a workload."""


def wish_of(config: Config, base: str, days: int) -> ImageWish:
    """What launches with this configuration would boot from."""
    needs = () if config.workload is None else config.workload.needs
    return ImageWish(config.gpu, base, config.environment.torch, days, config.machine.disk_gb, needs)


def build_plan(plan: LaunchPlan, wish: ImageWish) -> LaunchPlan:
    """The plan of a run on a small machine that prepares its own disk in the place of measuring."""
    prepare = {"ncu": True, "wait_s": max(300, plan.ttl_s - 900)}
    return replace(plan, image=wish.base, base_image="", prepare=prepare, cases=(), measurements_per_implementation=0)


def build(
    world: World,
    order: RunOrder,
    wish: ImageWish,
    *,
    entropy: str,
    say: Callable[[str], None] = lambda _: None,
    watch: Callable[[Run], None] | None = None,
) -> ImageRecord:
    """An image, sealed while its machine lives and recorded. Raises `BudgetExceeded` before anything is asked for where
    its storage does not fit, `RunFailed` where the machine did not get ready, and `ProviderError` where the cloud did
    not make it; whatever happened, the machine is gone, and what was not made costs nothing."""
    shelf_of(world)  # refuses before anything is asked for
    run_id = order.run_id
    name = image_name(wish.gpu, world.clock.now(), entropy)
    _afford(world, wish, order.plan.mode == "embedded", name)
    sealing = False
    try:
        engine = begin(world, order, say=say, cold=True)
        run = engine.follow(watch=watch, until=lambda run: run.prepared is not None)
        if run.prepared is None or run.vm is None or not run.vm.open:
            detail = run.closed.detail if run.closed is not None else "its machine is gone"
            raise RunFailed(
                f"no image was made: {run.phase.value}, {detail}", hint=f"`bench diagnose {run_id}` says why"
            )
        sealing = True
        record = _sealed(world, run, run.prepared, wish, name, order.where, say)
    except (Exception, KeyboardInterrupt):
        say(f"deleting the machine of image {name}, which was not finished")
        if not sealing or _unmade(world, name):
            _take_back(world, name)
        _end(world, run_id, order.where.user)
        raise
    _dismiss(world, run_id, name)
    return record


def _afford(world: World, wish: ImageWish, pretend: bool, name: str) -> None:
    """Notes what the image can cost at most, if that fits under every cap."""
    now = world.clock.now()
    most = storage_usd(wish.disk_gb * 2**30, wish.days * 86_400)

    def change(ledger: Ledger) -> Ledger | Refused:
        verdict = authorize(ledger, replace(world.caps, run=None), most, now, pretend=pretend)
        if isinstance(verdict, Refused):
            return verdict
        note = f"storage of {name}, at most, until it is made"
        return add_cost(ledger, CATEGORY, most, note, now, _most(name), pretend=pretend)

    answer = world.accounts.change(change)
    if isinstance(answer, Refused):
        raise BudgetExceeded(
            (
                f"an image can cost up to ${most} in {count(wish.days, 'day')}, which is ${answer.short_by} more "
                f"than the cap of ${answer.cap} for {answer.window} leaves"
            ),
            hint="a smaller --days costs less",
        )


def _request(name: str, wish: ImageWish, run_id: str, vm: Vm, marks: Mapping[str, str], left_s: float) -> ImageRequest:
    """What is asked of the cloud; asked twice, it is one image."""
    return ImageRequest(
        name=name,
        family=family_of(wish.gpu),
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
    """The image, once it is READY, its record and its cost. Deletes what failed."""
    shelf, vm, began = shelf_of(world), run.vm, world.clock.now()
    assert vm is not None, "waiting for the run's last word before its disk is copied"
    expires = began + timedelta(days=wish.days)
    left_s = (vm.deadline_at - began).total_seconds() - MARGIN_S if vm.deadline_at is not None else 600.0
    say(f"{vm.name} is ready; copying its disk into image {name}")
    own = labels(run.run_id, vm.attempt, where.user, where.bucket)
    marks = own | {EXPIRES_LABEL: expires_label(expires), GPU_LABEL: wish.gpu}
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
    note = f"storage of {name} until {expires:%Y-%m-%d}"
    _replace_cost(world, _most(name), cost_of(name), usd, note, now)
    return record


def _most(name: str) -> str:
    return f"{cost_of(name)}{MOST}"


def _replace_cost(world: World, old: str, new: str, usd: Decimal, note: str, now: datetime) -> None:
    def change(ledger: Ledger) -> Ledger:
        known = ledger.costs.get(old)
        undone = take_back(ledger, old, note, now, f"{old}-back")
        base = undone if undone is not None else ledger
        return add_cost(base, CATEGORY, usd, note, now, new, pretend=known is not None and known.pretend)

    world.accounts.change(change)


def _take_back(world: World, name: str) -> None:
    now = world.clock.now()

    def change(ledger: Ledger) -> Ledger:
        return take_back(ledger, _most(name), f"{name} was not made", now, f"{_most(name)}-back") or ledger

    world.accounts.change(change)


def _unmade(world: World, name: str) -> bool:
    """Whether nothing is left of an image that was asked for and is not recorded. `bench reap` tries again where this
    cannot; until then what it costs at most stays set aside."""
    shelf = shelf_of(world)
    try:
        if name in {one.name for one in shelf.records.every()[0]}:
            return False
        shelf.cloud().delete(name)
    except BenchError:
        return False
    return True


def _dismiss(world: World, run_id: str, name: str) -> None:
    """The machine has done its part: it hears so, and its run is followed to its end."""
    word = json.dumps({"schema": 1, "image": name}).encode()
    world.bucket.create(f"{run_prefix(run_id)}sealed.json", word)
    Engine(world, run_id).follow()


def _end(world: World, run_id: str, by: str) -> None:
    """The machine, if there is one, has nothing more to do: no image comes of it, and its run has not succeeded."""
    run = replay(world.log(run_id).read())
    if run is None:
        return
    engine = Engine(world, run_id)
    if run.closed is None:
        engine.request_stop(by, "no image was made")
    engine.follow()


def shelf_of(world: World) -> Shelf:
    """Raises `ConfigError` where there can be no images."""
    if world.shelf is None:
        raise ConfigError(
            "machines of your own cannot have prepared images",
            hint="configure a Google project, or use the embedded cloud",
        )
    return world.shelf


# --- the end of an image ---------------------------------------------------------------------------------------------


def remove(world: World, name: str, lines: Sequence[StatusLine]) -> ImageRecord:
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
    cloud.deprecate(name)
    cloud.delete(name)
    return _gone(world, shelf, name)


def _gone(world: World, shelf: Shelf, name: str) -> ImageRecord:
    """Records the end of an image. Its cost becomes what its storage has really cost."""
    now = world.clock.now()
    record = shelf.records.update(
        name, lambda record: record if record.gone_at is not None else record.model_copy(update={"gone_at": now})
    )
    usd = storage_usd(record.archive_bytes, ((record.gone_at or now) - record.created_at).total_seconds())
    _replace_cost(world, cost_of(name), f"{cost_of(name)}-kept", usd, f"storage of {name}, now gone", now)
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
    known = {one.name for one in shelf.records.every()[0]} if listed else set()
    return tuple(
        ImageFinding(image, _verdict(world, image, known))
        for image in listed
        if is_label_of(image.labels.get(BUCKET_LABEL, ""), world.bucket.name)
    )


def _verdict(world: World, image: CloudImage, known: set[str]) -> str:
    now = world.clock.now()
    if expired(image.labels, now):
        return "it has expired"
    if image.name in known:
        return ""
    if image.status == "FAILED":
        return "the cloud could not make it"
    run_id = image.labels.get(RUN_LABEL, "")
    run = replay(world.log(run_id).read()) if is_run_id(run_id) else None
    return "the run that made it is over and recorded no image" if run is None or run.over else ""


def give_back_unmade(world: World, there: Sequence[ImageFinding]) -> int:
    """How many amounts that were set aside for images were given back, as no image came of them: the client that built
    died. Only after hours, when no machine of such a build can be left."""
    now, names = world.clock.now(), {one.image.name for one in there}
    left = [
        key.removeprefix(cost_of("")).removesuffix(MOST)
        for key, cost in counted(world.ledger.read()).items()
        if cost.category == CATEGORY and key.endswith(MOST) and now - cost.at > UNMADE_AFTER
    ]
    unmade = [name for name in left if name not in names]
    for name in unmade:
        _take_back(world, name)
    return len(unmade)


def reap_images(world: World, findings: Sequence[ImageFinding]) -> tuple[tuple[str, ...], tuple[BenchError, ...]]:
    """Deletes those that should go, and records it; the names, and what could not be done."""
    shelf = shelf_of(world)
    gone: list[str] = []
    failed: list[BenchError] = []
    for finding in findings:
        if not finding.why:
            continue
        try:
            shelf.cloud().delete(finding.image.name)
            gone.append(finding.image.name)
            _gone(world, shelf, finding.image.name)
        except NotFound:
            continue  # it was never recorded
        except BenchError as error:
            failed.append(error)
    return tuple(gone), tuple(failed)
