"""The laws of the index of runs, over every bucket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.ports import Bucket
from orchestrator.store.documents import StockOuts
from orchestrator.store.index import METADATA_BYTES, RunIndex
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
