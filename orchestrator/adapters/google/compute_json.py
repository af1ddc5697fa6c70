"""From Compute Engine's JSON to our words. Needs none of Google's clients, which take seconds to load."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from orchestrator.core.market.machines import Instance
from orchestrator.core.names import MachineName, ResourceId, Zone

YEARS: Final = range(1970, 2200)
"""A machine's times are in one of these; where they are not, sums of them may be in no calendar."""


def last_segment(url: str) -> str:
    """The last segment of a URL: the name of what it points to."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time in UTC, or None when there is none or it cannot be read."""
    try:
        parsed = datetime.fromisoformat(text or "")
        moment = parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if moment.year in YEARS else None


def instance_from_json(found: Mapping[str, Any]) -> Instance:
    """A VM, from the API's JSON. Raises `KeyError` and its like for what is none."""
    scheduling = found.get("scheduling", {})
    started = parse_time(found.get("lastStartTimestamp"))
    deadline = parse_time(found.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp"))
    limit_s = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    if deadline is None and started is not None and limit_s:
        deadline = _after(started, limit_s)
    return Instance(
        name=MachineName(str(found["name"])),
        zone=Zone(last_segment(found.get("zone", ""))),
        id=ResourceId(str(found.get("id", ""))),
        status=str(found.get("status", "")),
        machine_type=last_segment(found.get("machineType", "")),
        labels={str(key): str(value) for key, value in found.get("labels", {}).items()},
        created_at=parse_time(found.get("creationTimestamp")) or started or datetime.fromtimestamp(0, UTC),
        started_at=started,
        deadline_at=deadline,
        preemptible=bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") == "SPOT",
    )


def _after(start: datetime, seconds: int) -> datetime | None:
    """None where no calendar goes that far."""
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        return None
