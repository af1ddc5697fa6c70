"""The backward pass with five products by mma.sync on the CPU, for Ampere and for Turing: their own source and plan,
against float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.attention.cuda.backward import ampere, turing
from kernels.attention.cuda.backward.ampere import AmpereBackward, AmpereConvertKernel, AmpereShape, SummingKernel
from kernels.attention.cuda.backward.kernels import PrepareKernel
from kernels.attention.cuda.backward.turing import TuringShape
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import CHIPS, SOURCE, Entry, padded_head_dim
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

Shape = AmpereShape | TuringShape
Pair = tuple[int, Shape]
"""The head dimension of a kernel, and its shape."""


@dataclass(frozen=True, eq=False)
class Family:
    """The kernels of a generation of chips. `shape_at` is the number of the shape that stands for those of its size."""

    name: str
    arch: int
    shapes: Mapping[int, Sequence[Shape]]
    dtypes: Mapping[int, torch.dtype]
    shape_at: int

    @property
    def pairs(self) -> list[Pair]:
        return [(size, shape) for size, shapes in self.shapes.items() for shape in shapes]

    def compile(self, pairs: Sequence[Pair], folder: Path, *, arch: int = 0, **how: bool | Path) -> Program:
        entries: list[Entry] = []
        for size, shape in pairs:
            dtype = str(self.dtypes[size]).removeprefix("torch.")
            entries.append(PrepareKernel(dtype, size, True, True))
            entries += [SummingKernel(dtype, size, shape), AmpereConvertKernel(dtype, size, shape.queries, shape.warps)]
        unique = list({entry.name: entry for entry in entries}.values())
        return compile_backward(unique, arch or self.arch, folder, **how)  # type: ignore[arg-type]

    def pose(self, size: int, *sizes: int, options: Options, with_dlse: bool = False) -> Posed:
        """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension if not the kernel's."""
        batch, heads, kv_heads, seq_q, seq_k, head_dim = (*sizes, size)[:6]
        dtype = self.dtypes[size]
        return pose(dtype, batch, heads, kv_heads, seq_q, seq_k, head_dim, options, with_dlse=with_dlse)

    def run(self, program: Program, posed: Posed, shape: Shape, scratch: Path, **how: bool) -> Three:
        chip = next(chip for chip in CHIPS if chip.name == self.name)
        return run_with_workspace(program, posed, AmpereBackward(Machine(chip, 4, 1 << 20), shape), scratch, **how)

    def check(self, program: Program, posed: Posed, shape: Shape, scratch: Path, **how: bool) -> None:
        found = errors(self.run(program, posed, shape, scratch, **how), posed.exact)
        assert all(error <= RELATIVE[posed.dout.dtype] for error in found), found


AMPERE = Family(
    "ampere", 800, ampere.SHAPES, {64: torch.bfloat16, 128: torch.float16, 256: torch.float16}, shape_at=1
)  # fmt: skip
TURING = Family("turing", 750, turing.SHAPES, dict.fromkeys(turing.SHAPES, torch.float16), shape_at=0)
NARROW, WIDE = ampere.SHAPES[64][1], ampere.SHAPES[128][1]
ALONE = next(pair for pair in TURING.pairs if not pair[1].is_shared)  # type: ignore[union-attr]
"""Where each warp has keys of its own."""
SHARED = next(pair for pair in TURING.pairs if pair[1].is_shared)  # type: ignore[union-attr]
each_family = pytest.mark.parametrize("family", [AMPERE, TURING], ids=lambda family: family.name)

Programs = Callable[[Family], Program]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return functools.cache(lambda family: family.compile(family.pairs, tmp_path_factory.mktemp(family.name)))


@pytest.mark.parametrize("how", [{}, {"eager": True, "reverse": True}], ids=["late", "early"])
@pytest.mark.parametrize(
    ("family", "size", "shape"),
    [
        pytest.param(family, *pair, id=f"{family.name}-{pair[0]}-{pair[1].name}")
        for family in (AMPERE, TURING)
        for pair in family.pairs
    ],
)
def test_all_three_gradients_are_as_close_to_float64_as_the_element_type_allows(
    programs: Programs, tmp_path: Path, family: Family, size: int, shape: Shape, how: dict[str, bool]
) -> None:
    options = Options(True, alignment="bottom-right")
    family.check(programs(family), family.pose(size, 2, 2, 1, 201, 266, options=options), shape, tmp_path, **how)


