"""Selects the cases of a user's workload by the values that were chosen for its axes, as far as its text tells."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from orchestrator.core.config.model import Workload
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import suggest
from orchestrator.core.workload import HINT, case_id, text

LISTED: Final = 20


def chosen(own: Workload) -> Workload:
    """The workload with the cases that its chosen axes leave. Raises `ConfigError` for an axis that it does not have, a
    value that no case has, and values that no case has together; what its text does not tell is for the machine to say.
    """
    for axis, values in own.axes.items():
        if not values:
            raise _wrong(f".{axis}", "no value, so no case is left", _values(own, axis))
        if not own.grid:
            continue
        if axis not in own.grid[0]:
            raise _wrong(f".{axis}", f"{own.name} has no such axis", own.grid[0], axis)
        for value in values:
            if text(value) not in _values(own, axis):
                raise _wrong(f".{axis}", f"{own.name} has no case with {value}", _values(own, axis), text(value))
    if not own.axes or not own.grid:
        return own
    left = [
        case
        for case in own.grid
        if all(axis in case and text(case[axis]) in map(text, values) for axis, values in own.axes.items())
    ]
    if not left:
        raise _wrong("", f"{own.name} has no case with these values together", map(case_id, own.grid))
    return own.model_copy(update={"cases": tuple(map(case_id, left))})


def _values(own: Workload, axis: str) -> list[str]:
    return list(dict.fromkeys(text(case[axis]) for case in own.grid if axis in case))


def _wrong(where: str, what: str, there: Iterable[str], word: str = "") -> ConfigError:
    found = tuple(there)
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    choices = f"; {suggest(word, found, islice(found, LISTED))}{more}" if found else ""
    return ConfigError(f"workload.axes{where}: {what}{choices}", hint=HINT)
