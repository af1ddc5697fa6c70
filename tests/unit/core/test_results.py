"""The result files: put together without loss, and text whatever a machine wrote into them."""

from __future__ import annotations

import csv
import io
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.columns import measurement_columns
from orchestrator.core.bundled import AXES
from orchestrator.core.results import MEASURED, ORIGIN, assemble_rows, axes_of, case_order, plain_cell

COLUMNS = (*ORIGIN, *AXES, *MEASURED)

CONTRACT = (Path(__file__).parents[3] / "docs/contracts.md").read_text(encoding="utf-8")
CASE = "b2-h8-kv8-q128-k128-d64-full-float16"
LATER = "b2-h8-kv8-q1024-k1024-d64-full-float16"


def record(**changes: str) -> dict[str, str]:
    made = {
        "run_id": "20261121-040506-l4-7f3a",
        "vm": "bench-20261121-040506-l4-7f3a-1",
        "case_id": CASE,
        "device": "NVIDIA L4",
        "implementation": "bench",
        "backend": "fa2",
        "dtype": "float16",
        "batch": "2",
        "heads": "8",
        "kv_heads": "8",
        "seq_q": "128",
        "seq_k": "128",
        "head_dim": "64",
        "causal": "false",
        "regime": "burst",
        "block": "1",
        "repeat": "1",
        "latency_us": "10.000",
        "sm_clock_mhz": "",
        "mem_clock_mhz": "",
        "power_w": "",
        "temperature_c": "",
        "throttle": "",
        "max_abs_error": "0.001",
        "torch": "2.13.0",
        "started_at": "2026-11-21T04:05:06.000001Z",
        "skipped": "",
    }
    return made | changes


def text_of(*records: dict[str, str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys([*COLUMNS, *(key for made in records for key in made)])))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def together(texts: dict[str, str]) -> str:
    return "".join(assemble_rows({case: partial(io.StringIO, text) for case, text in texts.items()}))


# --- rows -----------------------------------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_contract() -> None:
    block = re.search(r"have one row a measurement:\n\n```\n(.*?)\n```", CONTRACT, re.DOTALL)
    assert block
    assert tuple(re.split(r",\s*", block[1])) == measurement_columns(AXES)


def test_cases_are_put_together_under_one_header_in_the_order_of_their_numbers() -> None:
    texts = {LATER: text_of(record(case_id=LATER)), CASE: text_of(record(), record(repeat="2"))}
    lines = together(texts).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert [line.split(",")[2] for line in lines[1:]] == [CASE, CASE, LATER]


def test_a_column_that_only_some_cases_have_is_empty_in_the_others() -> None:
    made = together({CASE: text_of(record()), LATER: text_of(record(case_id=LATER, l2_hits="7"))})
    rows = list(csv.DictReader(io.StringIO(made)))
    assert [row["l2_hits"] for row in rows] == ["", "7"]


def test_another_workload_has_its_own_axes_in_the_place_of_attentions() -> None:
    rows = "run_id,vm,case_id,device,implementation,backend,rows,dtype,regime,block,repeat,latency_us\nr,v,n8,d,mine,k,8,float16,burst,1,1,5\n"
    header, line = together({"n8": rows}).splitlines()
    assert axes_of(header.split(",")) == ("rows", "dtype")
    assert "seq_q" not in header
    assert line.startswith("r,v,n8,d,mine,k,8,float16,burst,1,1,5")
    assert axes_of(("case_id", "seq_q", "latency_us")) == ("seq_q",)


@given(st.lists(st.sampled_from([CASE, LATER, "b1-h1-kv1-q2-k2-d4-causal-float32"]), unique=True), st.integers(0, 3))
def test_assembling_loses_no_row_and_changes_none(cases: list[str], rows: int) -> None:
    texts = {case: text_of(*[record(case_id=case, repeat=str(n + 1)) for n in range(rows)]) for case in cases}
    apart = [row for case in sorted(texts, key=case_order) for row in csv.reader(io.StringIO(texts[case])) if row]
    apart = [row for row in apart if row[0] != "run_id"]
    assert list(csv.reader(io.StringIO(together(texts)))) == [list(COLUMNS), *apart]
    shuffled = list(texts.items())
    random.Random(1).shuffle(shuffled)
    assert together(dict(shuffled)) == together(texts)


def test_nothing_measured_is_a_header_alone() -> None:
    assert together({}) == ",".join(COLUMNS) + "\n"


def test_a_torn_line_stays_torn_and_what_is_no_csv_hides_no_other_line() -> None:
    whole = text_of(record(), record(repeat="2"))
    torn = whole[: whole.rindex("2026")] + "\n"
    short = list(csv.reader(io.StringIO(together({CASE: torn}))))
    assert [len(row) == len(COLUMNS) for row in short] == [True, True, False]
    huge = whole + '"' + "x" * 200_000 + "\n" + ",".join(record(repeat="3").values()) + "\n"
    assert together({CASE: huge}).count(CASE) >= 2
    long = text_of(record()).rstrip() + ",more\n"
    assert [len(row) for row in csv.reader(io.StringIO(together({CASE: long})))] == [
        len(COLUMNS),
        len(COLUMNS) + 1,
    ]


@pytest.mark.parametrize("cell", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "\n@x"])
def test_no_cell_of_a_machine_is_a_formula_and_numbers_stay_numbers(cell: str) -> None:
    made = together({CASE: text_of(record(device=cell, max_abs_error="-1.5e-3", latency_us="+7"))})
    (row,) = csv.DictReader(io.StringIO(made, newline=""))
    assert row["device"] == f"'{cell}"
    assert (row["max_abs_error"], row["latency_us"]) == ("-1.5e-3", "+7")


@given(st.text())
def test_a_guarded_cell_begins_no_formula_in_any_spreadsheet(text: str) -> None:
    guarded = plain_cell(text)
    assert guarded.removeprefix("'") == "\n".join(re.split("\r\n?", text)).removeprefix("'")
    try:
        float(guarded)
    except ValueError:
        assert not guarded.lstrip().startswith(("=", "+", "-", "@"))


def test_a_hostile_header_is_no_formula_either() -> None:
    assert "'=cmd" in together({CASE: text_of(record(**{"=cmd": "1"}))}).splitlines()[0]


def test_case_ids_sort_by_their_numbers() -> None:
    made: list[Any] = ["b10-q2", "b2-q1024", "b2-q128", "", "b2"]
    assert sorted(made, key=case_order) == ["", "b2", "b2-q128", "b2-q1024", "b10-q2"]
