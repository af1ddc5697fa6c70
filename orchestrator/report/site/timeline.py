"""The figure of a history: a mark for each run, the levels, and the points where they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.analysis.history import HistoryPoint
from orchestrator.analysis.verdicts import Verdict
from orchestrator.core.text import count
from orchestrator.report.figures import RIGHT, WIDTH
from orchestrator.report.style import Look
from orchestrator.report.svg import Board, Scale, axis_span, draw_legend
from orchestrator.report.text import format_digits, format_limits, format_tick

LEFT: Final = 76.0
BOTTOM: Final = 244.0
LOOKS: Final = {
    "faster": Look("c2", "triangle"),
    "slower": Look("c1", "square"),
    "neither": Look("c0", "circle"),
    "not judged": Look("c5", "ring"),
}


WORDS: Final = {"neither": "neither faster nor slower"}


def timeline_board(
    points: Sequence[HistoryPoint], title: str, unit: str, *, relative: bool, width: float = WIDTH
) -> Board | None:
    """The figure; None where there is only one run. With width `SLIM` it fits a phone."""
    if len(points) < 2:
        return None
    ends = [end for point in points for end in _ends(point)]
    left, right = (64.0, width - 8) if width < WIDTH else (LEFT, RIGHT)
    across = Scale(0, len(points) - 1, left + 16, right - 8)
    changes = sum(point.change in (Verdict.FASTER, Verdict.SLOWER) for point in points)
    newest = f"{format_digits(points[-1].reading.value.mid)} {unit}"
    caption = f"{title}: {count(len(points), 'run')}, {count(changes, 'change')}, newest {newest}"
    board = Board(width, BOTTOM + 58, caption)
    used = dict.fromkeys(_kind(point) for point in points)
    names = [(WORDS.get(name, name), LOOKS[name]) for name in LOOKS if name in used]
    top = draw_legend(board, left, 18, names, right) + 14
    up = Scale(*axis_span(ends, log=True, pad=0.12), BOTTOM, top, log=True)
    for at in up.ratios(22) if relative else up.ticks(6):
        board.line(left, up(at), right, up(at), "grid")
        board.text(left - 8, up(at) + 4.5, f"{format_tick(at)}{'×' if relative else ''}", "end soft")
    if relative and up.low < 1 < up.high:
        board.line(left, up(1), right, up(1), "axis")
    board.text(12 if width < WIDTH else 16, (top + BOTTOM) / 2, unit, "middle", turned=True)
    _days(board, points, across, top)
    _levels(board, points, across, up)
    for place, point in enumerate(points):
        x, value, look = across(place), point.reading.value, LOOKS[_kind(point)]
        if value.known:
            board.line(x, up(value.low), x, up(value.high), f"l{look.colour[1:]}")
        size = 6.0 if _kind(point) in ("faster", "slower") else 4.0
        point_notes = ", ".join(part for part in (_kind(point), point.doubt, *point.split) if part)
        board.mark(
            x,
            up(value.mid),
            look,
            size,
            f"{point.reading.run_id}: {format_digits(value.mid, 4)} {format_limits(value)} {point_notes}",
        )
    return board


def _ends(point: HistoryPoint) -> list[float]:
    value = point.reading.value
    return [value.low, value.high] if value.known and value.low > 0 else [value.mid]


def _kind(point: HistoryPoint) -> str:
    if point.change is None:
        return "neither"
    if point.change in (Verdict.FASTER, Verdict.SLOWER):
        return point.change.value
    return "not judged" if point.doubt else "neither"


def _days(board: Board, points: Sequence[HistoryPoint], across: Scale, top: float) -> None:
    """Writes the day of each run below it, where there is room."""
    last = -1e9
    for place, point in enumerate(points):
        day, x = point.reading.run_id[:8], across(place)
        if point.split:
            board.path([(x, top), (x, BOTTOM)], "split")
        board.line(x, BOTTOM, x, BOTTOM + 4, "axis")
        if x - last >= 96 and x + 36 <= board.width:
            board.text(x, BOTTOM + 20, f"{day[:4]}-{day[4:6]}-{day[6:8]}", "middle soft")
            last = x
    middle = (across.begin + across.end) / 2
    board.text(middle, BOTTOM + 44, "runs in the order in which they were begun", "middle soft")


def _levels(board: Board, points: Sequence[HistoryPoint], across: Scale, up: Scale) -> None:
    """Draws a line for each level, from the run that began it to the last run that is compared with it."""
    begun = next((place for place, point in enumerate(points) if not point.reading.doubt), None)
    if begun is None:
        return
    places = [begun]
    places += [place for place, point in enumerate(points) if point.change in (Verdict.FASTER, Verdict.SLOWER)]
    for start, end in zip(places, [*places[1:], len(points) - 1], strict=True):
        y = up(points[start].reading.value.mid)
        board.line(across(start), y, across(end), y, "roof")
