"""The laws of the shared ledger, over every bucket: no update is lost, and none is made twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from threading import Barrier
from typing import Any

import pytest

from orchestrator.core.errors import Unavailable
from orchestrator.core.ledger.budget import Cost, Ledger, LedgerEntry, LedgerUnreadable
from orchestrator.core.naming import LEDGER
from orchestrator.ports import Bucket
from orchestrator.store.documents import ATTEMPTS, LedgerStore
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock

NOW = SimulatedClock().now()


def hold(run: str, usd: str = "0.50") -> Callable[[Ledger], Ledger]:
    def change(ledger: Ledger) -> Ledger:
        if run in ledger.runs:
            return ledger
        return ledger.model_copy(update={"runs": {**ledger.runs, run: LedgerEntry(hold_usd=Decimal(usd), held_at=NOW)}})

    return change


def store(bucket: Bucket) -> LedgerStore:
    return LedgerStore(bucket, SimulatedClock())


def test_where_nothing_was_ever_held_the_ledger_is_empty(bucket: Bucket) -> None:
    assert store(bucket).read() == Ledger()
    assert store(bucket).read_with_generation() == (Ledger(), 0)


def test_an_update_is_read_back_by_everyone(bucket: Bucket) -> None:
    written = store(bucket).update(hold("r1"))
    assert store(bucket).read() == written
    assert written.runs["r1"].held == Decimal("0.50")


def test_a_refusal_is_returned_and_nothing_is_stored(bucket: Bucket) -> None:
    def refuse(ledger: Ledger) -> Ledger | str:
        return "too dear"

    assert store(bucket).update(refuse) == "too dear"
    assert bucket.read(LEDGER) is None


def test_an_update_that_changes_nothing_writes_nothing(bucket: Bucket) -> None:
    ledgers = store(bucket)
    ledgers.update(hold("r1"))
    before = ledgers.read_with_generation()
    ledgers.update(hold("r1"))
    assert ledgers.read_with_generation() == before


def test_of_many_clients_at_once_none_loses_its_hold(bucket: Bucket) -> None:
    start = Barrier(6)

    def client(number: int) -> None:
        start.wait()
        store(bucket).update(hold(f"r{number}"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(client, range(6)))
    assert set(store(bucket).read().runs) == {f"r{number}" for number in range(6)}


def test_two_clients_cannot_both_hold_the_last_dollar(bucket: Bucket) -> None:
    cap, start = Decimal(1), Barrier(4)

    def client(number: int) -> bool:
        def change(ledger: Ledger) -> Ledger | None:
            held = sum((entry.held for entry in ledger.runs.values()), Decimal(0))
            return hold(f"r{number}", "0.60")(ledger) if held + Decimal("0.60") <= cap else None

        start.wait()
        return store(bucket).update(change) is not None

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(client, range(4))).count(True) == 1


@dataclass
class Contended(MemoryBucket):
    """Another client changes the ledger just before each of the first `rivals` replacements; answers may be lost."""

    rivals: int = 0
    lost_answers: int = 0

    def replace(self, name: str, data: bytes, **about: Any) -> int | None:
        if self.rivals:
            self.rivals -= 1
            there = super().read(name)
            rival = hold(f"rival-{self.rivals}")(Ledger.parse(there.data) if there else Ledger())
            super().replace(name, rival.dump(), generation=None)
        stored = super().replace(name, data, **about)
        if self.lost_answers and stored is not None:
            self.lost_answers -= 1
            return None  # the client below sent it again, and its own object was in the way
        return stored


def test_the_change_is_made_again_on_what_the_faster_client_left() -> None:
    bucket = Contended(rivals=3)
    clock = SimulatedClock()
    LedgerStore(bucket, clock).update(hold("ours"))
    assert set(store(bucket).read().runs) == {"ours", "rival-0", "rival-1", "rival-2"}
    assert len(clock.slept) == 3
    assert all(0 < pause <= 3.2 for pause in clock.slept)


def test_an_update_whose_answer_was_lost_is_not_made_twice() -> None:
    bucket = Contended(lost_answers=1)
    made: list[str] = []

    def change(ledger: Ledger) -> Ledger:
        made.append("once more")
        key = f"c{len(ledger.costs)}"
        cost = Cost.model_validate({"usd": "1.50", "at": NOW, "category": "ai", "note": ""})
        return ledger.model_copy(update={"costs": {**ledger.costs, key: cost}})

    store(bucket).update(change)
    assert len(store(bucket).read().costs) == 1
    assert made == ["once more"]


def test_endless_contention_ends_in_an_error_that_says_so() -> None:
    bucket = Contended(rivals=10_000)
    clock = SimulatedClock()
    with pytest.raises(Unavailable, match=f"changed {ATTEMPTS} times"):
        LedgerStore(bucket, clock).update(hold("ours"))
    assert sum(clock.slept) < 40
    assert "ours" not in store(bucket).read().runs


def test_a_ledger_that_cannot_be_read_stops_every_update(bucket: Bucket) -> None:
    bucket.create(LEDGER, b'{"schema": 99}')
    with pytest.raises(LedgerUnreadable):
        store(bucket).update(hold("r1"))
