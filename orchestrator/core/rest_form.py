"""Whether an answer has the form of Google's: what stands under a key that we read is of one kind there, always.

Something else may answer in Google's place, such as a proxy with a page of its own. What it says is then not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

MOST_DEEP: Final = 60
"""Levels; an answer of Google's has ten."""


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _yes_or_no(value: object) -> bool:
    return isinstance(value, bool)


def _object(value: object) -> bool:
    return isinstance(value, dict)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _objects(value: object) -> bool:
    return isinstance(value, list) and all(map(_object, value))


def _items(value: object) -> bool:
    """A list of resources, or by region or zone an object with such lists."""
    return _objects(value) or (isinstance(value, dict) and all(map(_object, value.values())))


def _retirement(value: object) -> bool:
    """Of an image, and within that when it is; of some resources whether."""
    return _object(value) or _text(value) or _yes_or_no(value)


def _resources(value: object) -> bool:
    """A list of resources; within another resource, of their addresses."""
    return _objects(value) or _texts(value)


def _quotas(value: object) -> bool:
    numbers = (one[key] for one in value for key in ("limit", "usage") if key in one) if _objects(value) else ()  # type: ignore[attr-defined]
    return _objects(value) and all(map(_number, numbers))


KINDS: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(
        ("email", "etag", "expression", "family", "location", "metric", "name", "network", "nextPageToken", "role",
         "state", "publicAccessPrevention", "replacement"),
        _text,
    ),
    **dict.fromkeys(("includedPermissions", "members", "permissions"), _texts),
    **dict.fromkeys(("bindings", "nats", "rule", "services"), _objects),
    **dict.fromkeys(("routers", "subnetworks"), _resources),
    **dict.fromkeys(("condition", "iamConfiguration", "lifecycle", "uniformBucketLevelAccess"), _object),
    **dict.fromkeys(("billingEnabled", "disabled", "done", "enabled", "privateIpGoogleAccess"), _yes_or_no),
    "quotas": _quotas,
    "deprecated": _retirement,
    "items": _items,
}  # fmt: skip
"""By key, where it is there at all."""


def misshapen(document: Mapping[str, Any]) -> str:
    """The first key under which something of the wrong kind stands; empty where all is as Google's."""
    left: list[tuple[object, int]] = [(document, 0)]
    while left:
        value, deep = left.pop()
        if deep > MOST_DEEP:
            return "its depth"
        if isinstance(value, dict):
            odd = next((key for key, found in value.items() if key in KINDS and not KINDS[key](found)), None)
            if odd is not None:
                return str(odd)
            left += [(found, deep + 1) for found in value.values()]
        elif isinstance(value, list):
            left += [(found, deep + 1) for found in value]
    return ""
