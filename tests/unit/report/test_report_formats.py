"""The formats of a report say the same, and what a machine wrote stays text in each."""

from __future__ import annotations

import csv
import io
import json
import statistics
from typing import Any

import pytest

from orchestrator.report import comparing
from orchestrator.report.comparing import Comparison, compare_reports
from orchestrator.report.document import report_document, summary_csv, verdicts_csv
from orchestrator.report.flashinfer import traces
from orchestrator.report.html import report_page
from orchestrator.report.markdown import BEGIN, END, NoMarks, between_marks, by_baseline, report_markdown
from orchestrator.report.report import Report
from orchestrator.report.text import case_labels, format_digits, format_size, in_words
from tests.unit.report.reported import BROKEN, FULL, judged
from tests.unit.report.written import both, csv_text, records, reported, skip, studied


def test_markdown_has_the_table_of_one_regime_says_which_and_what_else_there_is() -> None:
    report = reported(csv_text(both()))
    picked = report_markdown(report)
    assert "**burst, cold**: One call at a time" in picked
    assert "Also measured, and in the whole report: sustained, cold." in picked
    assert picked.count("| verdict |") == 1
    other = report_markdown(report, report.study.settings[1:])
    assert "**sustained, cold**: Calls back to back" in other
    assert report_markdown(report, report.study.settings).count("| verdict |") == 2
    for words in ("burst, cold: bench against", "sustained, cold: bench against"):
        assert words in picked
        assert words in other


def test_the_document_and_the_csv_say_the_same() -> None:
    report = reported(FULL)
    data = json.loads(json.dumps(report_document(report), allow_nan=False))
    rows = list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    told = [(case["case_id"], one) for case in data["cases"] for one in case["contrasts"]]
    assert len(rows) == len(told) == 12
    for row, (case_id, one) in zip(rows, told, strict=True):
        assert (row["case_id"], row["baseline"], row["verdict"]) == (case_id, one["baseline"], one["verdict"])
        assert float(row["ratio"]) == pytest.approx(one["ratio"]["mid"], rel=1e-5)
    assert data["usd_per_answer"] == pytest.approx(0.12 / 12)


def test_markdown_has_a_row_a_case_and_no_cell_breaks_out() -> None:
    table = [line for line in report_markdown(reported(FULL)).splitlines() if line.startswith("|")]
    assert len(table) == 2 + 6
    assert {line.count("|") for line in table} == {9}
    broken = report_markdown(reported(BROKEN["hostile"]))
    assert "<script" not in broken


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    before = f"# mine\n\n{BEGIN}\nold\n{END}\n\nrest\n"
    once = between_marks(before, "new\n")
    assert once == f"# mine\n\n{BEGIN}\nnew\n{END}\n\nrest\n"
    assert between_marks(once, "new\n") == once
    for wrong in ("", BEGIN, f"{END} {BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"):
        with pytest.raises(NoMarks):
            between_marks(wrong, "new")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("nan"), "–"), (0, "0"), (1234.6, "1,235"), (12.345, "12.3"), (0.012345, "0.0123"), (9.999, "10.00"), (3.2e-12, "3.20e-12")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert format_digits(value) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(float("nan"), "–"), (0, "0 B"), (999, "999 B"), (4096, "4.00 KiB"), (3 << 20, "3.00 MiB"), (5 << 30, "5.00 GiB"), (1 << 40, "1,024 GiB")],
)  # fmt: skip
def test_sizes_have_the_unit_that_leaves_three_digits(number: float, shown: str) -> None:
    assert format_size(number) == shown


def test_documents_are_shown_as_a_person_writes_them() -> None:
    assert in_words([{"vm": "a", "zone_name": None}, {"vm": "b"}]) == "vm a, zone name –; vm b"
    assert (in_words(True), in_words(3), in_words(("x", 1))) == ("True", "3", "x; 1")


def test_a_case_is_called_by_what_sets_it_apart() -> None:
    found = case_labels(["b2-h8-kv8-q16-k16-d64-full-float16", "b2-h8-kv8-q1-k300-d64-causal-float16"])
    assert list(found.values()) == ["S 16 full", "q1 k300 causal"]
    assert case_labels(["b2-h8-kv8-q16-k16-d64-full-float16"]) == {
        "b2-h8-kv8-q16-k16-d64-full-float16": "b2 h8 kv8 S 16 d64 full float16"
    }


def test_every_file_of_a_run_says_the_same_ratio_and_verdict() -> None:
    """Against a second computation that shares no code with ours: the median of the ratios within each block."""
    rows = list(records(lengths=(128, 1024), noise=0.2))
    report = reported(csv_text(rows))
    summaries = list(csv.DictReader(io.StringIO(summary_csv(report))))
    verdicts = list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    told = {
        (case["case_id"], one["baseline"]): one
        for case in report_document(report)["cases"]
        for one in case["contrasts"]
    }
    for (case_id, baseline), one in told.items():
        times = {
            (row["block"], row["implementation"]): float(row["latency_us"]) for row in rows if row["case_id"] == case_id
        }
        middle = statistics.median(times[str(n), baseline] / times[str(n), "bench"] for n in range(1, 51))
        assert one["ratio"]["mid"] == pytest.approx(middle, rel=1e-3)
        (summary,) = (row for row in summaries if row["case_id"] == case_id and row["implementation"] == "bench")
        (verdict,) = (row for row in verdicts if row["case_id"] == case_id and row["baseline"] == baseline)
        column = f"speedup_vs_{baseline.replace(':', '_')}"
        for cell, name in (
            (summary[column], "mid"),
            (summary[f"{column}_low"], "low"),
            (verdict["ratio_high"], "high"),
        ):
            assert float(cell) == pytest.approx(one["ratio"][name], rel=1e-5)
        assert summary[f"{column}_verdict"] == verdict["verdict"] == one["verdict"]


