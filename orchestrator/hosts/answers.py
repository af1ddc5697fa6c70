"""What a host answers, judged: text made harmless, numbers of a size that time has, trouble as an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.errors import BenchError, HostUnfit, Unavailable
from orchestrator.core.foreign import log_text, plain
from orchestrator.core.hosts import Target

MOST: Final = 1e11
"""Above any time in seconds, and any size of a log."""


def trouble(answer: Mapping[str, Any], target: Target) -> BenchError | None:
    """What stood in the way of an operation, as an error; None when nothing did."""
    kind, path, why = answer.get("trouble"), answer.get("path") or "", answer.get("message") or "it does not say why"
    at = f" ({path})" if path else ""
    if not kind:
        return None
    if kind == "disk_full":
        hint = f"free some space there: `df -h {path or '~'}`; the cache folder may be deleted when no run is on it"
        return HostUnfit(f"the disk of {target} is full: {why}{at}", hint=hint)
    if kind == "not_writable":
        hint = f"on {target.called}: `ls -ld {path or '~/.cache'}`; set XDG_CACHE_HOME there to a folder that is yours"
        return HostUnfit(f"{target} lets nothing be written: {why}{at}", hint=hint)
    if kind == "checksum":
        return Unavailable(f"{target}: {why}{at}", hint="it is sent again")
    return HostUnfit(f"{target}: {why}{at}", hint=f"{target.entry}look at it there")


def said(answer: object) -> dict[str, Any]:
    """What a host answers, its text made harmless: of a log all lines, of all else one. Raises `HostUnfit`."""
    if not isinstance(answer, Mapping):
        raise HostUnfit("a host answers what no part of bench says", hint="`ssh` there and look at it")
    return {key: log_text(value) if key == "text" else plain(value) for key, value in answer.items()}


def seconds(answer: Mapping[str, Any], key: str) -> float:
    """A number that a host gives, of a size that time has. Raises `HostUnfit`."""
    try:
        value = float(answer[key])
    except (KeyError, TypeError, ValueError, OverflowError):
        value = -1.0
    if not 0 <= value <= MOST:
        raise HostUnfit(f"a host answers what no part of bench says: {key}", hint="`ssh` there and look at it")
    return value
