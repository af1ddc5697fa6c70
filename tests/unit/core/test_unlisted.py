"""Which holds the list of runs does not show, and what is said of each: a function of the ledger and of what is there."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.images import cost_of
from orchestrator.core.ledger.budget import HoldTerms, Ledger, add_cost, hold, settle, take_back
from orchestrator.core.ledger.unlisted import (
    CATEGORY,
    MARGIN,
    KnownHolds,
    OpenHold,
    arm_request,
    most_of,
    unlisted_holds,
)
from orchestrator.core.market.pricing import DEADLINE_SLACK_S
from orchestrator.core.naming import hold_key
from tests.unit.core.builders import RUN, T0, at

FLEET = "fleet-20261121-040506-00cc"
IMAGE = "bench-image-l4-20261121-040506-7f3a"
LIMIT_S = 180.0
USD = Decimal("0.18")


def held(*keys: str, ledger: Ledger = Ledger(), pretend: bool = False) -> Ledger:  # noqa: B008 - it is frozen
    for key in keys:
        ledger = hold(ledger, key, USD, 1800, T0, HoldTerms(pretend=pretend))
    return ledger


def armed(key: str, seconds: float) -> Ledger:
    found = arm_request(held(key), key, 1, "client", at(seconds), LIMIT_S)
    assert isinstance(found, Ledger)
    return found


def named(ledger: Ledger, **known: frozenset[str]) -> tuple[OpenHold, ...]:
    return unlisted_holds(ledger, KnownHolds(**known), LIMIT_S)


def names(*known: str) -> frozenset[str]:
    return frozenset(known)


def test_an_open_run_of_the_list_speaks_for_its_holds_of_every_generation() -> None:
    ledger = held(RUN, hold_key(RUN, 1))
    assert named(ledger, open_runs=names(RUN)) == ()
    assert [one.name for one in named(ledger)] == [RUN, RUN]


def test_nothing_is_said_of_what_is_settled_or_holds_nothing() -> None:
    assert named(settle(held(RUN, FLEET), RUN, USD, T0), open_runs=names(FLEET)) == ()
    assert named(hold(Ledger(), RUN, Decimal(0), 1800, T0)) == ()
    assert named(Ledger()) == ()


def test_a_run_whose_events_are_there_is_looked_at_under_its_name() -> None:
    assert named(held(RUN, pretend=True)) == (OpenHold("run", RUN, USD, T0, True, f"bench status {RUN}"),)


def test_a_run_without_events_is_left_to_reap_once_no_machine_of_it_can_run() -> None:
    (never_asked,) = named(held(RUN), lost=names(RUN))
    assert (never_asked.remedy, never_asked.settles_at) == ("bench reap --yes", at(LIMIT_S) + MARGIN)
    (asked,) = named(armed(RUN, 60), lost=names(RUN))
    assert asked.settles_at == at(60 + LIMIT_S + 1800 + DEADLINE_SLACK_S) + MARGIN


def test_a_fleet_is_looked_at_by_whoever_launched_it_and_only_shown_to_others() -> None:
    (own,) = named(held(FLEET))
    assert (own.kind, own.remedy, own.settles_at) == ("fleet", f"bench fleet status {FLEET}", None)
    (foreign,) = named(held(FLEET), foreign=names(FLEET))
    assert foreign.remedy == f"bench fleet status --look {FLEET}"


def test_a_fleet_without_a_record_is_left_to_reap_after_its_whole_time() -> None:
    (lost,) = named(held(FLEET), lost=names(FLEET), foreign=names(FLEET))
    assert lost.remedy == "bench reap --yes"
    assert lost.settles_at == at(LIMIT_S + 1800 + DEADLINE_SLACK_S) + MARGIN


def test_an_image_that_is_being_made_is_named_until_its_amount_is_taken_back() -> None:
    ledger = add_cost(Ledger(), CATEGORY, USD, "", T0, most_of(IMAGE), pretend=True)
    assert named(ledger) == (OpenHold("image_build", IMAGE, USD, T0, True, "bench image list"),)
    back = take_back(ledger, most_of(IMAGE), "", T0, "cost-back")
    assert back is not None
    assert named(back) == ()


def test_the_storage_of_an_image_is_named_while_there_is_an_image_to_delete() -> None:
    ledger = add_cost(Ledger(), CATEGORY, USD, "", T0, cost_of(IMAGE))
    assert named(ledger, images=names(IMAGE)) == (
        OpenHold("image_storage", IMAGE, USD, T0, False, f"bench image rm {IMAGE}"),
    )
    assert named(ledger, odd_images=names(IMAGE)) == (
        OpenHold("image_storage", IMAGE, USD, T0, False, "bench image list", readable=False),
    )
    assert named(ledger) == ()
    kept = add_cost(Ledger(), CATEGORY, USD, "", T0, f"{cost_of(IMAGE)}-kept")
    assert named(kept, images=names(IMAGE)) == (), "it is gone, and what it cost is spent"
    assert named(add_cost(Ledger(), "ai", USD, "", T0, "cost-1a2b3c4d")) == ()


moments = st.integers(0, 10_000).map(lambda seconds: T0 + timedelta(seconds=seconds))
ids = st.sampled_from([RUN, hold_key(RUN, 1), "20261121-040507-l4-0002", FLEET, hold_key(FLEET, 2)])


@given(st.dictionaries(ids, moments), st.sets(ids), st.sets(ids))
def test_every_dollar_that_is_held_is_in_the_list_or_is_named_oldest_first(
    begun: dict[str, datetime], listed: set[str], lost: set[str]
) -> None:
    ledger = Ledger()
    for key, when in begun.items():
        ledger = hold(ledger, key, USD, 60, when)
    found = named(ledger, open_runs=frozenset(listed), lost=frozenset(lost))
    assert sum((one.usd for one in found), Decimal(0)) == sum(
        (entry.held for key, entry in ledger.runs.items() if key.partition("+")[0] not in listed), Decimal(0)
    )
    assert [one.since for one in found] == sorted(one.since for one in found)
