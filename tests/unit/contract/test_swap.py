"""The laws of compare-and-swap, over every document of the bucket that changes, and under lost answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Barrier
from typing import Any

import pytest

from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.baselines import Baseline
from orchestrator.core.errors import Unavailable
from orchestrator.core.hosts import parse_target
from orchestrator.core.ledger.budget import add_cost
from orchestrator.core.run.slots import Slot
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.ports import Bucket
from orchestrator.store import documents
from orchestrator.store.documents import (
    TAKEN,
    StoredDocument,
    baseline_document,
    claim_slot,
    host_document,
    slot_document,
    stockouts_document,
    swap,
)
from orchestrator.store.fleets import JobRecord, control_document
from tests.support.memory_bucket import MemoryBucket
from tests.support.patience import PATIENCE_S
from tests.support.simulated_clock import SimulatedClock

NOW = datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC)
RUN = "20261121-040000-l4-0001"
VM = "bench-20261121-040000-l4-0001-1"
SLOT = Slot.model_validate(
    {"state": "idle", "vm": VM, "zone": "z", "owner": RUN, "idle_until": NOW + timedelta(hours=1)}
)
CLAIM = {"run_id": RUN, "by": "ada", "spec": {}, "payload": {}}


@dataclass(frozen=True)
class Case:
    """A document, what is there at first, how client `n` leaves its mark on it, and whose marks it has."""

    document: StoredDocument[Any]
    first: bytes | None
    mark: Callable[[Any, str], Any]
    marks: Callable[[Any], set[str]]


def _baselines(there: dict[str, Baseline], n: str) -> dict[str, Baseline]:
    return {**there, n: Baseline("20261121-040506-l4-7f3a", n, "c0ffee", False, {}, "2026-11-21T05:00:00Z", "ada")}


def _slot(slot: Slot, n: str) -> Slot:
    payload = {**(slot.claim.payload if slot.claim else {}), n: n}
    return Slot.model_validate(slot.model_dump(by_alias=True) | {"claim": {**CLAIM, "payload": payload}})


CASES = {
    "ledger": Case(
        documents.LEDGER_DOCUMENT,
        None,
        lambda there, n: add_cost(there, "ai", Decimal(1), "", NOW, n),
        lambda there: set(there.costs),
    ),
    "baselines": Case(baseline_document("main"), None, _baselines, set),
    "stockouts": Case(
        stockouts_document("g2-standard-4"),
        None,
        lambda there, n: {**there, (n, "g2-standard-4", "SPOT"): NOW},
        lambda there: {zone for zone, _, _ in there},
    ),
    "host": Case(
        host_document(parse_target("me@box")),
        None,
        lambda there, n: there.model_copy(update={"fingerprint": {**there.fingerprint, n: n}}),
        lambda there: set(there.fingerprint),
    ),
    "slot": Case(
        slot_document(f"machines/{VM}.json"),
        SLOT.dump(),
        _slot,
        lambda there: set(there.claim.payload) if there.claim else set(),
    ),
    "fleet": Case(
        control_document("fleet-20261121-040000-0001", "b"),
        None,
        lambda there, n: there.model_copy(
            update={"jobs": (*there.jobs, JobRecord(number=len(there.jobs), gpu=n, children=(), parallel=1))}
        ),
        lambda there: {job.gpu for job in there.jobs},
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCloud]:
    with EmbeddedCloud(home=tmp_path_factory.mktemp("swaps")) as running:
        yield running


@contextmanager
def clients(cloud: EmbeddedCloud, case: Case, count: int) -> Iterator[list[GoogleBucket]]:
    """Several clients of a bucket, in which the document is as it is at first."""
    key = Bearer(cloud.token)
    buckets = [
        GoogleBucket(cloud.bucket, endpoint=cloud.storage_url, credentials=key, patience_s=PATIENCE_S)
        for _ in range(count)
    ]
    buckets[0].replace(case.document.name, case.first or case.document.dump(case.document.parse(None)), generation=None)
    yield buckets
    cloud.weather.replace({"faults": []})
    for one in buckets:
        one.close()


def lost(times: int) -> dict[str, Any]:
    """The work is done, and its answer never arrives."""
    fault = {"fault": "reset", "service": "storage", "method": "POST", "path": "/upload/", "times": times}
    return {"faults": [fault | {"after": "response"}]}


def read(bucket: Bucket, case: Case) -> Any:
    blob = bucket.read(case.document.name)
    return case.document.parse(blob.data if blob else None)


def test_a_swap_whose_answer_is_lost_is_made_and_made_once(cloud: EmbeddedCloud, case: Case) -> None:
    with clients(cloud, case, 1) as (bucket,):
        cloud.weather.replace(lost(1))
        calls: list[str] = []

        def change(there: Any) -> Any:
            calls.append("called")
            return case.mark(there, "ours")

        made = swap(bucket, SimulatedClock(), case.document, change)
        assert cloud.weather.document()["faults"][-1]["fired"] == 1
        assert case.marks(made) == case.marks(read(bucket, case)) == {"ours"}
        assert calls == ["called"]


def test_of_many_writers_whose_answers_are_lost_none_loses_its_mark(cloud: EmbeddedCloud, case: Case) -> None:
    start = Barrier(4)
    with clients(cloud, case, 4) as buckets:
        cloud.weather.replace(lost(3))

        def client(number: int) -> None:
            start.wait()
            swap(buckets[number], Patient(), case.document, lambda there: case.mark(there, f"client {number}"))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(client, range(4)))
        assert case.marks(read(buckets[0], case)) == {f"client {number}" for number in range(4)}


class Patient(SimulatedClock):
    """Lets the others go first."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        time.sleep(min(seconds, 0.2))


