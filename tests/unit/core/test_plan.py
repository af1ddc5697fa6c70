"""What a plan asks for, what it measures, and how far its search goes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config.model import Workload, count_measurements, with_gpu
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import Approved, Caps, HoldTerms, Ledger, authorize, hold, settle
from orchestrator.core.market.catalog import GPU_NAMES, find_gpu
from orchestrator.core.market.offers import (
    DRY,
    HALF_LIFE_S,
    WORK_S,
    Offer,
    ZoneAdvice,
    after_stock_out,
    blocked_by,
    expected_hours,
    rank_offers,
    region_of,
    weigh_offers,
)
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused, priced_offers
from orchestrator.core.plan.plan import LaunchPlan, run_spec, with_fallbacks
from orchestrator.core.plan.resumption import plan_document, plan_from
from tests.unit.core.asked import IMAGE, NOON, SHEET, TWO, D, Limit, accepted, asked, limits, planned, refused, shipped


@pytest.mark.parametrize("gpu", GPU_NAMES)
@pytest.mark.parametrize("mode", [Mode.GCE, Mode.EMBEDDED])
def test_every_shipped_config_can_be_planned_within_its_own_budget(gpu: str, mode: Mode) -> None:
    config = shipped(gpu)
    plan = accepted(config, mode=mode, caps=config.budget.caps())
    assert plan.offers
    assert plan.ttl_s == config.run.max_minutes * 60
    assert 0 < plan.ceiling_usd <= (config.budget.per_run_usd or 0)
    assert plan.measurements_per_implementation == len(plan.cases) * count_measurements(config, mode)
    assert set(plan.headroom) == {"run", "day", "month", "total"}


def test_a_plan_says_all_that_will_be_asked_for() -> None:
    plan = accepted(asked(TWO + "run: {attempts: 2}"))
    assert [offer.zone for offer in plan.offers] == ["us-east4-a", "us-east4-c", *(f"us-central1-{z}" for z in "abc")]
    first = plan.offers[0]
    assert (first.machine_type, first.accelerator, first.accelerator_count) == ("g2-standard-4", None, 0)
    assert first.provisioning == "SPOT"
    assert plan.usd_per_hour == first.usd_per_hour == D("0.321320")
    assert (plan.config_name, plan.mode, plan.image, plan.attempts, plan.ttl_s) == ("my", "gce", IMAGE, 2, 1800)
    dearest, cheapest = (ceiling_usd(offer.usd_per_hour, 1800, 2) for offer in (plan.offers[-1], first))
    assert plan.ceiling_usd == dearest > cheapest
    assert len(plan.cases) == 12
    assert plan.notices == ()
    json.dumps(plan.harness)


def test_a_t4_is_attached_and_an_l4_comes_with_its_machine() -> None:
    t4 = accepted(asked("gpu: t4")).offers[0]
    assert (t4.machine_type, t4.accelerator, t4.accelerator_count) == ("n1-standard-4", "nvidia-tesla-t4", 1)
    cpu = accepted(asked("gpu: cpu")).offers[0]
    assert (cpu.machine_type, cpu.accelerator, cpu.accelerator_count) == ("e2-standard-4", None, 0)


def test_an_embedded_clouds_gpu_is_named_and_measured_as_a_gpu() -> None:
    here = accepted(mode=Mode.EMBEDDED, here="NVIDIA H200", now=NOON + timedelta(days=999))
    assert here.notices == (
        "embedded cloud: this machine's own NVIDIA H200 is measured, on grid 'standard'; no L4 is measured",
    )
    rented = accepted()
    assert (here.mode, here.cases, here.harness) == ("embedded", rented.cases, rented.harness)
    assert accepted(shipped("cpu"), mode=Mode.EMBEDDED, here="NVIDIA H200").notices == (
        "embedded cloud: this machine's own processor is measured, on grid 'cpu'",
    )


@pytest.mark.parametrize(("here", "named"), [("", "processor"), ("NVIDIA H200", "NVIDIA H200")])
def test_what_measures_a_workload_of_the_users_own_in_the_embedded_cloud_is_named(here: str, named: str) -> None:
    config = asked("gpu: l4").model_copy(
        update={"workload": Workload(path="/x/rms.py", name="rms", cases=("n8", "n9"))}
    )
    (said,) = accepted(config, mode=Mode.EMBEDDED, here=here).notices
    assert said == f"workload rms: 2 cases on this machine's own {named}; no L4 is measured"


@pytest.mark.parametrize(("here", "skipped"), [("", True), ("NVIDIA H200", False)])
def test_a_plan_says_that_cuda_sources_are_skipped_without_a_gpu(here: str, skipped: bool) -> None:
    config = asked("gpu: l4").model_copy(update={"workload": Workload(path="/x/k.py", name="k", cuda=("k.cu",))})
    notices = accepted(config, mode=Mode.EMBEDDED, here=here).notices
    assert ("k.cu: needs a GPU, so its rows are skipped here" in notices) is skipped


def test_a_dtype_left_out_is_said_to_be() -> None:
    assert "t4 has no bfloat16 arithmetic: left out" in accepted(asked("gpu: t4")).notices


def test_a_project_without_gpus_is_told_so_before_anything_is_held() -> None:
    answer = refused(asked(TWO), quotas=limits(GPUS_ALL_REGIONS=0, PREEMPTIBLE_NVIDIA_L4_GPUS=1))
    assert answer.kind == "quota"
    assert answer.message == "quota GPUS_ALL_REGIONS in all regions together is 0, 0 in use; this run needs 1"
    assert answer.hint == (
        "request a higher GPUS_ALL_REGIONS at https://console.cloud.google.com/iam-admin/quotas?metric=GPUS_ALL_REGIONS, "
        "or use other regions; `bench doctor` shows which have room"
    )
    assert answer.detail == {"metric": "GPUS_ALL_REGIONS", "region": "", "limit": "0", "usage": "0", "needs": "1"}


def test_a_gpu_that_cannot_be_planned_is_left_out_and_its_substitute_leads() -> None:
    config = asked(TWO)
    one = accepted(config)
    no = refused(asked(TWO + "placement: {max_usd_per_hour: 0.01}"))
    led = with_fallbacks(no, [one])
    assert led.offers == one.offers
    assert f"not available: {no.message}" in led.notices
    assert with_fallbacks(no, [no]) == no


def test_a_plan_that_cannot_be_read_is_said_to_be_of_another_version() -> None:
    document = plan_document(accepted(asked(TWO)))
    with pytest.raises(ConfigError, match="cannot be read"):
        plan_from({key: value for key, value in document.items() if key != "settings"})


def test_on_demand_machines_are_planned_where_allowed_and_named_when_too_dear() -> None:
    wide = asked(TWO + "run: {attempts: 1}\nplacement: {on_demand_after: 1}")
    assert {offer.provisioning for offer in accepted(wide).offers} == {"SPOT", "STANDARD"}
    tight = accepted(wide, caps=Caps(run=D("0.30")))
    assert {offer.provisioning for offer in tight.offers} == {"SPOT"}
    assert "us-east4 on demand" in tight.notices[0]


def test_another_gpu_keeps_what_it_can_of_what_was_asked() -> None:
    t4, h100 = find_gpu("t4"), find_gpu("h100")
    assert t4 is not None
    assert h100 is not None
    config = asked("gpu: l4\nmachine: {provisioning: standard}\nmeasure: {dtypes: [float16, bfloat16]}")
    assert with_gpu(config, t4).measure.dtypes == ("float16",)
    assert with_gpu(config, t4).machine.provisioning == "standard"
    assert with_gpu(config, h100).machine.provisioning == "spot"


@pytest.mark.parametrize("nonsense", ["NaN", "Infinity", "-1", "1e30", "", None, [], "x"])
@pytest.mark.parametrize("where", ["ceiling_usd", "price_margin", "offers", "headroom_usd"])
def test_a_stored_plan_whose_dollars_are_none_is_no_plan(where: str, nonsense: object) -> None:
    document = json.loads(json.dumps(plan_document(accepted(asked(TWO)))))
    if where == "offers":
        document["offers"][0]["usd_per_hour"] = nonsense
    elif where == "headroom_usd":
        document["headroom_usd"]["day"] = nonsense
    else:
        document[where] = nonsense
    with pytest.raises(ConfigError, match="cannot be read"):
        plan_from(document)


# --- what the machine is told ---------------------------------------------------------------------------------------


def spec_of(plan: LaunchPlan, **changes: Any) -> dict[str, Any]:
    usual = {"run_id": "20261121-040506-l4-7f3a", "attempt": 2, "bucket": "b", "require_cuda": True}
    return run_spec(plan, **(usual | changes))


def test_the_dollars_of_a_case_are_told_with_the_price_of_the_very_machine() -> None:
    plan = accepted(asked("gpu: l4\nmeasure: {case_budget_usd: 0.005}"))
    told = spec_of(plan, usd_per_hour=Decimal("0.72"))["harness"]
    assert (told["case_budget_usd"], told["usd_per_hour"]) == (0.005, 0.72)
    assert spec_of(plan)["harness"]["usd_per_hour"] == float(plan.offers[0].usd_per_hour)
    assert "usd_per_hour" not in spec_of(accepted(asked("gpu: l4")), usd_per_hour=Decimal(1))["harness"]


def test_the_machine_is_told_what_the_contract_says() -> None:
    plan = accepted(asked("gpu: l4"))
    spec = spec_of(plan)
    assert spec.pop("harness") == plan.harness
    names = {"run_id": "20261121-040506-l4-7f3a", "vm": "bench-20261121-040506-l4-7f3a-2", "attempt": 2, "bucket": "b"}
    phases = ("preflight", "environment", "build", "correctness", "measure", "finish")
    limits_s = dict(zip(phases, (300, 600, 300, 600, 1500, 60), strict=True))
    environment = {"torch": "2.13.0", "allow_install": True, "min_free_gb": 4.0}
    told = {
        "gpu": "l4",
        "require_cuda": True,
        "deadline_s": 1800,
        "phase_limits_s": limits_s,
        "environment": environment,
    }
    assert spec == {"schema": 1, **names, **told}


def test_nothing_is_installed_on_the_users_own_machine() -> None:
    told = spec_of(accepted(mode=Mode.EMBEDDED), require_cuda=False)["environment"]
    assert told == {"torch": "2.13.0", "allow_install": False, "min_free_gb": 1}


def test_no_phase_may_outlast_the_deadline_and_measuring_gets_what_a_longer_one_adds() -> None:
    short = spec_of(replace(accepted(), ttl_s=240))["phase_limits_s"]
    assert max(short.values()) == 240
    assert short["finish"] == 60
    long = accepted(asked("gpu: l4\nrun: {max_minutes: 120}"))
    assert spec_of(long)["phase_limits_s"]["measure"] == 6900
    own = accepted(asked("gpu: l4\nrun: {max_minutes: 120, phase_limits_s: {measure: 900}}"))
    assert spec_of(own)["phase_limits_s"]["measure"] == 900


# --- how far the search goes ------------------------------------------------------------------------------------------


def test_a_price_that_nobody_offers_is_refused_with_the_cheapest_there_is() -> None:
    answer = refused(asked(TWO + "placement: {max_usd_per_hour: 0.01}"))
    assert answer.kind == "offers"
    assert "cost more than $0.01/h (the cheapest costs $" in answer.message
    assert "--max-price" in answer.hint


# A plan stays within every budget: it is shortened, moved to cheaper machines or refused.


amounts = st.decimals(min_value="0", max_value="3", places=4)


@given(
    st.sampled_from(GPU_NAMES),
    st.sampled_from([Mode.GCE, Mode.EMBEDDED]),
    st.builds(Caps, *[st.none() | amounts] * 4),
    amounts,
    st.integers(1, 90),
    st.integers(1, 4),
)
def test_a_plan_never_asks_for_more_than_any_budget_allows(
    gpu: str, mode: Mode, caps: Caps, spent: Decimal, minutes: int, attempts: int
) -> None:
    ledger = settle(
        hold(Ledger(), "earlier", spent, 60, NOON, HoldTerms(pretend=mode.simulated)), "earlier", spent, NOON
    )
    config = asked(f"gpu: {gpu}\nrun: {{max_minutes: {minutes}, attempts: {attempts}}}")
    plan = planned(config, mode=mode, caps=caps, ledger=ledger)
    if isinstance(plan, PlanRefused):
        assert plan.kind == "budget"
        return
    assert mode.shortest_s <= plan.ttl_s <= minutes * 60
    assert isinstance(authorize(ledger, caps, plan.ceiling_usd, NOON, pretend=mode.simulated), Approved)
    assert all(ceiling_usd(offer.usd_per_hour, plan.ttl_s, plan.attempts) <= plan.ceiling_usd for offer in plan.offers)


# --- the budget -----------------------------------------------------------------------------------------------------


def test_a_small_budget_shortens_the_run_on_the_cheapest_machines() -> None:
    plan = accepted(asked(TWO), caps=Caps(day=D("0.10")))
    assert {offer.region for offer in plan.offers} == {"us-east4"}
    assert plan.ttl_s == 1090
    assert plan.ceiling_usd <= D("0.10") < ceiling_usd(plan.usd_per_hour, plan.ttl_s + 1, 1)
    assert plan.notices == (
        "the budget pays for 1 of 3 attempts",
        "the budget shortens the run from 30 min to 18 min 10 s",
        "left out, too expensive to pay 18 min 10 s within the budget: us-central1",
    )


def test_zones_too_dear_for_the_budget_are_left_out_when_others_allow_the_whole_time() -> None:
    plan = accepted(asked(TWO), caps=Caps(run=D("0.165")))
    assert {offer.region for offer in plan.offers} == {"us-east4"}
    assert plan.ttl_s == 1800
    assert plan.notices == (
        "the budget pays for 1 of 3 attempts",
        "left out, too expensive to pay 30 min within the budget: us-central1",
    )


def test_a_run_is_refused_when_the_money_left_does_not_pay_boot_and_one_case() -> None:
    ledger = settle(hold(hold(Ledger(), "a", D(2), 60, NOON), "b", D(2), 60, NOON), "a", D(1), NOON)
    answer = refused(asked(TWO), caps=Caps(day=D("3.01"), month=D(100)), ledger=ledger)
    assert answer.kind == "budget"
    assert answer.message == (
        "l4 needs at least $0.024099 (the shortest useful run takes 4 min), but only $0.01 is left today (cap $3.01, $1 spent, $2 held)"
    )
    assert answer.hint == "raise budget.per_day_usd, or wait until tomorrow (UTC)"
    amounts = {"cap": "3.01", "spent": "1", "held": "2", "needs": "0.024099", "short_by": "0.014099"}
    assert answer.detail == {"window": "day", **amounts}


def test_a_refusal_names_the_key_to_raise() -> None:
    nothing = D(0)
    hints = [refused(caps=caps).hint for caps in (Caps(run=nothing), Caps(month=nothing), Caps(total=nothing))]
    assert hints == ["raise budget.per_run_usd", "raise budget.per_month_usd", "raise budget.total_usd"]
    overspent = settle(Ledger(), "a", D(9), NOON)
    answer = refused(caps=Caps(total=D(5)), ledger=overspent)
    assert "$0 is left in total (cap $5, $9 spent)" in answer.message


def test_a_time_too_short_for_one_case_is_refused_before_anything_is_paid() -> None:
    answer = refused(asked("gpu: l4\nrun: {max_minutes: 3}"))
    assert answer.message == "run.max_minutes of 3 is too short: booting and one case take 4 min"
    assert answer.hint == "set run.max_minutes to 4 or more"
    assert accepted(asked("gpu: l4\nrun: {max_minutes: 3}"), mode=Mode.EMBEDDED).ttl_s == 180


# --- offers and prices ----------------------------------------------------------------------------------------------


def test_zones_without_a_price_are_left_out_and_named_when_they_were_asked_for() -> None:
    plan = accepted(asked("gpu: l4\nzones: [us-east4-a, europe-west2-a]"))
    assert [offer.zone for offer in plan.offers] == ["us-east4-a"]
    assert plan.notices == ("left out, no price known: europe-west2-a",)


# Which prices a plan uses, and what it says and holds where they are old or missing.


def test_without_any_price_nothing_is_started() -> None:
    answer = refused(asked("gpu: l4\nregions: [europe-west2, europe-west3]"))
    assert answer.kind == "offers"
    assert answer.message == "no price is known for spot g2-standard-4 in europe-west2, europe-west3"
    bare = SHEET.model_copy(update={"machines": {}})
    assert refused(asked("gpu: l4"), prices=bare).message == (
        "no price is known for spot g2-standard-4 in "
        "asia-east1, asia-northeast1, asia-northeast3, asia-south1 and 14 more regions"
    )


@pytest.mark.parametrize(
    ("text", "has", "hint"),
    [
        ("gpu: h100", "a3-highgpu-1g has 1", "choose a larger one: --set machine.type=a3-highgpu-2g"),
        ("gpu: l4", "g2-standard-4 has 1", "choose another GPU, such as --gpu h200"),
        ("gpu: cpu", "has none", "choose another GPU, such as --gpu h200"),
    ],
)
def test_a_program_gets_no_machine_with_fewer_gpus_than_it_needs(text: str, has: str, hint: str) -> None:
    config = asked(text, "budget.per_run_usd=100")
    program = Workload(path="nccl.yaml", name="nccl", form="program", gpus=2)
    no = refused(config.model_copy(update={"workload": program}))
    assert no.message.startswith("nccl needs 2 GPUs, and ")
    assert (no.message.endswith(has), no.hint) == (True, hint)
    two = asked("gpu: h100", "machine.type=a3-highgpu-2g", "budget.per_run_usd=100")
    notices = accepted(two.model_copy(update={"workload": program})).notices
    assert "a3-highgpu-2g has 2 GPUs: the program needs 2 at once" in notices


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
        either = answer.message.replace("us-central1", "us-east4")
        assert either == "quota NVIDIA_L4_GPUS in us-east4 is 0, 0 in use; this run needs 1 (and 1 more like it)"


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
    granted = accepted(config, quotas=limits(PREEMPTIBLE_NVIDIA_L4_GPUS=0, NVIDIA_L4_GPUS=1))
    assert granted.offers[0].provisioning == "STANDARD"


def test_a_gpu_that_has_no_standard_quota_is_held_to_the_preemptible_one() -> None:
    config = asked("gpu: h100\nregions: [us-central1]")
    no = refused(config, quotas=limits(PREEMPTIBLE_NVIDIA_H100_GPUS=0))
    assert no.detail["metric"] == "PREEMPTIBLE_NVIDIA_H100_GPUS"
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


# Which zone next.


ZONES = ("us-central1-a", "us-central1-b", "us-east1-b", "europe-west4-a", "asia-south1-c")


def offer(zone: str, price: str = "0.30") -> Offer:
    return Offer("l4", region_of(zone), zone, "g2-standard-4", None, 0, "SPOT", Decimal(price))


offers = st.lists(
    st.builds(offer, st.sampled_from(ZONES), st.sampled_from(["0.10", "0.20", "0.30"])), unique_by=lambda o: o.zone
)


@given(offers, st.randoms(), st.lists(st.sampled_from(ZONES)))
def test_the_order_does_not_depend_on_how_the_offers_came(
    offers: list[Offer], random: object, hints: list[str]
) -> None:
    shuffled = list(offers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rank_offers(shuffled, hints=hints) == rank_offers(offers, hints=hints)


@given(offers, st.lists(st.sampled_from(ZONES)), st.sets(st.sampled_from(ZONES)))
def test_what_is_hinted_and_what_comes_last_adds_no_zone_and_loses_none(
    offers: list[Offer], hints: list[str], last: set[str]
) -> None:
    assert {o.zone for o in rank_offers(offers, hints=hints, last=last)} == {o.zone for o in offers}


def test_the_cheapest_comes_first_and_names_decide_between_equals() -> None:
    ranked = rank_offers([offer("us-east1-b"), offer("us-central1-b"), offer("europe-west4-a", "0.20")])
    assert [o.zone for o in ranked] == ["europe-west4-a", "us-central1-b", "us-east1-b"]


def test_hinted_zones_come_first_in_the_order_of_the_hint() -> None:
    ranked = rank_offers(
        [offer(zone) for zone in ZONES], hints=["us-east1-b", "us-central1-b", "us-east1-b", "nowhere-a"]
    )
    assert [o.zone for o in ranked][:2] == ["us-east1-b", "us-central1-b"]


def test_a_refusal_rules_out_its_scope_and_no_more() -> None:
    def left(scope: str) -> list[str]:
        blocked = blocked_by(scope, "us-central1-a")
        return [zone for zone in ZONES if not blocked(offer(zone))]

    assert left("zone") == ["us-central1-b", "us-east1-b", "europe-west4-a", "asia-south1-c"]
    assert left("region") == ["us-east1-b", "europe-west4-a", "asia-south1-c"]
    assert left("all") == []
    assert left("galaxy") == left("zone")


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def weighed(zone: str = "us-east1-b", price: str = "0.30", **known: Any) -> Offer:
    (found,) = weigh_offers([offer(zone, price)], now=NOW, **known)
    return found


def test_with_nothing_known_expected_dollars_are_one_runs_and_prices_give_the_order() -> None:
    assert weighed().expected_usd == Decimal("0.075000")
    assert weighed().why == "price"


@given(st.floats(0, 0.99), st.floats(0, 0.99))
def test_a_machine_that_is_taken_back_more_often_needs_more_hours(one: float, other: float) -> None:
    assert expected_hours(min(one, other)) <= expected_hours(max(one, other))
    assert expected_hours(0) == WORK_S / 3600


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_stock_out_means_less_the_older_it_is(one: float, other: float) -> None:
    assert DRY <= after_stock_out(max(one, other)) <= 1
    assert after_stock_out(min(one, other)) <= after_stock_out(max(one, other))
    assert after_stock_out(0) == pytest.approx(DRY)
    assert after_stock_out(HALF_LIFE_S) == pytest.approx((1 + DRY) / 2)


def test_a_zone_with_a_machine_half_of_the_time_counts_as_twice_as_dear() -> None:
    half = weighed(advice=[ZoneAdvice("us-east1-b", obtainable=0.5)])
    assert half.expected_usd == 2 * Decimal("0.075")
    assert half.why == "obtainable 0.50"


def test_advice_on_how_long_machines_last_counts_and_so_does_history() -> None:
    known = ZoneAdvice("us-east1-b", uptime_s=7200, preemption_rate=0.1)
    found = weighed(advice=[known], stock_outs={("us-east1-b", "g2-standard-4", "SPOT"): NOW - timedelta(hours=3)})
    assert found.why == "10% preempted, lasts 2.0 h, had none 3 h ago"
    assert found.expected_usd is not None
    assert found.expected_usd > Decimal("0.075")
    recent = weighed(stock_outs={("us-east1-b", "g2-standard-4", "SPOT"): NOW - timedelta(minutes=5)})
    assert recent.why == "had none 5 min ago"


def test_a_zone_of_which_nothing_is_said_is_taken_to_be_like_the_others() -> None:
    said = ZoneAdvice("us-east1-b", obtainable=0.5, preemption_rate=0.2)
    one, other = weigh_offers([offer("us-east1-b"), offer("us-central1-a")], advice=[said], now=NOW)
    assert other.expected_usd == one.expected_usd
    assert other.why == "as elsewhere"


def test_advice_is_on_spot_machines_and_on_no_others() -> None:
    sure = replace(offer("us-east1-b"), provisioning="STANDARD")
    (found,) = weigh_offers([sure], advice=[ZoneAdvice("us-east1-b", obtainable=0.1)], now=NOW)
    assert found.why == "price"
