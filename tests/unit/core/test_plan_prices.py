"""Which prices a plan uses, and what it says and holds where they are old or missing."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from orchestrator.core.config.model import with_gpu
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.market.catalog import find_gpu
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused, priced_offers
from orchestrator.core.plan.plan import LaunchPlan, with_fallbacks
from orchestrator.core.plan.resumption import plan_document, plan_from
from tests.unit.core.asked import NOON, SHEET, TWO, D, accepted, asked, planned, refused, shipped
from tests.unit.core.limited import Limit, limits


def test_without_any_price_nothing_is_started() -> None:
    answer = refused(asked("gpu: l4\nregions: [europe-west2, europe-west3]"))
    assert answer.kind == "offers"
    assert answer.message == "no price is known for spot g2-standard-4 in europe-west2, europe-west3"
    bare = SHEET.model_copy(update={"machines": {}})
    assert refused(asked("gpu: l4"), prices=bare).message == (
        "no price is known for spot g2-standard-4 in "
        "asia-east1, asia-northeast1, asia-northeast3, asia-south1 and 14 more regions"
    )


def test_old_prices_and_prices_from_memory_are_said_to_be_so() -> None:
    late = NOON + timedelta(days=365)
    more = "20% more than these prices is held; `bench prices --refresh` gets today's from Google"
    assert accepted(asked(TWO), now=late).notices == (
        f"prices are from 2026-06-03, 393 days old, and spot prices change every month: {more}",
    )
    (notice,) = accepted(asked("gpu: h100")).notices
    assert notice == f"some prices do not come from a published table: {SHEET.sources['recalled']}"


@pytest.mark.parametrize("per_run", [None, "0.90", "0.10"])
def test_more_is_held_where_prices_are_old_and_said_before_anything_else(per_run: str | None) -> None:
    caps = Caps(run=D(per_run)) if per_run else Caps()
    late, margin = NOON + timedelta(days=60), D("1.2")
    fresh, old = accepted(asked(TWO), caps=caps), accepted(asked(TWO), caps=caps, now=late)
    assert (fresh.margin, old.margin) == (0, D("0.20"))
    worst = max(ceiling_usd(offer.usd_per_hour * margin, old.ttl_s, old.attempts) for offer in old.offers)
    assert old.ceiling_usd == worst <= (caps.run or worst)
    assert (old.attempts, old.ttl_s) <= (fresh.attempts, fresh.ttl_s)
    assert old.notices[0].startswith("prices are from ")
    assert {one.usd_per_hour for one in old.offers} <= {one.usd_per_hour for one in fresh.offers}, "still its price"
    assert plan_from(plan_document(old)).margin == old.margin


def test_fallback_gpus_are_held_with_the_same_margin() -> None:
    late = NOON + timedelta(days=60)
    l4, t4 = (accepted(asked(f"gpu: {gpu}"), now=late) for gpu in ("l4", "t4"))
    led = with_fallbacks(l4, [t4])
    assert isinstance(led, LaunchPlan)
    dearest = max(offer.usd_per_hour for offer in led.offers) * D("1.2")
    assert led.ceiling_usd == ceiling_usd(dearest, led.ttl_s, led.attempts)


def test_the_embedded_cloud_is_held_at_its_prices_whatever_their_age() -> None:
    old = accepted(asked(TWO), mode=Mode.EMBEDDED, now=NOON + timedelta(days=365))
    assert old.margin == 0
    assert not any("prices are from" in notice for notice in old.notices)


def test_the_regions_worth_asking_about_are_those_with_a_price() -> None:
    offers = priced_offers(asked("gpu: h100"), SHEET)
    assert {offer.region for offer in offers} == {"europe-west4", "us-central1", "us-east4"}


def test_the_embedded_cloud_never_claims_to_measure_the_gpu() -> None:
    assert accepted(mode=Mode.EMBEDDED, now=NOON + timedelta(days=999)).notices == (
        "embedded cloud: this machine's own processor is measured, on grid 'cpu' in the place of 'standard'; no L4 is measured",
    )
    assert accepted(shipped("cpu"), mode=Mode.EMBEDDED).notices == (
        "embedded cloud: this machine's own processor is measured, on grid 'cpu'",
    )


def test_a_plan_for_several_gpus_has_one_deadline_and_the_ceiling_of_the_dearest() -> None:
    config = asked(TWO)
    t4 = find_gpu("t4")
    assert t4 is not None
    one, other = accepted(config), accepted(with_gpu(config, t4))
    both = with_fallbacks(one, [other])
    assert isinstance(both, LaunchPlan)
    assert both.offers == (*one.offers, *other.offers)
    assert both.ttl_s == min(one.ttl_s, other.ttl_s)
    assert both.ceiling_usd == max(one.ceiling_usd, other.ceiling_usd)
    assert both.of(other.offers[0]).config.gpu == "t4"
    assert both.of(one.offers[0]) is both
    assert plan_from(json.loads(json.dumps(plan_document(both)))) == both


# Which quotas a plan draws on, and what it says where there are none.


@pytest.mark.parametrize(
    ("preemptible", "standard", "fits"),
    [(1, 0, True), (0, 1, True), (0, 0, False)],
    ids=["granted", "falls back", "none"],
)
def test_spot_uses_the_preemptible_quota_where_granted_else_the_standard_one(
    preemptible: int, standard: int, fits: bool
) -> None:
    quotas = limits(GPUS_ALL_REGIONS=1, PREEMPTIBLE_NVIDIA_L4_GPUS=preemptible, NVIDIA_L4_GPUS=standard)
    answer = planned(asked(TWO), quotas=quotas)
    assert isinstance(answer, LaunchPlan) is fits
    if isinstance(answer, PlanRefused):
        assert (
            answer.message == "quota NVIDIA_L4_GPUS in us-east4 is 0, 0 in use; this run needs 1 (and 1 more like it)"
            or (
                answer.message
                == "quota NVIDIA_L4_GPUS in us-central1 is 0, 0 in use; this run needs 1 (and 1 more like it)"
            )
        )


def test_a_granted_quota_that_is_in_use_does_not_fall_back() -> None:
    quotas = {
        "us-east4": (Limit("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, 1, "us-east4"), Limit("NVIDIA_L4_GPUS", 8, 0, "us-east4"))
    }
    plan = accepted(asked(TWO), quotas=quotas)
    assert {offer.region for offer in plan.offers} == {"us-central1"}
    assert plan.notices == (
        "left out for lack of quota: quota PREEMPTIBLE_NVIDIA_L4_GPUS in us-east4 is 1, 1 in use; this run needs 1",
    )


def test_on_demand_draws_on_the_standard_quota() -> None:
    config = asked(TWO + "machine: {provisioning: standard}")
    assert refused(config, quotas=limits(PREEMPTIBLE_NVIDIA_L4_GPUS=4, NVIDIA_L4_GPUS=0)).kind == "quota"
    assert (
        accepted(config, quotas=limits(PREEMPTIBLE_NVIDIA_L4_GPUS=0, NVIDIA_L4_GPUS=1)).offers[0].provisioning
        == "STANDARD"
    )


def test_a_gpu_that_has_no_standard_quota_is_held_to_the_preemptible_one() -> None:
    config = asked("gpu: h100\nregions: [us-central1]")
    assert (
        refused(config, quotas=limits(PREEMPTIBLE_NVIDIA_H100_GPUS=0)).detail["metric"]
        == "PREEMPTIBLE_NVIDIA_H100_GPUS"
    )
    assert accepted(config, quotas=limits(CPUS=8)).offers


def test_a_machine_without_a_gpu_needs_a_quota_of_processors() -> None:
    e2 = asked("gpu: cpu\nregions: [us-central1]")
    assert refused(e2, quotas=limits(CPUS=3)).detail["needs"] == "4"
    assert accepted(e2, quotas=limits(CPUS=3, PREEMPTIBLE_CPUS=4)).offers
    assert accepted(e2, quotas=limits(CPUS=4, PREEMPTIBLE_CPUS=0, GPUS_ALL_REGIONS=0)).offers
    n2 = asked("gpu: cpu\nregions: [us-central1]\nmachine: {type: n2-standard-4}")
    assert refused(n2, quotas=limits(CPUS=99, N2_CPUS=2)).detail["metric"] == "N2_CPUS"


def test_a_quota_that_nobody_knows_rules_nothing_out() -> None:
    assert len(accepted(asked(TWO), quotas={}).offers) == len(accepted(asked(TWO), quotas=None).offers) == 5