UNEVEN = (
    (256, 0, (192, 128)),
    (256, 1, (136, 40)),
    (256, 2, (64, 200)),
    (128, 0, (40, 128)),
    (128, 1, (128, 64)),
    (64, 1, (40, 8)),
)
"""Padded head dimensions, the number of a shape, and the widths of K and V."""


@pytest.mark.parametrize("arch", [800, 900])
def test_k_and_v_of_two_widths_have_the_right_gradients(tmp_path: Path, arch: int) -> None:
    kernels = [
        (size, SummingKernel("float16", size, ampere.SHAPES[size][at], padded_head_dim(dims[1])), dims)
        for size, at, dims in UNEVEN
    ]
    entries: list[Entry] = [kernel for _, kernel, _ in kernels]
    entries += [
        AmpereConvertKernel("float16", size, kernel.shape.queries, kernel.shape.warps) for size, kernel, _ in kernels
    ]
    entries += [PrepareKernel("float16", size, True, True) for size in ampere.SHAPES]
    program = compile_backward(list({entry.name: entry for entry in entries}.values()), arch, tmp_path)
    for _, kernel, (head_dim, value_dim) in kernels:
        for options in (Options(True, alignment="bottom-right"), Options()):
            sizes = (2, 2, 1, 101, 166, head_dim)
            posed = pose(torch.float16, *sizes, options, value_dim=value_dim, with_dlse=options.causal)
            assert_right(AMPERE.run(program, posed, kernel.shape, tmp_path), posed)


def test_chips_that_add_four_floats_at_a_time_have_the_same_gradients(programs: Programs, tmp_path: Path) -> None:
    later = AMPERE.compile(AMPERE.pairs, tmp_path, arch=900)
    for size, shape in AMPERE.pairs:
        posed = AMPERE.pose(size, 1, 2, 1, 130, 140, options=Options(True))
        first = AMPERE.run(programs(AMPERE), posed, shape, tmp_path)
        second = AMPERE.run(later, posed, shape, tmp_path)
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
        assert max(errors(second, posed.exact)) <= RELATIVE[posed.dout.dtype]


@each_family
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (64, 128), (65, 127), (129, 40), (20, 300)])
def test_rows_and_keys_around_the_edges_of_tiles_have_the_right_gradients(
    programs: Programs, tmp_path: Path, family: Family, seq_q: int, seq_k: int
) -> None:
    for size, shape in family.pairs:
        posed = family.pose(size, 1, 1, 1, seq_q, seq_k, options=Options())
        assert_right(family.run(programs(family), posed, shape, tmp_path), posed)


@each_family
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 65), (63, 260)])
def test_both_causal_alignments_have_the_right_gradients(
    programs: Programs, tmp_path: Path, family: Family, alignment: str, seq_q: int, seq_k: int
) -> None:
    options = Options(True, alignment=alignment)
    for size, shape in family.pairs:
        family.check(programs(family), family.pose(size, 1, 2, 1, seq_q, seq_k, options=options), shape, tmp_path)


@each_family
@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_columns_that_a_head_does_not_have_have_no_gradients(
    programs: Programs, tmp_path: Path, family: Family, head_dim: int
) -> None:
    for size, shape in family.pairs:
        if size - 64 < head_dim <= size:
            posed = family.pose(size, 1, 2, 1, 70, 150, head_dim, options=Options())
            family.check(programs(family), posed, shape, tmp_path)


