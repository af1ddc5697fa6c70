"""Figures along the axes of a sweep: time against a setting, a line for each device and implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.analysis.axes import Along, Line
from orchestrator.core.text import count
from orchestrator.report.document import pick_fields
from orchestrator.report.figures import RIGHT, SLIM, WIDTH
from orchestrator.report.page import Figure, Part, Section, Text
from orchestrator.report.style import Look, assign_looks
from orchestrator.report.svg import Area, Board, Scale, axis_span, draw_legend
from orchestrator.report.text import display_name, format_digits, format_limits, format_tick, shorten_name

LEFT: Final = 86.0
BOTTOM: Final = 330.0
MOST_LINES: Final = 6
"""With more lines than this each implementation has a figure of its own."""
MOST_FIGURES: Final = 24
"""Only so many figures are drawn; the JSON has the data of all."""
LOG_FROM: Final = 8.0
"""An axis of numbers is logarithmic if the largest is at least this many times the smallest."""


def axis_sections(views: Sequence[Along]) -> list[Section]:
    """A section for each axis, with its figures one below the other."""
    by_axis: dict[str, list[Part]] = {}
    drawn = 0
    for view in views:
        for lines in figure_lines(view):
            drawn += 1
            if drawn <= MOST_FIGURES:
                figure = Figure(axis_board(view, lines), figure_caption(view, lines), axis_board(view, lines, SLIM))
                by_axis.setdefault(view.axis, []).append(figure)
    made = [Section(f"Along {axis}", parts) for axis, parts in by_axis.items()]
    if drawn > MOST_FIGURES:
        hidden_note = Text(f"{MOST_FIGURES} of {drawn} figures; report.json has all of them as data.", "soft")
        made[-1] = Section(made[-1].title, [*made[-1].parts, hidden_note])
    return made


def figure_lines(view: Along) -> list[tuple[Line, ...]]:
    """The lines of each figure of a view."""
    if len(view.lines) <= MOST_LINES:
        return [view.lines]
    names = dict.fromkeys(line.implementation for line in view.lines)
    return [tuple(line for line in view.lines if line.implementation == name) for name in names]


def figure_caption(view: Along, lines: Sequence[Line]) -> str:
    cases = {point.cases for line in lines for point in line.points}
    several = max(cases) > 1
    what = f"geometric means of {count(max(cases), 'case')}" if several else "medians of one case"
    differing = "" if view.alike else ", different ones at each value"
    where = " ".join(f"{name}={value}" for name, value in view.fixed)
    return f"{where + ': ' if where else ''}{what}{differing}, with 95 % intervals; lower is faster."


def axis_board(view: Along, lines: Sequence[Line], width: float = WIDTH) -> Board:
    """A figure of time, on a logarithmic scale, against the axis. With width `SLIM` it fits a phone."""
    named = _names(lines)
    look = _looks(lines, named)
    what = f" ({view.timed})" if view.timed else ""
    left, right = (66.0, width - 8) if width < WIDTH else (LEFT, RIGHT)
    names = [(shorten_name(named[line], 30), look[line]) for line in lines]
    figure = Board(width, 0, f"Time along {view.axis}{what}")
    top = draw_legend(figure, left, 18, names, right) + 8
    foot = max(BOTTOM, top + 250)
    figure.height = foot + 56
    ends = [
        value
        for line in lines
        for point in line.points
        for value in (point.time_us.low, point.time_us.mid, point.time_us.high)
        if value > 0  # this also leaves NaN out
    ]
    y = Scale(*axis_span(ends, log=True, pad=0.08), foot, top, log=True)
    for value in y.ticks():
        figure.line(left, y(value), right, y(value), "grid")
        figure.text(left - 8, y(value) + 4.5, format_tick(value), "end soft")
    places = _places(view, figure, Area(left, top, right - left), foot)
    figure.text(12 if width < WIDTH else 18, (top + foot) / 2, f"median µs{what}, logarithmic", "middle", turned=True)
    for number, line in enumerate(lines):
        aside = 0.0 if view.numbers is not None else (number - (len(lines) - 1) / 2) * (7.0 if width == WIDTH else 3.5)
        _draw(figure, line, named[line], look[line], {value: x + aside for value, x in places.items()}, y)
    return figure


def _draw(board: Board, line: Line, name: str, look: Look, places: Mapping[str, float], y: Scale) -> None:
    style = f"l{look.colour[1:]}"
    board.path([(places[point.value], y(point.time_us.mid)) for point in line.points], style)
    for point in line.points:
        x, time_us = places[point.value], point.time_us
        if time_us.known:
            board.line(x, y(time_us.low), x, y(time_us.high), style)
        value_text = f"{format_digits(time_us.mid, 4)} µs {format_limits(time_us)}".strip()
        board.mark(x, y(time_us.mid), look, note=f"{name}, {point.value}: {value_text}")


def _places(view: Along, board: Board, area: Area, foot: float) -> dict[str, float]:
    """Draws the axis at `foot` and returns the x of each value."""
    left, right = area.x, area.x + area.width
    numbers = view.numbers
    if numbers is None:
        room = (right - left) / len(view.values)
        places = {value: left + room * (at + 0.5) for at, value in enumerate(view.values)}
        every = max(1, round(60 / room))
        for at, (value, x) in enumerate(places.items()):
            if at % every == 0:
                board.text(x, foot + 18, shorten_name(value, max(6, int(room * every / 7.6))), "middle soft")
    else:
        log = min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_FROM
        scale = Scale(*axis_span(numbers, log=log), left, right, log=log)
        places = {value: scale(number) for value, number in zip(view.values, numbers, strict=True)}
        shown: list[float] = []
        for number in numbers:
            if all(abs(scale(number) - other) >= 44 for other in shown):
                shown.append(scale(number))
                board.text(scale(number), foot + 18, format_tick(number), "middle soft")
    for middle in places.values():
        board.line(middle, area.y, middle, foot, "grid")
    board.text((left + right) / 2, foot + 42, view.axis, "middle")
    return places


def _names(lines: Sequence[Line]) -> dict[Line, str]:
    """A name for each line: the parts that differ from the other lines of its figure."""
    devices = len({line.device for line in lines}) > 1
    several = len({line.implementation for line in lines}) > 1
    return {
        line: ", ".join(
            [
                *([line.device] if devices or not several else []),
                *([display_name(line.implementation)] if several else []),
            ]
        )
        for line in lines
    }


def _looks(lines: Sequence[Line], named: Mapping[Line, str]) -> dict[Line, Look]:
    """The look of each line: that of its implementation if all lines are of one device, else one look after the
    other."""
    if len({line.device for line in lines}) == 1:
        looks_by_name = assign_looks([line.implementation for line in lines])
        return {line: looks_by_name[line.implementation] for line in lines}
    looks_by_name = assign_looks([named[line] for line in lines])
    return {line: looks_by_name[named[line]] for line in lines}


def axes_document(views: Sequence[Along]) -> list[dict[str, Any]]:
    """The data of the figures of all views, as JSON."""
    return [
        pick_fields(view, "axis values")
        | {"fixed": dict(view.fixed)}
        | pick_fields(view, "timed same_cases=alike")
        | {"lines": [_line(line) for line in view.lines]}
        for view in views
    ]


def _line(line: Line) -> dict[str, Any]:
    points = [pick_fields(point, "value median_us=time_us cases") for point in line.points]
    return pick_fields(line, "device implementation") | {"points": points}
