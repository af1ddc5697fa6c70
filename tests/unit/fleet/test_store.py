"""A fleet in the bucket: few calls however many children, and documents that are not ours stop nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from orchestrator.core.errors import DocumentUnreadable, NotFound
from orchestrator.core.fleet.state import ChildLine, encode_line
from orchestrator.core.fleet.sweep import Sweep, expand_children
from orchestrator.core.names import SHARDS, control_object, line_object, lines_prefix
from orchestrator.store.fleets import FleetRecord, FleetStore, list_fleets
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.core.builders import T0

FLEET = "fleet-20261122-040506-7f3a"
SWEEP = Sweep.model_validate({"axes": {"gpu": ["l4", "t4"], "measure.seed": list(range(50))}, "repeats": 10})
CHILDREN = expand_children(SWEEP, lambda _: ())
RECORD = FleetRecord(
    fleet=FLEET, engine="slurm", mode="host", user="ada", sweep=SWEEP, created_at=T0, ends_at=T0 + timedelta(hours=4),
    hold_usd=Decimal("1.5"), usd_per_hour={"l4": Decimal("0.36")},
)  # fmt: skip


def store(bucket: MemoryBucket) -> FleetStore:
    return FleetStore(bucket, SimulatedClock(), FLEET)


@pytest.fixture
def bucket() -> MemoryBucket:
    made = MemoryBucket()
    store(made).create(RECORD, CHILDREN)
    return made


def test_a_look_at_a_thousand_children_takes_nineteen_calls(bucket: MemoryBucket) -> None:
    store(bucket).write([ChildLine(index, "stored", 1, "n1") for index in range(len(CHILDREN))])
    before = bucket.calls
    mine = store(bucket)
    assert mine.record() == RECORD
    children = mine.children()
    assert children == CHILDREN
    assert not mine.control().paused
    assert mine.state(children).counts == {"stored": 1000}
    assert bucket.calls - before == 19


def test_ten_thousand_children_take_no_more_calls_than_a_thousand_and_no_second_page() -> None:
    sweep = SWEEP.model_copy(update={"repeats": 100})
    bucket, children = MemoryBucket(), expand_children(sweep, lambda _: ())
    store(bucket).create(RECORD, children)
    store(bucket).write([ChildLine(index, "running", 1, "n1") for index in range(len(children))])
    before = bucket.calls
    mine = store(bucket)
    mine.record()
    assert mine.state(mine.children()).counts == {"running": 10_000}
    mine.control()
    assert bucket.calls - before == 19
    assert max(len(bucket.list(lines_prefix(FLEET, digit))) for digit in SHARDS) < 1000, "what a page has"


def test_a_line_counts_only_under_its_own_name(bucket: MemoryBucket) -> None:
    bucket.replace(
        f"{lines_prefix(FLEET, '0')}7.json", b"{}", generation=None, metadata=encode_line(ChildLine(8, "stored"))
    )
    bucket.replace(line_object(FLEET, 9), b"{}", generation=None, metadata={"state": "stored", "child": "many"})
    assert store(bucket).state(CHILDREN).counts == {"waiting": 1000}


def test_a_line_that_says_nothing_new_is_not_stored_again(bucket: MemoryBucket) -> None:
    mine = store(bucket)
    mine.write([ChildLine(1, "stored", 2)])
    before = bucket.calls
    mine.write([ChildLine(1, "running", 1), ChildLine(1, "stored", 2)])
    assert bucket.calls == before


def test_documents_that_are_not_ours_are_named(bucket: MemoryBucket) -> None:
    bucket.replace(control_object(FLEET), b"[]", generation=None)
    with pytest.raises(DocumentUnreadable, match=r"control\.json"):
        store(bucket).control()
    with pytest.raises(NotFound, match="there is no fleet"):
        FleetStore(bucket, SimulatedClock(), "fleet-20261122-040506-0000").record()


def test_fleets_are_listed_by_their_names_alone(bucket: MemoryBucket) -> None:
    store(bucket).list_as({"state": "open"})
    bucket.create("fleet-index/somebody-elses.json", b"{}")
    assert list_fleets(bucket) == ((FLEET, {"state": "open"}),)
