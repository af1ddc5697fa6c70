"""A kernel that updates inputs on purpose says so: then they are its answer, judged in every call, and restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.harness_process import HarnessProcess, named
from tests.kernels.test_cheats import own

NORM = """import torch
axes = {"rows": [32]}
def inputs(rows, device, generator):
    x, r = (torch.randn(rows, 64, device=device, generator=generator) for _ in range(2))
    return x, r, torch.randn(64, device=device, generator=generator)
def reference(x, r, w):
    h = x + r
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w, h
def baseline_torch(x, r, w):
    h = x + r
    return torch.nn.functional.rms_norm(h, (h.shape[-1],), w, 1e-6), h
def kernel_returns(x, r, w):
    r.add_(x)
    x.copy_(r * torch.rsqrt(r.pow(2).mean(-1, keepdim=True) + 1e-6) * w)
    return x, r
def kernel_returns_nothing(x, r, w):
    kernel_returns(x, r, w)
def kernel_half(x, r, w):
    kernel_returns(x[:16], r[:16], w)
def kernel_also_the_weights(x, r, w):
    kernel_returns(x, r, w)
    w.zero_()
calls = [0]
def kernel_once(x, r, w):
    calls[0] += 1
    if calls[0] % 20:
        kernel_returns(x, r, w)
"""
STATE = """import torch
axes = {"n": [64]}
inplace = ["state"]
def inputs(n, device, generator):
    return {"state": torch.randn(n, generator=generator), "grad": torch.randn(n, generator=generator)}
def reference(state, grad):
    state.mul_(3).add_(grad)
def baseline_torch(state, grad):
    state.mul_(3).add_(grad)
def kernel_mine(state, grad):
    return torch.add(grad, state, alpha=3)
"""


def finished(path: Path, text: str, regime: str) -> tuple[set[str], dict[str, str]]:
    """What was timed, and the reasons of the others."""
    (path / "mine.py").write_text(text)
    asked = own(path / "mine.py", implementations=["*"], regime=regime, repeats=4)
    with HarnessProcess("measure", asked, path) as harness:
        _, facts = harness.finish()
    assert named(facts, "case_finished"), f"{facts}\n{harness.log()}"
    (case,) = named(facts, "case_finished")
    return set(case["median_us"]), case["skipped"]


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_inputs_that_a_call_updates_are_its_answer_and_are_restored(tmp_path: Path, regime: str) -> None:
    timed, skipped = finished(tmp_path, NORM + 'inplace = ["x", "r"]\n', regime)
    assert timed == {"torch", "returns", "returns_nothing"}, skipped
    assert "max abs error" in skipped["half"]
    assert "max abs error" in skipped["once"]
    assert "it changed its inputs" in skipped["also_the_weights"]


def test_undeclared_updates_are_refused_and_the_declaration_is_named(tmp_path: Path) -> None:
    timed, skipped = finished(tmp_path, NORM, "burst")
    assert timed == {"torch"}
    assert 'it changed its inputs; inplace = ["x"] in the workload names inputs' in skipped["returns"]


def test_a_reference_may_update_its_inputs_too(tmp_path: Path) -> None:
    timed, skipped = finished(tmp_path, STATE, "sustained")
    assert timed == {"torch", "mine"}, skipped
