"""A figure as shapes with colours, from which PDF and PNG are drawn. It reads only SVG that `svg.Board` has written."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Point = tuple[float, float]
Colour = tuple[float, float, float]
"""Red, green and blue, 0 to 1."""
CIRCLE: Final = "circle"


@dataclass(frozen=True, slots=True)
class Style:
    """How a shape is drawn. A colour is None where it is not filled, or has no edge."""

    fill: Colour | None = (0.0, 0.0, 0.0)
    fill_opacity: float = 1.0
    stroke: Colour | None = None
    stroke_opacity: float = 1.0
    width: float = 1.0
    dash: tuple[float, ...] = ()
    round: bool = False
    anchor: str = "start"
    bold: bool = False
    size: float = 13.0


@dataclass(frozen=True, slots=True)
class Polygon:
    """Straight lines from point to point, in separate parts; those of a `closed` one end where they began."""

    parts: Sequence[Sequence[Point]]
    closed: bool
    style: Style


@dataclass(frozen=True, slots=True)
class Circle:
    centre: Point
    radius: float
    style: Style


@dataclass(frozen=True, slots=True)
class TextShape:
    """A text. `at` is a point on the base line, at the side that the style's anchor names. `turned` text reads
    upwards."""

    at: Point
    text: str
    turned: bool
    style: Style


Shape = Polygon | Circle | TextShape


@dataclass(frozen=True, slots=True)
class Drawing:
    width: float
    height: float
    shapes: tuple[Shape, ...]


def parse_drawing(svg: str) -> Drawing:
    """The shapes of a figure from a separate file, in the order in which they are drawn."""
    root = ElementTree.fromstring(svg)
    rules = _rules("".join(one.text or "" for one in root if _tag(one) == "style"))
    _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    return Drawing(width, height, tuple(shape for one in root for shape in _shapes(one, rules)))


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _rules(css: str) -> Mapping[str, Mapping[str, str]]:
    rules: dict[str, dict[str, str]] = {}
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
        settings = dict(part.split(":", 1) for part in body.split(";") if ":" in part)
        rules.setdefault(selector.strip().removeprefix("."), {}).update(settings)
    return rules


def _style(element: ElementTree.Element, rules: Mapping[str, Mapping[str, str]]) -> Style:
    style = dict(rules.get(_tag(element), {}))
    kinds = element.get("class", "").split()
    for name, settings in rules.items():  # as in CSS, later rules win
        if name in kinds:
            style.update(settings)
    size = re.search(r"([\d.]+)px", style.get("font", ""))
    return Style(
        fill=_colour(style.get("fill", "#000000")),
        fill_opacity=float(style.get("fill-opacity", "1")),
        stroke=_colour(style.get("stroke", "none")),
        stroke_opacity=float(style.get("stroke-opacity", "1")),
        width=float(style.get("stroke-width", "1")),
        dash=tuple(float(part) for part in style.get("stroke-dasharray", "").split()),
        round=style.get("stroke-linecap") == "round",
        anchor=style.get("text-anchor", "start"),
        bold=style.get("font-weight", "") == "600",
        size=float(size[1]) if size else 13.0,
    )


def _colour(text: str) -> Colour | None:
    if not text.startswith("#"):
        return None
    red, green, blue = (int(text[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


def _shapes(one: ElementTree.Element, rules: Mapping[str, Mapping[str, str]]) -> Iterator[Shape]:
    style, kind = _style(one, rules), _tag(one)

    def number(name: str) -> float:
        return float(one.attrib[name])

    if kind == "line":
        ends = [(number("x1"), number("y1")), (number("x2"), number("y2"))]
        yield Polygon([ends], False, style)
    elif kind == "rect":
        x, y = number("x"), number("y")
        right, below = x + number("width"), y + number("height")
        yield Polygon([[(x, y), (right, y), (right, below), (x, below)]], True, style)
    elif kind == CIRCLE:
        yield Circle((number("cx"), number("cy")), number("r"), style)
    elif kind == "text":
        yield TextShape((number("x"), number("y")), one.text or "", "transform" in one.attrib, style)
    elif kind == "path":
        open_, closed = _path(one.attrib["d"])
        if open_:
            yield Polygon(open_, False, style)
        if closed:
            yield Polygon(closed, True, style)


def _path(commands: str) -> tuple[list[list[Point]], list[list[Point]]]:
    """The open and the closed parts of a path of M, m, L, l, H, h, V, v and z."""
    open_: list[list[Point]] = []
    closed: list[list[Point]] = []
    part: list[Point] = []
    x = y = 0.0
    for command, body in re.findall(r"([MmLlHhVvZz])([^MmLlHhVvZz]*)", commands):
        numbers = [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", body)]
        if command in "Zz":
            closed.append(part)
            part = []
            continue
        steps = (
            [(one, None) for one in numbers]
            if command in "HhVv"
            else list(zip(numbers[::2], numbers[1::2], strict=True))
        )
        for place, (first, second) in enumerate(steps):
            before = (x, y)
            if command in "Hh":
                x = first if command == "H" else x + first
            elif command in "Vv":
                y = first if command == "V" else y + first
            else:
                step = (first, second or 0.0)
                x, y = step if command.isupper() else (x + step[0], y + step[1])
            if command in "Mm" and place == 0:
                if part:
                    open_.append(part)
                part = [(x, y)]
            else:
                part = [*(part or [before]), (x, y)]
    if part:
        open_.append(part)
    return open_, closed
