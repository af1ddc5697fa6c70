"""Named baselines, over every bucket: whoever is second sees what the first did, and nobody's is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any

import pytest

from orchestrator.core.baselines import Baseline, Baselines, BaselinesUnreadable, Older, dump_baselines, place_baseline
from orchestrator.core.errors import ConfigError, Unavailable
from orchestrator.core.naming import baseline_object
from orchestrator.ports import Bucket
from orchestrator.store.documents import ATTEMPTS, BaselineStore
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock

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
