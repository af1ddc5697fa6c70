"""A small campaign of seeded scenarios, and proof that the searcher finds what is wrong."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.market.pricing import MachinePrice, PriceSheet
from orchestrator.embedded.weather import KEYS
from tests.integration.stories.stage import SHEET
from tests.search.chaos.campaign import Tally, campaign, seeds, shrunk
from tests.search.chaos.clients import POLICY, Rules
from tests.search.chaos.deeds import Deeds
from tests.search.chaos.guests import finish, guest
from tests.search.chaos.judge import BEYOND, MISSING, NAMES, RELEASED, Broken
from tests.search.chaos.play import Arena, arena
from tests.search.chaos.scenario import Client, Scenario, from_seed
from tests.support.scripted_machines import Script, ScriptedVm, Steps

ELSEWHERE = ("batch_", "image_failed", "image_pending", "image_vanishes", "queue")
"""Faults of services that no scenario uses, Batch, prepared images and flex-start: their own tests fire them."""
SEED = int(os.environ.get("CHAOS_SEED", "1"))


def test_seeded_scenarios_break_no_promise(tmp_path: Path) -> None:
    """A few: `make chaos` plays as many as there is time for."""
    tally = campaign(seeds(SEED, 8), tmp_path)
    assert [f"{one.detail}\n{one.again}" for one in tally.broken] == []
    assert tally.played == 8
    assert tally.checks > 1000
    assert tally.kills > 0
    assert tally.machines > 0


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "stockout", "times": 2},
        {"fault": "stockout", "zones_available": ["us-east1-b"]},
        {"fault": "quota", "metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "region": "us-central1"},
        {"fault": "http", "service": "compute", "method": "POST", "status": 503, "times": 2},
        {"fault": "http", "service": "compute", "method": "GET", "status": 429},
        {"fault": "http", "service": "compute", "method": "POST", "status": 403},
        {"fault": "http", "service": "compute", "method": "POST", "status": 409},
        {"fault": "http", "service": "storage", "path": "ledger", "status": 500},
        {"fault": "reset", "service": "compute", "method": "POST", "after": "response"},
        {"fault": "reset", "service": "storage", "method": "POST", "after": "response", "times": 3},
        {"fault": "stall", "service": "storage", "seconds": 20},
        {"fault": "slow_boot", "seconds": 200},
        {"fault": "never_boots"},
        {"fault": "preempt", "at": {"seconds": 58}, "notice_s": 0},
        {"fault": "preempt", "at": {"case": 2}, "notice_s": 30},
        {"fault": "lost", "at": {"phase": "build"}},
        {"fault": "hang", "at": {"case": 1}, "target": "harness"},
        {"fault": "kill", "at": {"phase": "correctness"}, "target": "agent"},
        {"fault": "image_gone"},
        {"fault": "late_insert", "seconds": 90},
    ],
    ids=lambda fault: "-".join(str(value) for key, value in fault.items() if key in ("fault", "status", "service")),
)  # fmt: skip
def test_every_fault_of_the_catalogue_fires_and_breaks_no_promise(shared: Arena, fault: dict[str, object]) -> None:
    patient = (Client("launch"), Client("look", starts_s=45.0))
    seen = shared.play(Scenario(0, clients=patient, faults=(fault,)))
    assert seen.fired[str(fault["fault"])] == fault.get("times", 1)


def test_the_catalogue_above_is_the_whole_catalogue() -> None:
    marks = test_every_fault_of_the_catalogue_fires_and_breaks_no_promise.pytestmark  # type: ignore[attr-defined]
    elsewhere = {kind for kind in KEYS if kind.startswith(ELSEWHERE)}
    assert {fault["fault"] for fault in marks[0].args[1]} == set(KEYS) - elsewhere


def test_a_client_killed_at_any_moment_breaks_no_promise(shared: Arena) -> None:
    whole = shared.play(Scenario(0, cases=2)).moments
    for moment in range(1, min(whole, 70), 6):
        shared.play(Scenario(0, cases=2, clients=(Client("launch", dies_at=moment), Client("look", starts_s=30.0))))


def test_a_request_that_arrives_after_its_client_died_is_waited_for(shared: Arena) -> None:
    dying = Client("launch", dies_on="before insert", late_s=60.0)
    seen = shared.play(Scenario(0, clients=(dying, Client("look", starts_s=1.0))))
    assert (seen.kills, seen.machines, seen.outcomes) == (1, 1, ("succeeded",))


def test_a_run_that_no_client_looked_after_in_time_says_why_it_ended(shared: Arena) -> None:
    """Its client died as the cloud refused the machine, and the next one came after the last deadline."""
    dying = Client("launch", dies_on="after insert")
    stockout = {"fault": "stockout", "zones_available": ["us-central1-b"]}
    seen = shared.play(Scenario(0, clients=(dying, Client("reap", starts_s=700.0)), faults=(stockout,)))
    assert (seen.kills, seen.fired["stockout"], seen.outcomes) == (1, 1, ("expired",))


# --- the searcher itself --------------------------------------------------------------------------------------------


def careless(temper: str, cases: int, seconds_each: float, deeds: Deeds) -> Script:
    """A machine that says it has stored a case and has not."""

    def script(vm: ScriptedVm) -> Steps:
        vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": 1})
        yield 10
        deeds.stored.append((vm.spec["run_id"], vm.name, "b2-h8-kv8-q128-k512-d64-full-float16"))
        yield from finish(vm, temper, "succeeded", 0)

    return script


def cheap() -> PriceSheet:
    """Prices that are a tenth of what the cloud's meter charges."""

    def tenth(table: dict[str, dict[str, MachinePrice]]) -> dict[str, dict[str, MachinePrice]]:
        return {
            name: {
                region: price.model_copy(update={"spot": price.spot / 10 if price.spot else None})
                for region, price in regions.items()
            }
            for name, regions in table.items()
        }

    return SHEET.model_copy(update={"machines": tenth(SHEET.machines), "accelerators": tenth(SHEET.accelerators)})


