"""The laws of the index of runs, over every bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest

from orchestrator.core.baselines import Baseline, Baselines, BaselinesUnreadable, Older, dump_baselines, place_baseline
from orchestrator.core.errors import ConfigError, Unavailable
from orchestrator.core.naming import baseline_object
from orchestrator.ports import Bucket
from orchestrator.store.documents import ATTEMPTS, BaselineStore, StockOuts
from orchestrator.store.index import METADATA_BYTES, RunIndex
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock


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


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
A, B = ("us-central1-a", "g2-standard-4", "SPOT"), ("us-east1-b", "g2-standard-4", "STANDARD")
OTHER = ("us-east1-b", "n1-standard-4", "SPOT")


def test_what_was_remembered_is_known_to_every_client_machine_type_by_machine_type(bucket: Bucket) -> None:
    StockOuts(bucket, SimulatedClock()).remember(A, NOW)
    StockOuts(bucket, SimulatedClock()).remember(B, NOW + timedelta(minutes=1))
    StockOuts(bucket, SimulatedClock()).remember(OTHER, NOW)
    known = StockOuts(bucket, SimulatedClock()).stock_outs("g2-standard-4")
    assert known == {A: NOW, B: NOW + timedelta(minutes=1)}
    assert StockOuts(bucket, SimulatedClock()).stock_outs("a2-highgpu-1g") == {}


def test_the_newest_stock_out_of_a_pool_counts_and_old_ones_are_forgotten(bucket: Bucket) -> None:
    history = StockOuts(bucket, SimulatedClock())
    history.remember(B, NOW - timedelta(days=2))
    history.remember(A, NOW)
    history.remember(A, NOW - timedelta(minutes=5))
    assert history.stock_outs("g2-standard-4") == {A: NOW}


def test_a_history_that_cannot_be_read_is_none_and_is_written_anew(bucket: Bucket) -> None:
    bucket.replace("placement/g2-standard-4.json", b"not json", generation=None)
    history = StockOuts(bucket, SimulatedClock())
    assert history.stock_outs("g2-standard-4") == {}
    history.remember(A, NOW)
    assert history.stock_outs("g2-standard-4") == {A: NOW}


def test_a_bucket_that_is_not_there_costs_the_hint_and_nothing_else(missing_bucket: Bucket) -> None:
    StockOuts(missing_bucket, SimulatedClock()).remember(A, NOW)
    assert StockOuts(missing_bucket, SimulatedClock()).stock_outs("g2-standard-4") == {}


# Named baselines, over every bucket: whoever is second sees what the first did, and nobody's is lost.


L4 = Baseline("20261121-040506-l4-7f3a", "NVIDIA L4", "c0ffee", False, {"driver": "580"}, "2026-11-21T05:00:00Z", "ada")


def on(device: str) -> Baseline:
    return replace(L4, device=device)


def store(bucket: Bucket) -> BaselineStore:
    return BaselineStore(bucket, SimulatedClock())


def put(bucket: Bucket, one: Baseline) -> Baselines | Older:
    return store(bucket).update("main", lambda there: place_baseline(there, one))


def test_what_was_never_set_is_empty_and_what_was_set_is_read_by_everyone(bucket: Bucket) -> None:
    assert store(bucket).read("main") == {}
    assert store(bucket).names() == ()
    put(bucket, L4)
    assert store(bucket).read("main") == {"nvidia-l4": L4}
    assert store(bucket).names() == ("main",)


def test_of_pushes_for_several_devices_at_once_none_loses_its_baseline(bucket: Bucket) -> None:
    devices, start = [f"GPU {number}" for number in range(6)], Barrier(6)

    def push(device: str) -> None:
        start.wait()
        put(bucket, on(device))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(push, devices))
    assert {one.device for one in store(bucket).read("main").values()} == set(devices)


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
        store(bucket).read("main")
    store(bucket).clear("main")
    assert store(bucket).read("main") == {}


def test_a_name_that_is_none_reaches_no_bucket(bucket: Bucket) -> None:
    for ask in (store(bucket).read, store(bucket).clear):
        with pytest.raises(ConfigError):
            ask("../ledger/ledger")


@dataclass
class Contested(MemoryBucket):
    """Somebody else is faster every time."""

    def replace(self, name: str, data: bytes, **about: Any) -> int | None:
        rival = dump_baselines("main", {"rival": replace(L4, set_by=f"rival {self.calls}")})
        super().replace(name, rival, **(about | {"generation": None}))
        return super().replace(name, data, **about)


def test_whoever_is_never_first_gives_up_and_says_so() -> None:
    bucket = Contested()
    with pytest.raises(Unavailable, match="changed 12 times"):
        put(bucket, L4)
    assert ATTEMPTS == 12
    assert store(bucket).read("main")["rival"].set_by.startswith("rival")
