"""A build of an image where something else answers in the place of Google: it is made, or ended and paid for as billed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.adapters.gce import GoogleCloud
from orchestrator.adapters.gce_images import GoogleImages
from orchestrator.adapters.gcs import GoogleBucket
from orchestrator.adapters.google_auth import Bearer
from orchestrator.core.errors import BenchError
from orchestrator.core.ledger.unlisted import outstanding_images
from orchestrator.runs.engine import World
from orchestrator.runs.images import reap_images, remove_image, survey_images
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.events import EventLog
from orchestrator.store.images import ImageRecords, Shelf
from orchestrator.store.index import RunIndex
from orchestrator.store.ledger import LedgerStore
from tests.integration.stories.stage import Stage, staged
from tests.integration.stories.test_images import built, machines, nothing_left
from tests.support.mangled import WHOLE, Mangler
from tests.support.patience import PATIENCE_S
from tests.support.scripted_server import scripted_server

LONGEST_S = 4000
"""By then whatever a client left is over, if somebody looks."""


def through(stage: Stage, url: str) -> World:
    """A client's view, through the server at `url`."""
    world, key = stage.world(), Bearer(stage.cloud.token)
    clock = world.clock
    bucket = GoogleBucket(stage.cloud.bucket, endpoint=url, credentials=key, patience_s=PATIENCE_S)
    google = GoogleCloud(project=stage.cloud.project, endpoint=url, credentials=key, clock=clock)
    images = GoogleImages(project=stage.cloud.project, endpoint=url, credentials=key, clock=clock)
    return replace(
        world,
        cloud=lambda: google,
        bucket=bucket,
        accounts=replace(world.accounts, ledger=LedgerStore(bucket, clock)),
        index=RunIndex(bucket),
        log=lambda run_id: EventLog(bucket, run_id, "client-abcdef", clock),
        shelf=Shelf(ImageRecords(bucket, clock), lambda: images),
    )


def looked_after(stage: Stage) -> None:
    """Somebody looks every minute, until nothing is left to end."""
    for _ in range(LONGEST_S // 60):
        reconcile_holds(stage.world())
        ledger = stage.ledger()
        unsettled = [key for key, entry in ledger.runs.items() if entry.settled_usd is None]
        if not unsettled and not outstanding_images(ledger) and not stage.cloud.instances():
            return
        reap_images(stage.world(), survey_images(stage.world()))
        stage.timeline.advance(60)
    raise AssertionError(f"left: {unsettled}, {outstanding_images(ledger)}, {stage.cloud.instances()}")


def assert_paid_as_billed(stage: Stage) -> None:
    spent = sum((entry.spent for entry in stage.ledger().runs.values()), Decimal(0))
    billed = sum((Decimal(row["usd"]) for row in stage.bill()), Decimal(0))
    assert spent > billed - Decimal("0.005")


@pytest.mark.parametrize("part", range(4))
def test_no_answer_to_a_build_is_so_strange_that_anything_is_left(home: Path, part: int) -> None:
    """One answer of 36, each time another; `part` says which."""
    names, at, requests = sorted(WHOLE), 1 + 9 * part, 37
    while at <= requests:
        how = names[at % len(names)] if (at // 9) % 2 else at
        with staged(home / str(at), machines()) as stage:
            mangler = Mangler(stage.cloud.compute_url, stage.cloud.storage_url, at, how)
            with scripted_server(mangler) as server, suppress(BenchError):
                built(stage, world=through(stage, server.url))
            assert mangler.done
            requests = mangler.seen
            looked_after(stage)
            assert_paid_as_billed(stage)
            assert recorded(stage) == {image["name"] for image in stage.cloud.images.documents()}, mangler.done
            for name in recorded(stage):
                remove_image(stage.world(), name, ())
        at += 36


@pytest.mark.parametrize("at", range(1, 9))
def test_no_answer_to_a_deletion_keeps_the_image_from_being_deleted_later(home: Path, at: int) -> None:
    with staged(home, machines()) as stage:
        name = built(stage).name
        mangler = Mangler(stage.cloud.compute_url, stage.cloud.storage_url, at, sorted(WHOLE)[at])
        with scripted_server(mangler) as server, suppress(BenchError):
            remove_image(through(stage, server.url), name, ())
        assert mangler.done
        if recorded(stage):
            remove_image(stage.world(), name, ())
        nothing_left(stage)


def recorded(stage: Stage) -> set[str]:
    """The images that exist, as the bucket says."""
    shelf = stage.world().shelf
    assert shelf is not None
    return {one.name for one in shelf.records.every()[0] if one.gone_at is None}
