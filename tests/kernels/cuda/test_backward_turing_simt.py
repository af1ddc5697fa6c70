"""Turing's backward pass with five products on the CPU: the kernels' own source and plan, against float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.attention.cuda.backward.ampere import AmpereBackward, AmpereConvertKernel, SummingKernel
from kernels.attention.cuda.backward.kernels import PrepareKernel
from kernels.attention.cuda.backward.turing import SHAPES, TuringShape
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import CHIPS, SOURCE, Entry
from tests.kernels.cuda.backward_runner import (
    RELATIVE,
    Posed,
    Three,
    assert_right,
    compile_backward,
    errors,
    pose,
    run_with_workspace,
)
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.simt_ways import Program
from tests.kernels.cuda.test_backward_small_simt import rounded_pass
from tests.kernels.cuda.test_races_portable_simt import mistaken

pytestmark = WITH_COMPILER

TURING = next(chip for chip in CHIPS if chip.name == "turing")
HALF = torch.float16
ALL = [(size, shape) for size, shapes in SHAPES.items() for shape in shapes]
ALONE = next(one for one in ALL if not one[1].is_shared)
"""Where each warp has keys of its own."""
SHARED = next(one for one in ALL if one[1].is_shared)
NAMES = {"ids": lambda value: value.name if isinstance(value, TuringShape) else str(value)}


def entries(pairs: list[tuple[int, TuringShape]]) -> list[Entry]:
    made: list[Entry] = []
    for size, shape in pairs:
        own = (SummingKernel("float16", size, shape), AmpereConvertKernel("float16", size, shape))
        made += [PrepareKernel("float16", size, True, True), *own]
    return list({entry.name: entry for entry in made}.values())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compile_backward(entries(ALL), 750, tmp_path_factory.mktemp("turing"))


def posed_for(size: int, *sizes: int, options: Options, with_dlse: bool = False) -> Posed:
    """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension if not the kernel's."""
    batch, heads, kv_heads, seq_q, seq_k, head_dim = (*sizes, size)[:6]
    return pose(HALF, batch, heads, kv_heads, seq_q, seq_k, head_dim, options, with_dlse=with_dlse)


def found_by(program: Program, posed: Posed, shape: TuringShape, scratch: Path, **how: bool) -> Three:
    return run_with_workspace(program, posed, AmpereBackward(Machine(TURING, 4, 1 << 20), shape), scratch, **how)


def holds(program: Program, posed: Posed, shape: TuringShape, scratch: Path, **how: bool) -> None:
    found = errors(found_by(program, posed, shape, scratch, **how), posed.exact)
    assert all(error <= RELATIVE[HALF] for error in found), found


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(("size", "shape"), ALL, **NAMES)
def test_all_three_gradients_are_as_close_to_float64_as_the_element_type_allows(
    program: Program, tmp_path: Path, size: int, shape: TuringShape, reverse: bool
) -> None:
    options = Options(True, alignment="bottom-right")
    holds(program, posed_for(size, 2, 2, 1, 201, 266, options=options), shape, tmp_path, reverse=reverse)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (64, 128), (65, 127), (129, 40), (20, 300)])
def test_rows_and_keys_around_the_edges_of_tiles_have_the_right_gradients(
    program: Program, tmp_path: Path, seq_q: int, seq_k: int
) -> None:
    for size, shape in ALL:
        posed = posed_for(size, 1, 1, 1, seq_q, seq_k, options=Options())
        assert_right(found_by(program, posed, shape, tmp_path), posed)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 65), (63, 260)])
