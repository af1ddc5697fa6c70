"""The figures of a report: how many times faster, at what rate, and how far from the exact answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.analysis.roofs import Roof
from orchestrator.analysis.study import Case, Study
from orchestrator.core.bundled.names import SLOWEST
from orchestrator.core.results import is_control
from orchestrator.report.palette import Look, looks
from orchestrator.report.svg import Area, Board, Scale, legend, span
from orchestrator.report.text import backend, digits, labels, ratio, shortened, tick, within

WIDTH = 860.0
RIGHT = WIDTH - 40
SLIM = 360.0
"""The width of a phone's screen, less its margins, in CSS pixels: a figure so wide is read there without scrolling."""
MOST_CASES = 60
"""More rows than a person compares by eye; the tables and files have all."""


Item = TypeVar("Item")


def shown(items: Sequence[Item]) -> tuple[Item, ...]:
    """At most `MOST_CASES`, spread evenly over all."""
    step = max(1, math.ceil(len(items) / MOST_CASES))
    return tuple(items[::step])


def drawn(study: Study) -> tuple[str, ...]:
    """The implementations that have a time anywhere, the subject first, without controls."""
    names = (study.subject, *study.baselines)
    return tuple(
        name for name in names if any((found := case.timing(name)) is not None and found.timed for case in study.cases)
    )


def fitting(names: Sequence[str]) -> tuple[float, list[str]]:
    """How far from the left the rows begin so that none of their names is cut, and the names, the longest shortened."""
    short = [shortened(name) for name in names]
    return max(110.0, 30 + 7.4 * max(map(len, short), default=0)), short


def left_out(study: Study, *, everything: bool = False) -> tuple[str, ...]:
    """The baselines that a speed-up figure has no room for: PyTorch's plain one, where there is any other."""
    others = [name for name in study.baselines if name not in SLOWEST and study.against(name)]
    slow = [name for name in study.baselines if name in SLOWEST and study.against(name)]
    return () if everything or not others else tuple(slow)


