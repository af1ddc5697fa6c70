"""The figures as files that stand alone: black on white, for a paper or a README."""

from __future__ import annotations

from orchestrator.analysis.study import Study
from orchestrator.report import distributions, figures
from orchestrator.report.palette import FIGURE_CSS, LIGHT, literal
from orchestrator.report.svg import Board


def boards(study: Study) -> dict[str, Board]:
    """Each figure that the data allow, by the name of its file."""
    drawn = {
        "speedup": figures.speedup(study),
        "latency": distributions.latencies(study),
        "roofline": figures.roofline(study),
        "over-time": distributions.over_time(study),
        "error": figures.errors(study),
    }
    return {name: board for name, board in drawn.items() if board is not None}


def figure_svg(board: Board) -> str:
    return board.svg(literal(FIGURE_CSS, LIGHT)) + "\n"
