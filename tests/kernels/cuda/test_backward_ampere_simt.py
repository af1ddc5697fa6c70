"""The backward pass with five products by mma.sync on the CPU: the kernels' own source and plan, against float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.attention.cuda.backward.ampere import (
    SHAPES,
    AmpereBackward,
    AmpereConvertKernel,
    AmpereShape,
    SummingKernel,
)
from kernels.attention.cuda.backward.kernels import PrepareKernel
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import CHIPS, SOURCE, Entry
from tests.kernels.cuda.backward_runner import (
    RELATIVE,
    Posed,
    assert_right,
    compile_backward,
    errors,
    pose,
    run_with_workspace,
)
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.simt_ways import Program
from tests.kernels.cuda.test_backward_simt import BRAIN
from tests.kernels.cuda.test_backward_small_simt import rounded_pass
from tests.kernels.cuda.test_races_portable_simt import mistaken

pytestmark = WITH_COMPILER

AMPERE = next(chip for chip in CHIPS if chip.name == "ampere")
MACHINE = Machine(AMPERE, 4, 1 << 20)
DTYPES = {64: "bfloat16", 128: "float16", 256: "float16"}
ALL = [(size, shape) for size, shapes in SHAPES.items() for shape in shapes]
NARROW, WIDE = SHAPES[64][1], SHAPES[128][1]
NAMES = {"ids": lambda value: value.name if isinstance(value, AmpereShape) else str(value)}


def entries(size: int, shapes: list[AmpereShape]) -> list[Entry]:
    dtype = DTYPES[size]
    made: list[Entry] = [PrepareKernel(dtype, size, True, True)]
    for shape in shapes:
        made += [SummingKernel(dtype, size, shape), AmpereConvertKernel(dtype, size, shape)]
    return list({entry.name: entry for entry in made}.values())


EVERY = [entry for size, shapes in SHAPES.items() for entry in entries(size, list(shapes))]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compile_backward(EVERY, 800, tmp_path_factory.mktemp("ampere"))


@pytest.fixture(scope="module")
def program_of_later_chips(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Which add four floats to memory at a time."""
    return compile_backward(EVERY, 900, tmp_path_factory.mktemp("later"))


def posed_for(size: int, *sizes: int, options: Options, with_dlse: bool = False) -> Posed:
    """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension if not the kernel's."""
    batch, heads, kv_heads, seq_q, seq_k, head_dim = (*sizes, size)[:6]
    dtype = getattr(torch, DTYPES[size])
    return pose(dtype, batch, heads, kv_heads, seq_q, seq_k, head_dim, options, with_dlse=with_dlse)