def stacked(top: float, rows: int, height: float) -> list[tuple[float, float]]:
    """The top and the height of each row, with room for the scale between them so often that it is always in view."""
    every = max(1, int(IN_VIEW // height))
    return [(top + place * height + place // every * AXIS, height) for place in range(rows)]


IN_VIEW = 420.0
"""Pixels after which a scale is drawn again: less than a window has."""
AXIS = 24.0


NAMED = 18.0
"""What a row is higher by in a figure of `SLIM`, where its name stands above what is drawn."""


def rows_frame(
    board: Board,
    scales: Sequence[Scale],
    tops: Sequence[tuple[float, float]],
    names: Sequence[str],
    unit: str,
    left: float,
) -> None:
    """Row bands with their names, and for each scale an axis above and below, and wherever rows leave room. `tops` are
    (top, height) of each row."""
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
                board.text(x, y - 8, tick(value), "middle soft")
            if last - first > 300:
                board.text(x, last + 18, tick(value), "middle soft")
    for (top, _), name in zip(tops, names, strict=True):
        if slim:  # above the lines of the grid
            board.text(8, top + 14, name)
    board.text((left + scales[-1].end) / 2, last + (40 if last - first > 300 else 24), unit, "middle")


def beside(
    board: Board, titles: Sequence[str], area: Area, ends: tuple[float, float], *, named: bool
) -> tuple[list[Scale], float]:
    """One scale for each setting, side by side in an area, with its name above it; and where their rows begin."""
    gap = 22.0
    width = (area.width - gap * (len(titles) - 1)) / len(titles)
    lefts = [area.x + place * (width + gap) for place in range(len(titles))]
    if named:
        for left, title in zip(lefts, titles, strict=True):
            board.text(left + width / 2, area.y, title, "middle strong")
    return [Scale(*ends, left, left + width, log=True) for left in lefts], area.y + (26 if named else 0)


def noise_band(board: Board, scale: Scale, y: float, height: float, noise: float) -> None:
    """What a ratio may be by chance, on a row."""
    if noise:
        left, right = scale(1 / (1 + noise)), scale(1 + noise)
        board.box(left, y + 2, right - left, height - 4, "noise")


def speedup(study: Study, *, everything: bool = False, width: float = WIDTH) -> Board | None:
    """The subject against each baseline, case by case, with intervals, the settings side by side on one scale (in a
    figure of `SLIM` one below the other); the grey band is the case's noise floor in that setting. Without
    `everything`, without what is left out."""
    parts = [part for part in study.parts() if part.contrasts]
    if not parts:
        return None
    compared = {case.case_id for part in parts for case in part.cases if case.contrasts}
    ids = shown([case_id for case_id in study.case_ids if case_id in compared])
    look, names = looks((study.subject, *study.baselines)), labels(study.case_ids)
    absent, slim = left_out(study, everything=everything), width < WIDTH
    baselines = [name for name in drawn(study) if name != study.subject and name not in absent]
    told = {case_id: names[case_id] for case_id in ids}
    start, right = (12.0, width - 12) if slim else (fitting(list(told.values()))[0], RIGHT)
    ends = [1.0]
    for contrast in (one for part in parts for one in part.contrasts if one.case_id in ids):
        if contrast.baseline in absent:
            continue
        found = contrast.ratio
        ends += [found.low, found.mid, found.high] if found.known else [found.mid]
    board = Board(width, 0, f"Speed-up of {study.subject} over each baseline, by case")
    top = legend(board, start, 18, [(f"over {backend(name)}", look[name]) for name in baselines], right) + 24
    own = {name: look[name] for name in baselines}
    for beside in [[part] for part in parts] if slim else [parts]:
        area = Area(start, top, right - start)
        _panels(board, beside, area, span(ends, log=True), told, own)
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
    """Settings side by side in an area, on one scale: a row for each case of `names`, the board as high as it takes."""
    named = NAMED if board.width < WIDTH else 0.0
    height = 12.0 + 13 * len(look) + named
    titles = [part.settings[0].name for part in parts]
    several = len(parts) > 1 or bool(named)
    scales, top = beside(board, titles, area, ends, named=several and bool(titles[0]))
    tops = stacked(top, len(names), height)
    unit = "times as fast (logarithmic; right of 1 is faster)"
    rows_frame(board, scales, tops, fitting(list(names.values()))[1], unit, area.x)
    board.height = tops[-1][0] + height + 52
    for scale, part in zip(scales, parts, strict=True):
        own = {case.case_id: case for case in part.cases}
        for (y, _), case_id in zip(tops, names, strict=True):
            if case_id in own:
                _ratios(board, scale, y + named, height - named, own[case_id], names[case_id], look)
        for y, _ in tops:
            board.line(scale(1), y + named, scale(1), y + height, "axis")


def _ratios(
    board: Board, scale: Scale, y: float, height: float, case: Case, name: str, look: Mapping[str, Look]
) -> None:
    """One case: its speed-up over each of the baselines of `look`, in their order."""
    noise = max((one.noise.floor for one in case.contrasts if one.noise is not None), default=0.0)
    noise_band(board, scale, y, height, noise)
    for contrast in (one for one in case.contrasts if one.baseline in look):
        at = y + 12.5 + 13 * list(look).index(contrast.baseline)
        found, own = contrast.ratio, look[contrast.baseline]
        if found.known:
            board.line(scale(found.low), at, scale(found.high), at, f"l{own.colour[1:]}")
        told = f"{ratio(found.mid)} {within(found)} over {contrast.baseline}"
        note = f"{name}: {told}, {contrast.verdict}"
        board.mark(scale(found.mid), at, own, note=note)


def roofline(study: Study, width: float = WIDTH) -> Board | None:
    """Rates by arithmetic intensity, under the roof of the device's data sheet where there is one."""
    look, case_names = looks((study.subject, *study.baselines)), labels(study.case_ids)
    points, roofs = [], []
    for case in shown(study.cases):
        if case.work is None:
            continue
        for timing in case.timings:
            if timing.timed and not is_control(timing.implementation):
                note = f"{case_names[case.case_id]}, {timing.implementation}: {digits(timing.tflops)} TFLOP/s"
                points.append(Point(case.work.intensity, timing.tflops, look[timing.implementation], note))
                roofs += [case.roof] if case.roof is not None else []
    names = [(backend(name), look[name]) for name in drawn(study)]
    title = "Rate by arithmetic intensity, and the device's roof"
    return under_roof(title, "arithmetic intensity, FLOP per byte", names, points, tuple(dict.fromkeys(roofs)), width)


@dataclass(frozen=True, slots=True)
class Point:
    """A mark under a roof: FLOP per byte and TFLOP/s, and what is told of it when it is pointed at."""

    intensity: float
    tflops: float
    look: Look
    note: str
    size: float = 4.5


def under_roof(
    title: str,
    along: str,
    names: Sequence[tuple[str, Look]],
    points: Sequence[Point],
    roofs: Sequence[Roof],
    width: float,
) -> Board | None:
    """`points` under `roofs`, both axes logarithmic; `along` says what is counted along the lower one. None without
    points. A figure of `SLIM` is read on a phone as it is."""
    if not points:
        return None
    slim = width < WIDTH
    left, right, ticks = (54.0, width - 8, 4) if slim else (76.0, RIGHT, 7)
    board = Board(width, 0, title)
    top = legend(board, left, 18, names, right) + 10
    foot = top + (250 if slim else 330)
    board.height = foot + 54
    x = Scale(*span([*(p.intensity for p in points), *(r.ridge for r in roofs)], log=True), left, right, log=True)
    y = Scale(*span([*(p.tflops for p in points), *(r.tflops for r in roofs)], log=True, pad=0.08), foot, top, log=True)
    for value in x.ticks(ticks):
        board.line(x(value), top, x(value), foot, "grid")
        board.text(x(value), foot + 18, tick(value), "middle soft")
    for value in y.ticks():
        board.line(left, y(value), right, y(value), "grid")
        board.text(left - 8, y(value) + 4.5, tick(value), "end soft")
    kind = "" if slim else " (logarithmic)"
    board.text((left + right) / 2, foot + 44, along + kind, "middle")
    board.text(14 if slim else 18, (top + foot) / 2, f"TFLOP/s{kind}", "middle", turned=True)
    for roof in roofs:
        draw_roof(board, roof, x, y)
    for point in points:
        board.mark(x(point.intensity), y(point.tflops), point.look, point.size, point.note)
    return board


def draw_roof(board: Board, roof: Roof, x: Scale, y: Scale) -> None:
    """Memory bandwidth up to the ridge, the arithmetic rate from there."""
    begin = max(x.low, y.low * 1e3 / roof.gb_per_s)
    corner = min(max(roof.ridge, x.low), x.high)
    slope = [(x(begin), y(begin * roof.gb_per_s / 1e3)), (x(corner), y(corner * roof.gb_per_s / 1e3))]
    board.path([*slope, (x(x.high), y(roof.tflops))], "roof")
    board.text(x.end - 6, y(roof.tflops) - 8, f"{digits(roof.tflops)} TFLOP/s by the data sheet", "end strong")


def errors(study: Study, width: float = WIDTH) -> Board | None:
    """Largest difference from the exact answer, case by case, the subject beside PyTorch's own backends. The inputs are
    the same in every regime, so a case has one row."""
    slim = width < WIDTH
    worst: dict[str, dict[str, float]] = {case_id: {} for case_id in shown(study.case_ids)}
    for case in study.cases:
        for t in case.timings:
            if case.case_id in worst and 0 < t.max_abs_error < math.inf:
                before = worst[case.case_id].get(t.implementation, 0.0)
                worst[case.case_id][t.implementation] = max(before, t.max_abs_error)
    rows = [(case_id, found) for case_id, found in worst.items() if found]
    values = [value for _, found in rows for name, value in found.items() if not is_control(name)]
    if not values:
        return None
    look, names = looks((study.subject, *study.baselines)), labels(study.case_ids)
    start, titles = fitting([names[case_id] for case_id, _ in rows])
    start, right, named = (12.0, width - 12, NAMED) if slim else (start, RIGHT, 0.0)
    scale = Scale(*span(values, log=True), start, right, log=True)
    board = Board(width, 100, "Largest absolute error, by case")
    present = [name for name in (study.subject, *study.baselines) if any(name in found for _, found in rows)]
    top = legend(board, start, 18, [(backend(name), look[name]) for name in present], right) + 24
    height = 26.0 + named
    tops = stacked(top, len(rows), height)
    against = " against a float64 reference (logarithmic; left is better)"
    unit = "largest absolute error" + (" (left is better)" if slim else against)
    rows_frame(board, [scale], tops, titles, unit, start)
    board.height = tops[-1][0] + height + 52
    for (y, _), (case_id, found) in zip(tops, rows, strict=True):
        drawn_names = [name for name in present if name in found]
        for place, name in enumerate(reversed(drawn_names)):
            shift = (place - (len(drawn_names) - 1) / 2) * 3.0
            note = f"{names[case_id]}, {name}: {digits(found[name])}"
            board.mark(scale(found[name]), y + (height + named) / 2 + shift, look[name], 4.0, note)
    return board
