"""The laws of the history of stock-outs: a hint that many write, that ages, and that never stands in the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from orchestrator.ports import Bucket
from orchestrator.store.stockouts import StockOuts
from tests.support.simulated_clock import SimulatedClock

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
