"""Figures as PNG (resvg) and PDF (svglib and ReportLab): the extra `figures`, as these take 20 MB."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.core.errors import LocalError

PNG_SCALE: Final = 2
PDF_SCALE: Final = 0.75
SAME: Final = str.maketrans({"→": "to", "≤": "<=", "≥": ">=", "◆": "*", "−": "-", "≈": "~"})
"""Replacements for characters that Helvetica's encoding lacks."""
PACKAGES: Final = ("resvg_py", "svglib", "reportlab")


def print_figure(svg: str, kind: str, title: str = "", packages: Sequence[str] = PACKAGES) -> bytes:
    """An SVG of `report.files` as `svg`, `png` or `pdf`; the same bytes for the same figure and versions of the
    libraries. Raises `LocalError` if they are not installed."""
    if kind == "svg":
        return svg.encode()
    if any(importlib.util.find_spec(name) is None for name in packages):
        raise LocalError(
            f"figures as {kind} are printed by resvg-py and svglib, which are not installed",
            hint="`pip install resvg-py 'svglib<1.6'`, or --format svg",
        )
    return _print_png(svg) if kind == "png" else _print_pdf(svg, title)


def _print_png(svg: str) -> bytes:
    """With a font that comes with ReportLab: there may be none on a machine, and each has others."""
    import reportlab
    import resvg_py

    fonts = [str(Path(reportlab.__file__).parent / "fonts" / name) for name in ("Vera.ttf", "VeraBd.ttf")]
    svg = _with_font(svg, "Bitstream Vera Sans")
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg, zoom=PNG_SCALE, skip_system_fonts=True, font_files=fonts, background="#ffffff"
        )
    )


def _print_pdf(svg: str, title: str) -> bytes:
    """Lines stay lines and text stays text, in Helvetica, which every reader has. A unit of the figure is three
    quarters of a point."""
    from reportlab.graphics import renderPDF
    from reportlab.pdfgen.canvas import Canvas
    from svglib.svglib import svg2rlg

    drawing, file = svg2rlg(io.BytesIO(_with_font(svg.translate(SAME), "Helvetica").encode())), io.BytesIO()
    canvas = Canvas(file, pagesize=(PDF_SCALE * drawing.width, PDF_SCALE * drawing.height), invariant=True)
    canvas.setTitle(title)
    canvas.scale(PDF_SCALE, PDF_SCALE)
    renderPDF.draw(drawing, canvas, 0, 0)
    canvas.save()
    return file.getvalue()


def _with_font(svg: str, family: str) -> str:
    """The SVG with this font, in the words that both libraries understand."""
    svg = re.sub(r"font:(\d+)px [^;}]*", rf"font-size:\1px;font-family:{family}", svg)
    return svg.replace("font-weight:600", "font-weight:bold")
