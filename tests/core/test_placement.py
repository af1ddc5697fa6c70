"""Which zone next."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.placement import Offer, blocked_by, rank, region_of

ZONES = ("us-central1-a", "us-central1-b", "us-east1-b", "europe-west4-a", "asia-south1-c")


def offer(zone: str, price: str = "0.30") -> Offer:
    return Offer("l4", region_of(zone), zone, "g2-standard-4", None, 0, "SPOT", Decimal(price))


offers = st.lists(
    st.builds(offer, st.sampled_from(ZONES), st.sampled_from(["0.10", "0.20", "0.30"])), unique_by=lambda o: o.zone
)


@given(offers, st.randoms(), st.lists(st.sampled_from(ZONES)), st.sets(st.sampled_from(ZONES)))
def test_the_order_does_not_depend_on_how_the_offers_came(
    offers: list[Offer], random: object, hints: list[str], exhausted: set[str]
) -> None:
    shuffled = list(offers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rank(shuffled, exhausted=exhausted, hints=hints) == rank(offers, exhausted=exhausted, hints=hints)


@given(offers, st.lists(st.sampled_from(ZONES)), st.sets(st.sampled_from(ZONES)))
def test_an_exhausted_zone_never_comes_back_even_when_it_is_hinted(
    offers: list[Offer], hints: list[str], exhausted: set[str]
) -> None:
    ranked = rank(offers, exhausted=exhausted, hints=hints)
    assert {o.zone for o in ranked} == {o.zone for o in offers} - exhausted


def test_the_cheapest_comes_first_and_names_decide_between_equals() -> None:
    ranked = rank([offer("us-east1-b"), offer("us-central1-b"), offer("europe-west4-a", "0.20")])
    assert [o.zone for o in ranked] == ["europe-west4-a", "us-central1-b", "us-east1-b"]


def test_hinted_zones_come_first_in_the_order_of_the_hint() -> None:
    ranked = rank([offer(zone) for zone in ZONES], hints=["us-east1-b", "us-central1-b", "us-east1-b", "nowhere-a"])
    assert [o.zone for o in ranked][:2] == ["us-east1-b", "us-central1-b"]


def test_a_refusal_rules_out_its_scope_and_no_more() -> None:
    def left(scope: str) -> list[str]:
        blocked = blocked_by(scope, "us-central1-a")
        return [zone for zone in ZONES if not blocked(offer(zone))]

    assert left("zone") == ["us-central1-b", "us-east1-b", "europe-west4-a", "asia-south1-c"]
    assert left("region") == ["us-east1-b", "europe-west4-a", "asia-south1-c"]
    assert left("all") == []
    assert left("galaxy") == left("zone")
