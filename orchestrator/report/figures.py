"""The figures of a report: how many times faster, at what rate, and how far from the exact answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.analysis.roofs import Roof
from orchestrator.analysis.study import Case, Study
from orchestrator.core.bundled import SLOWEST
from orchestrator.core.results import is_control
from orchestrator.report.style import Look, assign_looks
from orchestrator.report.svg import Area, Board, Scale, axis_span, draw_legend
from orchestrator.report.text import (
    case_labels,
    display_name,
    format_digits,
    format_limits,
    format_ratio,
    format_tick,
    shorten_name,
)

WIDTH = 860.0
RIGHT = WIDTH - 40
SLIM = 360.0
"""The width of a phone's screen without its margins, in CSS pixels. A figure of this width needs no scrolling there."""
MOST_CASES = 60
"""The most rows of a figure; the tables and files have all cases."""


Item = TypeVar("Item")


def sample_items(items: Sequence[Item]) -> tuple[Item, ...]:
    """At most `MOST_CASES` of the items, at even distances."""
    step = max(1, math.ceil(len(items) / MOST_CASES))
    return tuple(items[::step])


def drawn_implementations(study: Study) -> tuple[str, ...]:
    """The implementations that have a time in some case, without controls; the subject is first."""
    names = study.names
    return tuple(
        name
        for name in names
        if any((timing := case.timing(name)) is not None and timing.timed for case in study.cases)
    )


def fit_names(names: Sequence[str]) -> tuple[float, list[str]]:
    """The x at which rows begin so that all their names fit, and the names; the longest are shortened."""
    short = [shorten_name(name) for name in names]
    return max(110.0, 30 + 7.4 * max(map(len, short), default=0)), short


def left_out(study: Study, *, everything: bool = False) -> tuple[str, ...]:
    """The baselines that are not in a speed-up figure: PyTorch's plain one, if there is another and not
    `everything`."""
    other_baselines = [name for name in study.baselines if name not in SLOWEST and study.against(name)]
    slow = [name for name in study.baselines if name in SLOWEST and study.against(name)]
    return () if everything or not other_baselines else tuple(slow)