PLANTED = {
    RELEASED: (
        Rules(policy=replace(POLICY, insert_limit_s=0)),
        Scenario(
            7,
            cases=1,
            clients=(
                Client("launch", dies_on="before insert", late_s=20.0),
                Client("look", starts_s=1.0),
                Client("look", starts_s=300.0),
            ),
            faults=({"fault": "slow_boot", "seconds": 30},),
        ),
    ),
    BEYOND: (Rules(sheet=cheap()), Scenario(7, temper="silent", faults=({"fault": "slow_boot", "seconds": 30},))),
    MISSING: (Rules(make_guest=careless), Scenario(7, clients=(Client("launch"), Client("look", starts_s=30.0)))),
}


@pytest.mark.parametrize("promise", PLANTED)
def test_a_planted_defect_is_found_and_made_small(tmp_path: Path, promise: str) -> None:
    rules, scenario = PLANTED[promise]
    with arena(tmp_path / "found", rules) as place, pytest.raises(Broken) as broken:
        place.play(scenario)
    assert broken.value.promise == promise
    example = shrunk(scenario, broken.value, tmp_path / "small", rules)
    assert example.smallest.faults == ()
    assert len(example.smallest.clients) < len(scenario.clients) or len(scenario.clients) == 1
    with arena(tmp_path / "again", rules) as place, pytest.raises(Broken, match=promise):
        place.play(Scenario.parse(example.again.splitlines()[-1].split("SCENARIO=")[1].strip("'")))


@given(st.integers(0, 2**32))
def test_a_scenario_is_its_seed_and_its_line(seed: int) -> None:
    scenario = from_seed(seed)
    assert from_seed(seed) == scenario
    assert Scenario.parse(scenario.line()).line() == scenario.line()
    assert scenario not in scenario.simpler()


def test_the_same_scenario_ends_the_same_way(tmp_path: Path) -> None:
    seen = []
    for place in ("one", "other"):
        with arena(tmp_path / place) as stage:
            seen.append([stage.play(from_seed(seed)) for seed in (3, 20)])
    assert seen[0] == seen[1]


def test_a_campaigns_table_names_every_promise_and_counts_what_was_broken() -> None:
    tally = Tally(
        played=3, outcomes=Counter(succeeded=2), fired=Counter(preempt=1), seconds=timedelta(1).total_seconds()
    )
    table = tally.table()
    assert all(name in table for name in NAMES)
    assert "scenarios played" in table
    assert Decimal(table.split("seconds")[1].split()[0]) == 86400


def test_a_good_machine_is_what_the_others_are_measured_against(shared: Arena) -> None:
    seen = shared.play(Scenario(0, cases=4))
    assert (seen.outcomes, seen.cases, seen.machines, seen.kills) == (("succeeded",), 4, 1, 0)
    assert guest is Rules().make_guest
