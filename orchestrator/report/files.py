"""The figures as separate files, black on white, for a paper or a README: SVG, PNG and PDF."""

from __future__ import annotations

from typing import Final

from orchestrator.analysis.study import Study
from orchestrator.report import distributions, figures, rates
from orchestrator.report.pdf import pdf
from orchestrator.report.png import png
from orchestrator.report.shapes import drawing
from orchestrator.report.style import FIGURE_CSS, LIGHT, literal
from orchestrator.report.svg import Board


def boards(study: Study, *, everything: bool = False) -> dict[str, Board]:
    """Each figure that the data allow, by the name of its file. Where there are several settings, each has its own
    files."""
    drawn = {"speedup": figures.speedup(study, everything=everything)}
    for part in study.parts():
        own = f"-{part.settings[0].slug}" if len(study.settings) > 1 else ""
        drawn[f"rate{own}"] = rates.by_size(part)[0]
        drawn[f"latency{own}"] = distributions.latencies(part)
        drawn[f"roofline{own}"] = figures.roofline(part)
        drawn[f"over-time{own}"] = distributions.over_time(part)
    drawn["error"] = figures.errors(study)
    return {name: board for name, board in drawn.items() if board is not None}


def figure_svg(board: Board) -> str:
    return board.svg(literal(FIGURE_CSS, LIGHT)) + "\n"


KINDS: Final = ("svg", "png", "pdf")


def figure(board: Board, kind: str) -> bytes:
    """The figure as a file of one of `KINDS`."""
    svg = figure_svg(board)
    if kind == "svg":
        return svg.encode()
    shapes = drawing(svg)
    return png(shapes) if kind == "png" else pdf(shapes, board.title)
