"""Figures along the axes of a sweep: every point is drawn once, with its interval, inside the board."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import pytest

from orchestrator.analysis.axes import Along, AxisPoint, Line
from orchestrator.analysis.bootstrap import Interval
from orchestrator.report import axes
from orchestrator.report.figures import SLIM, WIDTH
from orchestrator.report.page import Figure, Page, Text, write_page


def view(
    values: Sequence[str], devices: Sequence[str] = ("l4", "h100"), names: Sequence[str] = ("bench", "sdpa:default")
) -> Along:
    lines = tuple(
        Line(device, name, tuple(
            AxisPoint(value, Interval(0.9 * us, us, 1.1 * us), 12)
            for step, value in enumerate(values)
            if (us := 10.0 * (place + 1) * 1.7**step)
        ))
        for place, (device, name) in enumerate((device, name) for device in devices for name in names)
    )  # fmt: skip
    return Along("kernel.tile", tuple(values), (("measure.cache", "cold"),), "burst, cold", True, lines)


@pytest.mark.parametrize(
    "values", [("16", "64", "256"), ("1", "2", "3"), ("cold", "warm"), ("rmsnorm.py", "softmax.py")]
)
@pytest.mark.parametrize("width", [WIDTH, SLIM])
def test_every_point_is_drawn_once_with_its_interval_inside_the_board(values: Sequence[str], width: float) -> None:
    found = view(values)
    (lines,) = axes.figure_lines(found)
    board = axes.axis_board(found, lines, width)
    assert board.width == width
    svg = board.svg()
    assert svg.count("<title>") == len(values) * 4
    assert "l4, bench" in svg
    assert "h100, default" in svg
    for x, y in re.findall(r'x1="([-0-9.]+)" y1="([-0-9.]+)"', svg):
        assert 0 <= float(x) <= board.width
        assert 0 <= float(y) <= board.height
    for value in values:
        assert f">{value}</text>" in svg
    assert "kernel.tile" in svg


def test_numbers_far_apart_are_placed_by_their_logarithm_and_others_evenly_by_size() -> None:
    def places(*values: str) -> list[float]:
        found = view(values, ("l4",), ("bench",))
        board = axes.axis_board(found, found.lines)
        return [float(x) for x in re.findall(r'<circle cx="([0-9.]+)"', board.svg())[-len(values) :]]

    first, second, third = places("1", "10", "100")
    assert second - first == pytest.approx(third - second, abs=0.2)
    first, second, third = places("1", "2", "4")
    assert third - second == pytest.approx(2 * (second - first), abs=0.2)


def test_more_lines_than_can_be_told_apart_become_a_figure_for_each_implementation() -> None:
    found = view(("1", "2"), ("l4", "t4", "a100", "h100"))
    assert [[line.implementation for line in lines] for lines in axes.figure_lines(found)] == [
        ["bench"] * 4, ["sdpa:default"] * 4,
    ]  # fmt: skip


def test_a_page_has_no_more_figures_than_somebody_looks_at_and_says_so() -> None:
    (section,) = axes.axis_sections([view(("1", "2"))] * 40)
    assert sum(isinstance(part, Figure) for part in section.parts) == axes.MOST_FIGURES
    last = section.parts[-1]
    assert isinstance(last, Text)
    assert "24 of 40 figures" in last.text
    page = write_page(Page("f", "f", (), (section,)))
    assert page.count("<figure") == axes.MOST_FIGURES


def test_a_caption_says_what_is_drawn_and_what_is_held_fixed() -> None:
    found = view(("1", "2"))
    assert axes.figure_caption(found, found.lines) == (
        "measure.cache=cold: geometric means of 12 cases, with 95 % intervals; lower is faster."
    )


def test_a_point_without_limits_is_a_mark_alone_and_null_in_the_data() -> None:
    points = tuple(AxisPoint(value, Interval(math.nan, 3.0, math.nan), 1) for value in ("1", "2"))
    found = Along("n", ("1", "2"), (), "", False, (Line("l4", "bench", points),))
    svg = axes.axis_board(found, found.lines).svg()
    assert svg.count("<circle") == 3  # two points, and one in the legend
    (told,) = axes.axes_document([found])
    assert told["same_cases"] is False
    assert json.loads(json.dumps(told))["lines"][0]["points"][0]["median_us"]["low"] is None
