"""How a ledger is written and read, and that one that cannot be read stops all spending."""

from __future__ import annotations

import pytest
from hypothesis import given

from orchestrator.core.ledger.budget import Caps, Ledger, LedgerUnreadable
from tests.unit.core.ledgers import Step, caps, play, steps


@given(steps, caps)
def test_a_ledger_survives_being_written_and_read(steps: list[Step], caps: Caps) -> None:
    for ledger in [moment.ledger for moment in play(steps, caps)[-1:]]:
        assert Ledger.parse(ledger.dump()) == ledger
        assert Ledger.parse(ledger.dump()).dump() == ledger.dump()


def test_an_empty_document_is_an_empty_ledger() -> None:
    assert Ledger.parse(b"{}") == Ledger()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "document: Invalid JSON"),
        (b'{"schema": 2}', "schema: Input should be 1"),
        (b'{"runs": {"r": {"hold_usd": "-1", "held_at": "2026-11-21T00:00:00Z"}}}', "runs.r.hold_usd: "),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "2026-11-21T00:00:00"}}}', "runs.r.held_at: "),
        (b'{"surprise": 1}', "surprise: Extra inputs"),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "0001-01-01T00:00:00+14:00"}}}', "runs.r.held_at: "),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "9999-12-31T23:59:59-12:00"}}}', "runs.r.held_at: "),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "2026-11-21T00:00:00Z", "ttl_s": 1e18}}}', "runs.r.ttl_s: "),
        (b'{"runs": {"r+x": {"hold_usd": "1", "held_at": "2026-11-21T00:00:00Z"}}}', r"runs.r\+x.\[key\]: "),
        (b'{"costs": {"c": {"usd": "1", "at": "9999-12-31T23:59:59-12:00", "category": "ai"}}}', "costs.c.at: "),
        (b'{"caps": {"by": "ada", "at": "0001-01-01T00:00:00+14:00"}}', "caps.at: "),
    ],
)
def test_a_ledger_that_cannot_be_read_stops_all_spending(data: bytes, complaint: str) -> None:
    with pytest.raises(LedgerUnreadable, match="the ledger cannot be read: " + complaint) as caught:
        Ledger.parse(data)
    assert "bench budget rebuild" in caught.value.hint
