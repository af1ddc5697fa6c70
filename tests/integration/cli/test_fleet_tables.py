"""Tables of fleets: whole in a pipe and at any width, as those of runs are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from orchestrator.cli.fleet.view import fleets_table
from tests.integration.cli.conftest import Bench

LINE = {"engine": "batch", "state": "measuring", "stored": "12", "children": "500", "usd": "1.2345", "user": "[red]ada"}
FLEET = "fleet-20261122-101112-abcd"


def shown(width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, no_color=True, color_system=None)
    console.print(fleets_table([(FLEET, LINE)]))
    return file.getvalue()


def test_in_a_pipe_a_fleet_is_a_line_with_tabs_and_its_user_is_told_as_it_is() -> None:
    head, row = shown(200, terminal=False).splitlines()
    assert head.split("\t") == ["fleet", "engine", "state", "stored", "cost", "by"]
    assert row.split("\t") == [FLEET, "batch", "measuring", "12/500", "$1.2345", "[red]ada"]


@pytest.mark.parametrize("width", [120, 80, 52])
def test_in_a_terminal_what_has_no_room_is_left_out_before_an_id_is_cut(width: int) -> None:
    lines = shown(width, terminal=True).splitlines()
    assert len(lines) == 2
    assert FLEET in lines[1]
    assert "12/500" in lines[1]
    assert ("[red]ada" in lines[1]) == (width >= 80)


@pytest.mark.usefixtures("cloud")
def test_a_fleets_plan_in_a_pipe_is_columns_for_cut_and_awk(bench: Bench) -> None:
    out = bench("fleet", "plan", "--gpu", "l4,t4", width=40).out
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert [row[0] for row in rows[1:3]] == ["l4", "t4"]
    assert "worst case" in rows[0]
    assert any(row[-1].startswith("PREEMPTIBLE_") for row in rows), "a quota's name is whole"
