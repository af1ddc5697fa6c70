"""From Compute Engine's JSON to our words. Needs none of Google's clients, which take seconds to load."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core.market.machines import Instance


def last(url: str) -> str:
    """The last segment of a URL: the name of what it points to."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def when(text: str | None) -> datetime | None:
    """An RFC 3339 time in UTC, or None when there is none or it cannot be read."""
    try:
        parsed = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def instance(found: Mapping[str, Any]) -> Instance:
    """A VM, from the API's JSON."""
    scheduling = found.get("scheduling", {})
    started = when(found.get("lastStartTimestamp"))
    deadline = when(found.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp"))
    limit_s = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    if deadline is None and started is not None and limit_s:
        deadline = started + timedelta(seconds=limit_s)
    return Instance(
        name=found["name"],
        zone=last(found.get("zone", "")),
        id=str(found.get("id", "")),
        status=found.get("status", ""),
        machine_type=last(found.get("machineType", "")),
        labels=dict(found.get("labels", {})),
        created_at=when(found.get("creationTimestamp")) or started or datetime.fromtimestamp(0, UTC),
        started_at=started,
        deadline_at=deadline,
        preemptible=bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") == "SPOT",
    )
