"""The caps of the bucket beside those of the client."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.ledger.budget import (
    WINDOWS,
    Approved,
    Caps,
    HoldRefused,
    Ledger,
    SharedCaps,
    authorize,
    set_caps,
)
from tests.unit.core.ledgers import NOON, D, amounts


def shared(**caps: Decimal) -> Ledger:
    return set_caps(Ledger(), SharedCaps(by="ada", at=NOON, **caps))


@given(st.builds(Caps, *[st.none() | amounts] * 4), st.builds(Caps, *[st.none() | amounts] * 4), amounts)
def test_of_the_clients_caps_and_the_buckets_the_lower_binds(own: Caps, theirs: Caps, ceiling: Decimal) -> None:
    ledger = shared(**{w: cap for w in WINDOWS if (cap := theirs.of(w)) is not None})
    fits = isinstance(authorize(ledger, own, ceiling, NOON), Approved)
    alone = [isinstance(authorize(Ledger(), caps, ceiling, NOON), Approved) for caps in (own, theirs)]
    assert fits == all(alone)


def test_a_refusal_says_who_set_the_cap_and_how_it_is_changed() -> None:
    refused = authorize(shared(day=D(1)), Caps(day=D(5)), D(2), NOON)
    assert isinstance(refused, HoldRefused)
    assert (refused.cap, refused.set_by) == (D(1), "ada")
    assert "bench budget set --day" in refused.remedy
    own = authorize(shared(day=D(5)), Caps(day=D(1)), D(2), NOON)
    assert isinstance(own, HoldRefused)
    assert own.set_by == ""
    assert "budget.per_day_usd" in own.remedy


def test_caps_that_were_changed_stay_on_record() -> None:
    ledger = shared(day=D(1))
    for amount in range(2, 40):
        ledger = set_caps(ledger, SharedCaps(by="bob", at=NOON, day=D(amount)))
    assert ledger.caps is not None
    assert ledger.caps.day == 39
    assert [caps.day for caps in ledger.earlier_caps] == list(range(19, 39))
    assert Ledger.parse(ledger.dump()) == ledger
