"""A figure as PDF, on one page of its size. Lines stay lines and text stays text. The font is Helvetica, which every
PDF reader has."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.report.shapes import Circle, Colour, Drawing, Point, Polygon, Style, TextShape

ROUND: Final = 4 / 3 * math.tan(math.pi / 8)
"""The distance of the control points of a quarter circle, in radii."""
SAME: Final = {"→": "to", "≤": "<=", "≥": ">=", "◆": "*", "−": "-", "≈": "~"}
"""Replacements for characters that Helvetica's encoding lacks."""
WIDTHS: Final = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 "
    "584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 "
    "667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 "
    "278 556 500 722 500 500 500 334 260 334 584"
)
"""The widths of Helvetica's characters from the space to the tilde, in thousandths of the font size."""
_WIDTHS: Final = [int(one) for one in WIDTHS.split()]
OTHERS: Final = {"×": 584, "±": 584, "…": 1000, "°": 400, "·": 278, "’": 222, "‘": 222}


def write_pdf(drawing: Drawing, title: str = "") -> bytes:
    """The PDF file; it has the same bytes for the same figure. A unit of the figure is three quarters of a point."""
    states: dict[tuple[float, float], str] = {}
    lines = [
        f"0.75 0 0 0.75 0 {_n(drawing.height * 0.75)} cm",
        f"1 1 1 rg 0 {_n(-drawing.height)} {_n(drawing.width)} {_n(drawing.height)} re f",
    ]
    for shape in drawing.shapes:
        lines += _drawn(shape, states)
    content = zlib.compress("\n".join(lines).encode("cp1252", "replace"), 9)
    box = f"[0 0 {_n(drawing.width * 0.75)} {_n(drawing.height * 0.75)}]"
    opacities = " ".join(f"/{name} << /CA {_n(stroke)} /ca {_n(fill)} >>" for (stroke, fill), name in states.items())
    fonts = "/F1 5 0 R /F2 6 0 R"
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /{} /Encoding /WinAnsiEncoding >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox {box} /Contents 4 0 R "
        f"/Resources << /Font << {fonts} >> /ExtGState << {opacities} >> >> >>".encode(),
        f"<< /Length {len(content)} /Filter /FlateDecode >>\nstream\n".encode() + content + b"\nendstream",
        font.format("Helvetica").encode(),
        font.format("Helvetica-Bold").encode(),
        f"<< /Title {_string(title)} >>".encode("cp1252", "replace"),
    ]
    return _file(objects)


def _file(objects: Sequence[bytes]) -> bytes:
    data = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R /Info 7 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        len(data),
    )
    return data + head + table + trailer


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _string(text: str) -> str:
    """A PDF string in WinAnsi encoding; characters that it lacks are replaced."""
    encodable = "".join(SAME.get(one, one) for one in text).encode("cp1252", "replace").decode("cp1252")
    return "(" + re_escaped(encodable) + ")"


def re_escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _drawn(shape: Polygon | Circle | TextShape, states: dict[tuple[float, float], str]) -> Iterator[str]:
    style = shape.style
    state = states.setdefault((style.stroke_opacity, style.fill_opacity), f"G{len(states)}")
    yield "q"
    yield f"/{state} gs"
    if isinstance(shape, TextShape):
        yield _text(shape)
    else:
        if style.stroke is not None:
            yield f"{_rgb(style.stroke)} RG {_n(style.width)} w {1 if style.round else 0} J"
            if style.dash:
                yield f"[{' '.join(_n(one) for one in style.dash)}] 0 d"
        if style.fill is not None:
            yield f"{_rgb(style.fill)} rg"
        yield from _circle(shape) if isinstance(shape, Circle) else _polygon(shape)
        yield _painted(style, closed=isinstance(shape, Circle) or shape.closed)
    yield "Q"


def _rgb(colour: Colour) -> str:
    return " ".join(_n(part) if part in (0, 1) else f"{part:.3f}" for part in colour)


def _painted(style: Style, *, closed: bool) -> str:
    fill = style.fill is not None and closed
    if fill and style.stroke is not None:
        return "B"
    return "f" if fill else "S" if style.stroke is not None else "n"


def _polygon(shape: Polygon) -> Iterator[str]:
    for part in shape.parts:
        yield " ".join(f"{_n(x)} {_n(-y)} {'l' if place else 'm'}" for place, (x, y) in enumerate(part))
        if shape.closed:
            yield "h"


def _circle(shape: Circle) -> Iterator[str]:
    (x, y), r = shape.centre, shape.radius
    k = ROUND * r

    def at(*points: Point) -> str:
        return " ".join(f"{_n(x + dx)} {_n(-(y + dy))}" for dx, dy in points)

    yield f"{at((r, 0))} m"
    yield f"{at((r, k), (k, r), (0, r))} c"
    yield f"{at((-k, r), (-r, k), (-r, 0))} c"
    yield f"{at((-r, -k), (-k, -r), (0, -r))} c"
    yield f"{at((k, -r), (r, -k), (r, 0))} c h"


def _text(shape: TextShape) -> str:
    style, (x, y) = shape.style, shape.at
    encodable = "".join(SAME.get(one, one) for one in shape.text)
    back = {"end": 1.0, "middle": 0.5}.get(style.anchor, 0.0) * text_width(encodable, style.size, bold=style.bold)
    if shape.turned:
        place = f"0 1 -1 0 {_n(x)} {_n(-(y + back))}"
    else:
        place = f"1 0 0 1 {_n(x - back)} {_n(-y)}"
    font = "F2" if style.bold else "F1"
    return f"{_rgb(style.fill or (0, 0, 0))} rg BT /{font} {_n(style.size)} Tf {place} Tm {_string(encodable)} Tj ET"


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The width of a text in Helvetica, in the unit of `size`; bold is a little wider."""
    total = sum(_WIDTHS[ord(one) - 32] if " " <= one <= "~" else OTHERS.get(one, 556) for one in text)
    return total / 1000 * size * (1.05 if bold else 1.0)
