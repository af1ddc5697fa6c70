"""Compares devices: on which a case is fastest, and on which a dollar buys the most calls.

Times of two devices come from two runs and are not interleaved. So their intervals are combined as independent ones and
widened by what two runs of the same code usually differ by (`orchestrator.analysis.between`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.analysis.across import judge_ratio, largest_floor, quotient
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
    """Energy of a call; NaN where the device does not report it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One device: what was measured on it, and what that cost. `cost_usd` is everything that was spent on it.
    `usd_per_hour` is the price of the machine that the times come from. Both are None where nobody paid or the amount
    is not known. `simulated` means that nobody pays its dollars. `doubt` says why its times cannot be compared."""

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
    """A device against the best one of the row. A ratio under 1 means that it is worse by that factor."""

    ratio: Interval
    verdict: Verdict
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class DeviceCell:
    """What one device has in one row. `speed` and `value` (calls a dollar) are None for the best device of the row, and
    where there is no other device to compare with."""

    time: Time
    calls_per_usd: float
    speed: Against | None = None
    value: Against | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One implementation on one case in one setting, with a cell for each column, None where it was not timed.
    `fastest` and `cheapest` are the columns that are better than all others beyond doubt; None where no column is."""

    case_id: str
    setting: Setting
    implementation: str
    cells: tuple[DeviceCell | None, ...]
    fastest: int | None = None
    cheapest: int | None = None


@dataclass(frozen=True, slots=True)
class Devices:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def settings(self) -> tuple[Setting, ...]:
        return tuple(sorted(dict.fromkeys(row.setting for row in self.rows), key=lambda one: one.order))


@dataclass(slots=True)
class _Comparison:
    """A comparison before its p-value is corrected for the number of comparisons."""

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
    comparisons: list[_Comparison] = field(default_factory=list)


def side_by_side(columns: Sequence[Column], *, tolerance: float = 0.02) -> Devices:
    """Every row that at least one column has, in the order in which the columns have them. Each device is compared with
    the best of its row, by time and by calls a dollar; the p-values of all comparisons are corrected by Holm's method.
    A difference within `tolerance` (0.02 is two per cent) gives no verdict of better or worse."""
    sheet = _Sheet(columns)
    by_column = [{(one.case_id, one.setting, one.implementation): one for one in column.times} for column in columns]
    for key in dict.fromkeys(key for times_of in by_column for key in times_of):
        times = [times_of.get(key) for times_of in by_column]
        cells = tuple(
            None if one is None else DeviceCell(one, column.calls_per_usd(one))
            for column, one in zip(columns, times, strict=True)
        )
        sheet.rows.append(Row(*key, cells))
        _compare(sheet, of_value=False)
        _compare(sheet, of_value=True)
    return Devices(tuple(columns), _decided(sheet, tolerance))


def _compare(sheet: _Sheet, *, of_value: bool) -> None:
    """Compares every cell of the last row with the best cell of that row."""
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
        sheet.comparisons.append(
            _Comparison(
                len(sheet.rows) - 1, place, of_value, spread.widened(ratio), spread.chance(ratio),
                largest_floor(cell.time.noise, first.time.noise), "; ".join(doubts),
            )
        )  # fmt: skip


def _decided(sheet: _Sheet, tolerance: float) -> tuple[Row, ...]:
    rows = list(sheet.rows)
    for comparison, p in zip(sheet.comparisons, holm([each.p for each in sheet.comparisons]), strict=True):
        verdict = (
            Verdict.INCONCLUSIVE if comparison.doubt else judge_ratio(comparison.ratio, p, comparison.noise, tolerance)
        )
        against, row = Against(comparison.ratio, verdict, comparison.doubt), rows[comparison.row]
        cells = list(row.cells)
        cell = cells[comparison.column]
        if cell is not None:
            cells[comparison.column] = (
                replace(cell, value=against) if comparison.of_value else replace(cell, speed=against)
            )
        rows[comparison.row] = replace(row, cells=tuple(cells))
    return tuple(replace(row, fastest=_won(row, "speed"), cheapest=_won(row, "value")) for row in rows)


def _won(row: Row, measure: str) -> int | None:
    """The column that all other columns of the row are shown to be behind in `measure`; None where there is none."""
    timed = [
        (place, getattr(cell, measure))
        for place, cell in enumerate(row.cells)
        if cell is not None and (measure == "speed" or not math.isnan(cell.calls_per_usd))
    ]
    best = [place for place, against in timed if against is None]
    behind = [against.verdict is Verdict.SLOWER for _, against in timed if against is not None]
    return best[0] if len(best) == 1 and behind and all(behind) else None
