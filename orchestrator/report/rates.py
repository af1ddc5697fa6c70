"""The figure of the rate by the size of the problem, as papers have it, with a line for each implementation."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.study import Case, Study
from orchestrator.analysis.timings import CaseTiming
from orchestrator.core import bundled
from orchestrator.core.bundled import counting_convention
from orchestrator.report.figures import WIDTH, drawn_implementations
from orchestrator.report.style import Look, assign_looks
from orchestrator.report.svg import Area, Board, Scale, axis_span, draw_legend, tile_panels
from orchestrator.report.text import display_name, format_digits, format_tick, rate, shorten_name

MOST_PANELS: Final = 16
RateOf = Callable[[Case, CaseTiming], float]


NO_BREAK: Final = "\u00a0"
Kind = tuple[tuple[str, str], ...]
"""The axes and values that the cases of a panel have in common."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Cases that differ only in their size: the axis of the sizes, and the value of a timing with its unit."""

    title: str
    axis: str
    cases: Sequence[Case]
    unit: str
    rate: RateOf


def by_size(part: Study, width: float = WIDTH) -> tuple[Board | None, str]:
    """The figure of one setting and its caption. The figure is None where no axis of numbers has two values."""
    cases = [case for case in part.cases if any(timing.timed for timing in case.timings)]
    names = drawn_implementations(part)
    panels = _panels(cases)
    if not panels or not names:
        return None, ""
    fewer = f" Of {len(panels)} panels {MOST_PANELS} are drawn." if len(panels) > MOST_PANELS else ""
    panels = panels[:MOST_PANELS]
    units = list(dict.fromkeys(panel.unit for panel in panels))
    title = f"{' and '.join(units)} by {axis_name(panels[0].axis)}"
    counted = f" Operations by {counting_convention(case.axes for case in cases)}." if "TFLOP/s" in units else ""
    bars = "Medians; bars are their 95 % intervals, where they are wider than a mark."
    return _board(panels, title, names, part, width), f"{title}. {bars}{counted}{fewer}"


def _panels(cases: Sequence[Case]) -> list[Panel]:
    """A panel for each kind of case with at least two sizes; those with the most sizes come first."""
    axis = size_axis([case.axes for case in cases])
    if not axis:
        return []
    follows = _following([case.axes for case in cases], axis)
    kinds: dict[Kind, list[Case]] = {}
    for case in cases:
        kinds.setdefault(_kind(case.axes, axis, follows), []).append(case)
    kept = {kind: own for kind, own in sorted(kinds.items(), key=lambda one: -len(one[1])) if len(own) > 1}
    common = set.intersection(*(set(kind) for kind in kept)) if kept else set()
    return [
        Panel(_title([pair for pair in kind if pair not in common]), axis, own, *_rate(own))
        for kind, own in kept.items()
    ]


def size_axis(axes: Sequence[Mapping[str, str]]) -> str:
    """The axis of whole numbers with the most values; the first of several. Empty where no axis has two values."""
    values = {name: {one.get(name, "") for one in axes} for name in dict.fromkeys(name for one in axes for name in one)}
    numbers = {name: len(found) for name, found in values.items() if all(one.isdigit() for one in found)}
    most = max(numbers.values(), default=0)
    return next((name for name, count in numbers.items() if count == most), "") if most > 1 else ""


def axis_name(axis: str) -> str:
    """The name of an axis as a person reads it; those of a user's own workload have a prefix in the rows."""
    return axis.removeprefix("axis:").replace("_", " ")


def _following(axes: Sequence[Mapping[str, str]], axis: str) -> frozenset[str]:
    """The other axes that are equal to the size at two sizes or more, as in square problems."""
    same: dict[str, set[str]] = {}
    for one in axes:
        for name, value in one.items():
            if name != axis and value == one.get(axis):
                same.setdefault(name, set()).add(value)
    return frozenset(name for name, sizes in same.items() if len(sizes) > 1)


def _kind(own: Mapping[str, str], axis: str, follows: frozenset[str]) -> Kind:
    """All axes without that of the size, and without those that follow the size and are equal to it."""
    return tuple(
        (name, value)
        for name, value in own.items()
        if name != axis and not (name in follows and value == own.get(axis))
    )


def _title(pairs: Sequence[tuple[str, str]]) -> str:
    title_parts = [
        value if not value.isdigit() and value not in ("true", "false") else f"{axis_name(name)} {value}"
        for name, value in pairs
    ]
    return ", ".join(bundled.in_words(one).replace("_", " ").replace(" ", NO_BREAK) for one in title_parts)


