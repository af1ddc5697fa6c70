"""Six workloads as users write them (tests/examples): each is taken as it is, and those that a processor can run are
judged and measured, or skipped with the true reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.workload_files import gather_files, own_workload
from tests.kernels.harness_process import HarnessProcess, named

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FORMS = {
    "rmsnorm.py": "file", "softmax": "file", "sum_of_squares.py": "file", "saxpy_command": "program",
    "vector_scale_gpumode": "gpumode", "swish_kernelbench": "kernelbench",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_an_example_is_read_in_its_form_and_its_files_travel(name: str) -> None:
    read = own_workload(EXAMPLES / name)
    assert read.form == FORMS[name]
    files = gather_files(EXAMPLES / name)
    assert files
    assert all(path.startswith("own") for path in files)


def measured(folder: Path, form: str, path: Path, **changes: Any) -> dict[str, Any]:
    asked = {
        "workload": {"form": form, "path": str(path)},
        "implementations": ["*"], "measure": {}, "correctness": {}, "repeats": 2, "warmup": 1,
        "regime": "burst", "cache": "warm", "seed": 7, "threads": 1, "answer_limit_s": 600,
    }  # fmt: skip
    with HarnessProcess("measure", asked | changes, folder) as harness:
        code, facts = harness.finish()
        (case,) = named(facts, "case_finished")
        return {**case, "code": code, "log": harness.log()}


def test_a_cuda_file_is_skipped_on_a_processor_with_that_reason_beside_pytorch(tmp_path: Path) -> None:
    axes = {"axes": {"rows": [128], "cols": [1000], "dtype": ["float32"]}}
    case = measured(tmp_path, "file", EXAMPLES / "softmax", measure=axes)
    assert set(case["median_us"]) == {"torch"}, case["log"]
    assert "CUDA" in case["skipped"]["mine"]


def test_what_is_wrong_crashes_or_hangs_is_a_row_with_its_reason_beside_the_honest(tmp_path: Path) -> None:
    axes = {"axes": {"n": [1 << 16]}}
    for limit_s in (8, 40, 200):
        folder = tmp_path / str(limit_s)
        folder.mkdir()
        case = measured(folder, "file", EXAMPLES / "sum_of_squares.py", measure=axes, answer_limit_s=limit_s)
        if [name for name, reason in case["skipped"].items() if "hung" in reason] == ["hangs"]:
            break  # else the machine stood still, and others have hung with it
    assert case["code"] == 10
    assert set(case["median_us"]) == {"torch", "honest"}, case["log"]
    assert set(case["skipped"]) == {"wrong", "crashes", "hangs"}
    assert "SIGABRT" in case["skipped"]["crashes"]
    assert f"{limit_s} s" in case["skipped"]["hangs"]


def test_a_pair_in_kernelbenchs_form_is_judged_and_measured(tmp_path: Path) -> None:
    case = measured(tmp_path, "kernelbench", EXAMPLES / "swish_kernelbench", implementations=["eager", "swish_new"])
    assert (case["code"], set(case["median_us"])) == (0, {"eager", "swish_new"}), case["log"]