def found_by(
    program: Program, posed: Posed, shape: AmpereShape, scratch: Path, **how: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return run_with_workspace(program, posed, AmpereBackward(MACHINE, shape), scratch, **how)


def holds(program: Program, posed: Posed, shape: AmpereShape, scratch: Path, **how: bool) -> None:
    found = errors(found_by(program, posed, shape, scratch, **how), posed.exact)
    assert all(error <= RELATIVE[posed.dout.dtype] for error in found), found


@pytest.mark.parametrize("how", [{}, {"eager": True, "reverse": True}], ids=["late", "early"])
@pytest.mark.parametrize(("size", "shape"), ALL, **NAMES)
def test_all_three_gradients_are_as_close_to_float64_as_the_element_type_allows(
    program: Program, tmp_path: Path, size: int, shape: AmpereShape, how: dict[str, bool]
) -> None:
    options = Options(True, alignment="bottom-right")
    holds(program, posed_for(size, 2, 2, 1, 201, 266, options=options), shape, tmp_path, **how)


def test_chips_that_add_four_floats_at_a_time_have_the_same_gradients(
    program: Program, program_of_later_chips: Program, tmp_path: Path
) -> None:
    for size, shape in ALL:
        posed = posed_for(size, 1, 2, 1, 130, 140, options=Options(True))
        first = found_by(program, posed, shape, tmp_path)
        second = found_by(program_of_later_chips, posed, shape, tmp_path)
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
        assert max(errors(second, posed.exact)) <= RELATIVE[posed.dout.dtype]


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
    seq_q=st.integers(1, 300),
    seq_k=st.integers(1, 300),
    head_dim=st.integers(1, 8).map(lambda eighth: 8 * eighth),
    group=st.integers(1, 3),
    causal=st.sampled_from([None, "top-left", "bottom-right"]),
)
def test_any_lengths_have_gradients(
    program: Program, tmp_path: Path, seq_q: int, seq_k: int, head_dim: int, group: int, causal: str | None
) -> None:
    seq_q = max(1, seq_q // group)
    options = Options(causal is not None, alignment=causal or "top-left")
    posed = pose(BRAIN, 1, group, 1, seq_q, seq_k, head_dim, options, seed=seq_q)
    found = found_by(program, posed, NARROW, tmp_path)
    for one, exact, rounded in zip(found, posed.exact, rounded_pass(posed), strict=True):
        # Few keys cancel: then what the same formula in the same types loses is the measure, and what float32 loses of
        # a delta that is taken from dP.
        lost = float((one.double() - exact).norm())
        assert lost <= max(RELATIVE[BRAIN] * float(exact.norm()), 2 * float((rounded - exact).norm()) + 1e-5)


@pytest.mark.parametrize("window", [(20, 10), (100, 0), (None, 30)])
def test_a_window_hides_keys_from_the_gradients_too(
    program: Program, tmp_path: Path, window: tuple[int | None, int]
) -> None:
    options = Options(window=window, alignment="bottom-right")
    for size, shape in ALL:
        holds(program, posed_for(size, 1, 2, 2, 230, 250, options=options), shape, tmp_path)


@pytest.mark.parametrize("scale", [-0.1, 0.5])
def test_any_finite_scale_has_gradients(program: Program, tmp_path: Path, scale: float) -> None:
    posed = posed_for(64, 1, 1, 1, 40, 50, options=Options(True, scale=scale))
    assert max(errors(found_by(program, posed, NARROW, tmp_path), posed.exact)) <= 1.5 * RELATIVE[BRAIN]


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


def test_keys_beyond_the_last_hide_even_where_scores_are_very_negative(program: Program, tmp_path: Path) -> None:
    posed = posed_for(64, 1, 1, 1, 100, 70, options=Options())
    posed.tensors["q"][:] = 16.0
    posed.tensors["k"][:] = -16.0  # each score is -2048: what lies beyond the keys, zeros, would weigh exp(2048)
    posed.lse[:] = -2048.0 + math.log(70)
    assert all(bool(one.isfinite().all()) for one in found_by(program, posed, NARROW, tmp_path))


def test_padding_rows_of_nan_beside_a_tensor_are_never_read(program: Program, tmp_path: Path) -> None:
    posed = posed_for(64, 1, 1, 1, 70, 70, options=Options())
    for name in ("q", "k", "v"):
        wide = torch.full((1, 1, 90, 64), math.nan, dtype=BRAIN)
        wide[:, :, :70] = posed.tensors[name]
        posed.tensors[name] = wide[:, :, :70]
    holds(program, posed, NARROW, tmp_path)


def test_sections_of_heads_that_do_not_divide_them_leave_none_out(program: Program, tmp_path: Path) -> None:
    posed = posed_for(64, 1, 5, 5, 200, 400, options=Options(True))
    few = AmpereBackward(Machine(AMPERE, 1, 1 << 19), NARROW)
    assert 1 < few.heads_of_section(posed.problem(posed.gradients())) < 5
    found = run_with_workspace(program, posed, few, tmp_path)
    assert max(errors(found, posed.exact)) <= RELATIVE[BRAIN]


def racing(folder: Path, size: int, shapes: list[AmpereShape], source: Path = SOURCE) -> Program:
    return compile_backward(entries(size, shapes), 800, folder, races=True, source=source)


def passes(program: Program, scratch: Path, size: int, shapes: list[AmpereShape]) -> None:
    posed = posed_for(size, 1, 2, 1, 200, 130, options=Options(True))
    for shape in shapes:
        for eager in (False, True):
            found_by(program, posed, shape, scratch, eager=eager)


@pytest.mark.parametrize("size", SHAPES)
def test_the_backward_pass_with_five_products_has_no_race(tmp_path: Path, size: int) -> None:
    shapes = list(SHAPES[size])
    passes(racing(tmp_path, size, shapes), tmp_path, size, shapes)


@pytest.mark.parametrize(
    ("size", "shape", "old", "new"),
    [
        (64, NARROW, "      sync_block();  // the tile is there", "      // the tile is there"),
        (64, NARROW, "        sync_block();  // dS is there for all, and P", ""),
        (128, WIDE, "        sync_block();  // dS is there for all, and P", ""),
        (128, WIDE, "          if constexpr (C::STAGES == 1) sync_block();  // none", "          // none"),
        (64, NARROW, "copy_next(stage ^ 1)", "copy_next(stage)"),
    ],
    ids=["tile", "slopes", "weights", "place", "stage"],
)
def test_a_barrier_left_out_or_a_place_filled_early_is_found(
    tmp_path: Path, size: int, shape: AmpereShape, old: str, new: str
) -> None:
    program = racing(tmp_path, size, [shape], mistaken(tmp_path, "backward/ampere.cuh", old, new))
    with pytest.raises(AssertionError, match="a race: "):
        passes(program, tmp_path, size, [shape])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ampere", "last <= query0 + p.above", "last <= query0 + C::QUERIES + p.above"),
        ("ampere", "      copy_async_wait<0>();\n", ""),
        ("ampere", "column < low ||", "column < low - 1 ||"),
        ("ampere", "of_tile;\n", "of_head;\n"),
        ("ampere", "-delta[e / 4 * 2 + e % 2]", "-delta[e % 4]"),
        ("ampere_sums", "from[i * 32]", "from[i]"),
    ],
    ids=["open tiles", "wait", "diagonal", "place of sums", "delta", "order of sums"],
)
def test_a_mistake_in_what_is_computed_is_found(tmp_path: Path, name: str, old: str, new: str) -> None:
    source = mistaken(tmp_path, f"backward/{name}.cuh", old, new)
    program = compile_backward(entries(64, [NARROW]), 800, tmp_path, source=source)
    posed = posed_for(64, 1, 2, 1, 200, 130, options=Options(True))
    found = errors(found_by(program, posed, NARROW, tmp_path), posed.exact)
    assert not max(found) <= RELATIVE[BRAIN]
