"""Builds of images whose client may be gone: the amount that was set aside for an image tells of each.

It is noted before anything else of a build, and replaced by the image's cost as the last thing. So whoever finds one
can tell from the run that builds the image what is left to do: end the run, give the amount back, or finish.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrator.core.errors import BenchError
from orchestrator.core.images import ImageRecord, cost_of, is_image_of
from orchestrator.core.ledger.unlisted import most_of, outstanding_images
from orchestrator.core.names import ImageName
from orchestrator.core.naming import run_prefix
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.holds import release_storage, settle_storage
from orchestrator.store.documents import Shelf

BEGINS_WITHIN: Final = timedelta(minutes=13)
"""Between the amount and the first event of its run; clocks of two clients may be apart."""
ASKS_WITHIN: Final = timedelta(minutes=3)
"""Between `seal_requested` and the image in the cloud."""
RECORDS_WITHIN: Final = timedelta(minutes=30)
"""Between `seal_requested` and the record of the image: the cloud is given 25 minutes to make it."""
LISTED_EVENTS: Final = 5_000
"""How many events are listed at most to find the run of a build."""
LEFT: Final = "what is left of it is deleted by `bench reap --yes`"


@dataclass(frozen=True, slots=True)
class Build:
    """One image that was not made yet, and what became of it. `run_id` is empty where there is no run of it."""

    name: str
    run_id: str
    over: bool
    what: str


def give_back(world: World, name: str) -> None:
    release_storage(world.accounts, most_of(name), f"{name} was not made")


def finish_image(world: World, record: ImageRecord) -> None:
    """What is left to do of an image that is recorded: its machine hears so and ends, and its cost takes the place of
    the amount. Done twice it is done once."""
    word = json.dumps({"schema": 1, "image": record.name}).encode()
    world.bucket.create(f"{run_prefix(record.run)}sealed.json", word)
    note = f"storage of {record.name} until {record.expires_at:%Y-%m-%d}"
    settle_storage(world.accounts, most_of(record.name), cost_of(record.name), record.usd, note)


def look_after_builds(world: World) -> tuple[Build, ...]:
    """Look after every image that was not made yet. Costs one request when there is none. One that cannot be looked
    after hides no other."""
    builds = []
    for name in outstanding_images(world.ledger.read()) if world.shelf is not None else ():
        try:
            build = look_after_build(world, name)
        except BenchError as exc:
            build = Build(name, _run_of(world, name), False, f"it could not be looked after: {exc}")
        builds += [build] if build is not None else []
    return tuple(builds)


def look_after_build(world: World, name: str) -> Build | None:
    """Look after one image that was not made yet; None where there can be no images, or its money is given back."""
    since = outstanding_images(world.ledger.read()).get(name)
    if world.shelf is None or since is None:
        return None
    record = next((one for one in world.shelf.records.every()[0] if one.name == name), None)
    return _one(world, world.shelf, Build(name, _run_of(world, name), False, ""), record, since)


def _one(world: World, shelf: Shelf, build: Build, record: ImageRecord | None, since: datetime) -> Build:
    name, run_id = build.name, build.run_id
    if record is not None:
        finish_image(world, record)
        return Build(name, record.run, True, "it is made")
    there = shelf.cloud().image(ImageName(name)) is not None
    if not run_id:
        if world.clock.now() - since < BEGINS_WITHIN:
            return Build(name, "", False, "its client may be about to begin")
        if there:
            return Build(name, "", False, LEFT)
        give_back(world, name)
        return Build(name, "", True, "its client was interrupted before it began")
    engine = Engine(world, run_id)
    run = engine.catch_up()
    if run.closed is None and _is_left(run, world.clock.now(), there=there):
        engine.request_stop("bench", "no client recorded its image")
        run = engine.catch_up()
    if not run.over:
        return Build(name, run_id, False, run.phase.value)
    if there:
        return Build(name, run_id, False, LEFT)
    give_back(world, name)
    return Build(name, run_id, True, "no image came of it")


def _is_left(run: Run, now: datetime, *, there: bool) -> bool:
    """Whether the client that set out to copy the disk must be gone. Its word on that was its last."""
    return run.sealing is not None and now - run.updated_at > (RECORDS_WITHIN if there else ASKS_WITHIN)


def _run_of(world: World, name: str) -> str:
    """The run that builds an image, by the image's name and what its client wrote, as machines write below any name;
    empty where it has not begun."""
    stamp = re.search(r"-(\d{8}-\d{6})-[0-9a-f]{4}$", name)
    if stamp is None:
        return ""
    prefix = run_prefix(stamp[1])[:-1]
    by_clients = world.bucket.list(f"{prefix}-", matching=f"{prefix}-*/events/*Z-client-*", most=LISTED_EVENTS)
    begun = {one.name.split("/")[1] for one in by_clients}
    return next((run_id for run_id in sorted(begun) if is_image_of(run_id, name)), "")
