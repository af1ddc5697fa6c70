"""The traces of FlashInfer-Bench that a run gives: what was measured, or why a solution has no time."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.report.flashinfer import traces
from orchestrator.report.report import Report
from tests.unit.report.written import csv_text, records, skip, studied

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
    study = studied(csv_text([skip("mine", "its inputs are in x, which is not there", case_id="M2")]))
    entry = {
        "definition": "gemm",
        "uuid": "u",
        "axes": {},
        "inputs": {},
        "skip": "its inputs are in x, which is not there",
    }
    assert list(traces(Report(study), {"M2": entry}, {"mine": "gemm"})) == []
