"""The backward pass on the CPU: the kernels' own source and their own plan, a fiber for each thread, against float64."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.kernels import PrepareKernel, pair_kernel
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.variants import CHIPS, Chip
from tests.kernels.cuda.backward_runner import (
    RELATIVE,
    Posed,
    compile_backward,
    errors,
    exact_pass,
    pose,
    run_pair,
    seen_of,
)
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.simt_ways import Program

pytestmark = WITH_COMPILER

HALF, BRAIN = torch.float16, torch.bfloat16
AMPERE, TURING = (next(chip for chip in CHIPS if chip.name == name) for name in ("ampere", "turing"))


@pytest.fixture(scope="module")
def ampere(tmp_path_factory: pytest.TempPathFactory) -> Program:
    kinds = (
        ("bfloat16", 64, True, None),
        ("float16", 128, True, None),
        ("float16", 256, True, None),
        ("bfloat16", 64, False, None),
        ("bfloat16", 64, True, "bool"),
        ("float16", 64, True, "float32"),
    )
    entries = [
        pair_kernel(AMPERE, dtype, size, keys=keys, vector=vector, mask=mask)
        for (dtype, size, vector, mask), keys in itertools.product(kinds, (True, False))
    ]
    prepare = dict.fromkeys(PrepareKernel(dtype, size, vector, False) for dtype, size, vector, _ in kinds)
    return compile_backward([*entries, *prepare], 800, tmp_path_factory.mktemp("backward"))


@pytest.fixture(scope="module")
def turing(tmp_path_factory: pytest.TempPathFactory) -> Program:
    entries = [pair_kernel(TURING, "float16", size, keys=keys) for size in (64, 256) for keys in (True, False)]
    prepare = [PrepareKernel("float16", size, True, False) for size in (64, 256)]
    return compile_backward([*entries, *prepare], 750, tmp_path_factory.mktemp("turing"))


def holds(program: Program, posed: Posed, scratch: Path, chip: Chip = AMPERE, **how: bool) -> None:
    found = errors(run_pair(program, posed, chip, scratch, **how), posed.exact)
    assert max(found) <= RELATIVE[posed.dout.dtype], found


@pytest.mark.parametrize("how", [{}, {"eager": True, "reverse": True}], ids=["late", "early"])
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
def test_all_three_gradients_are_as_close_to_float64_as_the_element_type_allows(
    ampere: Program, tmp_path: Path, alignment: str, how: dict[str, bool]
) -> None:
    holds(ampere, pose(BRAIN, 2, 2, 1, 70, 133, 64, Options(True, alignment=alignment)), tmp_path, **how)


@pytest.mark.parametrize(("head_dim", "seq_q", "seq_k"), [(128, 65, 40), (104, 33, 70), (256, 20, 70), (136, 70, 20)])
def test_every_head_dimension_has_gradients(
    ampere: Program, tmp_path: Path, head_dim: int, seq_q: int, seq_k: int
) -> None:
    holds(ampere, pose(HALF, 1, 2, 2, seq_q, seq_k, head_dim, Options()), tmp_path)


def test_rows_of_any_length_and_place_have_gradients(ampere: Program, tmp_path: Path) -> None:
    holds(ampere, pose(BRAIN, 1, 2, 1, 30, 35, 33, Options(True)), tmp_path)


def test_a_window_hides_keys_from_the_gradients_too(ampere: Program, tmp_path: Path) -> None:
    options = Options(window=(20, 10), alignment="bottom-right")
    holds(ampere, pose(BRAIN, 1, 2, 2, 130, 150, 64, options), tmp_path)


def test_a_boolean_mask_hides_keys_and_rows_without_keys_have_zero_gradients(ampere: Program, tmp_path: Path) -> None:
    mask = torch.rand(1, 1, 70, 90, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[:, :, 5] = False
    posed = pose(BRAIN, 2, 2, 1, 70, 90, 64, Options(names=("q", "k", "v", "mask")), mask=mask)
    found = run_pair(ampere, posed, AMPERE, tmp_path)
    assert max(errors(found, posed.exact)) <= RELATIVE[BRAIN]
    assert not found[0][:, :, 5].any()


def test_an_additive_mask_weighs_in_the_gradients(ampere: Program, tmp_path: Path) -> None:
    mask = torch.randn(1, 2, 40, 70, generator=torch.Generator().manual_seed(2))
    mask[..., ::7] = -math.inf
    holds(ampere, pose(HALF, 1, 2, 2, 40, 70, 64, Options(names=("q", "k", "v", "mask")), mask=mask), tmp_path)


@pytest.mark.parametrize("scale", [-0.1, 0.0, 0.5])
def test_any_finite_scale_has_gradients(ampere: Program, tmp_path: Path, scale: float) -> None:
    posed = pose(BRAIN, 1, 1, 1, 20, 30, 64, Options(True, scale=scale))
    found = run_pair(ampere, posed, AMPERE, tmp_path)
    for one, exact in zip(found, posed.exact, strict=True):  # with scale 0 all weights are rounded in one direction
        assert (one.double() - exact).norm() <= 1.5 * RELATIVE[BRAIN] * exact.norm()


def test_the_log_sum_exp_may_have_a_gradient_of_its_own(ampere: Program, tmp_path: Path) -> None:
    holds(ampere, pose(BRAIN, 1, 2, 1, 40, 50, 64, Options(True), with_dlse=True), tmp_path)


def test_keys_that_no_query_sees_have_gradients_of_zero(ampere: Program, tmp_path: Path) -> None:
    posed = pose(BRAIN, 1, 1, 1, 10, 200, 64, Options(True))
    _, dk, dv = run_pair(ampere, posed, AMPERE, tmp_path)
    assert not dk[:, :, 10:].any()
    assert not dv[:, :, 10:].any()


def test_padding_rows_of_nan_beside_a_tensor_are_never_read(ampere: Program, tmp_path: Path) -> None:
    posed = pose(BRAIN, 1, 1, 1, 70, 70, 64, Options())
    posed.lay_beside_nan()
    holds(ampere, posed, tmp_path)


def test_two_runs_give_the_same_bits(ampere: Program, tmp_path: Path) -> None:
    posed = pose(BRAIN, 1, 2, 1, 70, 70, 64, Options(True))
    first = run_pair(ampere, posed, AMPERE, tmp_path)
    second = run_pair(ampere, posed, AMPERE, tmp_path, eager=True, reverse=True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("longest", [(70, 90), (16, 16)], ids=["told", "longer-than-told"])
def test_packed_sequences_have_the_gradients_of_each(ampere: Program, tmp_path: Path, longest: tuple[int, int]) -> None:
    lengths_q, lengths_k = (30, 0, 70, 12), (20, 10, 90, 0)
    generator = torch.Generator().manual_seed(3)
    q, dout = (torch.randn(sum(lengths_q), 2, 64, generator=generator).to(BRAIN) for _ in range(2))
    k, v = (torch.randn(sum(lengths_k), 1, 64, generator=generator).to(BRAIN) for _ in range(2))
    out, lse = torch.zeros_like(q), torch.full((2, sum(lengths_q)), -math.inf)
    exact = tuple(torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v))
    options = Options(True, alignment="bottom-right", names=("q", "k", "v", "q_starts", "k_starts"), longest=longest)
    at_q = at_k = 0
    for rows, keys in zip(lengths_q, lengths_k, strict=True):
        own_q, own_k = slice(at_q, at_q + rows), slice(at_k, at_k + keys)
        at_q, at_k = at_q + rows, at_k + keys
        if rows and keys:
            one = [x[s].transpose(0, 1)[None] for x, s in ((q, own_q), (k, own_k), (v, own_k), (dout, own_q))]
            seen = seen_of(rows, keys, options)
            result, sums, slopes = exact_pass(one[0], one[1], one[2], one[3], seen, 0.125)
            out[own_q], lse[:, own_q] = result[0].transpose(0, 1).to(BRAIN), sums[0].float()
            for whole, part, where in zip(exact, slopes, (own_q, own_k, own_k), strict=True):
                whole[where] = part[0].transpose(0, 1)
    starts = [
        torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32) for lengths in (lengths_q, lengths_k)
    ]
    tensors = {"q": q, "k": k, "v": v, "q_starts": starts[0], "k_starts": starts[1]}
    holds(ampere, Posed(tensors, options, out, lse, dout, (exact[0], exact[1], exact[2])), tmp_path)


@pytest.mark.parametrize(("head_dim", "seq_q", "seq_k"), [(64, 70, 90), (200, 40, 50)])
def test_turing_has_gradients_too(turing: Program, tmp_path: Path, head_dim: int, seq_q: int, seq_k: int) -> None:
    holds(turing, pose(HALF, 1, 2, 1, seq_q, seq_k, head_dim, Options(True)), tmp_path, TURING)
