"""The figures of one setting (the rate by the size of the problem, latencies case by case, latencies and sensors over
time), and every figure as a file of its own: black on white, for a paper or a README."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from orchestrator.analysis.case import CaseTiming
from orchestrator.analysis.samples import Group, Vector
from orchestrator.analysis.study import Case, Study
from orchestrator.core import bundled
from orchestrator.core.bundled import counting_convention
from orchestrator.report import figures
from orchestrator.report.figures import RIGHT, WIDTH, drawn_implementations, sample_items
from orchestrator.report.style import FIGURE_CSS, LIGHT, Look, assign_looks, inline_colours
from orchestrator.report.svg import Area, Board, Scale, axis_span, draw_legend, tile_panels
from orchestrator.report.text import case_labels, display_name, format_digits, format_tick, rate, shorten_name

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


MOST_DOTS = 200
"""The most dots for one implementation on one case."""
MOST_IN_ALL = 6000
"""The most dots in one figure, so that a large run makes no large file."""
MOST_OVER_TIME = 600
"""The most dots for the latencies of one implementation over the run."""
MOST_READINGS = 150
"""The most dots for a sensor, which does not depend on the implementation."""


def latency_board(study: Study) -> Board | None:
    """A figure of the latencies of each case: dots, a box over the middle half, and a bar at the median. None without
    latencies."""
    cases = [case for case in sample_items(study.cases) if any(t.timed for t in case.timings)]
    names = drawn_implementations(study)
    if not cases or not names:
        return None
    look, titles = assign_looks(study.names), case_labels(study.case_ids)
    board = Board(WIDTH, 0, "Latency distributions, by case")
    most = max(20, min(MOST_DOTS, MOST_IN_ALL // (len(cases) * len(names))))
    top = draw_legend(board, 8, 18, [(display_name(name), look[name]) for name in names], RIGHT) + 12
    areas, bottom = tile_panels(len(cases), WIDTH, 40.0, top, 74.0 + 20 * len(names))
    for case, area in zip(cases, areas, strict=True):
        _latency_panel(board, case, titles[case.case_id], {name: look[name] for name in names}, area, most)
    board.height = bottom + 4
    return board


def _latency_panel(board: Board, case: Case, title: str, look: Mapping[str, Look], area: Area, most: int) -> None:
    x, y, width = area.x, area.y, area.width
    timed = {t.implementation: t.group.latency_us for t in case.timings if t.timed and t.implementation in look}
    if not timed:
        board.text(x, y + 16, f"{shorten_name(title)}: not timed", "soft")
        return
    # The slowest hundredth is drawn at the edge, because it would leave too little room for the others.
    ends = [float(end) for times in timed.values() for end in (times.min(), np.quantile(times, 0.99))]
    scale = Scale(*axis_span(ends, log=True, pad=0.04), x + 14, x + width - 24, log=True)
    bottom = y + 28 + 20 * len(look)
    board.text(x, y + 16, shorten_name(title, 26), "strong")
    for value in scale.ticks(6):
        board.line(scale(value), y + 24, scale(value), bottom, "grid")
        board.text(scale(value), bottom + 16, format_tick(value), "middle soft")
    board.text(x + width, y + 16, "µs a call (logarithmic)", "end soft")
    for place, (name, own) in enumerate(look.items()):
        if name in timed:
            _strip(board, timed[name], own, scale, y + 34 + 20 * place, most)


def _strip(board: Board, times: Vector, look: Look, scale: Scale, y: float, most: int) -> None:
    number = look.colour[1:]
    chosen = times[:: max(1, -(-times.size // most))]
    # The heights follow a fixed pattern: dots do not hide each other, and a report is the same each time.
    heights = (np.arange(chosen.size) * 0.618034 % 1 - 0.5) * 11
    dots = "".join(f"M{x:.1f} {y + h:.1f}h0" for x, h in zip(scale.each(chosen), heights.tolist(), strict=True))
    board.parts.append(f'<path d="{dots}" class="dot l{number}"/>')
    low, middle, high = (scale(float(q)) for q in np.quantile(times, [0.25, 0.5, 0.75]))
    board.box(low, y - 7, high - low, 14, f"b{number}")
    board.line(middle, y - 8, middle, y + 8, f"l{number}")


Reading = tuple[str, str, Callable[[Group], Vector], bool]
"""Title, unit, what to read from a group, and whether the axis is logarithmic."""


def sensor_reader(name: str) -> Callable[[Group], Vector]:
    return lambda group: group.sensors[name]


def relative_latencies(group: Group) -> Vector:
    """Latencies divided by their median, so that all cases share one scale."""
    value: Vector = group.latency_us / np.median(group.latency_us)
    return value


READINGS: Sequence[Reading] = (
    ("latency", "times its median (logarithmic)", relative_latencies, True),
    ("SM clock", "MHz", sensor_reader("sm_clock_mhz"), False),
    ("power", "W", sensor_reader("power_w"), False),
    ("temperature", "°C", sensor_reader("temperature_c"), False),
    ("host clock", "MHz", sensor_reader("cpu_mhz"), False),
    ("host load", "processes, 1 min", sensor_reader("load_1m"), False),
    ("stolen time", "% of the host", sensor_reader("steal_percent"), False),
)


def over_time(study: Study) -> Board | None:
    """A figure of latencies and sensors over the run, with a panel for each sensor that has values."""
    names = drawn_implementations(study)
    look = assign_looks(study.names)
    groups = [t.group for case in study.cases for t in case.timings if t.timed and t.implementation in names]
    begun = min((float(np.nanmin(g.at)) for g in groups if not np.isnan(g.at).all()), default=None)
    if begun is None:
        return None
    panels = [one for one in READINGS if any(not np.isnan(one[2](group)).all() for group in groups)]
    ended = max(float(np.nanmax(g.at)) for g in groups if not np.isnan(g.at).all())
    board = Board(WIDTH, 0, "Latency and sensors over the run")
    top = draw_legend(board, 76, 18, [(display_name(name), look[name]) for name in names], RIGHT) + 14
    across = Scale(0, max(ended - begun, 1e-3), 76, RIGHT)
    height = 120.0
    for place, panel in enumerate(panels):
        _track(board, groups, look, panel, begun, across, top + place * height)
    bottom = top + len(panels) * height
    for value in across.ticks(10):
        board.text(across(value), bottom + 2, format_tick(value), "middle soft")
    board.text((76 + RIGHT) / 2, bottom + 22, "seconds since the first measurement", "middle")
    board.height = bottom + 34
    return board


def _track(
    board: Board,
    groups: Sequence[Group],
    look: Mapping[str, Look],
    panel: Reading,
    begun: float,
    across: Scale,
    y: float,
) -> None:
    title, unit, reading, log = panel
    series: dict[str, list[Vector]] = {}
    for group in groups:
        series.setdefault(group.key.implementation, []).append(np.stack([group.at - begun, reading(group)]))
    series_of_run = {name: np.concatenate(parts, axis=1) for name, parts in series.items()}
    known_series = {name: both[:, ~np.isnan(both).any(axis=0)] for name, both in series_of_run.items()}
    values = np.concatenate([both[1] for both in known_series.values()])
    if not values.size:
        return
    low, high = (float(q) for q in np.quantile(values, [0.0, 0.995]))
    scale = Scale(*axis_span((low, high), log=log), y + 92, y + 24, log=log)
    board.text(76, y + 14, f"{title}, {unit}", "strong")
    for value in found if len(found := scale.ticks(4)) > 1 else scale.ticks(7):
        board.line(76, scale(value), RIGHT, scale(value), "grid")
        board.text(68, scale(value) + 4.5, format_tick(value), "end soft")
    for name, both in known_series.items():
        most = MOST_OVER_TIME if log else MOST_READINGS
        chosen = both[:, :: max(1, -(-both.shape[1] // most))]
        dots = "".join(
            f"M{x:.1f} {at:.1f}h0" for x, at in zip(across.each(chosen[0]), scale.each(chosen[1]), strict=True)
        )
        board.parts.append(f'<path d="{dots}" class="dot l{look[name].colour[1:]}"/>')


def draw_boards(study: Study, *, everything: bool = False) -> dict[str, Board]:
    """Each figure that the data allow, by the name of its file. Where there are several settings, each has its own
    files."""
    drawn = {"speedup": figures.speedup_board(study, everything=everything)}
    for part in study.parts():
        name_suffix = f"-{part.settings[0].slug}" if len(study.settings) > 1 else ""
        drawn[f"rate{name_suffix}"] = by_size(part)[0]
        drawn[f"latency{name_suffix}"] = latency_board(part)
        drawn[f"roofline{name_suffix}"] = figures.roofline_board(part)
        drawn[f"over-time{name_suffix}"] = over_time(part)
    drawn["error"] = figures.error_board(study)
    return {name: board for name, board in drawn.items() if board is not None}


def figure_svg(board: Board) -> str:
    return board.svg(inline_colours(FIGURE_CSS, LIGHT)) + "\n"


KINDS: Final = ("svg", "png", "pdf")
