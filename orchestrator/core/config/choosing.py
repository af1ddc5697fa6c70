"""Selects the cases of a user's workload by the values that were chosen for its axes. It sees only the cases that can
be read from the workload's text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from orchestrator.core.config.model import Workload
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import suggest
from orchestrator.core.workload import HINT, case_id, text

LISTED: Final = 20
"""How many choices a message lists."""


def chosen(workload: Workload) -> Workload:
    """The workload with only the cases that have the chosen values. If the cases cannot be read from its text, it is
    returned unchanged, and the machine checks the choice. Raises `ConfigError` for an axis that the workload does not
    have, for a value that no case has, and for values that no case has together."""
    for axis, values in workload.axes.items():
        if not values:
            raise _wrong(f".{axis}", "no value, so no case is left", _values(workload, axis))
        if not workload.grid:
            continue
        if axis not in workload.grid[0]:
            raise _wrong(f".{axis}", f"{workload.name} has no such axis", workload.grid[0], axis)
        for value in values:
            if text(value) not in _values(workload, axis):
                raise _wrong(
                    f".{axis}", f"{workload.name} has no case with {value}", _values(workload, axis), text(value)
                )
    if not workload.axes or not workload.grid:
        return workload
    left = [
        case
        for case in workload.grid
        if all(axis in case and text(case[axis]) in map(text, values) for axis, values in workload.axes.items())
    ]
    if not left:
        raise _wrong("", f"{workload.name} has no case with these values together", map(case_id, workload.grid))
    return workload.model_copy(update={"cases": tuple(map(case_id, left))})


def _values(workload: Workload, axis: str) -> list[str]:
    return list(dict.fromkeys(text(case[axis]) for case in workload.grid if axis in case))


def _wrong(where: str, what: str, valid: Iterable[str], word: str = "") -> ConfigError:
    choices = tuple(valid)
    more = f" and {len(choices) - LISTED} more" if len(choices) > LISTED else ""
    suggestion = f"; {suggest(word, choices, islice(choices, LISTED))}{more}" if choices else ""
    return ConfigError(f"workload.axes{where}: {what}{suggestion}", hint=HINT)
