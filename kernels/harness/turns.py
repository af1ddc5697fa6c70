"""Implementations bound to the input sets of a case, and which input sets come next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kernels.harness.workload import Plan


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation. `plans` has the same call on each input set. `scope` is entered around calls and is not
    timed."""

    implementation: str
    plans: tuple[Plan, ...]
    scope: Callable[[], AbstractContextManager[object]]


class Turns:
    """One sequence of input sets for all contenders, so that none finds in the cache what the one before it has
    read."""

    def __init__(self, sets: int) -> None:
        self.sets, self.at = sets, 0

    def take(self, contender: Contender, calls: int) -> list[Plan]:
        """The contender's next `calls` calls."""
        taken = [contender.plans[(self.at + i) % self.sets] for i in range(calls)]
        self.at = (self.at + calls) % self.sets
        return taken
