"""PNG and PDF show what the SVG shows, on every machine alike."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFont

from orchestrator.report.files import draw_boards, figure_file, figure_svg
from orchestrator.report.pdf import write_pdf
from orchestrator.report.png import LETTERS, SCALE, write_png
from orchestrator.report.shapes import Circle, Drawing, Polygon, Style, TextShape, parse_drawing
from orchestrator.report.style import LIGHT, SHAPES, Look
from orchestrator.report.svg import Board
from tests.unit.report.written import both, csv_text, reported

FIGURES = draw_boards(reported(csv_text(both(lengths=(128, 256), blocks=12))).study)
BLACK, RED = Style(), Style(fill=(1.0, 0.0, 0.0))


def pixels(data: bytes) -> np.ndarray:
    """Rows of red, green and blue."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def ink(*shapes: Polygon | Circle | TextShape, size: float = 100.0) -> float:
    """How much of a figure is black, in square units of it."""
    seen = pixels(write_png(Drawing(size, size, shapes)))[..., 0].astype(float)
    return float((1 - seen / 255).sum() / SCALE**2)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_in_every_form(name: str) -> None:
    board = FIGURES[name]
    assert figure_file(board, "svg") == figure_svg(board).encode()
    seen = pixels(figure_file(board, "png"))
    assert seen.shape == (round(board.height * SCALE), round(board.width * SCALE), 3)
    colours = {tuple(colour) for colour in seen.reshape(-1, 3)[::7]}
    assert len(colours) > 5
    assert figure_file(board, "pdf").startswith(b"%PDF-1.4")


@pytest.mark.parametrize("name", FIGURES)
def test_no_shape_of_a_figure_is_lost_on_the_way(name: str) -> None:
    svg = figure_svg(FIGURES[name])
    found = parse_drawing(svg).shapes
    assert sum(isinstance(one, TextShape) for one in found) == svg.count("<text")
    assert sum(isinstance(one, Circle) for one in found) == svg.count("<circle")
    straight = svg.count("<line") + svg.count("<rect") + svg.count("<path")
    assert sum(isinstance(one, Polygon) for one in found) >= straight


def test_the_same_figure_gives_the_same_bytes() -> None:
    board = next(iter(FIGURES.values()))
    for kind in ("png", "pdf"):
        assert figure_file(board, kind) == figure_file(board, kind)


@settings(deadline=None)
@given(st.floats(1, 40), st.floats(1, 40), st.floats(0, 50), st.floats(0, 50))
def test_an_area_is_as_dark_as_it_is_large(width: float, height: float, x: float, y: float) -> None:
    corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
    assert ink(Polygon([corners], True, BLACK)) == pytest.approx(
        width * height, rel=0.02, abs=(width + height) / 4 + 0.2
    )


@settings(deadline=None)
@given(st.floats(2, 30))
def test_a_circle_is_as_dark_as_it_is_large(radius: float) -> None:
    assert ink(Circle((50, 50), radius, BLACK)) == pytest.approx(np.pi * radius**2, rel=0.05, abs=radius)


@settings(deadline=None)
@given(st.floats(10, 90), st.floats(10, 90), st.floats(1, 6))
def test_a_line_is_as_dark_as_it_is_long_and_wide(x: float, y: float, width: float) -> None:
    style = Style(fill=None, stroke=(0.0, 0.0, 0.0), width=width)
    length = float(np.hypot(x - 50, y - 50))
    assert ink(Polygon([[(50, 50), (x, y)]], False, style)) == pytest.approx(
        length * width, rel=0.03, abs=length / 4 + width
    )


def test_what_lies_beyond_the_figure_is_left_out() -> None:
    far = [(-1000.0, -1000.0), (5000.0, -1000.0), (5000.0, 5000.0), (-1000.0, 5000.0)]
    assert ink(Polygon([far], True, BLACK)) == pytest.approx(10_000)
    assert ink(Circle((500, 500), 10, BLACK)) == 0
    assert ink(TextShape((500, -20), "far away", False, BLACK)) == 0


def test_half_a_colour_lets_half_of_what_is_below_through() -> None:
    square = [[(0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0)]]
    seen = pixels(write_png(Drawing(10, 10, (Polygon(square, True, Style(fill_opacity=0.5)),))))
    assert seen.min() == seen.max() == pytest.approx(127.5, abs=1)


def test_every_letter_that_figures_use_can_be_drawn() -> None:
    used = {
        one for board in FIGURES.values() for text in re.findall(r"<text[^>]*>([^<]*)<", board.svg()) for one in text
    }
    font = ImageFont.load_default(26)
    unknown = bytes(font.getmask("\ufffe"))
    shown = {one.translate(LETTERS) for one in used | set("µ×–—’…→·°≤≥")}
    assert [one for one in shown if bytes(font.getmask(one)) == unknown] == []
    assert ink(TextShape((10, 60), "µ×–", False, BLACK)) > 10


def test_a_letter_that_the_font_lacks_is_a_mark_and_no_error() -> None:
    assert ink(TextShape((10, 60), "漢", False, BLACK)) > 5


@pytest.mark.parametrize(("anchor", "low", "high"), [("start", 100, 160), ("middle", 60, 140), ("end", 40, 100)])
def test_words_stand_on_the_side_that_their_anchor_says(anchor: str, low: int, high: int) -> None:
    seen = pixels(write_png(Drawing(200, 40, (TextShape((100, 30), "abcdef", False, Style(anchor=anchor)),))))
    columns = np.nonzero((seen < 128).any(axis=(0, 2)))[0] / SCALE
    assert low - 1 <= columns.min() <= columns.max() <= high + 1


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_words_of_the_pdf_and_none_of_its_commands(text: str) -> None:
    board = Board(100, 100, text)
    board.text(10, 10, text.replace("\x00", "").encode("utf-8", "ignore").decode())
    shapes = Drawing(100, 100, (TextShape((10, 10), text, False, BLACK),))
    data = write_pdf(shapes, text)
    at = int(data.rsplit(b"startxref\n", 1)[1].split(b"\n")[0])
    assert data[at : at + 4] == b"xref"
    content = zlib.decompress(data.split(b"stream\n", 1)[1].split(b"\nendstream", 1)[0])
    inside = re.search(rb"Tm \((.*)\) Tj ET\nQ$", content, re.DOTALL)
    assert inside is not None
    assert re.fullmatch(rb"(?:[^()\\]|\\[()\\])*", inside[1]) is not None


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no poppler is installed")
def test_words_of_a_pdf_can_be_selected(tmp_path: Path) -> None:
    (tmp_path / "figure.pdf").write_bytes(figure_file(FIGURES["speedup"], "pdf"))
    done = subprocess.run(["pdftotext", "figure.pdf", "-"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "times as fast (logarithmic; right of 1 is faster)" in done.stdout
    assert done.stderr == ""


def test_every_mark_has_its_colour_in_every_form() -> None:
    for shape in SHAPES:
        board = Board(40, 40, shape)
        board.mark(20, 20, Look("c1", shape), 10)
        seen = pixels(figure_file(board, "png"))
        wanted = tuple(int(LIGHT["c1"][place : place + 2], 16) for place in (1, 3, 5))
        assert (seen == wanted).all(axis=2).any(), shape
