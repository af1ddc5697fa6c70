"""How long machines of jobs can have been there, where the bill is not to be seen: never less than they were. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise


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