@dataclass
class Rivals(MemoryBucket):
    """Somebody else changes the document before each of the first `rivals` replacements."""

    case: Case = CASES["ledger"]
    rivals: int = 0

    def replace(self, name: str, data: bytes, *, generation: int | None, **how: Any) -> int | None:
        if self.rivals:
            self.rivals -= 1
            theirs = self.case.mark(read(self, self.case), f"rival {self.rivals}")
            super().replace(name, self.case.document.dump(theirs), generation=None)
        return super().replace(name, data, generation=generation, **how)


def rivalled(case: Case, rivals: int) -> Rivals:
    bucket = Rivals(case=case)
    if case.first or not rivals:  # else the first rival makes the document
        bucket.replace(case.document.name, case.first or case.document.dump(case.document.parse(None)), generation=None)
    bucket.rivals = rivals
    return bucket


def test_the_change_is_made_again_on_what_the_faster_client_left(case: Case) -> None:
    bucket, clock = rivalled(case, 3), SimulatedClock()
    swap(bucket, clock, case.document, lambda there: case.mark(there, "ours"))
    assert case.marks(read(bucket, case)) == {"ours", "rival 0", "rival 1", "rival 2"}
    assert len(clock.slept) == 3


def test_patience_grows_is_jittered_and_ends_in_an_error_that_names_the_object(case: Case) -> None:
    bucket, clock = rivalled(case, 10_000), SimulatedClock()
    with pytest.raises(Unavailable, match=f"{case.document.name} changed 12 times"):
        swap(bucket, clock, case.document, lambda there: case.mark(there, "ours"))
    assert 1 < sum(clock.slept) < 40
    assert len(set(clock.slept)) > 3
    assert "ours" not in case.marks(read(bucket, case))


def test_a_refusal_and_what_changes_nothing_write_nothing(case: Case) -> None:
    bucket = rivalled(case, 0)
    before = bucket.read(case.document.name)
    assert swap(bucket, SimulatedClock(), case.document, lambda _: None) is None
    swap(bucket, SimulatedClock(), case.document, lambda there: there)
    assert bucket.read(case.document.name) == before


def test_the_same_value_is_the_same_bytes_and_they_are_read_back(case: Case) -> None:
    value = case.mark(case.mark(case.document.parse(case.first), "one"), "two")
    assert case.document.dump(value) == case.document.dump(case.document.parse(case.document.dump(value)))
    assert case.marks(case.document.parse(case.document.dump(value))) == {"one", "two"}


def test_of_many_claims_of_one_machine_whose_answers_are_lost_one_gets_it(cloud: EmbeddedCloud) -> None:
    start, name = Barrier(4), f"machines/{VM}.json"
    with clients(cloud, CASES["slot"], 4) as buckets:
        cloud.weather.replace(lost(2))

        def client(number: int) -> bool:
            start.wait()
            return (
                claim_slot(buckets[number], Patient(), name, f"20261121-040000-l4-000{number}", "ada", {}, {})
                is not TAKEN
            )

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(client, range(4)))
        slot = Slot.parse(buckets[0].read(name).data)  # type: ignore[union-attr]
        assert [slot.claim.run_id] == [f"20261121-040000-l4-000{number}" for number in range(4) if won[number]]


def test_a_claim_that_the_machine_has_taken_up_is_still_ours() -> None:
    bucket, name = MemoryBucket(), f"machines/{VM}.json"
    bucket.create(name, SLOT.dump())
    ours = claim_slot(bucket, SimulatedClock(), name, "20261121-040000-l4-0001", "ada", {}, {})
    assert isinstance(ours, Slot)
    bucket.replace(name, ours.model_copy(update={"state": "running"}).dump(), generation=None)
    assert claim_slot(bucket, SimulatedClock(), name, "20261121-040000-l4-0001", "ada", {}, {}) is not TAKEN
    assert claim_slot(bucket, SimulatedClock(), name, "20261121-040000-l4-0002", "ada", {}, {}) is TAKEN
