"""The stock-outs that clients have met, stored in the bucket: one small object for each machine type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import TypeAdapter

from orchestrator.core.bounds import Moment
from orchestrator.core.errors import BenchError, DocumentUnreadable
from orchestrator.core.naming import PLACEMENT_PREFIX
from orchestrator.core.text import is_newer, parse_document
from orchestrator.ports import Bucket, Clock
from orchestrator.store.documents import StoredDocument, swap

KEPT: Final = timedelta(days=1)
"""After this time a stock-out is ignored."""
MOMENT: Final[TypeAdapter[datetime]] = TypeAdapter(Moment)

Pool = tuple[str, str, str]


class StockOuts:
    """The stock-outs that clients of this bucket have met. A plan costs one read, a stock-out one compare-and-swap.
    They are only hints: if one is lost, a launch may try a zone that has no machine."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    def stock_outs(self, machine_type: str) -> Mapping[Pool, datetime]:
        """The time of the last stock-out of each pool (zone, machine type, provisioning), as far as it is stored. Empty
        where the bucket cannot be read."""
        try:
            blob = self._bucket.read(_object(machine_type))
        except BenchError:
            return {}
        return _parse(machine_type, blob.data) if blob is not None else {}

    def remember(self, pool: Pool, at: datetime) -> None:
        """Stores a stock-out. Errors of the bucket are ignored."""

        def change(known: dict[Pool, datetime]) -> dict[Pool, datetime]:
            newest = {**known, pool: max(at, known.get(pool, at))}
            return {key: when for key, when in newest.items() if when > at - KEPT}

        try:
            swap(self._bucket, self._clock, stockouts_document(pool[1]), change)
        except BenchError:
            return


def stockouts_document(machine_type: str) -> StoredDocument[dict[Pool, datetime]]:
    def read(data: bytes | None) -> dict[Pool, datetime]:
        if data is not None and is_newer(data):  # an object of a newer version is not changed
            raise DocumentUnreadable(
                f"{_object(machine_type)} was written by a newer version of bench", hint="use that version"
            )
        return {} if data is None else _parse(machine_type, data)

    return StoredDocument(_object(machine_type), dict, read, _dump)


def _object(machine_type: str) -> str:
    return f"{PLACEMENT_PREFIX}{machine_type}.json"


def _dump(known: Mapping[Pool, datetime]) -> bytes:
    zones: dict[str, dict[str, str]] = {}
    for (zone, _, provisioning), at in sorted(known.items()):
        zones.setdefault(zone, {})[provisioning] = at.astimezone(UTC).isoformat()
    return json.dumps({"schema": 1, "stock_outs": zones}, indent=1).encode()


def _parse(machine_type: str, data: bytes) -> dict[Pool, datetime]:
    """The stock-outs in an object; empty where it cannot be read, as they are only hints."""
    try:
        zones: dict[str, Any] = parse_document(data)["stock_outs"]
        return {
            (zone, machine_type, provisioning): MOMENT.validate_python(at)
            for zone, models in zones.items()
            for provisioning, at in models.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):  # a ValidationError is a ValueError
        return {}
