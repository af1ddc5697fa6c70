"""Repeating what may be repeated: a request that carries its own name has the same effect however often it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

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
    passing: Callable[[Exception], bool],
    final: Callable[[Exception], bool] = never,
    pause_for: Callable[[Exception, float], float] = lambda _exc, pause: pause,
) -> T:
    """What `call` gives, after a few more tries while it fails in a way that is `passing` and not `final` by
    the caller's word. `pause_for` may lengthen a pause. Raises what the last one did, as it is."""
    for planned in pauses_s:
        pause = planned
        try:
            return call()
        except Exception as exc:
            if final(exc) or not passing(exc):
                raise
            pause = pause_for(exc, planned)
        clock.sleep(pause)
    return call()
