"""The campaign divides its seconds, loses nothing that it measured, and says what it left out."""

from __future__ import annotations

import gzip
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.cuda.campaign import budget, numbers
from kernels.attention.cuda.campaign.cells import Cell, as_row, campaign, chosen, from_row, quick, square
from kernels.attention.cuda.campaign.contenders import sets_for
from kernels.attention.cuda.campaign.measure import line
from kernels.attention.cuda.campaign.runner import MOST_TURNS, run, sustained_s
from kernels.attention.cuda.campaign.timing import graph_calls
from kernels.attention.cuda.campaign.visit import Visitor
from tests.kernels.cuda.simulated import SPEEDS, SimulatedStable, SimulatedWatch

CELL = square("main", "bfloat16", 4, 16, 1024, 128, True)
LARGE = square("main", "bfloat16", 4, 16, 8192, 128, False)


def simulated(seconds: float, cells: list[Cell], **changes: Any) -> tuple[SimulatedWatch, list[numbers.Row]]:
    watch = SimulatedWatch(noise=changes.pop("noise", 0.01))
    rows: list[numbers.Row] = []
    run(cells, Visitor(SimulatedStable(watch, **changes), watch, random.Random(0)), seconds, rows.append)
    return watch, rows


def test_the_grid_has_every_cell_of_the_claims_once() -> None:
    cells = campaign()
    assert len(set(cells)) == len(cells)
    main = [cell for cell in cells if cell.group == "main"]
    assert len(main) == 2 * 6 * 2 * 2
    assert {cell.seq_q for cell in main} == {256, 512, 1024, 2048, 4096, 8192}
    assert all(cell.heads == 8 * cell.kv_heads for cell in cells if cell.group == "decode")
    assert {cell.seq_k for cell in cells if cell.group == "decode"} == {8192, 32768, 131072}


@pytest.mark.parametrize("cell", [CELL, *quick()])
def test_a_cell_survives_being_written_down(cell: Cell) -> None:
    assert from_row(json.loads(json.dumps(as_row(cell)))) == cell


def test_words_choose_cells_by_name() -> None:
    found = chosen(campaign(), "main bf16 d128 causal q512")
    assert [cell.seq_q for cell in found] == [512]


@pytest.mark.parametrize("seconds", [20.0, 60.0, 300.0])
def test_the_budget_is_kept(seconds: float) -> None:
    watch, rows = simulated(seconds, campaign())
    longest = max(row["seconds"] for row in rows if row["kind"] == "visit")
    assert watch.now() <= seconds + longest


def test_what_there_is_no_time_for_is_said_and_nothing_is_done_twice_before_all_was_done_once() -> None:
    _, rows = simulated(20.0, campaign())
    seen = [from_row(row["cell"]) for row in rows if row["kind"] in ("visit", "skipped") and row.get("turn", 0) == 0]
    assert seen == campaign()
    assert any(row["kind"] == "skipped" for row in rows)
    _, rows = simulated(2000.0, campaign())
    assert not any(row["kind"] == "skipped" for row in rows)
    turns = [row["turn"] for row in rows if row["kind"] == "visit"]
    assert turns == sorted(turns)
    assert max(turns) == MOST_TURNS - 1


def test_more_seconds_give_more_rounds() -> None:
    def rounds(seconds: float) -> int:
        _, rows = simulated(seconds, [CELL, LARGE])
        return sum(len(row["burst_us"]["ours"]) for row in rows if row["kind"] == "visit")

    assert all(rounds(a) <= rounds(b) for a, b in pairwise((1.0, 2.0, 4.0, 8.0)))
    assert rounds(1.5) < rounds(30.0)


def test_every_contender_runs_once_a_round_in_an_order_that_changes() -> None:
    watch, _ = simulated(30.0, [CELL])
    full = [names for names in watch.bursts if len(names) == len(SPEEDS)]
    assert all(set(names) == set(SPEEDS) for names in full)
    assert len(set(watch.bursts)) > 3


def test_a_laggard_is_timed_in_the_first_rounds_only() -> None:
    _, rows = simulated(30.0, [CELL])
    row = next(row for row in rows if row["kind"] == "visit")
    assert row["laggards"] == ["efficient"]
    assert len(row["burst_us"]["efficient"]) == len(row["graph_us"]["efficient"]) == budget.LAGGARD_ROUNDS
    assert len(row["burst_us"]["flash"]) > budget.LAGGARD_ROUNDS


