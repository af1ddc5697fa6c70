"""The figures that show single measurements: latencies case by case, and latencies and sensors over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from orchestrator.analysis.samples import Group, Vector
from orchestrator.analysis.study import Case, Study
from orchestrator.report.figures import RIGHT, WIDTH, drawn_implementations, sample_items
from orchestrator.report.style import Look, assign_looks
from orchestrator.report.svg import Area, Board, Scale, axis_span, draw_legend, tile_panels
from orchestrator.report.text import case_labels, display_name, format_tick, shorten_name

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
        _panel(board, case, titles[case.case_id], {name: look[name] for name in names}, area, most)
    board.height = bottom + 4
    return board


def _panel(board: Board, case: Case, title: str, look: Mapping[str, Look], area: Area, most: int) -> None:
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
