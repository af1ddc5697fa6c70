"""What a plan asks for, what it measures, and how far its search goes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.core.config.model import Workload, count_measurements, with_gpu
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.market.catalog import GPU_NAMES, find_gpu
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.naming import Mode
from orchestrator.core.plan.plan import LaunchPlan, run_spec, with_fallbacks
from orchestrator.core.plan.resumption import plan_document, plan_from
from tests.unit.core.asked import IMAGE, NOON, TWO, D, accepted, asked, refused, shipped
from tests.unit.core.limited import limits


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
    assert (
        plan.ceiling_usd
        == ceiling_usd(plan.offers[-1].usd_per_hour, 1800, 2)
        > ceiling_usd(first.usd_per_hour, 1800, 2)
    )
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
    assert isinstance(led, LaunchPlan)
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


# What a machine is told of the plan.


# --- what the machine is told ---------------------------------------------------------------------------------------


def spec_of(plan: LaunchPlan, **changes: Any) -> dict[str, Any]:
    return run_spec(
        plan, **({"run_id": "20261121-040506-l4-7f3a", "attempt": 2, "bucket": "b", "require_cuda": True} | changes)
    )


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
    assert spec == {
        "schema": 1,
        "run_id": "20261121-040506-l4-7f3a",
        "vm": "bench-20261121-040506-l4-7f3a-2",
        "attempt": 2,
        "bucket": "b",
        "gpu": "l4",
        "require_cuda": True,
        "deadline_s": 1800,
        "phase_limits_s": {
            "preflight": 300,
            "environment": 600,
            "build": 300,
            "correctness": 600,
            "measure": 1500,
            "finish": 60,
        },
        "environment": {"torch": "2.13.0", "allow_install": True, "min_free_gb": 4.0},
    }


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
