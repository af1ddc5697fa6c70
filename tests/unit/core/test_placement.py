"""Which zone next."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