def test_small_inputs_are_also_timed_cold_and_large_ones_are_cold_anyway() -> None:
    watch, rows = simulated(60.0, [CELL, LARGE])
    by_seq = {row["cell"]["seq_q"]: row for row in rows if row["kind"] == "visit"}
    assert "cold_us" in by_seq[1024]
    assert "cold_us" not in by_seq[8192]
    assert any(cold for _, _, cold in watch.captured)


def test_errors_are_taken_once_and_absence_has_its_reason() -> None:
    _, rows = simulated(60.0, [CELL], broken={"flash": "no kernel"})
    visits = [row for row in rows if row["kind"] == "visit"]
    assert [("errors" in row) for row in visits] == [True] + [False] * (len(visits) - 1)
    assert all(row["absent"] == {"flash": "no kernel"} and "flash" not in row["burst_us"] for row in visits)


def test_a_cell_without_any_contender_is_a_row_all_the_same() -> None:
    _, rows = simulated(10.0, [CELL], broken=dict.fromkeys(SPEEDS, "gone"))
    assert rows[0]["absent"] == dict.fromkeys(SPEEDS, "gone")
    assert "burst_us" not in rows[0]


def test_the_sustained_regime_runs_there_and_back() -> None:
    cell = square("main", "bfloat16", 4, 16, 4096, 64, False)
    assert cell.sustained
    _, rows = simulated(60.0, [cell])
    found = [row for row in rows if row["kind"] == "sustained"]
    assert len(found) == 1
    assert {name: len(values) for name, values in found[0]["times"].items()} == {"ours": 2, "cudnn": 2, "flash": 2}
    assert sustained_s() > 0


def test_rows_read_back_as_far_as_they_are_whole(tmp_path: Path) -> None:
    _, rows = simulated(20.0, [CELL])
    path = tmp_path / "cut.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + '\n{"kind": "vis')
    assert numbers.read(path) == rows
    packed = tmp_path / "cut.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert numbers.read(packed) == rows


def test_medians_pool_the_visits_and_ratios_take_the_best_backend() -> None:
    visits = [{"burst_us": {"ours": [1.0, 2.0], "flash": [6.0]}}, {"burst_us": {"ours": [9.0], "cudnn": [4.0]}}]
    times = numbers.medians(visits, "burst")
    assert times == {"ours": 2.0, "flash": 6.0, "cudnn": 4.0}
    assert numbers.ratio(times, lse=False) == 2.0
    assert numbers.ratio(times, lse=True) is None
    assert numbers.over(times, "flash") == 3.0
    assert numbers.over(times, "fa4") is None


def test_a_graph_is_about_four_milliseconds_long() -> None:
    assert graph_calls(1000.0) == 4
    assert graph_calls(1.0) == 256
    assert graph_calls(50_000.0) == 1


def test_sets_of_inputs_leave_the_cache_where_one_does_not() -> None:
    assert sets_for(LARGE, 50 * 2**20) == 1
    cell = square("small", "bfloat16", 2, 8, 512, 64, False)
    assert (sets_for(cell, 50 * 2**20) - 1) * cell.set_bytes < 100 * 2**20 <= 64 * cell.set_bytes * 2


def test_a_visit_is_told_in_one_line_with_its_ratio_to_the_best() -> None:
    _, rows = simulated(20.0, [CELL], noise=0.0)
    told = line(rows[0])
    assert told.startswith(CELL.name)
    assert "1.200x cudnn" in told
    assert "\n" not in told


def test_rounds_stay_within_their_bounds_whatever_the_time() -> None:
    costs = budget.round_costs([100.0] * 5, [4000.0] * 5, cold=True)
    few, many = budget.rounds_for(-1.0, costs), budget.rounds_for(1e9, costs)
    for regime in budget.REGIMES:
        assert few.of(regime) == budget.LEAST[regime]
        assert many.of(regime) == budget.MOST[regime]
    assert budget.rounds_for(1.0, budget.round_costs([1.0], [1.0], cold=False)).cold == 0
