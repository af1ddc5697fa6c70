"""The figure that a paper would have: the rate by the size of the problem, one line an implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.study import Case, Study
from orchestrator.analysis.timings import Timing
from orchestrator.core.bundled import names
from orchestrator.core.bundled.work import convention
from orchestrator.report.figures import WIDTH, drawn
from orchestrator.report.palette import Look, looks
from orchestrator.report.svg import Area, Board, Scale, legend, span, tiled
from orchestrator.report.text import backend, digits, shortened, tick

MOST_PANELS: Final = 12
Rate = Callable[[Case, Timing], float]


@dataclass(frozen=True, slots=True)
class Plotted:
    """What is drawn by what: the axis of the sizes, and a value of a timing in a unit."""

    axis: str
    unit: str
    rate: Rate

    @property
    def title(self) -> str:
        return f"{self.unit} by {self.axis.replace('_', ' ')}"


def by_size(part: Study, width: float = WIDTH) -> tuple[Board | None, str]:
    """The figure of one setting, and what is under it. There is none where no axis of numbers has two values."""
    cases = [case for case in part.cases if any(timing.timed for timing in case.timings)]
    axis = size_axis([case.axes for case in cases])
    names = drawn(part)
    if not axis or not names:
        return None, ""
    plotted = Plotted(axis, *_rate(cases))
    panels: dict[str, list[Case]] = {}
    for case in cases:
        panels.setdefault(_panel_of(case.axes, [one.axes for one in cases], axis), []).append(case)
    kept = {title: own for title, own in panels.items() if len(own) > 1}
    if not kept:
        return None, ""
    fewer = f" Of {len(kept)} panels {MOST_PANELS} are drawn." if len(kept) > MOST_PANELS else ""
    board = _board(dict(list(kept.items())[:MOST_PANELS]), plotted, names, part, width)
    counted = f" Operations by {convention(case.axes for case in cases)}." if plotted.unit == "TFLOP/s" else ""
    bars = "Medians; bars are their 95 % intervals, where they are wider than a mark."
    return board, f"{plotted.title}. {bars}{counted}{fewer}"


def size_axis(axes: Sequence[Mapping[str, str]]) -> str:
    """The axis of whole numbers that takes most values; of several alike the first. Empty where none takes two."""
    values = {name: {one.get(name, "") for one in axes} for name in dict.fromkeys(name for one in axes for name in one)}
    numbers = {name: len(found) for name, found in values.items() if all(one.isdigit() for one in found)}
    most = max(numbers.values(), default=0)
    return next((name for name, count in numbers.items() if count == most), "") if most > 1 else ""


def _panel_of(own: Mapping[str, str], axes: Sequence[Mapping[str, str]], axis: str) -> str:
    """What a panel is called: the other axes that vary, but for those that are always as long as the size."""
    said = []
    for name, value in own.items():
        others = {one.get(name, "") for one in axes}
        if name == axis or len(others) < 2 or all(one.get(name) == one.get(axis) for one in axes):
            continue
        said.append(value if not value.isdigit() and value not in ("true", "false") else f"{name} {value}")
    return names.in_words(", ".join(said)).replace("_", " ")


def _rate(cases: Sequence[Case]) -> tuple[str, Rate]:
    """TFLOP/s; GB/s where the memory is the roof of most cases; microseconds where the work is not known."""
    if any(case.work is None for case in cases):
        return "µs a call", lambda _, timing: timing.median_us.mid
    bound = [
        case.roof is not None and case.work is not None and case.work.intensity < case.roof.ridge for case in cases
    ]
    if 2 * sum(bound) > len(cases):
        return "GB/s", lambda case, timing: case.work.bytes / timing.median_us.mid / 1e3 if case.work else 0.0
    return "TFLOP/s", lambda _, timing: timing.tflops


def _board(
    panels: Mapping[str, Sequence[Case]], plotted: Plotted, names: Sequence[str], part: Study, width: float
) -> Board:
    look = looks((part.subject, *part.baselines))
    board = Board(width, 0, f"{plotted.title}, one line an implementation")
    top = legend(board, 60, 18, [(backend(name), look[name]) for name in names], width - 40) + 8
    areas, bottom = tiled(len(panels), width, 30.0, top, 250.0)
    for (title, cases), area in zip(panels.items(), areas, strict=True):
        _panel(board, title, cases, plotted, {name: look[name] for name in names}, area)
    board.height = bottom + 4
    return board


def _panel(
    board: Board, title: str, cases: Sequence[Case], plotted: Plotted, look: Mapping[str, Look], area: Area
) -> None:
    axis, unit, rate = plotted.axis, plotted.unit, plotted.rate
    x, y, width = area.x, area.y, area.width
    lines: dict[str, list[tuple[int, float, Timing]]] = {}
    for case in sorted(cases, key=lambda case: int(case.axes[axis])):
        for timing in case.timings:
            if timing.timed and timing.implementation in look:
                point = (int(case.axes[axis]), rate(case, timing), timing)
                lines.setdefault(timing.implementation, []).append(point)
    sizes = sorted({int(case.axes[axis]) for case in cases})
    values = [value for line in lines.values() for _, value, _ in line]
    across = Scale(*span(sizes, log=True), x + 62, x + width - 14, log=True)
    low, high = span(values, log=True) if "µs" in unit else (0.0, max(values) * 1.06)
    up = Scale(low, high, y + 196, y + 30, log="µs" in unit)
    board.text(x + 62, y + 18, shortened(title, min(40, int((width - 62) / 8))), "strong")
    for value in up.ticks(5):
        board.line(x + 62, up(value), x + width - 14, up(value), "grid")
        board.text(x + 55, up(value) + 4.5, tick(value), "end soft")
    room = [sizes[0]]
    room += [size for size in sizes[1:] if across(size) - across(room[-1]) >= 7.5 * len(tick(size)) + 10 or not room]
    for size in sizes:
        board.line(across(size), y + 196, across(size), y + 201, "axis")
    for size in room:
        board.text(across(size), y + 216, tick(size), "middle soft")
    board.text(x + 62 + (width - 76) / 2, y + 236, axis.replace("_", " "), "middle")
    board.text(x + 14, y + 113, unit, "middle", turned=True)
    for name, line in lines.items():
        own = look[name]
        board.path([(across(size), up(value)) for size, value, _ in line], f"l{own.colour[1:]}")
        for size, value, timing in line:
            middle = timing.median_us
            if middle.known:
                ends = sorted(up(value * ratio) for ratio in (middle.mid / middle.low, middle.mid / middle.high))
                if ends[1] - ends[0] > 8:
                    board.line(across(size), ends[0], across(size), ends[1], f"l{own.colour[1:]}")
            board.mark(across(size), up(value), own, 4.0, f"{name}, {tick(size)}: {digits(value)} {unit}")
