"""What a fleet may cost at most, and what it is expected to cost.

    hold = sum over jobs of  machines x price x (W + 30 s) x 1.1

W is the time from the launch to the absolute end that every machine of the job carries; no machine lives past it,
however often it is recreated. 30 s is `DEADLINE_SLACK_S`. The factor 1.1 covers machines that overlap with their
replacements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Final

from orchestrator.core.market.pricing import DEADLINE_SLACK_S, round_up

# How long machines of jobs can have been there, where the bill is not to be seen: never less than they were. Pure.


@dataclass(frozen=True, slots=True)
class Life:
    """A job in one region: `parallel` machines at most from `began` to `ended`. One that is not `seen` was asked for,
    and is not there: whether it ever was, nobody can say."""

    began: datetime
    ended: datetime
    parallel: int
    seen: bool = True


def machine_seconds(lives: Iterable[Life], slack: timedelta) -> float:
    """Of jobs of which one alone is there at a time. Each lasts `slack` longer than it says, but not beyond the
    beginning of the next: that one counts from there. One that was not seen is over by then too."""
    ordered = sorted(lives, key=lambda life: life.began)
    ends = [_end(life, later.began, slack) for life, later in pairwise(ordered)]
    ends += [life.ended + slack for life in ordered[-1:]]
    return sum(
        life.parallel * max(0.0, (end - life.began).total_seconds()) for life, end in zip(ordered, ends, strict=True)
    )


def _end(life: Life, next_began: datetime, slack: timedelta) -> datetime:
    late = min(life.ended + slack, next_began)
    return max(life.ended, late) if life.seen else late


OVERLAP: Final = Fraction(11, 10)


@dataclass(frozen=True, slots=True)
class JobCost:
    """The figures from which the cost of one job's machines is computed. `children` and `child_s` serve the
    estimate."""

    gpu: str
    machines: int
    usd_per_hour: Decimal
    wall_s: int
    children: int = 0
    child_s: int = 0
    ceiling_usd: Decimal | None = None
    """The worst case of one child in dollars, if each child has its own hold; None: the job has one hold."""
    margin: Decimal = Decimal(0)
    """The share of the price that is held in addition while the price table is old."""

    @property
    def hold(self) -> Decimal:
        if self.ceiling_usd is not None:
            return self.ceiling_usd * self.children
        seconds = self.machines * (self.wall_s + DEADLINE_SLACK_S)
        return round_up(Fraction(self.usd_per_hour * (1 + self.margin)) * seconds / 3600 * OVERLAP)

    @property
    def expected_usd(self) -> Decimal:
        return round_up(Fraction(self.usd_per_hour) * self.children * self.child_s / 3600)

    @property
    def expected_s(self) -> int:
        """The expected time in seconds if every machine is there from the beginning."""
        return math.ceil(self.children / self.machines) * self.child_s if self.machines else 0


def worst_case_usd(jobs: Sequence[JobCost]) -> Decimal:
    """The worst case of a fleet in dollars."""
    return sum((job.hold for job in jobs), Decimal(0))


def divide_machines(parallel: int, children: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """The number of machines of each GPU: its share of `parallel`, or an even part of what the shares leave. It is at
    least 1 and at most the GPU's number of children."""
    other_gpus = [gpu for gpu in children if gpu not in shares]
    share_left = max(0.0, 1 - sum(shares.get(gpu, 0.0) for gpu in children))
    parts = {gpu: shares.get(gpu, share_left / len(other_gpus) if other_gpus else 0.0) for gpu in children}
    return {
        gpu: max(1, min(count, math.floor(parallel * parts[gpu] + 1e-9)))
        for gpu, count in children.items()
        if count
    }  # fmt: skip


def machines_within(dollars: Decimal, jobs: Sequence[JobCost]) -> int:
    """How many of the machines that `jobs` ask for fit into `dollars`, if each job gets the same fraction of its
    machines."""
    machines, worst = sum(job.machines for job in jobs), worst_case_usd(jobs)
    return machines if worst <= dollars else math.floor(machines * Fraction(dollars) / Fraction(worst))
