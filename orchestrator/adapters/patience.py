"""Repeating what may be repeated: a request that carries its own name has the same effect however often it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from orchestrator.adapters.google_errors import FOREIGN, is_transient
from orchestrator.ports import Clock

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
T = TypeVar("T")


def never(_exc: Exception) -> bool:
    return False


def patiently(
    clock: Clock,
    call: Callable[[], T],
    pauses_s: Sequence[float] = PAUSES_S,
    *,
    final: Callable[[Exception], bool] = never,
) -> T:
    """What `call` gives, after a few more tries while it fails in a way that may pass and that is not `final` by the
    caller's word. Raises what the last one did, Google's exceptions as they are."""
    for pause in pauses_s:
        try:
            return call()
        except FOREIGN as exc:
            if final(exc) or not is_transient(exc):
                raise
        clock.sleep(pause)
    return call()
