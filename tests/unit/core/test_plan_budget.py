"""A plan stays within every budget: it is shortened, moved to cheaper machines or refused."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.ledger.budget import Approved, Caps, HoldTerms, Ledger, authorize, hold, settle
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused
from tests.unit.core.asked import NOON, TWO, D, accepted, asked, planned, refused

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
    assert answer.detail == {
        "window": "day",
        "cap": "3.01",
        "spent": "1",
        "held": "2",
        "needs": "0.024099",
        "short_by": "0.014099",
    }


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
