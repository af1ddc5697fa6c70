"""Finding a machine: what a stock-out teaches, what advice is worth, and how far a search may go."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from orchestrator.core.config.load import load
from orchestrator.core.config.model import Budget
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.market.offers import ZoneAdvice
from orchestrator.core.naming import Mode
from orchestrator.core.run.fold import Phase
from orchestrator.runs.planning import UNADVISED, RentedFrom, plan_on_cloud
from orchestrator.store.documents import StockOuts
from tests.integration.stories.stage import GRIDS, SHEET, Stage, same_to_the_cent, weather

FREE = Budget(per_run_usd=None, per_day_usd=None, per_month_usd=None, total_usd=None)
SIX = ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-b", "us-east1-c", "us-east1-d")
WIDE = f"zones=[{','.join(SIX)}]"


def inserts(stage: Stage) -> int:
    return stage.checker.methods["compute.instances.insert"]


def test_with_stock_out_in_five_zones_the_sixth_is_found_with_six_requests(stage: Stage) -> None:
    zones = [offer.zone for offer in stage.plan(WIDE).offers]
    weather(stage, *({"fault": "stockout", "zone": zone} for zone in zones[:5]))
    began = stage.timeline.now()
    run = stage.launch(WIDE)
    assert run.phase is Phase.SUCCEEDED
    assert inserts(stage) == 6
    assert stage.fired() == [1] * 5
    placed = next(vm.started_at for vm in run.vms if vm.instance_id)
    assert placed is not None
    assert (placed - began).total_seconds() < 120


def test_with_the_zone_that_the_refusal_names_two_requests_are_enough(stage: Stage) -> None:
    zones = [offer.zone for offer in stage.plan(WIDE).offers]
    weather(stage, *({"fault": "stockout", "zone": zone, "zones_available": [zones[5]]} for zone in zones[:5]))
    assert stage.launch(WIDE).phase is Phase.SUCCEEDED
    assert inserts(stage) == 2


def test_a_stock_out_is_remembered_and_the_next_run_asks_elsewhere_first(stage: Stage) -> None:
    first = stage.plan(WIDE).offers[0].zone
    weather(stage, {"fault": "stockout", "zone": first})
    stage.launch(WIDE)
    known = StockOuts(stage.world().bucket, stage.world().clock).stock_outs("g2-standard-4")
    assert list(known) == [(first, "g2-standard-4", "SPOT")]
    again = stage.plan(WIDE, stock_outs=known)
    assert again.offers[-1].zone == first
    assert "had none" in again.offers[-1].why


def test_what_a_plan_expects_is_explained_zone_by_zone(stage: Stage) -> None:
    advice = [ZoneAdvice(zone, obtainable=0.9, preemption_rate=0.1) for zone in SIX[1:]]
    made = stage.plan(WIDE, advice=[ZoneAdvice(SIX[0], obtainable=0.1), *advice])
    worst = next(offer for offer in made.offers if offer.zone == SIX[0])
    assert made.offers[-1] == worst
    assert worst.why == "obtainable 0.10"
    assert {offer.why for offer in made.offers[:-1]} == {"obtainable 0.90, 10% preempted"}


def test_a_list_price_is_shown_with_its_date_and_a_project_without_advice_is_told(stage: Stage) -> None:
    listed = ZoneAdvice(SIX[0], list_usd=Decimal("0.3612"), list_since=date(2026, 11, 1))
    offers = stage.plan(WIDE, advice=[listed]).offers
    assert next(offer.why for offer in offers if offer.zone == SIX[0]) == "listed at $0.3612/h since 2026-11-01"
    made = plan_on_cloud(stage.world(), stage.plan().config, "story", RentedFrom(Mode.GCE, SHEET))
    assert UNADVISED in made.notices


@pytest.mark.parametrize("gpu", ["h200", "g4"])
def test_a_gpu_whose_quota_google_does_not_list_is_rented_and_billed_whole(stage: Stage, gpu: str) -> None:
    config = load(f"gpu: {gpu}", source="story", overrides=("run.attempts=1", "measure.repeats=2"), grids=GRIDS)
    made = plan_on_cloud(
        stage.world(Caps()), config.model_copy(update={"budget": FREE}), "story", RentedFrom(Mode.GCE, SHEET)
    )
    run = stage.begin(stage.world(Caps()), made).follow()
    assert run.phase is Phase.SUCCEEDED
    settled = stage.ledger().runs[run.run_id].settled_usd
    assert settled is not None
    assert same_to_the_cent(settled, stage.billed())


@pytest.mark.parametrize("after", [0, 3])
def test_where_no_spot_machine_is_left_one_on_demand_is_asked_for(stage: Stage, after: int) -> None:
    weather(stage, *([{"fault": "stockout", "times": 3}] if after else []))
    run = stage.launch(f"placement.on_demand_after={after}")
    assert run.phase is Phase.SUCCEEDED
    assert [vm.provisioning for vm in run.vms] == ["SPOT"] * 3 * bool(after) + ["STANDARD"]
    assert stage.ledger().runs[run.run_id].hold_usd >= run.vms[-1].usd_per_hour / 2


def test_what_costs_more_than_the_most_one_would_pay_is_not_asked_for(stage: Stage) -> None:
    every = stage.plan(WIDE, "placement.on_demand_after=1").offers
    most = min(offer.usd_per_hour for offer in every if offer.provisioning == "STANDARD")
    made = stage.plan(WIDE, "placement.on_demand_after=1", f"placement.max_usd_per_hour={most - Decimal('0.01')}")
    assert {offer.provisioning for offer in made.offers} == {"SPOT"}
    assert "cost more than" in " ".join(made.notices)


def test_another_gpu_is_taken_when_the_first_cannot_be_had(stage: Stage) -> None:
    made = stage.plan_with("t4")
    assert [offer.gpu for offer in made.offers][:1] == ["l4"]
    assert {offer.gpu for offer in made.offers} == {"l4", "t4"}
    weather(stage, {"fault": "stockout", "machine_type": "g2-standard-4", "times": 3})
    run = stage.begin(stage.world(), made).follow()
    assert run.phase is Phase.SUCCEEDED
    vm = run.vm
    assert vm is not None
    assert vm.machine_type.startswith("n1-")
    assert stage.fired() == [3]
