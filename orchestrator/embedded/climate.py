"""Conditions: lasting faults of a project.

They are in the same document as the faults of `weather`, but they are not used up: a condition affects every request
that it concerns, until the weather is replaced or a request repairs it. `bench doctor` can see each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

FOREVER = 1_000_000
"""How many requests a condition affects unless it names a number."""

# The keys that each condition may have, in addition to `fault`, `times` and a free-text `note`.
CONDITIONS: dict[str, frozenset[str]] = {
    "project_missing": frozenset(),
    "billing_off": frozenset(),
    "api_disabled": frozenset({"api"}),
    "permission_missing": frozenset({"permission"}),
    "quota_limit": frozenset({"metric", "region", "limit"}),
    "image_renamed": frozenset({"family", "to"}),
    "image_deprecated": frozenset({"family", "state", "replacement"}),
    "bucket_missing": frozenset({"bucket"}),
    "bucket_elsewhere": frozenset({"bucket", "location"}),
    "network_missing": frozenset({"network"}),
    "no_nat": frozenset({"region"}),
    "no_private_access": frozenset({"region"}),
    "service_account_missing": frozenset({"email"}),
    "service_account_disabled": frozenset({"email"}),
    "clock_skew": frozenset({"seconds", "service"}),
    "one_time_limit": frozenset(),
    "api_propagation": frozenset({"minutes", "api"}),
    "api_settling": frozenset({"api", "until"}),
}
REQUIRED: dict[str, frozenset[str]] = {
    "api_disabled": frozenset({"api"}),
    "permission_missing": frozenset({"permission"}),
    "quota_limit": frozenset({"metric"}),
    "image_renamed": frozenset({"family", "to"}),
    "image_deprecated": frozenset({"family"}),
    "bucket_elsewhere": frozenset({"location"}),
    "clock_skew": frozenset({"seconds"}),
    "api_propagation": frozenset({"minutes"}),
    "api_settling": frozenset({"api", "until"}),
}
STATES = ("DEPRECATED", "OBSOLETE")


def complaint(params: Mapping[str, Any]) -> str:
    """What is wrong with the values of a condition; empty if nothing is."""
    if params.get("state", "DEPRECATED") not in STATES:
        return f"state must be {' or '.join(STATES)}, not {params['state']!r}"
    minutes = params.get("minutes", 0)
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or minutes < 0:
        return f"minutes must be a number, not {minutes!r}"
    if "until" in params:
        try:
            datetime.fromisoformat(str(params["until"]))
        except ValueError:
            return f"until must be a time such as 2026-11-21T04:05:06Z, not {params['until']!r}"
    limit = params.get("limit", 0)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 0:
        return f"limit must be a number, not {limit!r}"
    return ""


def concerns(params: Mapping[str, Any], **thing: str) -> bool:
    """Whether a condition concerns this thing. A key that the condition does not have matches every value."""
    return all(params.get(key, value) == value for key, value in thing.items())
