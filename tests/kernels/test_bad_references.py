"""A reference that raises, is not the same twice or answers with NaN is named in every row, by file and line; and what
cannot run on this device is a skip, not a fault."""

from __future__ import annotations

from pathlib import Path

from tests.kernels.harness_process import HarnessProcess, named
from tests.kernels.test_cheats import own

BAD = """import torch

axes = {"fault": ["none", "raises", "changes", "nan", "chance"]}


def inputs(fault, device, generator):
    return torch.randn(64, device=device, generator=None if fault == "chance" else generator), fault


def reference(x, fault):
    if fault == "raises":
        raise ValueError("no such luck")
    if fault == "changes":
        return x + torch.rand(64)
    return x * float("nan") if fault == "nan" else x + 1


def baseline_torch(out, x, fault):
    return x + 1


kernel_on_a_gpu = {"cuda": "k.cu", "entry": "there", "grid": 1, "block": 64, "args": ["out"]}


def outputs(x, fault):
    return torch.empty_like(x)
"""
REASONS = {
    "raises": "mine.py:12 in reference: the reference raises ValueError: no such luck",
    "changes": "the reference is not deterministic",
    "chance": "mine.py: its inputs differ from call to call: inputs() must draw them from its generator",
    "nan": "the reference answers with NaN in 64 of 64 elements",
}


def test_a_bad_reference_is_named_in_its_cases_rows_and_the_others_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BAD)
    (tmp_path / "k.cu").write_text('extern "C" __global__ void there(float* out) {}\n')
    asked = own(file, implementations=["*"], repeats=2, cache="warm")
    with HarnessProcess("build", asked, tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0, "a kernel for another device is no fault"
    assert not named(facts, "problem")
    with HarnessProcess("measure", asked, tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    cases = {one["case_id"].removeprefix("fault"): one for one in named(facts, "case_finished")}
    assert set(cases["none"]["median_us"]) == {"torch"}
    assert "needs a CUDA device" in cases["none"]["skipped"]["on_a_gpu"]
    for fault, reason in REASONS.items():
        assert not cases[fault]["median_us"]
        assert reason in cases[fault]["skipped"]["torch"]