def test_both_causal_alignments_have_the_right_gradients(
    program: Program, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    options = Options(True, alignment=alignment)
    for size, shape in ALL:
        holds(program, posed_for(size, 1, 2, 1, seq_q, seq_k, options=options), shape, tmp_path)


@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_columns_that_a_head_does_not_have_have_no_gradients(program: Program, tmp_path: Path, head_dim: int) -> None:
    for size, shape in ALL:
        if size - 64 < head_dim <= size:
            holds(program, posed_for(size, 1, 2, 1, 70, 150, head_dim, options=Options()), shape, tmp_path)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    seq_q=st.integers(1, 200),
    seq_k=st.integers(1, 300),
    head_dim=st.integers(1, 16).map(lambda eighth: 8 * eighth),
    group=st.integers(1, 3),
    causal=st.sampled_from([None, "top-left", "bottom-right"]),
)
def test_any_lengths_have_gradients(
    program: Program, tmp_path: Path, seq_q: int, seq_k: int, head_dim: int, group: int, causal: str | None
) -> None:
    options = Options(causal is not None, alignment=causal or "top-left")
    posed = pose(HALF, 1, group, 1, max(1, seq_q // group), seq_k, head_dim, options, seed=seq_q)
    shape = SHAPES[64 if head_dim <= 64 else 128][0]
    found = found_by(program, posed, shape, tmp_path)
    for one, exact, rounded in zip(found, posed.exact, rounded_pass(posed), strict=True):
        # Few keys cancel: then what the same formula in the same types loses is the measure, and what float32 loses of
        # a delta that is taken from dP.
        lost = float((one.double() - exact).norm())
        assert lost <= max(RELATIVE[HALF] * float(exact.norm()), 2 * float((rounded - exact).norm()) + 1e-5)


@pytest.mark.parametrize("window", [(20, 10), (100, 0), (None, 30)])
def test_a_window_hides_keys_from_the_gradients_too(
    program: Program, tmp_path: Path, window: tuple[int | None, int]
) -> None:
    options = Options(window=window, alignment="bottom-right")
    for size, shape in ALL:
        holds(program, posed_for(size, 1, 2, 2, 230, 250, options=options), shape, tmp_path)


def test_the_log_sum_exp_may_have_a_gradient_of_its_own(program: Program, tmp_path: Path) -> None:
    for size, shape in ALL:
        holds(program, posed_for(size, 1, 4, 2, 70, 90, options=Options(True), with_dlse=True), shape, tmp_path)


def test_keys_that_no_query_sees_and_queries_that_see_no_key_have_gradients_of_zero(
    program: Program, tmp_path: Path
) -> None:
    for size, shape in ALL:
        posed = posed_for(size, 1, 1, 1, 10, 300, options=Options(True))
        _, dk, dv = found_by(program, posed, shape, tmp_path)
        assert not dk[:, :, 10:].any()
        assert not dv[:, :, 10:].any()
        posed = posed_for(size, 1, 1, 1, 300, 10, options=Options(True, alignment="bottom-right"))
        dq, _, _ = found_by(program, posed, shape, tmp_path)
        assert not dq[:, :, :290].any()


def test_padding_rows_of_nan_beside_a_tensor_are_never_read(program: Program, tmp_path: Path) -> None:
    for size, shape in ALL:
        posed = posed_for(size, 1, 1, 1, 70, 70, options=Options())
        for name in ("q", "k", "v"):
            wide = torch.full((1, 1, 90, size), math.nan, dtype=HALF)
            wide[:, :, :70] = posed.tensors[name]
            posed.tensors[name] = wide[:, :, :70]
        holds(program, posed, shape, tmp_path)


def racing(folder: Path, pairs: list[tuple[int, TuringShape]], source: Path = SOURCE) -> None:
    program = compile_backward(entries(pairs), 750, folder, races=True, source=source)
    for size, shape in pairs:
        posed = posed_for(size, 1, 2, 1, 200, 130, options=Options(True))
        for reverse in (False, True):
            found_by(program, posed, shape, folder, reverse=reverse)


def test_the_backward_pass_with_five_products_has_no_race(tmp_path: Path) -> None:
    racing(tmp_path, ALL)


@pytest.mark.parametrize(
    "barrier", ["the tile is there for all", "dS is there for all", "V is there", "all have their"]
)
def test_a_barrier_left_out_is_found(tmp_path: Path, barrier: str) -> None:
    source = mistaken(tmp_path, "backward/turing.cuh", f"sync_block();  // {barrier}", f"// {barrier}")
    with pytest.raises(AssertionError, match="a race: "):
        racing(tmp_path, [ALONE], source)


@pytest.mark.parametrize("barrier", ["P and dS are there for all", "dS is there for all"])
def test_a_barrier_left_out_where_warps_share_keys_is_found(tmp_path: Path, barrier: str) -> None:
    source = mistaken(tmp_path, "backward/turing.cuh", f"sync_block();  // {barrier}", f"// {barrier}")
    with pytest.raises(AssertionError, match="a race: "):
        racing(tmp_path, [SHARED], source)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("column < low ||", "column < low - 1 ||"),
        ("-delta[i][e / 4 * 2 + e % 2]", "-delta[i][e % 4]"),
        ("same ? tile + 1 : first_tile", "same ? tile : first_tile"),
        ("same ? head : head + 1", "head"),
        ("load_matrices(v[f][kk], (x ^ (kk << 5))", "load_matrices(v[f][kk], x"),
    ],
    ids=["diagonal", "delta", "next tile", "next head", "values"],
)
def test_a_mistake_in_what_is_computed_is_found(tmp_path: Path, old: str, new: str) -> None:
    source = mistaken(tmp_path, "backward/turing.cuh", old, new)
    for size, shape in (ALONE, SHARED):
        program = compile_backward(entries([(size, shape)]), 750, tmp_path, source=source)
        posed = posed_for(size, 1, 2, 1, 200, 130, options=Options(True))
        assert not max(errors(found_by(program, posed, shape, tmp_path), posed.exact)) <= RELATIVE[HALF]
