"""The published tables are what the results file says, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.attention.cuda.campaign import portable_tables as tables
from kernels.attention.cuda.campaign.numbers import geometric_mean, of_kind, read
from kernels.attention.cuda.campaign.pages import Row, fill

FOLDER = Path(tables.__file__).parents[1]
RESULTS, PAGE = FOLDER / "results" / "h200.jsonl", FOLDER / "PORTABLE.md"


def cell(ours_us: float, flash_us: float, **changes: object) -> Row:
    times = {
        name: {regime: {"median_us": us, "quartiles_us": [us, us], "tflops": 100 / us} for regime in tables.REGIMES}
        for name, us in (("fa2", ours_us), ("flash", flash_us))
    }
    row = {"kind": "cell", "dtype": "float16", "head_dim": 64, "causal": False, "seq": 512, "ladder": False}
    return {**row, "times": times, "errors": {}, "absent": {}, **changes}


def test_the_page_holds_exactly_what_the_results_give() -> None:
    text = PAGE.read_text()
    assert fill(text, read(RESULTS), tables.SECTIONS) == text


def test_a_contender_that_was_not_timed_is_in_no_ratio() -> None:
    rows = [cell(1.0, 2.0), cell(1.0, 8.0)]
    del rows[1]["times"]["flash"]
    assert tables.ratios(rows, "fa2", "flash", "burst") == [2.0]


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_a_mark_without_its_end_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        fill("<!-- begin: verdicts -->", [cell(1.0, 1.0)], tables.SECTIONS)


def test_text_outside_the_marks_is_kept() -> None:
    text = "before\n<!-- begin: verdicts -->\nold\n<!-- end: verdicts -->\nafter"
    filled = fill(text, [cell(1.0, 2.0)], tables.SECTIONS)
    assert filled.startswith("before\n")
    assert filled.endswith("\nafter")
    assert "old" not in filled
    assert "2.00" in filled


def test_every_measured_cell_was_right_and_every_absence_has_a_reason() -> None:
    cells = of_kind(read(RESULTS), "cell")
    assert len(cells) == 40
    for row in cells:
        assert "fa2" in row["times"], row["absent"]
        assert all(row["absent"].values())
        for name in row["times"]:
            assert row["errors"][name]["relative"] < {"float16": 1.2e-3, "bfloat16": 8e-3}[row["dtype"]]
