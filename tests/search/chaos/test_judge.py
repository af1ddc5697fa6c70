"""The judge finds what is wrong with money, though it knows no ledger: defects are planted, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrator.core.ledger.budget import Ledger
from orchestrator.runs.engine import request_id
from orchestrator.store.documents import LedgerStore
from tests.search.chaos.clients import Rules
from tests.search.chaos.judge import BEYOND, LEDGER, OVER_CAP, OVERSPENT, RELEASED, Broken, Judge, books
from tests.search.chaos.play import Arena, arena
from tests.search.chaos.scenario import Client, Meddling, Scenario

BOTH = (Client("launch"), Client("launch", 1, starts_s=40.0))
TIGHT = Scenario(0, runs=2, fits=1.5, clients=BOTH)
"""Two launches, and room for one."""


class Forgetful(LedgerStore):
    """Whoever takes a hold or settles one is shown a ledger in which something of each entry is wrong."""

    wrong: ClassVar[dict[str, Any]]

    def update(self, change: Callable[[Ledger], Any]) -> Any:
        def misled(ledger: Ledger) -> Any:
            shown = {key: entry.model_copy(update=self.wrong) for key, entry in ledger.runs.items()}
            wanted = change(ledger.model_copy(update={"runs": shown}))
            if not isinstance(wanted, Ledger) or settled_and_held(wanted) == settled_and_held(ledger):
                return change(ledger)
            kept = {name: entry.model_copy(update=self.right(ledger, name)) for name, entry in wanted.runs.items()}
            return wanted.model_copy(update={"runs": kept})

        return super().update(misled)

    def right(self, ledger: Ledger, key: str) -> dict[str, Any]:
        return {name: getattr(ledger.runs[key], name) for name in self.wrong} if key in ledger.runs else {}


def settled_and_held(ledger: Ledger) -> tuple[int, int]:
    return len(ledger.runs), sum(entry.settled_usd is not None for entry in ledger.runs.values())


class HoldsCountAsNothing(Forgetful):
    wrong: ClassVar[dict[str, Any]] = {"hold_usd": Decimal(0)}


class AnybodySettles(Forgetful):
    wrong: ClassVar[dict[str, Any]] = {"attempt": 0}


class HeldForLess(LedgerStore):
    """Every entry says that it was held for machines of a minute."""

    def update(self, change: Callable[[Ledger], Any]) -> Any:
        def shorter(ledger: Ledger) -> Any:
            after = change(ledger)
            if not isinstance(after, Ledger):
                return after
            entries = {key: entry.model_copy(update={"ttl_s": 60}) for key, entry in after.runs.items()}
            return after.model_copy(update={"runs": entries})

        return super().update(shorter)


@dataclass(frozen=True, slots=True)
class NoSwap:
    """A bucket that replaces the ledger whatever its generation is."""

    bucket: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bucket, name)

    def replace(self, name: str, data: bytes, *, generation: int | None, **more: Any) -> Any:
        return self.bucket.replace(name, data, generation=None if name == LEDGER else generation, **more)


DEFECTS: dict[str, tuple[Rules, Scenario]] = {
    "holds count as nothing": (Rules(ledger=HoldsCountAsNothing), TIGHT),
    "the ledger is written without compare-and-swap": (
        Rules(bucket=NoSwap),
        replace(TIGHT, meddlings=(Meddling(0, 1, f"before replace {LEDGER}", 2),)),
    ),
    "a hold is settled without knowing of all machines": (
        Rules(ledger=AnybodySettles),
        Scenario(
            0,
            clients=(Client("launch"), Client("stop", starts_s=900.0)),
            meddlings=(Meddling(0, 1, "before create *-instance_requested.json", 2),),
        ),
    ),
    "the cap of a month is never asked": (
        Rules(caps=lambda caps: replace(caps, month=None)),
        replace(TIGHT, windows=("month",)),
    ),
    "the cap of everything is never asked": (
        Rules(caps=lambda caps: replace(caps, total=None)),
        replace(TIGHT, windows=("total",)),
    ),
    "the cap of a day is never asked": (Rules(caps=lambda caps: replace(caps, day=None)), TIGHT),
    "the cap of a run is never asked": (
        Rules(caps=lambda caps: replace(caps, run=None)),
        Scenario(0, fits=0.5, windows=("run",)),
    ),
    "machines live longer than was held for": (Rules(ledger=HeldForLess), Scenario(0)),
    "a client's own clock is believed": (
        Rules(clock=lambda local, _: local),
        replace(TIGHT, clients=(BOTH[0], replace(BOTH[1], off_s=86400.0))),
    ),
    "only the caps of the first client are asked": (
        Rules(caps=lambda caps: replace(caps, day=caps.day * 10 if caps.day else None)),
        replace(TIGHT, fits=3.0, clients=(BOTH[0], replace(BOTH[1], fits=1.2))),
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_money_is_found_and_its_absence_too(tmp_path: Path, shared: Arena, defect: str) -> None:
    rules, scenario = DEFECTS[defect]
    shared.play(scenario)
    with arena(tmp_path / "planted", rules) as place, pytest.raises(Broken) as broken:
        place.play(scenario)
    assert broken.value.promise in (OVER_CAP, OVERSPENT, RELEASED, BEYOND)


def test_a_request_with_another_id_than_that_of_its_retry_is_found(shared: Arena) -> None:
    judge = Judge(shared.cloud, "b", (), ("", ""))
    name, zone, kind = "bench-20261121-040506-l4-7f3a-2", "us-central1-a", ("g2-standard-4", "SPOT")
    for generation in (0, 3):
        of = f"/g2-standard-4/SPOT/{generation}"
        judge.of_a_request(name, zone, kind, request_id("20261121-040506-l4-7f3a", zone, 2, of=of))
    with pytest.raises(Broken, match="was requested as"):
        judge.of_a_request(name, zone, kind, request_id("20261121-040506-l4-7f3a", zone, 1, of="/g2-standard-4/SPOT/0"))


def test_what_is_no_ledger_says_nothing() -> None:
    assert books(b"{}") is None
    assert books(b"\xff") is None
    assert books(b'{"runs": {"a": {}}}') is None
    found = books(
        b'{"runs": {"a": {"hold_usd": "1", "settled_usd": null}, "a+1": {"hold_usd": "2", "settled_usd": "1"}}}'
    )
    assert found is not None
    assert [(entry.held, entry.settled) for entry in found["a"]] == [(1, None), (2, 1)]
