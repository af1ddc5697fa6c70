"""Where machines were not to be had, remembered in the bucket: one small object a machine type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from orchestrator.core.errors import BenchError
from orchestrator.core.naming import PLACEMENT_PREFIX
from orchestrator.ports import Bucket

KEPT: Final = timedelta(days=1)
"""After a day a stock-out says nothing any more."""
TRIES: Final = 3

Pool = tuple[str, str, str]


class StockOuts:
    """Implements `orchestrator.ports.History`: one read for a plan, one compare-and-swap for a stock-out."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def stock_outs(self, machine_type: str) -> Mapping[Pool, datetime]:
        try:
            blob = self._bucket.read(_object(machine_type))
        except BenchError:
            return {}
        return _parse(machine_type, blob.data) if blob is not None else {}

    def remember(self, pool: Pool, at: datetime) -> None:
        try:
            for _ in range(TRIES):
                blob = self._bucket.read(_object(pool[1]))
                known = dict(_parse(pool[1], blob.data)) if blob is not None else {}
                known[pool] = max(at, known.get(pool, at))
                kept = {key: when for key, when in known.items() if when > at - KEPT}
                data = _dump(kept)
                generation = blob.generation if blob is not None else 0
                if self._bucket.replace(_object(pool[1]), data, generation=generation) is not None:
                    return
        except BenchError:
            return


def _object(machine_type: str) -> str:
    return f"{PLACEMENT_PREFIX}{machine_type}.json"


def _dump(known: Mapping[Pool, datetime]) -> bytes:
    zones: dict[str, dict[str, str]] = {}
    for (zone, _, provisioning), at in sorted(known.items()):
        zones.setdefault(zone, {})[provisioning] = at.astimezone(UTC).isoformat()
    return json.dumps({"schema": 1, "stock_outs": zones}, indent=1).encode()


def _parse(machine_type: str, data: bytes) -> dict[Pool, datetime]:
    """What can be read of it; a hint that cannot is none."""
    try:
        zones: dict[str, Any] = json.loads(data)["stock_outs"]
        return {
            (zone, machine_type, provisioning): datetime.fromisoformat(at)
            for zone, models in zones.items()
            for provisioning, at in models.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
