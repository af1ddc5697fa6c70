"""PNG and PDF show what the SVG shows, on every machine alike."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import reportlab
from PIL import Image
from reportlab.pdfbase.ttfonts import TTFont

from orchestrator.adapters.figure_files import PNG_SCALE, SAME, print_figure
from orchestrator.core.errors import LocalError
from orchestrator.report.boards import draw_boards, figure_svg
from orchestrator.report.style import FIGURE_CSS, LIGHT, SHAPES, Look, inline_colours
from orchestrator.report.svg import Board
from tests.unit.report.written import both, csv_text, reported

FIGURES = draw_boards(reported(csv_text(both(lengths=(128, 256), blocks=12))).study)


def pixels(data: bytes) -> np.ndarray:
    """Rows of red, green and blue."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def pdf_text(data: bytes, folder: Path) -> str:
    (folder / "figure.pdf").write_bytes(data)
    done = subprocess.run(["pdftotext", "figure.pdf", "-"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_printed_in_every_form_with_the_same_bytes_each_time(name: str) -> None:
    board = FIGURES[name]
    svg = figure_svg(board)
    assert print_figure(svg, "svg") == svg.encode()
    picture = print_figure(svg, "png")
    assert picture == print_figure(svg, "png")
    seen = pixels(picture)
    assert seen.shape == (round(board.height * PNG_SCALE), round(board.width * PNG_SCALE), 3)
    assert len({tuple(colour) for colour in seen.reshape(-1, 3)[::7]}) > 5
    page = print_figure(svg, "pdf", board.title)
    assert page.startswith(b"%PDF-1.4")
    assert page == print_figure(svg, "pdf", board.title)
    assert f"[ 0 0 {board.width * 0.75:g} {board.height * 0.75:g} ]".encode() in page


def drawn(shape: str) -> np.ndarray:
    board = Board(40, 40, "one mark")
    board.mark(20, 20, Look("c0", shape), size=8)
    return pixels(print_figure(board.svg(inline_colours(FIGURE_CSS, LIGHT)), "png"))


def test_each_mark_is_another_shape_and_inside_the_figure() -> None:
    marks = {shape: drawn(shape) for shape in SHAPES}
    assert len({mark.tobytes() for mark in marks.values()}) == len(SHAPES)
    for mark in marks.values():
        assert (mark < 200).any()
        assert (mark[:4] == 255).all()


def test_every_letter_that_figures_use_is_in_both_fonts() -> None:
    used = {
        letter
        for board in FIGURES.values()
        for text in re.findall(r"<text[^>]*>([^<]*)<", board.svg())
        for letter in text
    }
    shown = used | set("µ×–—’…·°±²")
    font = TTFont("Vera", str(Path(reportlab.__file__).parent / "fonts" / "Vera.ttf"))
    assert [letter for letter in shown if ord(letter) not in font.face.charToGlyph] == []
    "".join(shown | set("→≤≥◆−≈")).translate(SAME).encode("cp1252")


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no poppler is installed")
def test_words_of_a_pdf_can_be_selected_and_are_none_of_its_commands(tmp_path: Path) -> None:
    svg = figure_svg(FIGURES["speedup"])
    assert "times as fast (logarithmic; right of 1 is faster)" in pdf_text(print_figure(svg, "pdf"), tmp_path)
    board = Board(300, 100, "")
    board.text(10, 10, r"a) Tj ET \ ( <b> & ]]> 漢")
    words = pdf_text(print_figure(board.svg(inline_colours(FIGURE_CSS, LIGHT)), "pdf", ") >>"), tmp_path)
    assert words.startswith(r"a) Tj ET \ ( <b> & ]]>")


def test_without_the_libraries_the_error_says_what_to_install() -> None:
    with pytest.raises(LocalError, match="not installed") as caught:
        print_figure("<svg/>", "pdf", packages=("no_such_package",))
    assert "pip install resvg-py 'svglib<1.6'" in (caught.value.hint or "")
