"""The backward pass over few keys on the CPU: the kernel's own source and plan, a fiber for each thread, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.attention.cuda.backward.small import SHAPES, SmallBackward, SmallBackwardKernel, SmallShape
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import SOURCE
from tests.kernels.cuda.backward_runner import RELATIVE, Posed, compile_backward, errors, pose, run_small, seen_of
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.simt_ways import Program
from tests.kernels.cuda.stub_driver import HOPPER
from tests.kernels.cuda.test_races_portable_simt import mistaken

pytestmark = WITH_COMPILER

HALF, BRAIN = torch.float16, torch.bfloat16
MACHINE = Machine(HOPPER, 132, 60 << 20, hopper=True)
ALL = [(size, shape) for size, shapes in SHAPES.items() for shape in shapes]
RACING = [SmallShape(32, 2, 32), SmallShape(128, 1, 32)]
NAMES = {"ids": lambda value: value.name if isinstance(value, SmallShape) else str(value)}


def kernel(size: int, shape: SmallShape, dtype: str) -> SmallBackwardKernel:
    return SmallBackwardKernel(dtype, size, shape, shape.stages(size, HOPPER))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    entries = [kernel(size, shape, "float16" if size == 128 else "bfloat16") for size, shape in ALL]
    return compile_backward(entries, 800, tmp_path_factory.mktemp("small"))


def rounded_pass(posed: Posed) -> list[torch.Tensor]:
    """The gradients step by step, weights, slopes and output rounded as the kernel does, for one head of K."""
    q, k, v = (posed.tensors[name].double() for name in ("q", "k", "v"))
    dout, scale = posed.dout.double(), posed.out.shape[-1] ** -0.5
    seen = seen_of(q.shape[2], k.shape[2], posed.options)
    weights = torch.exp(q @ k.mT * scale - posed.lse.double()[..., None]).masked_fill(~seen, 0.0)
    delta = (dout * posed.out.double()).sum(-1, keepdim=True)
    slopes = (weights * (dout @ v.mT - delta)).to(BRAIN).double()
    dk, dv = slopes.mT @ q * scale, weights.to(BRAIN).double().mT @ dout
    return [x.to(BRAIN).double() for x in (slopes @ k * scale, dk.sum(1, keepdim=True), dv.sum(1, keepdim=True))]


def holds(program: Program, posed: Posed, shape: SmallShape, scratch: Path, **how: bool) -> None:
    found = errors(run_small(program, posed, SmallBackward(MACHINE, shape), scratch, **how), posed.exact)
    assert max(found) <= RELATIVE[posed.dout.dtype], found


@pytest.mark.parametrize(("size", "shape"), ALL, **NAMES)
def test_all_three_gradients_are_as_close_to_float64_as_the_element_type_allows(
    program: Program, tmp_path: Path, size: int, shape: SmallShape
) -> None:
    posed = pose(HALF if size == 128 else BRAIN, 1, 2, 1, 150, 133, size, Options(True, alignment="bottom-right"))
    for how in ({}, {"eager": True, "reverse": True}):
        holds(program, posed, shape, tmp_path, **how)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    seq_q=st.integers(1, 512),
    seq_k=st.integers(1, 512),
    head_dim=st.integers(1, 8).map(lambda eighth: 8 * eighth),
    group=st.integers(1, 3),
    causal=st.sampled_from([None, "top-left", "bottom-right"]),
    shape=st.sampled_from(SHAPES[64]),
)
def test_any_lengths_up_to_512_have_gradients(
    program: Program,
    tmp_path: Path,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    group: int,
    causal: str | None,
    shape: SmallShape,
) -> None:
    seq_q = max(1, seq_q // group)
    options = Options(causal is not None, alignment=causal or "top-left")
    posed = pose(BRAIN, 1, group, 1, seq_q, seq_k, head_dim, options, seed=seq_q)
    found = run_small(program, posed, SmallBackward(MACHINE, shape), tmp_path)
    for one, exact, rounded in zip(found, posed.exact, rounded_pass(posed), strict=True):
        # Few keys cancel: then what the same formula in the same types loses is the measure.
        lost = float((one.double() - exact).norm())
        assert lost <= max(RELATIVE[BRAIN] * float(exact.norm()), 2 * float((rounded - exact).norm()) + 1e-6)


def test_a_window_hides_keys_from_the_gradients_too(program: Program, tmp_path: Path) -> None:
    options = Options(window=(20, 10), alignment="bottom-right")
    holds(program, pose(BRAIN, 2, 2, 2, 130, 150, 64, options), SmallShape(32, 2, 32), tmp_path)


@pytest.mark.parametrize("scale", [-0.1, 0.5])
def test_any_finite_scale_has_gradients(program: Program, tmp_path: Path, scale: float) -> None:
    posed = pose(BRAIN, 1, 1, 1, 40, 50, 64, Options(scale=scale))
    found = run_small(program, posed, SmallBackward(MACHINE, SmallShape(32, 2, 32)), tmp_path)
    assert max(errors(found, posed.exact)) <= 1.5 * RELATIVE[BRAIN]


def test_the_log_sum_exp_may_have_a_gradient_of_its_own(program: Program, tmp_path: Path) -> None:
    posed = pose(BRAIN, 1, 4, 2, 70, 90, 64, Options(True), with_dlse=True)
    for shape in SHAPES[64]:
        holds(program, posed, shape, tmp_path)


def test_keys_that_no_query_sees_and_queries_that_see_no_key_have_gradients_of_zero(
    program: Program, tmp_path: Path
) -> None:
    posed = pose(BRAIN, 1, 1, 1, 10, 200, 64, Options(True))
    _, dk, dv = run_small(program, posed, SmallBackward(MACHINE, SmallShape(32, 2, 32)), tmp_path)
    assert not dk[:, :, 10:].any()
    assert not dv[:, :, 10:].any()
    posed = pose(BRAIN, 1, 1, 1, 200, 10, 64, Options(True, alignment="bottom-right"))
    dq, _, _ = run_small(program, posed, SmallBackward(MACHINE, SmallShape(32, 2, 32)), tmp_path)
    assert not dq[:, :, :190].any()


def test_padding_rows_of_nan_beside_a_tensor_are_never_read(program: Program, tmp_path: Path) -> None:
    posed = pose(BRAIN, 1, 1, 1, 70, 70, 64, Options())
    posed.lay_beside_nan()
    holds(program, posed, SmallShape(64, 2, 32), tmp_path)


def test_two_runs_give_the_same_bits(program: Program, tmp_path: Path) -> None:
    posed = pose(BRAIN, 1, 2, 1, 100, 100, 64, Options(True))
    for shape in SHAPES[64]:
        way = SmallBackward(MACHINE, shape)
        first = run_small(program, posed, way, tmp_path)
        second = run_small(program, posed, way, tmp_path, eager=True, reverse=True)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def passes(program: Program, scratch: Path, shapes: list[SmallShape]) -> None:
    posed = pose(BRAIN, 1, 2, 1, 100, 130, 64, Options(True))
    for shape in shapes:
        for eager in (False, True):
            run_small(program, posed, SmallBackward(MACHINE, shape), scratch, eager=eager)


def racing(folder: Path, shapes: list[SmallShape], source: Path = SOURCE) -> Program:
    return compile_backward([kernel(64, shape, "bfloat16") for shape in shapes], 800, folder, races=True, source=source)


def test_the_backward_pass_over_few_keys_has_no_race(tmp_path: Path) -> None:
    passes(racing(tmp_path, RACING), tmp_path, RACING)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("      sync_block();  // the tile is there", "      // the tile is there"),
        ("      sync_block();\n#pragma unroll\n      for (int u = 0; u < UNITS", "#pragma unroll\n      for (int u = 0; u < UNITS"),
        ("      sync_block();\n      if (group * OWN", "      if (group * OWN"),
        ("copy_next(stage == 0 ? C::STAGES - 1 : stage - 1)", "copy_next(stage)"),
    ],
    ids=["tile", "places of tiles", "exchange", "stage"],
)  # fmt: skip
def test_a_barrier_left_out_or_a_place_filled_early_is_found(tmp_path: Path, old: str, new: str) -> None:
    program = racing(tmp_path, RACING[:1], mistaken(tmp_path, "backward/small.cuh", old, new))
    with pytest.raises(AssertionError, match="a race: "):
        passes(program, tmp_path, RACING[:1])