@each_family
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    seq_q=st.integers(1, 300),
    seq_k=st.integers(1, 300),
    head_dim=st.integers(1, 16).map(lambda eighth: 8 * eighth),
    group=st.integers(1, 3),
    causal=st.sampled_from([None, "top-left", "bottom-right"]),
)
def test_any_lengths_have_gradients(
    programs: Programs,
    tmp_path: Path,
    family: Family,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    group: int,
    causal: str | None,
) -> None:
    options = Options(causal is not None, alignment=causal or "top-left")
    size = 64 if head_dim <= 64 else 128
    dtype = family.dtypes[size]
    posed = pose(dtype, 1, group, 1, max(1, seq_q // group), seq_k, head_dim, options, seed=seq_q)
    found = family.run(programs(family), posed, family.shapes[size][family.shape_at], tmp_path)
    for one, exact, rounded in zip(found, posed.exact, rounded_pass(posed), strict=True):
        # Few keys cancel: then what the same formula in the same types loses is the measure, and what float32 loses of
        # a delta that is taken from dP.
        lost = float((one.double() - exact).norm())
        assert lost <= max(RELATIVE[dtype] * float(exact.norm()), 2 * float((rounded - exact).norm()) + 1e-5)


@each_family
@pytest.mark.parametrize("window", [(20, 10), (100, 0), (None, 30)])
def test_a_window_hides_keys_from_the_gradients_too(
    programs: Programs, tmp_path: Path, family: Family, window: tuple[int | None, int]
) -> None:
    options = Options(window=window, alignment="bottom-right")
    for size, shape in family.pairs:
        family.check(programs(family), family.pose(size, 1, 2, 2, 230, 250, options=options), shape, tmp_path)


@pytest.mark.parametrize("scale", [-0.1, 0.5])
def test_any_finite_scale_has_gradients(programs: Programs, tmp_path: Path, scale: float) -> None:
    posed = AMPERE.pose(64, 1, 1, 1, 40, 50, options=Options(True, scale=scale))
    found = AMPERE.run(programs(AMPERE), posed, NARROW, tmp_path)
    assert max(errors(found, posed.exact)) <= 1.5 * RELATIVE[torch.bfloat16]


@each_family
def test_the_log_sum_exp_may_have_a_gradient_of_its_own(programs: Programs, tmp_path: Path, family: Family) -> None:
    for size, shape in family.pairs:
        posed = family.pose(size, 1, 4, 2, 70, 90, options=Options(True), with_dlse=True)
        family.check(programs(family), posed, shape, tmp_path)


@each_family
def test_keys_that_no_query_sees_and_queries_that_see_no_key_have_gradients_of_zero(
    programs: Programs, tmp_path: Path, family: Family
) -> None:
    for size, shape in family.pairs:
        posed = family.pose(size, 1, 1, 1, 10, 300, options=Options(True))
        _, dk, dv = family.run(programs(family), posed, shape, tmp_path)
        assert not dk[:, :, 10:].any()
        assert not dv[:, :, 10:].any()
        posed = family.pose(size, 1, 1, 1, 300, 10, options=Options(True, alignment="bottom-right"))
        dq, _, _ = family.run(programs(family), posed, shape, tmp_path)
        assert not dq[:, :, :290].any()


def test_keys_beyond_the_last_hide_even_where_scores_are_very_negative(programs: Programs, tmp_path: Path) -> None:
    posed = AMPERE.pose(64, 1, 1, 1, 100, 70, options=Options())
    posed.make_scores_very_negative()
    assert all(bool(one.isfinite().all()) for one in AMPERE.run(programs(AMPERE), posed, NARROW, tmp_path))


@each_family
def test_padding_rows_of_nan_beside_a_tensor_are_never_read(programs: Programs, tmp_path: Path, family: Family) -> None:
    for size, shape in family.pairs:
        posed = family.pose(size, 1, 1, 1, 70, 70, options=Options())
        posed.lay_beside_nan()
        family.check(programs(family), posed, shape, tmp_path)


def test_sections_of_heads_that_do_not_divide_them_leave_none_out(programs: Programs, tmp_path: Path) -> None:
    posed = AMPERE.pose(64, 1, 5, 5, 200, 400, options=Options(True))
    chip = next(chip for chip in CHIPS if chip.name == "ampere")
    few = AmpereBackward(Machine(chip, 1, 1 << 19), NARROW)
    assert 1 < few.heads_of_section(posed.problem(posed.gradients())) < 5
    found = run_with_workspace(programs(AMPERE), posed, few, tmp_path)
    assert max(errors(found, posed.exact)) <= RELATIVE[torch.bfloat16]


def look_for_races(family: Family, pairs: Sequence[Pair], folder: Path, source: Path = SOURCE) -> None:
    program = family.compile(pairs, folder, races=True, source=source)
    for size, shape in pairs:
        posed = family.pose(size, 1, 2, 1, 200, 130, options=Options(True))
        for other in (False, True):
            family.run(program, posed, shape, folder, eager=other, reverse=other and family is TURING)


@pytest.mark.parametrize(
    ("family", "size"), [(family, size) for family in (AMPERE, TURING) for size in family.shapes],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_the_backward_pass_with_five_products_has_no_race(tmp_path: Path, family: Family, size: int) -> None:
    look_for_races(family, [(size, shape) for shape in family.shapes[size]], tmp_path)


def without(barrier: str) -> tuple[str, str]:
    return f"sync_block();  // {barrier}", f"// {barrier}"


@pytest.mark.parametrize(
    ("family", "pair", "old", "new"),
    [
        (AMPERE, (64, NARROW), *without("the tile is there")),
        (AMPERE, (64, NARROW), "        sync_block();  // dS is there for all, and P", ""),
        (AMPERE, (128, WIDE), "        sync_block();  // dS is there for all, and P", ""),
        (AMPERE, (128, WIDE), "          if constexpr (C::STAGES == 1) sync_block();  // none", "          // none"),
        (AMPERE, (64, NARROW), "copy_next(stage ^ 1)", "copy_next(stage)"),
        (TURING, ALONE, *without("the tile is there for all")),
        (TURING, ALONE, *without("dS is there for all")),
        (TURING, ALONE, *without("V is there")),
        (TURING, ALONE, *without("all have their")),
        (TURING, SHARED, *without("P and dS are there for all")),
        (TURING, SHARED, *without("dS is there for all")),
    ],
    ids=["tile", "slopes", "weights", "place", "stage", "all's tile", "dS", "V", "theirs", "shared P", "shared dS"],
)
def test_a_barrier_left_out_or_a_place_filled_early_is_found(
    tmp_path: Path, family: Family, pair: Pair, old: str, new: str
) -> None:
    source = mistaken(tmp_path, f"backward/{family.name}.cuh", old, new)
    with pytest.raises(AssertionError, match="a race: "):
        look_for_races(family, [pair], tmp_path, source)


@pytest.mark.parametrize(
    ("family", "name", "old", "new"),
    [
        (AMPERE, "ampere", "last <= query0 + p.above", "last <= query0 + C::QUERIES + p.above"),
        (AMPERE, "ampere", "      copy_async_wait<0>();\n", ""),
        (AMPERE, "ampere", "column < low ||", "column < low - 1 ||"),
        (AMPERE, "ampere", "of_tile;\n", "of_head;\n"),
        (AMPERE, "ampere", "-delta[e / 4 * 2 + e % 2]", "-delta[e % 4]"),
        (AMPERE, "ampere_sums", "from[i * 32]", "from[i]"),
        (TURING, "ampere", "column < low ||", "column < low - 1 ||"),
        (TURING, "ampere", "-delta[e / 4 * 2 + e % 2]", "-delta[e % 4]"),
        (TURING, "turing", "same ? tile + 1 : first_tile", "same ? tile : first_tile"),
        (TURING, "turing", "same ? head : head + 1", "head"),
        (TURING, "turing", "load_matrices(v[kk][f], (x ^ (kk << 5))", "load_matrices(v[kk][f], x"),
    ],
    ids=[
        "open tiles", "wait", "diagonal", "place of sums", "delta", "order of sums",
        "turing's diagonal", "turing's delta", "next tile", "next head", "values",
    ],
)  # fmt: skip
def test_a_mistake_in_what_is_computed_is_found(tmp_path: Path, family: Family, name: str, old: str, new: str) -> None:
    source = mistaken(tmp_path, f"backward/{name}.cuh", old, new)
    for size, shape in [(64, NARROW)] if family is AMPERE else [ALONE, SHARED]:
        program = family.compile([(size, shape)], tmp_path, source=source)
        posed = family.pose(size, 1, 2, 1, 200, 130, options=Options(True))
        found = errors(family.run(program, posed, shape, tmp_path), posed.exact)
        assert not max(found) <= RELATIVE[posed.dout.dtype]
