"""The table of a session's versions: verdicts corrected over all of them, rank intervals, and what each cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Any

from orchestrator.analysis.ranks import holm, two_sided
from orchestrator.analysis.verdicts import MARGIN, SIGNIFICANT
from orchestrator.api.sessions import VersionLine, correct_verdicts, log_error


@dataclass(frozen=True, slots=True)
class VersionRank:
    """The place of one version. Its true rank lies in `first` to `last` with 95 % confidence over all versions.
    `improves` says that it was better, with that confidence, than every improvement before it."""

    line: VersionLine
    first: int
    last: int
    improves: bool = False

    def document(self) -> dict[str, Any]:
        """The standing as JSON."""
        return {**self.line.document(), "ranks": [self.first, self.last], "improves": self.improves}


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Every version that has a ratio, best first. `cost_usd` is what the session cost, with starting and waiting."""

    standings: tuple[VersionRank, ...]
    cost_usd: Decimal

    @property
    def improvements(self) -> int:
        """How many versions improved on all before them."""
        return sum(standing.improves for standing in self.standings)

    @property
    def usd_per_improvement(self) -> Decimal | None:
        """The session's cost for each improvement; None without one."""
        return (self.cost_usd / self.improvements).quantize(Decimal("0.0001")) if self.improvements else None

    def document(self) -> dict[str, Any]:
        """The table as JSON."""
        price = self.usd_per_improvement
        return {
            "schema": 1,
            "versions": [standing.document() for standing in self.standings],
            "improvements": self.improvements,
            "cost_usd": str(self.cost_usd),
            "usd_per_improvement": None if price is None else str(price),
        }


def rank_versions(lines: Sequence[VersionLine], cost_usd: Decimal) -> Leaderboard:
    """The leaderboard of a session. Every pair of versions is compared, with Holm's correction over all pairs."""
    compared = [line for line in correct_verdicts(lines) if line.is_complete and line.ratio is not None]
    better = surely_better(compared)
    standings, best_so_far = [], compared[:1]
    for line in compared:  # in the order in which they were measured
        above = sum((other.version, line.version) in better for other in compared)
        below = sum((line.version, other.version) in better for other in compared)
        improves = all((line.version, other.version) in better for other in best_so_far) and line is not compared[0]
        if improves:
            best_so_far = [line]
        standings.append(VersionRank(line, 1 + above, len(compared) - below, improves))
    standings.sort(key=lambda standing: -standing.line.ratio.mid if standing.line.ratio is not None else 0.0)
    return Leaderboard(tuple(standings), cost_usd)


def surely_better(lines: Sequence[VersionLine]) -> set[tuple[int, int]]:
    """The pairs (better version, worse version) whose ratios differ by more than 1 %, with 95 % confidence in all of
    them together."""
    pairs = [(one, other) for one, other in combinations(lines, 2) if log_error(one) and log_error(other)]
    gaps = [log_gap(one, other) for one, other in pairs]
    errors = [math.hypot(log_error(one), log_error(other)) for one, other in pairs]
    chances = [two_sided(abs(gap) / error) for gap, error in zip(gaps, errors, strict=True)]
    certain = set()
    for (one, other), gap, chance in zip(pairs, gaps, holm(chances), strict=True):
        if chance < SIGNIFICANT and abs(gap) > math.log1p(MARGIN):
            certain.add((one.version, other.version) if gap > 0 else (other.version, one.version))
    return certain


def log_gap(one: VersionLine, other: VersionLine) -> float:
    """The logarithm of one version's ratio over another's."""
    assert one.ratio is not None, "only versions with a ratio are compared"
    assert other.ratio is not None, "only versions with a ratio are compared"
    return math.log(one.ratio.mid / other.ratio.mid)
