"""A GPU MODE problem: its own check judges on seeds of ours, and room for answers among the inputs may be written to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.forms.definition import BadWorkload
from kernels.forms.gpumode import load
from tests.kernels.harness_process import HarnessProcess, named

REFERENCE = """import torch
def generate_input(size: int, seed: int, offsets=(0,), sign="both"):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator) + sum(offsets)
    return x.abs() if sign == "plus" else x, torch.empty(size), {"factor": 2.0}
def ref_kernel(data):
    x, out, told = data
    out[:] = x * told["factor"]
    return out
def check_implementation(data, output):
    good = torch.allclose(output, data[0] * data[2]["factor"])
    return good, "" if good else "mismatch"
"""
SUBMISSIONS = {
    "fills": "def custom_kernel(data):\n    data[1].copy_(data[0]).mul_(data[2]['factor'])\n    return data[1]\n",
    "returns": "def custom_kernel(data):\n    return data[0] * data[2]['factor']\n",
    "changes": "def custom_kernel(data):\n    return data[0].mul_(data[2]['factor'])\n",
    "wrong": "def custom_kernel(data):\n    return data[0] + data[2]['factor']\n",
    "careless": "def custom_kernel(data):\n    x = data[0]\n    return x if (x >= 0).all() else x * 2.0\n",
    "broken": "import no_such_package\ndef custom_kernel(data):\n    return data[1]\n",
}


def problem(folder: Path, reference: str = REFERENCE) -> Path:
    own = folder / "own"
    own.mkdir()
    (own / "reference.py").write_text(reference)
    for name, text in SUBMISSIONS.items():
        (own / f"{name}.py").write_text(text)
    told = {
        "schema": 1,
        "name": "scale",
        "cases": [
            {"size": 64, "offsets": None, "sign": None},
            {"size": 64, "offsets": [1, 2], "sign": None},
        ],
        "tests": [{"size": 5, "offsets": None, "sign": "plus"}],
        "submissions": {name: f"{name}.py" for name in SUBMISSIONS},
    }
    (folder / "own.json").write_text(json.dumps(told))
    return own


def spec(own: Path) -> dict[str, object]:
    return {
        "workload": {"form": "gpumode", "path": str(own)},
        "implementations": ["*"], "measure": {}, "correctness": {},
        "repeats": 2, "warmup": 1, "regime": "burst", "cache": "warm", "seed": 7, "threads": 1,
    }  # fmt: skip


def test_each_submission_meets_the_problems_check_and_only_honest_ones_are_timed(tmp_path: Path) -> None:
    with HarnessProcess("measure", spec(problem(tmp_path)), tmp_path) as harness:
        code, facts = harness.finish()
        case, listed = named(facts, "case_finished")
        assert code == 10, harness.log()
        assert set(case["median_us"]) == {"reference", "fills", "returns", "careless"}, case
        assert "changed its inputs" in case["skipped"]["changes"]
        assert "the problem's own check: mismatch" in case["skipped"]["wrong"]
        assert "broken.py:1: needs the package no_such_package" in case["skipped"]["broken"]
        assert {(row["axis:size"], row["axis:offsets"]) for row in harness.rows("size64")} == {("64", "")}
        assert listed["case_id"] == "size64-offsets1x2"
        assert {row["axis:offsets"] for row in harness.rows("size64-offsets1x2")} == {"1x2"}


def test_tests_are_judged_and_not_timed(tmp_path: Path) -> None:
    with HarnessProcess("correctness", spec(problem(tmp_path)), tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 10
    checked = {one["implementation"]: one for one in named(facts, "checked")}
    assert {one["case_id"] for one in checked.values()} == {"size5-signplus"}
    assert not checked["careless"]["passed"], "it is wrong only on the argument that no benchmark has"
    assert {name for name, one in checked.items() if one["passed"]} == {"reference", "fills", "returns"}
    with HarnessProcess("measure", spec(tmp_path / "own"), tmp_path) as harness:
        code, facts = harness.finish()
        (row,) = [row for row in harness.rows("size64") if row["implementation"] == "careless"]
    case = named(facts, "case_finished")[0]
    assert (code, set(case["median_us"])) == (10, {"reference", "fills", "returns"}), "what fails a test has no time"
    assert row["skipped"] == "the problem's own check: mismatch (in test size5-signplus)"
    assert row["fault"] == "wrong"


def test_inputs_that_only_a_gpu_can_make_are_a_skip_with_that_reason(tmp_path: Path) -> None:
    reference = REFERENCE.replace("torch.Generator()", "torch.Generator(device='cuda')")
    with HarnessProcess("measure", spec(problem(tmp_path, reference)), tmp_path) as harness:
        code, facts = harness.finish()
        case = named(facts, "case_finished")[0]
    assert "generate_input makes its inputs on a CUDA device, and this one is a cpu" in case["skipped"]["fills"]
    assert code == 10, "the broken one is still at fault"


def test_a_problem_without_its_functions_is_refused(tmp_path: Path) -> None:
    own = problem(tmp_path, "def generate_input(seed): ...\n")
    with pytest.raises(BadWorkload, match="there is no function ref_kernel"):
        load(own)
