"""Backward passes as the harness sees them: their cases, inputs and gate, and PyTorch's own on a processor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention import reference
from kernels.attention.case import CASE_ID, PASSES, Case, Shape
from kernels.attention.gradient_gate import GradientYardstick
from kernels.attention.implementations import Baseline, bundled_kernel
from kernels.attention.interface import Unavailable
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.attention.workload import WORKLOAD
from kernels.harness.reading import BadSpec
from kernels.harness.workload import Site
from tests.kernels.harness_process import HarnessProcess, named, read_csv, shape, spec

SHAPE = Shape(batch=1, heads=4, kv_heads=2, seq_q=33, seq_k=33, head_dim=16, causal=True)
SPELT = {
    "batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 33, "seq_k": 33, "head_dim": 16, "causal": True,
}  # fmt: skip


def made(direction: str, dtype: str = "bfloat16") -> tuple[Case, Inputs]:
    case = Case(SHAPE, dtype, direction)
    return case, AttentionProblem().inputs(case, torch.Generator().manual_seed(1))


def test_a_forward_case_is_called_as_ever_and_the_others_say_what_they_are() -> None:
    ids = [Case(SHAPE, "bfloat16", direction).id for direction in PASSES]
    assert ids[0] == "b1-h4-kv2-q33-k33-d16-causal-bfloat16"
    assert ids[1:] == [f"{ids[0]}-backward", f"{ids[0]}-both"]
    assert all(CASE_ID.fullmatch(one) for one in ids)
    assert len({tuple(Case(SHAPE, "bfloat16", direction).axes.items()) for direction in PASSES}) == 1


def test_a_grid_says_which_pass_of_a_shape_is_meant() -> None:
    grid = {"shapes": [SPELT, {**SPELT, "pass": "backward"}], "dtypes": ["float16"]}
    assert [case.direction for case in WORKLOAD.cases(grid, "measure")] == ["forward", "backward"]
    with pytest.raises(BadSpec, match=r"shapes\[0\].pass"):
        WORKLOAD.cases({"shapes": [{**SPELT, "pass": "sideways"}], "dtypes": ["float16"]}, "measure")


def test_operations_are_counted_by_products() -> None:
    forward, backward, both = (Case(SHAPE, "float16", direction).flops for direction in PASSES)
    assert (backward, both) == (2.5 * forward, 3.5 * forward)


def test_the_inputs_of_a_forward_case_do_not_depend_on_there_being_others() -> None:
    forward, backward = made("forward")[1], made("backward")[1]
    assert forward.dout is None
    assert torch.equal(forward.v, backward.v)
    assert backward.slope.shape == backward.q.shape
    copied = AttentionProblem().copied(backward)
    assert torch.equal(copied.slope, backward.slope)
    assert copied.slope.data_ptr() != backward.slope.data_ptr()


@pytest.mark.parametrize("direction", PASSES[1:])
@pytest.mark.parametrize("backend", ["default", "math"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("seq", [1, 9, 65])
def test_pytorchs_own_passes_are_within_the_gate(direction: str, backend: str, dtype: str, seq: int) -> None:
    case = Case(replace(SHAPE, seq_q=seq, seq_k=seq), dtype, direction)
    inputs = AttentionProblem().inputs(case, torch.Generator().manual_seed(1))
    by = AttentionProblem().yardstick(case, inputs, 0.02)
    with torch.inference_mode():
        call = Baseline(backend).bind(case, inputs)
        with call.scope():
            verdict = by.judge(call.output(call.plan()))
    assert verdict.passed, verdict.reason


def test_each_of_the_gradients_is_judged() -> None:
    case, inputs = made("backward")
    by = AttentionProblem().yardstick(case, inputs, 1e-3)
    assert isinstance(by, GradientYardstick)
    exact = reference.attention_backward(inputs.q, inputs.k, inputs.v, inputs.slope, causal=True)
    right = [x.bfloat16() for x in (exact.dq, exact.dk, exact.dv)]
    assert by.judge(tuple(right)).passed
    for place, name in enumerate(("dq", "dk", "dv")):
        for spoilt in (right[place] * 1.01, torch.full_like(right[place], torch.nan), right[place].float()):
            verdict = by.judge((*right[:place], spoilt, *right[place + 1 :]))
            assert not verdict.passed
            assert verdict.reason.startswith(name)
    assert not by.judge(right[0]).passed


def test_a_device_without_a_backward_pass_says_so(tmp_path: Path) -> None:
    case, inputs = made("backward")
    site = Site(torch.device("cpu"), 1, tmp_path, tmp_path)
    with pytest.raises(Unavailable, match="no backward pass"):
        bundled_kernel("bench", site).bind(case, inputs)


def test_a_backend_that_cannot_is_unavailable_with_a_reason() -> None:
    case, inputs = made("both")
    with pytest.raises(Unavailable, match="cudnn"):
        Baseline("cudnn").bind(case, inputs)


@pytest.mark.parametrize("direction", PASSES[1:])
def test_the_harness_measures_gradients_and_skips_with_a_reason_who_has_none(direction: str, tmp_path: Path) -> None:
    full = shape(8, heads=4, causal=True)
    asked = spec(
        implementations=["bench", "sdpa:default", "sdpa:math"],
        measure={"shapes": [full, {**full, "pass": direction}], "dtypes": ["float32"]},
    )
    forward = "b1-h4-kv2-q8-k8-d16-causal-float32"
    with HarnessProcess("measure", asked, tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    (planned,) = named(facts, "planned")
    assert planned["cases"] == [forward, f"{forward}-{direction}"]
    first, second = named(facts, "case_finished")
    assert set(first["median_us"]) == {"bench", "sdpa:default", "sdpa:math"}
    assert set(second["median_us"]) == {"sdpa:default", "sdpa:math"}
    assert "no backward pass" in second["skipped"]["bench"]
    before, after = (harness.rows(one) for one in (forward, f"{forward}-{direction}"))
    assert list(before[0]) == list(after[0])
    assert [row["skipped"] for row in after if row["implementation"] == "bench"] == [second["skipped"]["bench"]]


@pytest.mark.parametrize("direction", PASSES[1:])
def test_the_gate_of_a_run_judges_gradients(direction: str, tmp_path: Path) -> None:
    problem = shape(9, heads=4, causal=True) | {"pass": direction}
    asked = spec(
        implementations=["bench", "sdpa:default", "sdpa:math"],
        correctness={"shapes": [problem], "dtypes": ["float32", "bfloat16"], "max_abs_error": 0.01},
    )
    with HarnessProcess("correctness", asked, tmp_path) as harness:
        code, _ = harness.finish()
    assert code == 0, harness.log()
    found = read_csv(harness.out / "correctness.csv")
    assert {row["passed"] for row in found if row["implementation"] != "bench"} == {"true"}
    assert {row["passed"] for row in found if row["implementation"] == "bench"} == {""}
    assert all(row["case_id"].endswith(f"-{direction}") for row in found)


# The gradients that backward passes are judged by.


class Attention(torch.autograd.Function):
    """The reference, forward and backward."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        return reference.attention(q, k, v, causal=causal, chunk_elements=20).out

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        found = reference.attention_backward(*ctx.saved_tensors, *slopes, causal=ctx.causal, chunk_elements=20)
        return found.dq, found.dk, found.dv, None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "seq_q", "seq_k"), [(2, 2, 5, 7), (4, 2, 6, 6), (2, 1, 7, 4)])
def test_the_reference_gradients_are_those_that_differences_show(
    causal: bool, heads: int, kv_heads: int, seq_q: int, seq_k: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, h, s, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        for h, s in ((heads, seq_q), (kv_heads, seq_k), (kv_heads, seq_k))
    )
    assert torch.autograd.gradcheck(lambda *given: Attention.apply(*given, causal), (q, k, v))  # type: ignore[no-untyped-call]
