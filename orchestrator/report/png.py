"""A figure as PNG, at twice its size. Pillow paints it larger and then scales it down, which smooths lines and
edges."""

from __future__ import annotations

import io
import itertools
import math
from functools import cache
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from orchestrator.report.shapes import Circle, Colour, Drawing, Point, Polygon, Style, TextShape

SCALE: Final = 2
FINE: Final = 4
"""How many times larger than in the picture shapes are painted first."""
GRAIN: Final = SCALE * FINE
BOLD: Final = 0.06
"""A bold letter is drawn twice, at this distance as a share of its size."""
LETTERS: Final = str.maketrans(
    {"µ": "u", "×": "x", "–": "-", "—": "-", "’": "'", "→": ">", "≤": "<", "≥": ">", "²": "2"}
)
"""Replacements for letters that Pillow's own font lacks; SVG and PDF show the letters."""


def write_png(drawing: Drawing) -> bytes:
    """The PNG file, on white. It has the same bytes for the same figure and version of Pillow."""
    width, height = math.ceil(drawing.width * SCALE), math.ceil(drawing.height * SCALE)
    large = Image.new("RGB", (width * FINE, height * FINE), "white")
    brush = ImageDraw.Draw(large, "RGBA")
    for shape in drawing.shapes:
        match shape:
            case Circle():
                _circle(brush, shape)
            case Polygon():
                _polygon(brush, shape)
    picture = large.reduce(FINE)
    for shape in drawing.shapes:
        if isinstance(shape, TextShape):
            _words(picture, shape)
    file = io.BytesIO()
    picture.save(file, "PNG", dpi=(96 * SCALE, 96 * SCALE))
    return file.getvalue()


def _ink(colour: Colour, opacity: float) -> tuple[int, int, int, int]:
    red, green, blue = (round(255 * part) for part in colour)
    return red, green, blue, round(255 * opacity)


def _circle(brush: ImageDraw.ImageDraw, shape: Circle) -> None:
    (x, y), style = shape.centre, shape.style
    if style.fill is not None:
        _disc(brush, (x, y), shape.radius, _ink(style.fill, style.fill_opacity))
    if style.stroke is not None:
        reach = shape.radius + style.width / 2
        box = [(x - reach) * GRAIN, (y - reach) * GRAIN, (x + reach) * GRAIN - 1, (y + reach) * GRAIN - 1]
        ink = _ink(style.stroke, style.stroke_opacity)
        brush.ellipse(box, outline=ink, width=max(1, round(style.width * GRAIN)))


def _disc(brush: ImageDraw.ImageDraw, centre: Point, radius: float, ink: tuple[int, int, int, int]) -> None:
    (x, y), reach = centre, max(radius, 0.5 / GRAIN)
    brush.ellipse(
        [(x - reach) * GRAIN, (y - reach) * GRAIN, (x + reach) * GRAIN - 1, (y + reach) * GRAIN - 1], fill=ink
    )


def _polygon(brush: ImageDraw.ImageDraw, shape: Polygon) -> None:
    style = shape.style
    if shape.closed and style.fill is not None:
        for part in shape.parts:
            # Pillow also paints the pixels on the edges, so the edges move inwards by half a pixel.
            inner = [(x * GRAIN - 0.5, y * GRAIN - 0.5) for x, y in part]
            if len(inner) > 1:
                brush.polygon(inner, fill=_ink(style.fill, style.fill_opacity))
    if style.stroke is None:
        return
    for part in shape.parts:
        _line(brush, [*part, part[0]] if shape.closed else list(part), style, style.stroke)


def _line(brush: ImageDraw.ImageDraw, points: list[Point], style: Style, colour: Colour) -> None:
    ink = _ink(colour, style.stroke_opacity)
    if style.round and len(points) == 2 and points[0] == points[1]:
        _disc(brush, points[0], style.width / 2, ink)
        return
    for begin, end in _dashes(points, style.dash) if style.dash else itertools.pairwise(points):
        _bar(brush, begin, end, style.width, ink)
    if style.width > 1 and not style.dash:
        for joint in points[1:-1]:
            _disc(brush, joint, style.width / 2, ink)


def _bar(brush: ImageDraw.ImageDraw, begin: Point, end: Point, width: float, ink: tuple[int, int, int, int]) -> None:
    (x, y), (to_x, to_y) = begin, end
    length = math.hypot(to_x - x, to_y - y) or 1.0
    half = max(0.0, width - 1 / GRAIN) / 2  # Pillow also paints the pixels on the edges
    dx, dy = (to_y - y) / length * half, (x - to_x) / length * half
    corners = ((x + dx, y + dy), (to_x + dx, to_y + dy), (to_x - dx, to_y - dy), (x - dx, y - dy))
    brush.polygon([(px * GRAIN - 0.5, py * GRAIN - 0.5) for px, py in corners], fill=ink)


def _dashes(points: list[Point], dash: tuple[float, ...]) -> list[tuple[Point, Point]]:
    """The dashes along the sides. The pattern begins anew on each side."""
    painted = []
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        length, at, place = math.hypot(to_x - x, to_y - y), 0.0, 0
        while at < length:
            end = min(length, at + dash[place % len(dash)])
            if place % 2 == 0:
                a, b = at / length, end / length
                painted.append(((x + (to_x - x) * a, y + (to_y - y) * a), (x + (to_x - x) * b, y + (to_y - y) * b)))
            at, place = end, place + 1
    return painted


@cache
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * SCALE)


def _words(picture: Image.Image, shape: TextShape) -> None:
    style, font = shape.style, _font(shape.style.size)
    text = shape.text.translate(LETTERS)
    ink, thick = _ink(style.fill or (0.0, 0.0, 0.0), style.fill_opacity), round(style.size * SCALE)
    long = math.ceil(font.getlength(text)) + thick
    mask = Image.new("L", (long, 2 * thick), 0)
    brush = ImageDraw.Draw(mask)
    for shift in (0.0, BOLD * thick) if style.bold else (0.0,):
        brush.text((shift, 1.5 * thick), text, fill=ink[3], font=font, anchor="ls")
    back = {"end": 1.0, "middle": 0.5}.get(style.anchor, 0.0) * font.getlength(text)
    x, y = shape.at[0] * SCALE, shape.at[1] * SCALE
    if shape.turned:
        mask = mask.transpose(Image.Transpose.ROTATE_90)
        corner = (round(x - 1.5 * thick), round(y + back - long))
    else:
        corner = (round(x - back), round(y - 1.5 * thick))
    picture.paste(ink[:3], corner, mask)
