"""The ledger in the bucket. It is read, changed, and stored only if no other client has changed it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from orchestrator.core.ledger.budget import Ledger, LedgerMissing
from orchestrator.core.naming import LEDGER, parse_event_object
from orchestrator.ports import Bucket, Clock
from orchestrator.store.documents import StoredDocument, swap

Refused = TypeVar("Refused")


def _parse(data: bytes | None) -> Ledger:
    return Ledger() if data is None else Ledger.parse(data)


DOCUMENT = StoredDocument(LEDGER, Ledger, _parse, Ledger.dump)


OF_MONEY: Final = "runs/*/events/*Z-client-*-budget_held.json"
"""The names of events in which a client records that it held money. If a run has one of them, the ledger had an entry
before it, and can be rebuilt from such events."""


class LedgerStore:
    """The ledger that all clients of a bucket share, so that two clients cannot both spend the last dollar. If it is
    missing or empty although runs have held money, it is refused: it must not look as if nothing was spent."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    def read(self) -> Ledger:
        """The ledger; an empty one when nothing was ever held. Raises `LedgerUnreadable`, `LedgerMissing`."""
        return self.read_with_generation()[0]

    def read_with_generation(self) -> tuple[Ledger, int]:
        """The ledger and its generation; an empty ledger and 0 when nothing was ever held. Raises `LedgerUnreadable`,
        `LedgerMissing`."""
        blob = self._bucket.read(LEDGER)
        return (self._checked(None), 0) if blob is None else (self._checked(blob.data), blob.generation)

    def update(self, change: Callable[[Ledger], Ledger | Refused]) -> Ledger | Refused:
        """Replaces the ledger with `change(ledger)` and returns it; a refusal is returned and nothing is stored.
        Raises `LedgerUnreadable`, `LedgerMissing`, and `Unavailable` when others were faster every time."""
        return swap(self._bucket, self._clock, replace(DOCUMENT, parse=self._checked), change)

    def _checked(self, data: bytes | None) -> Ledger:
        ledger = _parse(data)
        if not ledger.empty:
            return ledger
        held = next(
            (one.name for one in self._bucket.list("runs/", matching=OF_MONEY) if parse_event_object(one.name)), ""
        )
        if held:
            blob = self._bucket.read(LEDGER)  # the first hold may have been taken since the ledger was read
            ledger = _parse(None if blob is None else blob.data)
            if ledger.empty:
                raise LedgerMissing(
                    f"gs://{self._bucket.name}/{LEDGER} is {'empty' if blob else 'gone'}, and runs of this bucket "
                    f"have held money ({held.split('/')[1]}): what was spent is not known",
                    hint="`bench budget rebuild` makes it from the events of the runs",
                )
        return ledger
