"""The ledger in the bucket: read, decide, and swap only if nobody was faster."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from orchestrator.core.budget import Ledger
from orchestrator.core.errors import Unavailable
from orchestrator.core.naming import LEDGER
from orchestrator.ports import Bucket, Clock

ATTEMPTS: Final = 12
Refused = TypeVar("Refused")


class LedgerStore:
    """All clients of a bucket share one ledger, so two laptops cannot both spend the last dollar."""

    def __init__(self, bucket: Bucket, clock: Clock, *, object_name: str = LEDGER) -> None:
        self._bucket = bucket
        self._clock = clock
        self._object = object_name

    def read(self) -> Ledger:
        """The ledger; an empty one when nothing was ever held."""
        return self.read_with_generation()[0]

    def read_with_generation(self) -> tuple[Ledger, int]:
        """The ledger and its generation; an empty one and 0 when nothing was ever held."""
        blob = self._bucket.read(self._object)
        if blob is None:
            return Ledger(), 0
        return Ledger.parse(blob.data), blob.generation

    def update(self, change: Callable[[Ledger], Ledger | Refused]) -> Ledger | Refused:
        """Replaces the ledger with `change(ledger)` and returns it; a refusal is returned and nothing is stored.

        `change` is called again, on the newer ledger, when another client was faster, and in the rare case that our own
        change got in, its answer was lost, and another followed: it must leave alone what it finds done already.
        Raises `Unavailable` when others were faster every time.
        """
        for attempt in range(ATTEMPTS):
            ledger, generation = self.read_with_generation()
            wanted = change(ledger)
            if not isinstance(wanted, Ledger):
                return wanted
            if generation and wanted == ledger:
                return ledger
            data = wanted.dump()
            if self._bucket.replace(self._object, data, generation=generation) is not None:
                return wanted
            there = self._bucket.read(self._object)
            if there is not None and there.data == data:
                return wanted
            self._clock.sleep(random.uniform(0.02, 0.1) * 2 ** min(attempt, 5))
        raise Unavailable(
            f"the ledger gs://{self._bucket.name}/{self._object} changed {ATTEMPTS} times while it was updated",
            hint="many clients write to it at once: try again",
        )