def stack_rows(top: float, rows: int, height: float) -> list[tuple[float, float]]:
    """The top and the height of each row. About every `IN_VIEW` pixels there is room for the scale between two rows, so
    that a scale is always in view; the rows are shared out evenly, so that no scale stands above a single row."""
    bands = max(1, min(round(rows * height / IN_VIEW), rows // 2))
    return [(top + place * height + place * bands // rows * AXIS, height) for place in range(rows)]


IN_VIEW = 420.0
"""After this many pixels a scale is drawn again; a window is higher."""
AXIS = 24.0


NAMED = 18.0
"""The extra height of a row in a figure of width `SLIM`, where its name is above what is drawn."""


def rows_frame(
    board: Board,
    scales: Sequence[Scale],
    tops: Sequence[tuple[float, float]],
    names: Sequence[str],
    unit: str,
    left: float,
) -> None:
    """Draws the bands of the rows with their names. For each scale it draws an axis above, below, and wherever rows
    leave room. `tops` has (top, height) of each row."""
    slim = board.width < WIDTH
    first, last = tops[0][0], tops[-1][0] + tops[-1][1]
    between = [below for (top, height), (below, _) in itertools.pairwise(tops) if below > top + height]
    for place, (top, height) in enumerate(tops):
        if place % 2 == 0:
            board.box(0, top, board.width, height, "band")
        if not slim:
            board.text(left - 14, top + height / 2 + 4.5, names[place], "end")
    for scale in scales:
        for value in scale.ratios():
            x = scale(value)
            for y, below in zip((first, *between), (*(y - AXIS for y in between), last), strict=True):
                board.line(x, y, x, below, "grid")
            for y in (first, *between):
                board.text(x, y - 8, format_tick(value), "middle soft")
            if last - first > 300:
                board.text(x, last + 18, format_tick(value), "middle soft")
    for (top, _), name in zip(tops, names, strict=True):
        if slim:  # drawn last, so that the grid is behind it
            board.text(8, top + 14, name)
    board.text((left + scales[-1].end) / 2, last + (40 if last - first > 300 else 24), unit, "middle")


def scales_side_by_side(
    board: Board, titles: Sequence[str], area: Area, ends: tuple[float, float], *, named: bool
) -> tuple[list[Scale], float]:
    """A scale for each setting, side by side in an area with the titles above them; and the y at which rows begin."""
    gap = 22.0
    width = (area.width - gap * (len(titles) - 1)) / len(titles)
    lefts = [area.x + place * (width + gap) for place in range(len(titles))]
    if named:
        for left, title in zip(lefts, titles, strict=True):
            board.text(left + width / 2, area.y, title, "middle strong")
    return [Scale(*ends, left, left + width, log=True) for left in lefts], area.y + (26 if named else 0)


def noise_band(board: Board, scale: Scale, y: float, height: float, noise: float) -> None:
    """Draws the range in which a ratio may lie by chance, on one row."""
    if noise:
        left, right = scale(1 / (1 + noise)), scale(1 + noise)
        board.box(left, y + 2, right - left, height - 4, "noise")


def speedup_board(study: Study, *, everything: bool = False, width: float = WIDTH) -> Board | None:
    """A figure of the subject against each baseline, case by case, with intervals. The settings are side by side on one
    scale; with width `SLIM` they are one below the other. The grey band is the case's noise floor in that setting.
    Unless `everything`, the baselines of `left_out` are missing. None where there is nothing to compare."""
    parts = [part for part in study.parts() if part.contrasts]
    if not parts:
        return None
    compared = {case.case_id for part in parts for case in part.cases if case.contrasts}
    ids = sample_items([case_id for case_id in study.case_ids if case_id in compared])
    look, names = assign_looks(study.names), case_labels(study.case_ids)
    absent, slim = left_out(study, everything=everything), width < WIDTH
    baselines = [name for name in drawn_implementations(study) if name != study.subject and name not in absent]
    row_names = {case_id: names[case_id] for case_id in ids}
    start, right = (12.0, width - 12) if slim else (fit_names(list(row_names.values()))[0], RIGHT)
    ends = [1.0]
    for contrast in (one for part in parts for one in part.contrasts if one.case_id in ids):
        if contrast.baseline in absent:
            continue
        interval = contrast.ratio
        ends += [interval.low, interval.mid, interval.high] if interval.known else [interval.mid]
    board = Board(width, 0, f"Speed-up of {study.subject} over each baseline, by case")
    top = draw_legend(board, start, 18, [(f"over {display_name(name)}", look[name]) for name in baselines], right) + 24
    baseline_looks = {name: look[name] for name in baselines}
    for beside in [[part] for part in parts] if slim else [parts]:
        area = Area(start, top, right - start)
        present = {case.case_id for part in beside for case in part.cases if case.contrasts}
        shown = {case_id: name for case_id, name in row_names.items() if case_id in present}
        if shown:
            _panels(board, beside, area, axis_span(ends, log=True), shown, baseline_looks)
        top = board.height + 28
    return board


def _panels(
    board: Board,
    parts: Sequence[Study],
    area: Area,
    ends: tuple[float, float],
    names: Mapping[str, str],
    look: Mapping[str, Look],
) -> None:
    """Draws settings side by side in an area, on one scale, with a row for each case of `names`. Sets the height of the
    board."""
    named = NAMED if board.width < WIDTH else 0.0
    height = 12.0 + 13 * len(look) + named
    titles = [part.settings[0].name for part in parts]
    several = len(parts) > 1 or bool(named)
    scales, top = scales_side_by_side(board, titles, area, ends, named=several and bool(titles[0]))
    tops = stack_rows(top, len(names), height)
    unit = "times as fast (logarithmic; right of 1 is faster)"
    rows_frame(board, scales, tops, fit_names(list(names.values()))[1], unit, area.x)
    board.height = tops[-1][0] + height + 52
    for scale, part in zip(scales, parts, strict=True):
        by_id = {case.case_id: case for case in part.cases}
        for (y, _), case_id in zip(tops, names, strict=True):
            if case_id in by_id:
                _ratios(board, scale, y + named, height - named, by_id[case_id], names[case_id], look)
        for y, _ in tops:
            board.line(scale(1), y + named, scale(1), y + height, "axis")


def _ratios(
    board: Board, scale: Scale, y: float, height: float, case: Case, name: str, look: Mapping[str, Look]
) -> None:
    """Draws one case: its speed-up over each of the baselines of `look`, in their order."""
    noise = max((one.noise.floor for one in case.contrasts if one.noise is not None), default=0.0)
    noise_band(board, scale, y, height, noise)
    for contrast in (one for one in case.contrasts if one.baseline in look):
        at = y + 12.5 + 13 * list(look).index(contrast.baseline)
        interval, baseline_look = contrast.ratio, look[contrast.baseline]
        if interval.known:
            board.line(scale(interval.low), at, scale(interval.high), at, f"l{baseline_look.colour[1:]}")
        ratio_text = f"{format_ratio(interval.mid)} {format_limits(interval)} over {contrast.baseline}"
        note = f"{name}: {ratio_text}, {contrast.verdict}"
        board.mark(scale(interval.mid), at, baseline_look, note=note)


def roofline_board(study: Study, width: float = WIDTH) -> Board | None:
    """A figure of rates by arithmetic intensity, under the roof of the device's data sheet where there is one. None
    without rates."""
    look, case_names = assign_looks(study.names), case_labels(study.case_ids)
    points, roofs = [], []
    for case in sample_items(study.cases):
        if case.work is None or math.isnan(case.work.intensity):
            continue
        for timing in case.timings:
            if timing.timed and not is_control(timing.implementation):
                note = f"{case_names[case.case_id]}, {timing.implementation}: {format_digits(timing.tflops)} TFLOP/s"
                points.append(RoofPoint(case.work.intensity, timing.tflops, look[timing.implementation], note))
                roofs += [case.roof] if case.roof is not None else []
    names = [(display_name(name), look[name]) for name in drawn_implementations(study)]
    title = "Rate by arithmetic intensity, and the device's roof"
    return under_roof(title, "arithmetic intensity, FLOP per byte", names, points, tuple(dict.fromkeys(roofs)), width)


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """A mark under a roof: FLOP per byte, TFLOP/s, and the note that shows when it is pointed at."""

    intensity: float
    tflops: float
    look: Look
    note: str
    size: float = 4.5


def under_roof(
    title: str,
    along: str,
    names: Sequence[tuple[str, Look]],
    points: Sequence[RoofPoint],
    roofs: Sequence[Roof],
    width: float,
) -> Board | None:
    """A figure of `points` under `roofs`, with logarithmic axes; `along` is the title of the x axis. None without
    points. With width `SLIM` it fits a phone."""
    if not points:
        return None
    slim = width < WIDTH
    left, right, ticks = (54.0, width - 8, 4) if slim else (76.0, RIGHT, 7)
    board = Board(width, 0, title)
    top = draw_legend(board, left, 18, names, right) + 10
    foot = top + (250 if slim else 330)
    board.height = foot + 54
    x = Scale(*axis_span([*(p.intensity for p in points), *(r.ridge for r in roofs)], log=True), left, right, log=True)
    y = Scale(
        *axis_span([*(p.tflops for p in points), *(r.tflops for r in roofs)], log=True, pad=0.08), foot, top, log=True
    )
    for value in x.ticks(ticks):
        board.line(x(value), top, x(value), foot, "grid")
        board.text(x(value), foot + 18, format_tick(value), "middle soft")
    for value in y.ticks():
        board.line(left, y(value), right, y(value), "grid")
        board.text(left - 8, y(value) + 4.5, format_tick(value), "end soft")
    kind = "" if slim else " (logarithmic)"
    board.text((left + right) / 2, foot + 44, along + kind, "middle")
    board.text(14 if slim else 18, (top + foot) / 2, f"TFLOP/s{kind}", "middle", turned=True)
    for roof in roofs:
        draw_roof(board, roof, x, y)
    for point in points:
        board.mark(x(point.intensity), y(point.tflops), point.look, point.size, point.note)
    return board


def draw_roof(board: Board, roof: Roof, x: Scale, y: Scale) -> None:
    """Draws a roof: memory bandwidth up to the ridge, the arithmetic rate beyond it."""
    begin = max(x.low, y.low * 1e3 / roof.gb_per_s)
    corner = min(max(roof.ridge, x.low), x.high)
    slope = [(x(begin), y(begin * roof.gb_per_s / 1e3)), (x(corner), y(corner * roof.gb_per_s / 1e3))]
    board.path([*slope, (x(x.high), y(roof.tflops))], "roof")
    board.text(
        x.end - 6,
        y(roof.tflops) - 8,
        f"{format_digits(roof.tflops)} TFLOP/s {'by the data sheet' if roof.names else 'measured'}",
        "end strong",
    )


def error_board(study: Study, width: float = WIDTH) -> Board | None:
    """A figure of the largest difference from the exact answer, case by case, of the subject and PyTorch's backends. A
    case has one row, as the inputs are the same in every regime. None where no error is known."""
    slim = width < WIDTH
    worst: dict[str, dict[str, float]] = {case_id: {} for case_id in sample_items(study.case_ids)}
    for case in study.cases:
        for t in case.timings:
            if case.case_id in worst and 0 < t.max_abs_error < math.inf:
                before = worst[case.case_id].get(t.implementation, 0.0)
                worst[case.case_id][t.implementation] = max(before, t.max_abs_error)
    rows = [(case_id, by_name) for case_id, by_name in worst.items() if by_name]
    values = [value for _, by_name in rows for name, value in by_name.items() if not is_control(name)]
    if not values:
        return None
    look, names = assign_looks(study.names), case_labels(study.case_ids)
    start, titles = fit_names([names[case_id] for case_id, _ in rows])
    start, right, named = (12.0, width - 12, NAMED) if slim else (start, RIGHT, 0.0)
    scale = Scale(*axis_span(values, log=True), start, right, log=True)
    board = Board(width, 100, "Largest absolute error, by case")
    present = [name for name in study.names if any(name in by_name for _, by_name in rows)]
    top = draw_legend(board, start, 18, [(display_name(name), look[name]) for name in present], right) + 24
    height = 26.0 + named
    tops = stack_rows(top, len(rows), height)
    against = " against a float64 reference (logarithmic; left is better)"
    unit = "largest absolute error" + (" (left is better)" if slim else against)
    rows_frame(board, [scale], tops, titles, unit, start)
    board.height = tops[-1][0] + height + 52
    for (y, _), (case_id, by_name) in zip(tops, rows, strict=True):
        drawn_names = [name for name in present if name in by_name]
        for place, name in enumerate(reversed(drawn_names)):
            shift = (place - (len(drawn_names) - 1) / 2) * 3.0
            note = f"{names[case_id]}, {name}: {format_digits(by_name[name])}"
            board.mark(scale(by_name[name]), y + (height + named) / 2 + shift, look[name], 4.0, note)
    return board
