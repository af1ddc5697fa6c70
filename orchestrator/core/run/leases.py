"""A grid that several machines measure together: who has which case, decided in one document by compare-and-swap.

A holder has a case from when it is handed out until it is done, or until the holder is taken for dead: when the bucket
itself has not seen its heartbeat for `TTL`. All times are the bucket's own, so no clock of ours decides anything. What
is done stays done, by whom it was first: a holder that comes back from the dead with a case that another has done
meanwhile brings nothing new.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.errors import DocumentUnreadable

TTL: Final = timedelta(seconds=60)
"""A heartbeat is due every few seconds: so many missed ones are no accident."""
BATCH: Final = 2
"""Cases that a holder has at once: the one that it measures, and the next, so that it never waits for us."""


class GridUnreadable(DocumentUnreadable):
    """The leases in the bucket are not ones that this version can read."""


class SharedGrid(BaseModel):
    """The document `grids/<lead>.json`."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")
    schema_: Literal[1] = Field(default=1, alias="schema")
    cases: tuple[str, ...]
    """All of them, in the order in which they are handed out."""
    members: dict[str, str]
    """By run, where it is measured: `user@box`. A run is a holder."""
    leases: dict[str, str] = Field(default_factory=dict)
    """By case, its holder."""
    done: dict[str, str] = Field(default_factory=dict)
    """By case, who has measured it."""

    @classmethod
    def parse(cls, data: bytes) -> SharedGrid:
        """Raises `GridUnreadable`."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise GridUnreadable(f"the leases of a shared grid cannot be read: {error.errors()[0]['msg']}") from error

    def dump(self) -> bytes:
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True).encode()

    @property
    def over(self) -> bool:
        return all(case in self.done for case in self.cases)

    def held_by(self, holder: str) -> tuple[str, ...]:
        """Its cases that are not done, in order."""
        return tuple(case for case in self.cases if self.leases.get(case) == holder)

    def done_by(self, holder: str) -> tuple[str, ...]:
        return tuple(case for case in self.cases if self.done.get(case) == holder)


def living(beats: Mapping[str, datetime], now: datetime, ttl: timedelta = TTL) -> frozenset[str]:
    """The holders whose last heartbeat is not too old. `now` and the beats are the bucket's."""
    return frozenset(holder for holder, at in beats.items() if now - at <= ttl)


def hand_out(grid: SharedGrid, holder: str, alive: Collection[str], batch: int = BATCH) -> SharedGrid:
    """The grid after a holder was given cases, up to `batch` in hand: those that nobody has, and those of the dead.
    Never one that is done, and never one of a holder that is alive."""
    wanted = batch - len(grid.held_by(holder))
    free = [case for case in grid.cases if case not in grid.done and _is_free(grid, case, holder, alive)]
    taken = free[: max(wanted, 0)]
    return _with(grid, leases={**grid.leases, **dict.fromkeys(taken, holder)}) if taken else grid


def _is_free(grid: SharedGrid, case: str, holder: str, alive: Collection[str]) -> bool:
    has = grid.leases.get(case)
    return has is None or (has != holder and has not in alive)


def complete(grid: SharedGrid, holder: str, cases: Collection[str]) -> SharedGrid:
    """The grid after a holder has measured cases. What somebody did before stays theirs, whoever has the lease."""
    new = {case: holder for case in grid.cases if case in cases and case not in grid.done}
    leases = {case: has for case, has in grid.leases.items() if case not in new}
    return _with(grid, leases=leases, done={**grid.done, **new}) if new else grid


def give_up(grid: SharedGrid, holder: str) -> SharedGrid:
    """The grid after a holder has ended: what it had in hand is anybody's."""
    if not grid.held_by(holder):
        return grid
    return _with(grid, leases={case: has for case, has in grid.leases.items() if has != holder})


def superseded(grid: SharedGrid, stored: Mapping[str, Collection[str]]) -> tuple[tuple[str, str], ...]:
    """(holder, case) of what was measured once more by a holder that had been taken for dead; `stored` is by holder."""
    return tuple(
        (holder, case)
        for holder in sorted(stored)
        for case in sorted(stored[holder])
        if grid.done.get(case, holder) != holder
    )


def _with(grid: SharedGrid, **changes: Any) -> SharedGrid:
    return grid.model_copy(update=changes)
