"""The figures as separate SVG files, black on white, for a paper or a README. `adapters.figure_files` prints others."""

from __future__ import annotations

from typing import Final

from orchestrator.analysis.study import Study
from orchestrator.report import distributions, figures, rates
from orchestrator.report.style import FIGURE_CSS, LIGHT, inline_colours
from orchestrator.report.svg import Board


def draw_boards(study: Study, *, everything: bool = False) -> dict[str, Board]:
    """Each figure that the data allow, by the name of its file. Where there are several settings, each has its own
    files."""
    drawn = {"speedup": figures.speedup_board(study, everything=everything)}
    for part in study.parts():
        name_suffix = f"-{part.settings[0].slug}" if len(study.settings) > 1 else ""
        drawn[f"rate{name_suffix}"] = rates.by_size(part)[0]
        drawn[f"latency{name_suffix}"] = distributions.latency_board(part)
        drawn[f"roofline{name_suffix}"] = figures.roofline_board(part)
        drawn[f"over-time{name_suffix}"] = distributions.over_time(part)
    drawn["error"] = figures.error_board(study)
    return {name: board for name, board in drawn.items() if board is not None}


def figure_svg(board: Board) -> str:
    return board.svg(inline_colours(FIGURE_CSS, LIGHT)) + "\n"


KINDS: Final = ("svg", "png", "pdf")
