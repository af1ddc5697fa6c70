"""What a machine is told of the plan."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from orchestrator.core.mode import Mode
from orchestrator.core.plan.plan import LaunchPlan, run_spec
from tests.unit.core.asked import TWO, accepted, asked, refused

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
