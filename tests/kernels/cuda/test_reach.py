"""A claim is judged by what was measured: every cell counts, and nothing that is missing counts as reached."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernels.attention.cuda.campaign import tables
from kernels.attention.cuda.campaign.cells import Cell, as_row, campaign, square
from kernels.attention.cuda.campaign.figure import NAMES, draw
from kernels.attention.cuda.campaign.numbers import Row, read
from kernels.attention.cuda.campaign.pages import BEGIN, END, fill
from kernels.attention.cuda.campaign.reach import MEAN, NO, OPEN, YES, Verdict, judged, lost, spread, times_of, verdicts
from kernels.attention.cuda.campaign.runner import run
from kernels.attention.cuda.campaign.visit import Visitor
from tests.kernels.cuda.simulated import SPEEDS, SimulatedStable, SimulatedWatch

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(tables.__file__).parents[1]
ENVIRONMENT: Row = {
    "kind": "environment",
    "device": "NVIDIA H200",
    "driver": "580.1",
    "torch": "2.11",
    "cudnn": 91900,
    "flash-attn-4": "4.0.0b36",
    "nvidia-cutlass-dsl": "4.8.1",
    "gemm_tflops": 800.0,
    "copy_gb_per_s": 4300.0,
    "recorded_at": "2026-11-21T08:00:00+00:00",
}
BUILD: Row = {"kind": "build", "kernels": 40, "compiler": "nvrtc 13.0", "seconds": 3.0, "loaded": 40}
BUILD |= {"spill_bytes": 0, "serialised": 0}
HOST: Row = {
    "kind": "host",
    "shapes": [{"shape": [1, 1, 64, 64], "attention_us": 9.0, "sdpa_us": 12.0, "bound_us": 3.0}],
}
STRESS: Row = {"kind": "stress", "launches": 10_000, "differing": 0, "shapes": [], "seconds": 5.0}
CELL = square("main", "bfloat16", 4, 16, 1024, 128, True)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """A whole campaign, simulated, with flash-attn-4 and FlexAttention."""
    watch = SimulatedWatch(noise=0.01)
    stable = SimulatedStable(watch, {**SPEEDS, "fa4": 1.1, "efficient:lse": 4.1, "flex": 1.9})
    found: list[Row] = [ENVIRONMENT, BUILD, HOST, STRESS]
    run(campaign(), Visitor(stable, watch, random.Random(0)), 400.0, found.append)
    return [
        *found,
        {"kind": "end", "seconds": 1.0, **{key: BUILD[key] for key in ("loaded", "spill_bytes", "serialised")}},
    ]


def visit(cell: Cell, ours_us: float, cudnn_us: float, **errors: float) -> Row:
    row: Row = {"kind": "visit", "cell": as_row(cell), "turn": 0, "ways": {}, "absent": {}, "seconds": 1.0}
    times = {"ours": [ours_us], "ours:lse": [ours_us], "cudnn": [cudnn_us], "cudnn:lse": [cudnn_us]}
    found = {name: {"relative": value, "max_abs": value} for name, value in errors.items()}
    return {**row, "burst_us": times, "graph_us": times, "errors": found}


def verdict(rows: Sequence[Row], words: str) -> Verdict:
    return next(one for one in verdicts([ENVIRONMENT, *rows]) if words in one.what)


def test_every_claim_has_a_verdict_and_a_whole_campaign_leaves_none_open(rows: list[Row]) -> None:
    found = verdicts(rows)
    assert len(found) == 15
    assert [one.what for one in found if one.met == OPEN] == []
    assert verdict(rows[1:], "geometric mean").met == YES
    assert "80 of 80" not in verdict(rows[1:], "the worst cell").without
    assert "80 cells" in verdict(rows[1:], "the worst cell").without


def test_what_was_not_measured_is_open_and_not_reached() -> None:
    assert {one.met for one in verdicts([ENVIRONMENT])} == {OPEN}


def test_a_mean_that_hides_a_lost_cell_says_so() -> None:
    assert judged([[1.3, 1.1]], 1.15, by="mean") == YES
    assert judged([[1.3, 1.1]], 1.15, by="cells") == MEAN
    assert judged([[1.1, 1.1]], 1.15, by="cells") == NO
    assert judged([[1.3, 1.1]], 1.15, by="worst") == NO
    assert judged([[1.2], []], 1.15, by="worst") == YES


def test_the_log_sum_exp_counts_as_much_as_its_absence() -> None:
    assert judged([[1.3], [1.0]], 1.15, by="mean") == NO


def test_few_cells_are_told_as_few() -> None:
    assert spread([1.0, 1.0], 80) == "1.000 (1.000 to 1.000, 2 of 80 cells)"
    assert spread([], 80) == "-"


def test_an_error_over_cudnn_s_own_by_more_than_two_per_cent_anywhere_is_a_miss() -> None:
    good = visit(CELL, 1.0, 2.0, ours=1.01e-3, cudnn=1e-3)
    bad = visit(square("main", "float16", 4, 16, 512, 64, False), 1.0, 2.0, ours=1.03e-3, cudnn=1e-3)
    assert verdict([good], "error against").met == YES
    assert verdict([good, bad], "error against").met == NO


def test_one_launch_that_differs_or_too_few_launches_are_a_miss() -> None:
    assert verdict([STRESS], "differ in a bit").met == YES
    assert verdict([{**STRESS, "differing": 1}], "differ in a bit").met == NO
    assert verdict([{**STRESS, "launches": 9_999}], "differ in a bit").met == NO


def test_spills_and_warnings_are_misses() -> None:
    assert verdict([BUILD], "registers spilled").met == YES
    assert verdict([{**BUILD, "spill_bytes": 8}], "registers spilled").met == NO
    assert verdict([{**BUILD, "serialised": 1}], "registers spilled").met == NO


def test_decoding_is_measured_against_the_copy_s_bandwidth() -> None:
    cell = Cell("decode", "bfloat16", 4, 64, 8, 1, 131072, 128, False)
    at_copy = cell.set_bytes / 4300.0 / 1e3
    assert verdict([visit(cell, at_copy / 0.9, at_copy * 2)], "share of a copy").met == YES
    assert verdict([visit(cell, at_copy / 0.7, at_copy * 2)], "share of a copy").met == NO


def test_lost_cells_are_named_with_who_won() -> None:
    found = lost(times_of([visit(CELL, 2.0, 1.0)]), "burst", lse=False)
    assert found == [(0.5, CELL, "cudnn")]
    assert lost(times_of([visit(CELL, 1.0, 2.0)]), "burst", lse=False) == []


def test_every_section_is_made_and_every_cell_is_in_the_grid(rows: list[Row]) -> None:
    page = "\n".join(f"{BEGIN.format(name=name)}\nstale words\n{END.format(name=name)}" for name in tables.SECTIONS)
    made = fill(page, rows, tables.SECTIONS)
    assert "stale words" not in made
    assert fill(made, rows, tables.SECTIONS) == made
    grid = tables.grid(rows).splitlines()[2:]
    assert len({tuple(line.split("|")[1:6]) for line in grid}) == len(campaign())


def test_a_campaign_that_was_cut_short_says_so(rows: list[Row]) -> None:
    assert "cut short" in tables.facts([ENVIRONMENT, BUILD])
    assert "cut short" not in tables.facts(rows)
    skipped = {"kind": "skipped", "cell": as_row(CELL), "why": "0.1 s were left"}
    assert CELL.name in tables.left_out([skipped])


def test_the_command_makes_the_pages_and_the_figure(rows: list[Row], tmp_path: Path) -> None:
    results, page, figure = tmp_path / "campaign.jsonl.gz", tmp_path / "PAGE.md", tmp_path / "figure.svg"
    results.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    page.write_text(f"{BEGIN.format(name='reach')}\n{END.format(name='reach')}\n")
    tables.main([str(results), str(page), "--figure", str(figure)])
    assert tables.reach(rows) in page.read_text()
    assert figure.read_text() == draw(rows)


def test_the_figure_is_whole_xml_with_a_curve_for_everybody_in_every_panel(rows: list[Row]) -> None:
    root = ElementTree.fromstring(draw(rows))
    curves = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("stroke") == "#c24a00"]
    assert len(curves) == 8 + 1  # and one in the legend
    words = "".join(e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text"))
    assert all(name in words for name in NAMES.values())
    assert "cuDNN 91900" in words


@pytest.mark.parametrize(
    "results", sorted(ROOT.glob("results/*-campaign/campaign.jsonl.gz"))[-1:], ids=lambda p: p.parent.name
)
def test_the_published_pages_and_figure_are_what_the_published_rows_give(results: Path) -> None:
    rows = read(results)
    for page in (FOLDER / "README.md", FOLDER / "MEASURED.md", FOLDER.parents[2] / "README.md"):
        assert fill(page.read_text(), rows, tables.SECTIONS) == page.read_text()
    assert (results.parent / "tflops.svg").read_text() == draw(rows)
