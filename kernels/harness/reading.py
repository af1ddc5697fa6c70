"""Reads documents that people write, strictly: every error names the key, what was found and what is expected."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any


class BadSpec(Exception):
    """The spec is not valid. The message names the key, what was found and what is expected."""


def read_object(
    data: object, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """A JSON object with these keys and no others. Raises `BadSpec`."""
    if not isinstance(data, dict):
        raise BadSpec(f"{where} must be an object, not {shorten_value(data)}")
    missing = [key for key in required if key not in data]
    unknown = sorted(set(data) - {*required, *optional})
    if missing or unknown:
        lacks = f" lacks {', '.join(missing)}" if missing else ""
        extra = f" has unknown {', '.join(unknown)}" if unknown else ""
        raise BadSpec(f"{where}{lacks}{' and' if lacks and extra else ''}{extra}")
    return data


def read_names(
    data: object, where: str, known: tuple[str, ...], allowed: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """A list, not empty and without repetition, of known names, or of whatever is `allowed`. Raises `BadSpec`."""
    if not isinstance(data, list) or not data:
        raise BadSpec(f"{where} must be a list with at least one of {', '.join(known)}, not {shorten_value(data)}")
    name_list = tuple(read_name(one, where, known, allowed) for one in data)
    if len(set(name_list)) < len(name_list):
        raise BadSpec(f"{where} repeats a name: {', '.join(name_list)}")
    return name_list


def read_name(data: object, where: str, known: tuple[str, ...], allowed: Callable[[str], bool] | None = None) -> str:
    """One known name, or one that is `allowed`. Raises `BadSpec`."""
    if not isinstance(data, str) or not (allowed(data) if allowed else data in known):
        raise BadSpec(f"{where}: {shorten_value(data)} is none of {', '.join(known)}")
    return data


def read_integer(data: object, where: str, least: int, otherwise: str = "") -> int:
    """An integer of at least `least`; true and 1.0 are not integers. Raises `BadSpec`, which names what else is
    accepted."""
    if not isinstance(data, int) or isinstance(data, bool) or data < least:
        raise BadSpec(f"{where} must be an integer >= {least}{otherwise}, not {shorten_value(data)}")
    return data


def read_positive(data: object, where: str) -> float:
    """A finite number above 0. Raises `BadSpec`."""
    if not isinstance(data, (int, float)) or isinstance(data, bool) or not 0 < data < float("inf"):
        raise BadSpec(f"{where} must be a positive number, not {shorten_value(data)}")
    return float(data)


def read_truth(data: object, where: str) -> bool:
    """True or false. Raises `BadSpec`."""
    if not isinstance(data, bool):
        raise BadSpec(f"{where} must be true or false, not {shorten_value(data)}")
    return data


def text_of(data: object, where: str) -> str:
    """A string. Raises `BadSpec`."""
    if not isinstance(data, str):
        raise BadSpec(f"{where} must be a string, not {shorten_value(data)}")
    return data


def shorten_value(data: object) -> str:
    """A value as the message shows it: JSON, cut short."""
    shown_text = json.dumps(data, default=str)
    return shown_text if len(shown_text) <= 60 else shown_text[:57] + "..."
