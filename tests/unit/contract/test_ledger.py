"""The laws of the shared ledger, over every bucket: no update is lost, and none is made twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Barrier

import pytest

from orchestrator.core.baselines import Baseline, Baselines, BaselinesUnreadable, Older, place_baseline
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import Ledger, LedgerEntry, LedgerUnreadable
from orchestrator.core.naming import LEDGER, baseline_object
from orchestrator.ports import Bucket
from orchestrator.store.documents import BaselineStore, LedgerStore, StockOuts
from orchestrator.store.index import METADATA_BYTES, RunIndex
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


def test_a_ledger_that_cannot_be_read_stops_every_update(bucket: Bucket) -> None:
    bucket.create(LEDGER, b'{"schema": 99}')
    with pytest.raises(LedgerUnreadable):
        store(bucket).update(hold("r1"))


# The laws of the index of runs, over every bucket.


def run_id(number: int) -> str:
    return f"20261121-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-l4-{number:04x}"


def test_the_status_line_of_a_run_is_in_the_listing(bucket: Bucket) -> None:
    index = RunIndex(bucket)
    index.write(run_id(1), {"phase": "running", "cases": "3/12"}, b'{"a": 1}')
    (line,) = index.list_runs()
    assert line.run_id == run_id(1)
    assert line.status == {"phase": "running", "cases": "3/12"}
    assert line.updated is not None
    assert index.read(run_id(1)) == b'{"a": 1}'


def test_the_last_to_write_wins(bucket: Bucket) -> None:
    index = RunIndex(bucket)
    index.write(run_id(1), {"phase": "running"})
    index.write(run_id(1), {"phase": "succeeded"})
    assert [line.status for line in index.list_runs()] == [{"phase": "succeeded"}]


def test_runs_come_oldest_first(bucket: Bucket) -> None:
    index = RunIndex(bucket)
    for number in (3, 1, 2):
        index.write(run_id(number), {"n": str(number)})
    assert [line.status["n"] for line in index.list_runs()] == ["1", "2", "3"]


def test_what_is_no_run_is_passed_over(bucket: Bucket) -> None:
    bucket.create("index/README.txt", b"hello")
    assert RunIndex(bucket).list_runs() == ()
    assert RunIndex(bucket).read(run_id(9)) is None


def test_a_status_line_that_google_would_refuse_is_refused_before_it_is_sent(bucket: Bucket) -> None:
    with pytest.raises(ConfigError, match="metadata holds"):
        RunIndex(bucket).write(run_id(1), {"note": "x" * METADATA_BYTES})
    assert RunIndex(bucket).list_runs() == ()


# The laws of the history of stock-outs: a hint that many write, that ages, and that never stands in the way.


INDEXED_AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
A, B = ("us-central1-a", "g2-standard-4", "SPOT"), ("us-east1-b", "g2-standard-4", "STANDARD")
OTHER = ("us-east1-b", "n1-standard-4", "SPOT")


def test_what_was_remembered_is_known_to_every_client_machine_type_by_machine_type(bucket: Bucket) -> None:
    StockOuts(bucket, SimulatedClock()).remember(A, INDEXED_AT)
    StockOuts(bucket, SimulatedClock()).remember(B, INDEXED_AT + timedelta(minutes=1))
    StockOuts(bucket, SimulatedClock()).remember(OTHER, INDEXED_AT)
    known = StockOuts(bucket, SimulatedClock()).stock_outs("g2-standard-4")
    assert known == {A: INDEXED_AT, B: INDEXED_AT + timedelta(minutes=1)}
    assert StockOuts(bucket, SimulatedClock()).stock_outs("a2-highgpu-1g") == {}


def test_the_newest_stock_out_of_a_pool_counts_and_old_ones_are_forgotten(bucket: Bucket) -> None:
    history = StockOuts(bucket, SimulatedClock())
    history.remember(B, INDEXED_AT - timedelta(days=2))
    history.remember(A, INDEXED_AT)
    history.remember(A, INDEXED_AT - timedelta(minutes=5))
    assert history.stock_outs("g2-standard-4") == {A: INDEXED_AT}


def test_a_history_that_cannot_be_read_is_none_and_is_written_anew(bucket: Bucket) -> None:
    bucket.replace("placement/g2-standard-4.json", b"not json", generation=None)
    history = StockOuts(bucket, SimulatedClock())
    assert history.stock_outs("g2-standard-4") == {}
    history.remember(A, INDEXED_AT)
    assert history.stock_outs("g2-standard-4") == {A: INDEXED_AT}


def test_a_bucket_that_is_not_there_costs_the_hint_and_nothing_else(missing_bucket: Bucket) -> None:
    StockOuts(missing_bucket, SimulatedClock()).remember(A, INDEXED_AT)
    assert StockOuts(missing_bucket, SimulatedClock()).stock_outs("g2-standard-4") == {}


# Named baselines, over every bucket: whoever is second sees what the first did, and nobody's is lost.


L4 = Baseline("20261121-040506-l4-7f3a", "NVIDIA L4", "c0ffee", False, {"driver": "580"}, "2026-11-21T05:00:00Z", "ada")


def on(device: str) -> Baseline:
    return replace(L4, device=device)


def baselines(bucket: Bucket) -> BaselineStore:
    return BaselineStore(bucket, SimulatedClock())


def put(bucket: Bucket, one: Baseline) -> Baselines | Older:
    return baselines(bucket).update("main", lambda there: place_baseline(there, one))


def test_what_was_never_set_is_empty_and_what_was_set_is_read_by_everyone(bucket: Bucket) -> None:
    assert baselines(bucket).read("main") == {}
    assert baselines(bucket).names() == ()
    put(bucket, L4)
    assert baselines(bucket).read("main") == {"nvidia-l4": L4}
    assert baselines(bucket).names() == ("main",)


def test_of_pushes_for_several_devices_at_once_none_loses_its_baseline(bucket: Bucket) -> None:
    devices, start = [f"GPU {number}" for number in range(6)], Barrier(6)

    def push(device: str) -> None:
        start.wait()
        put(bucket, on(device))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(push, devices))
    assert {one.device for one in baselines(bucket).read("main").values()} == set(devices)


def test_a_refusal_stores_nothing_and_neither_does_a_change_that_is_none(bucket: Bucket) -> None:
    put(bucket, L4)
    before = bucket.read(baseline_object("main"))
    assert put(bucket, replace(L4, run_id="20260101-000000-l4-0000")) == Older(L4)
    assert put(bucket, L4) == {"nvidia-l4": L4}
    assert bucket.read(baseline_object("main")) == before


def test_what_cannot_be_read_is_never_overwritten_but_by_being_cleared(bucket: Bucket) -> None:
    bucket.create(baseline_object("main"), b"{")
    with pytest.raises(BaselinesUnreadable):
        put(bucket, L4)
    with pytest.raises(BaselinesUnreadable):
        baselines(bucket).read("main")
    baselines(bucket).clear("main")
    assert baselines(bucket).read("main") == {}


def test_a_name_that_is_none_reaches_no_bucket(bucket: Bucket) -> None:
    for ask in (baselines(bucket).read, baselines(bucket).clear):
        with pytest.raises(ConfigError):
            ask("../ledger/ledger")
