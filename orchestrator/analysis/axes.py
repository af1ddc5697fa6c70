"""How times change along one axis of a sweep while the other axes stay fixed: a line for each device and
implementation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.devices import Time
from orchestrator.analysis.regimes import Setting


@dataclass(frozen=True, slots=True)
class Measured:
    """What one device measured at one point of the sweep. `at` has each axis's value as text."""

    device: str
    at: Mapping[str, str]
    times: Sequence[Time]


@dataclass(frozen=True, slots=True)
class AxisPoint:
    value: str
    time_us: Interval
    """The geometric mean of the medians of its cases, in microseconds; the intervals are combined as independent
    ones."""
    cases: int


@dataclass(frozen=True, slots=True)
class Line:
    device: str
    implementation: str
    points: tuple[AxisPoint, ...]
    """In the order of the axis; values at which nothing was timed are left out."""


@dataclass(frozen=True, slots=True)
class Along:
    """One axis, with what stays the same along it. `alike` says whether all points are means over the same cases."""

    axis: str
    values: tuple[str, ...]
    fixed: tuple[tuple[str, str], ...]
    timed: str
    """How it was timed: a regime and caches, or the regime alone where the axis changes the caches."""
    alike: bool
    lines: tuple[Line, ...]

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values as numbers; None where one of them is no number."""
        numbers = [parse_number(value) for value in self.values]
        return None if None in numbers else tuple(one for one in numbers if one is not None)


def axis_views(axes: Mapping[str, Sequence[str]], measured: Sequence[Measured]) -> tuple[Along, ...]:
    """A view for every axis of at least two values, every choice of the other axes' values, and every way of timing
    that all its points share."""
    views: list[Along] = []
    for axis, values in axes.items():
        if len(values) < 2:
            continue
        other_axes = [name for name in axes if name != axis]
        groups: dict[tuple[tuple[str, str], ...], list[Measured]] = {}
        for point in measured:
            groups.setdefault(tuple((name, point.at[name]) for name in other_axes if name in point.at), []).append(
                point
            )
        for fixed, group in groups.items():
            views += _views(axis, _in_order(values), fixed, group)
    return tuple(views)


def parse_number(value: object) -> float | None:
    """The finite number that `value` is or spells; None for anything else."""
    try:
        parsed = float(str(value))
    except ValueError:
        return None
    return parsed if math.isfinite(parsed) else None


def _in_order(values: Sequence[str]) -> tuple[str, ...]:
    """Numbers sorted by size; other values in the order of the sweep."""
    if all(parse_number(value) is not None for value in values):
        return tuple(sorted(values, key=float))
    return tuple(values)


def _views(
    axis: str, values: Sequence[str], fixed: tuple[tuple[str, str], ...], group: Sequence[Measured]
) -> Iterable[Along]:
    settings = [{time.setting for time in one.times} for one in group]
    shared = set.intersection(*settings) if settings else set()
    if shared:
        for setting in sorted(shared, key=lambda one: one.order):
            yield from _view(axis, values, fixed, group, setting, whole=True)
        return
    regimes = set.intersection(*({setting.regime for setting in one} for one in settings)) if settings else set()
    for regime in sorted(regimes, key=lambda one: Setting(one).order):
        yield from _view(axis, values, fixed, group, Setting(regime), whole=False)


def _view(
    axis: str,
    values: Sequence[str],
    fixed: tuple[tuple[str, str], ...],
    group: Sequence[Measured],
    setting: Setting,
    *,
    whole: bool,
) -> Iterable[Along]:
    timed: dict[tuple[str, str], dict[str, dict[str, Interval]]] = {}
    for measured in group:
        for time in measured.times:
            if time.setting == setting if whole else time.setting.regime == setting.regime:
                cases = timed.setdefault((measured.device, time.implementation), {}).setdefault(measured.at[axis], {})
                cases[time.case_id] = time.median_us
    points = [cases for by_value in timed.values() for cases in by_value.values()]
    common = set.intersection(*(set(cases) for cases in points)) if points else set()
    lines = []
    for (device, implementation), by_value in timed.items():
        line_points = tuple(_point(value, by_value[value], common) for value in values if value in by_value)
        if len(line_points) > 1:
            lines.append(Line(device, implementation, line_points))
    if lines:
        yield Along(axis, tuple(values), fixed, setting.name, bool(common), tuple(lines))


def _point(value: str, cases: Mapping[str, Interval], common: set[str]) -> AxisPoint:
    times = [time_us for case_id, time_us in cases.items() if not common or case_id in common]
    return AxisPoint(value, geometric_mean(times), len(times))


def geometric_mean(times: Sequence[Interval]) -> Interval:
    """The geometric mean of independent positive estimates (at least one). Its limits are NaN where a limit of one of
    them is not known."""
    mid = sum(math.log(one.mid) for one in times) / len(times)
    if not all(one.known for one in times):
        return Interval(math.nan, math.exp(mid), math.nan)
    low = math.sqrt(sum(math.log(one.mid / one.low) ** 2 for one in times)) / len(times)
    high = math.sqrt(sum(math.log(one.high / one.mid) ** 2 for one in times)) / len(times)
    return Interval(math.exp(mid - low), math.exp(mid), math.exp(mid + high))