def _rate(cases: Sequence[Case]) -> tuple[str, RateOf]:
    """The unit and value to show: TFLOP/s; GB/s where memory limits most cases; microseconds where the work is not
    known."""
    if any(case.work is None for case in cases):
        return "µs a call", lambda _, timing: timing.median_us.mid
    units = {unit for case in cases for timing in case.timings if timing.timed and (unit := rate(case, timing).unit)}
    if len(units) == 1 and (unit := units.pop()) == "GFLOP/s":
        return unit, lambda _, timing: timing.tflops * 1e3
    bound = [
        case.work is not None
        and (math.isnan(case.work.flop) or (case.roof is not None and case.work.intensity < case.roof.ridge))
        for case in cases
    ]
    if 2 * sum(bound) > len(cases):
        return "GB/s", lambda case, timing: case.work.bytes / timing.median_us.mid / 1e3 if case.work else 0.0
    return "TFLOP/s", lambda _, timing: timing.tflops


def _board(panels: Sequence[Panel], title: str, names: Sequence[str], part: Study, width: float) -> Board:
    look = assign_looks(part.names)
    board = Board(width, 0, f"{title}, one line an implementation")
    top = draw_legend(board, 60, 18, [(display_name(name), look[name]) for name in names], width - 40) + 8
    areas, bottom = tile_panels(len(panels), width, 30.0, top, 264.0)
    for panel, area in zip(panels, areas, strict=True):
        _panel(board, panel, {name: look[name] for name in names}, Area(area.x, area.y + 14, area.width))
    board.height = bottom + 4
    return board


def _panel(board: Board, panel: Panel, look: Mapping[str, Look], area: Area) -> None:
    axis, cases, unit, rate = panel.axis, panel.cases, panel.unit, panel.rate
    x, y, width = area.x, area.y, area.width
    lines: dict[str, list[tuple[int, float, CaseTiming]]] = {}
    for case in sorted(cases, key=lambda case: int(case.axes[axis])):
        for timing in case.timings:
            if timing.timed and timing.implementation in look:
                point = (int(case.axes[axis]), rate(case, timing), timing)
                lines.setdefault(timing.implementation, []).append(point)
    sizes = sorted({int(case.axes[axis]) for case in cases})
    values = [value for line in lines.values() for _, value, _ in line]
    across = Scale(*axis_span(sizes, log=True), x + 62, x + width - 14, log=True)
    low, high = axis_span(values, log=True) if "µs" in unit else (0.0, max(values) * 1.06)
    up = Scale(low, high, y + 196, y + 30, log="µs" in unit)
    for above, words in enumerate(reversed(_broken(panel.title, int((width - 62) / 8)))):
        board.text(x + 62, y + 18 - 16 * above, words, "strong")
    for value in up.ticks(5):
        board.line(x + 62, up(value), x + width - 14, up(value), "grid")
        board.text(x + 55, up(value) + 4.5, format_tick(value), "end soft")
    room = [sizes[0]]
    room += [
        size for size in sizes[1:] if across(size) - across(room[-1]) >= 7.5 * len(format_tick(size)) + 10 or not room
    ]
    for size in sizes:
        board.line(across(size), y + 196, across(size), y + 201, "axis")
    for size in room:
        board.text(across(size), y + 216, format_tick(size), "middle soft")
    board.text(x + 62 + (width - 76) / 2, y + 236, axis_name(axis), "middle")
    board.text(x + 14, y + 113, unit, "middle", turned=True)
    for name, line in lines.items():
        look_of_name = look[name]
        board.path([(across(size), up(value)) for size, value, _ in line], f"l{look_of_name.colour[1:]}")
        for size, value, timing in line:
            middle = timing.median_us
            if middle.known:
                ends = sorted(up(value * ratio) for ratio in (middle.mid / middle.low, middle.mid / middle.high))
                if ends[1] - ends[0] > 8:
                    board.line(across(size), ends[0], across(size), ends[1], f"l{look_of_name.colour[1:]}")
            board.mark(
                across(size),
                up(value),
                look_of_name,
                4.0,
                f"{name}, {format_tick(size)}: {format_digits(value)} {unit}",
            )


def _broken(title: str, most: int) -> list[str]:
    """A title, broken into two lines of at most `most` characters."""
    lines = [line.replace(NO_BREAK, " ") for line in textwrap.wrap(title, most, break_on_hyphens=False)]
    return lines if len(lines) < 3 else [lines[0], shorten_name(" ".join(lines[1:]), most)]
