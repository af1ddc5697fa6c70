"""Devices beside each other: on which of them a case is fastest, and on which a dollar buys most calls.

Times of two devices come from two runs, so nothing is interleaved: intervals are combined as independent ones and
widened by what two runs of the same code usually differ by (`orchestrator.analysis.between`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.analysis.across import judged, quotient, widest
from orchestrator.analysis.between import spread_of
from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.verdicts import Noise, Verdict

US_PER_HOUR: Final = 3.6e9


@dataclass(frozen=True, slots=True)
class Time:
    """One implementation on one case in one setting, on one device."""

    case_id: str
    setting: Setting
    implementation: str
    median_us: Interval
    noise: Noise | None = None
    tflops: float = math.nan
    joules: float = math.nan
    """Of a call; NaN where the device does not give them."""


@dataclass(frozen=True, slots=True)
class Column:
    """One device: what was measured on it, and what that cost. `cost_usd` is of everything that was spent on it,
    `usd_per_hour` is the price of the machine that the times come from; None where nobody paid, or nobody knows.
    `simulated`: its dollars are pretended. `doubt` is why its machine was in no state to be compared."""

    name: str
    times: Sequence[Time]
    runs: Sequence[str] = ()
    cost_usd: float | None = None
    usd_per_hour: float | None = None
    answers: int = 0
    simulated: bool = False
    doubt: str = ""

    @property
    def usd_per_answer(self) -> float | None:
        """What a comparison with a conclusion cost on this device."""
        return self.cost_usd / self.answers if self.cost_usd is not None and self.answers else None

    def calls_per_usd(self, time: Time) -> float:
        """How many calls a dollar buys while the machine does nothing else; NaN where its price is not known."""
        price = self.usd_per_hour
        return US_PER_HOUR / (time.median_us.mid * price) if price else math.nan


@dataclass(frozen=True, slots=True)
class Against:
    """A device against the best one of the row. A ratio under 1: it is worse by that factor."""

    ratio: Interval
    verdict: Verdict
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one device has in one row. `speed` and `value` (calls a dollar) are None for the best of the row itself, and
    where there is nothing to compare with."""

    time: Time
    calls_per_usd: float
    speed: Against | None = None
    value: Against | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One implementation on one case in one setting; a cell for each column, None where it was not timed. `fastest` and
    `cheapest` are columns that all others are shown to be behind, None where that is not shown."""

    case_id: str
    setting: Setting
    implementation: str
    cells: tuple[Cell | None, ...]
    fastest: int | None = None
    cheapest: int | None = None


@dataclass(frozen=True, slots=True)
class Devices:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def settings(self) -> tuple[Setting, ...]:
        return tuple(sorted(dict.fromkeys(row.setting for row in self.rows), key=lambda one: one.order))


@dataclass(slots=True)
class _Asked:
    """A question before it is known how many were asked."""

    row: int
    column: int
    of_value: bool
    ratio: Interval
    p: float
    noise: Noise | None
    doubt: str


@dataclass(slots=True)
class _Sheet:
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    asked: list[_Asked] = field(default_factory=list)


def side_by_side(columns: Sequence[Column], *, tolerance: float = 0.02) -> Devices:
    """Every row that one column has at least, in the order in which the columns have them. Each device is held against
    the best of its row, by time and by calls a dollar; p-values are corrected by Holm's method for all of them. A
    difference within `tolerance` is none."""
    sheet = _Sheet(columns)
    found = [{(one.case_id, one.setting, one.implementation): one for one in column.times} for column in columns]
    for key in dict.fromkeys(key for own in found for key in own):
        times = [own.get(key) for own in found]
        cells = tuple(
            None if one is None else Cell(one, column.calls_per_usd(one))
            for column, one in zip(columns, times, strict=True)
        )
        sheet.rows.append(Row(*key, cells))
        _ask(sheet, of_value=False)
        _ask(sheet, of_value=True)
    return Devices(tuple(columns), _answered(sheet, tolerance))


def _ask(sheet: _Sheet, *, of_value: bool) -> None:
    """Holds every cell of the last row against the best of it."""
    row, spread = sheet.rows[-1], spread_of(())
    scores = {
        place: cell.calls_per_usd if of_value else 1 / cell.time.median_us.mid
        for place, cell in enumerate(row.cells)
        if cell is not None and not (of_value and math.isnan(cell.calls_per_usd))
    }
    best = max(scores, key=lambda place: scores[place], default=None)
    first = row.cells[best] if best is not None else None
    if best is None or first is None:
        return
    for place in scores:
        cell = row.cells[place]
        if place == best or cell is None:
            continue
        times = quotient(first.time.median_us, cell.time.median_us)
        prices = scores[place] / scores[best] / times.mid
        ratio = Interval(times.low * prices, times.mid * prices, times.high * prices)
        doubts = dict.fromkeys(sheet.columns[at].doubt for at in (place, best) if sheet.columns[at].doubt)
        sheet.asked.append(
            _Asked(
                len(sheet.rows) - 1, place, of_value, spread.widened(ratio), spread.chance(ratio),
                widest(cell.time.noise, first.time.noise), "; ".join(doubts),
            )
        )  # fmt: skip


def _answered(sheet: _Sheet, tolerance: float) -> tuple[Row, ...]:
    rows = list(sheet.rows)
    for one, p in zip(sheet.asked, holm([each.p for each in sheet.asked]), strict=True):
        verdict = Verdict.INCONCLUSIVE if one.doubt else judged(one.ratio, p, one.noise, tolerance)
        against, row = Against(one.ratio, verdict, one.doubt), rows[one.row]
        cells = list(row.cells)
        cell = cells[one.column]
        if cell is not None:
            cells[one.column] = replace(cell, value=against) if one.of_value else replace(cell, speed=against)
        rows[one.row] = replace(row, cells=tuple(cells))
    return tuple(replace(row, fastest=_won(row, "speed"), cheapest=_won(row, "value")) for row in rows)


def _won(row: Row, what: str) -> int | None:
    """The column that every other of the row is shown to be behind."""
    there = [
        (place, getattr(cell, what))
        for place, cell in enumerate(row.cells)
        if cell is not None and (what == "speed" or not math.isnan(cell.calls_per_usd))
    ]
    best = [place for place, against in there if against is None]
    behind = [against.verdict is Verdict.SLOWER for _, against in there if against is not None]
    return best[0] if len(best) == 1 and behind and all(behind) else None