HOSTILE = "=cmd|'/C calc'!A0 <script>alert(1)</script> @octocat https://evil.example [a](b) **x** `y`"


def test_what_a_machine_says_is_text_in_every_format() -> None:
    rows = [*records(lengths=(128,), device=HOSTILE, run_id=HOSTILE, backend=HOSTILE), skip("bench:aa", HOSTILE)]
    rows = [*rows, skip(HOSTILE, HOSTILE, run_id=HOSTILE, case_id=HOSTILE)]
    report = reported(csv_text(rows), git_commit=HOSTILE)
    judged(report_page(report))
    assert "<script" not in report_page(report)
    both_pages = [report_markdown(report), by_baseline(report), told(compare_reports(report, report))]
    for text in both_pages:
        for live in ("<script", "@octocat", "https://", "a](b)", "**x**", " `y`"):
            assert live not in text, (live, text)
    for text in (summary_csv(report), verdicts_csv(report)):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert f"'{HOSTILE}" in cells
        assert not any(cell.startswith(("=", "@")) for cell in cells)


def told(one: Comparison) -> str:
    return comparing.comparison_markdown([one], title=HOSTILE)


# The traces of FlashInfer-Bench that a run gives: what was measured, or why a solution has no time.


REASONS = {
    "shape": ("the problem's own check: y: torch.float32 (2,) in the place of torch.float32 (4,)", "INCORRECT_SHAPE"),
    "wrong": ("the problem's own check: y: 12 of 64 elements differ by more than 0.01", "INCORRECT_NUMERICAL"),
    "slow": ("it hung: no answer within 10 s", "TIMEOUT"),
    "lacks": ("main.py:1: needs the package einops, which is not installed", "COMPILE_ERROR"),
    "raises": ("raised RuntimeError: CUDA error: an illegal memory access", "RUNTIME_ERROR"),
}


def test_each_solution_on_each_of_its_workloads_is_a_trace_with_its_status() -> None:
    timed = list(records(speeds={"mine": 2.0, "reference": 1.0, "reference:aa": 1.0, "other": 1.0}, lengths=(128, 256)))
    first, second = dict.fromkeys(row["case_id"] for row in timed)
    study = studied(csv_text([*timed, *(skip(name, reason, case_id=first) for name, (reason, _) in REASONS.items())]))
    entries: dict[str, dict[str, Any]] = {
        first: {"definition": "gemm", "uuid": "u-1", "axes": {"M": 2}, "inputs": {"A": {"type": "random"}}, "skip": ""},
        second: {"definition": "gemm", "uuid": "", "axes": {"M": 4}, "inputs": {}, "skip": ""},
    }
    solves = {"mine": "gemm", "other": "rmsnorm", **dict.fromkeys(REASONS, "gemm")}
    report = Report(study, environment={"torch": "2.13.0"}, manifest={"started_at": "2026-11-21T04:05:06Z"})
    made = [json.loads(line) for line in traces(report, entries, solves)]
    mine = [trace for trace in made if trace["solution"] == "mine"]
    assert [trace["workload"]["axes"] for trace in mine] == [{"M": 2}, {"M": 4}]
    assert mine[0]["workload"]["uuid"] == "u-1"
    assert len(mine[1]["workload"]["uuid"]) == 36, "sizes that bench chose have an id of their own"
    evaluation = mine[0]["evaluation"]
    assert (evaluation["status"], evaluation["environment"]["hardware"]) == ("PASSED", "NVIDIA_L4")
    assert abs(evaluation["performance"]["speedup_factor"] - 2) < 0.05
    assert abs(evaluation["performance"]["latency_ms"] - 0.064 * 128 / 2 / 1000) < 1e-4
    assert evaluation["correctness"] == {"max_relative_error": "NaN", "max_absolute_error": 0.0004}
    others = {trace["solution"]: trace["evaluation"] for trace in made if trace["solution"] != "mine"}
    assert {name: one["status"] for name, one in others.items()} == {
        name: status for name, (_, status) in REASONS.items()
    }
    assert all(one["performance"] is None for one in others.values())
    assert [name for name, one in others.items() if one["correctness"]] == ["wrong"]


def test_a_workload_whose_inputs_were_not_there_was_not_evaluated() -> None:
    why = "its inputs are in x, which is not there"
    study = studied(csv_text([skip("mine", why, case_id="M2")]))
    entry = {"definition": "gemm", "uuid": "u", "axes": {}, "inputs": {}, "skip": why}
    assert list(traces(Report(study), {"M2": entry}, {"mine": "gemm"})) == []
