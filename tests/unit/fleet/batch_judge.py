"""Which laws a fleet on Batch kept, judged by the cloud's bill and by what its children counted.

Nothing here is computed by the code that is judged: what a hold is, is written out once more, as a plain fraction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from orchestrator.embedded.meter import BillRow

SLACK = timedelta(seconds=30)
CENT = Decimal("0.01")


@dataclass(frozen=True)
class Seen:
    """What became of one fleet."""

    children: int
    stored: int
    stored_twice: int
    raced: int
    bill: Sequence[BillRow]
    now: datetime
    metered: Decimal
    """Dollars, by the cloud's own tariff."""
    price: Decimal
    """Dollars an hour that the fleet reckons with."""
    ends: tuple[datetime, ...]
    """Of each generation: no machine lives past its end."""
    wall_s: int
    parallel: int
    settled_s: float
    """Seconds of machines that the client would settle by, before the factor for replacements."""
    jobs: int
    generations: int
    fired: Counter[str]
    left_over: int
    hours: float

    @property
    def machines(self) -> int:
        return len(self.bill)

    @property
    def held_s(self) -> Fraction:
        """Seconds of machines that money was held for: for each generation  machines x (W + 30 s) x 1.1."""
        return Fraction(len(self.ends) * self.parallel * (self.wall_s + 30) * 11, 10)

    @property
    def held(self) -> Decimal:
        """In dollars, rounded to nearest."""
        return dollars(self.held_s, self.price)

    @property
    def lived_s(self) -> Fraction:
        """Seconds that machines were there, each of them added up."""
        return (
            sum((Fraction((end - start) / timedelta(microseconds=1)) for start, end in self.lives), Fraction(0)) / 10**6
        )

    @property
    def lives(self) -> list[tuple[datetime, datetime]]:
        return [(row.started_at, row.ended_at or self.now) for row in self.bill if row.started_at is not None]

    @property
    def most_at_once(self) -> int:
        """How many machines there were at the same time, at most."""
        steps = sorted([(start, 1) for start, _ in self.lives] + [(end, -1) for _, end in self.lives])
        there = most = 0
        for _, step in steps:
            there += step
            most = max(most, there)
        return most


def dollars(seconds: Fraction, price: Decimal) -> Decimal:
    exact = seconds * Fraction(price) / 3600
    return Decimal(exact.numerator) / Decimal(exact.denominator)


def broken(seen: Seen) -> list[str]:
    """The laws that do not hold."""
    end = max(seen.ends)
    laws = {
        "every child is stored": seen.stored == seen.children,
        "nothing is stored twice": seen.stored_twice == 0,
        "every machine has a server-side end": all(row.has_deadline for row in seen.bill),
        "no machine outlives the fleet": all((row.ended_at or seen.now) <= end + SLACK for row in seen.bill),
        "what was metered was held": seen.metered <= seen.held,
        "machines had no more time than was held": seen.lived_s <= seen.held_s,
        "what is settled is no less than what was metered": (
            seen.metered <= dollars(Fraction(seen.settled_s) * 11 / 10, seen.price) + CENT
        ),
        "nothing is left over": seen.left_over == 0,
    }
    return [law for law, holds in laws.items() if not holds]
