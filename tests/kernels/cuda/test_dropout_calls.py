"""Calls with dropout: what is refused, what a remembered call launches, and that calls without it are as before."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention.case import PASSES, Case, Shape
from kernels.attention.cuda import attention, attention_varlen
from kernels.attention.cuda.backward.kernels import (
    BackwardParameters,
    DroppingBackwardParameters,
    every_backward_kernel,
    every_dropping_backward_kernel,
    every_shaped_backward_kernel,
)
from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients, PairBackward
from kernels.attention.cuda.calls.binding import bind_attention, bind_paged
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import DroppingParameters, Parameters, fields_of
from kernels.attention.cuda.plan.planning import Machine, Problem
from kernels.attention.cuda.plan.posing import Shaping, problem_of
from kernels.attention.cuda.plan.variants import CHIPS
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.dropout import keep_scale, least_word
from kernels.attention.implementations import CudaVariant
from kernels.attention.problem import AttentionProblem
from kernels.harness.workload import Site
from tests.kernels.cuda.counted import Counted
from tests.kernels.cuda.every_kernel import every_dropping_kernel, every_general_kernel, every_shaped_kernel
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import WITH_STUB, OnCpu, Stub

SEED = torch.tensor([2**63 - 1, 5])
Q = torch.empty(1, 2, 65, 64, dtype=torch.float16)


def qkv(seq: int = 65, **more: Any) -> list[torch.Tensor]:
    return [torch.randn(1, 2, seq, 64).half().requires_grad_(more.get("wants", False)) for _ in "qkv"]


def posed(p: float, seed: torch.Tensor | None = SEED) -> Problem:
    return problem_of(Q, Q, Q, Q, causal=True, alignment="top-left", shaping=Shaping(dropout=p, seed=seed))


@pytest.mark.parametrize("p", [1.0, 1.5, -0.1, -1e-300, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("call", [attention, lambda *given, **more: attention_varlen(*given, SEED, SEED, 1, 1, **more)])
def test_a_probability_that_is_none_is_refused(call: Any, p: float) -> None:
    with pytest.raises(ValueError, match="dropout_p must be at least 0 and less than 1, not "):
        call(*qkv(), dropout_p=p, dropout_seed=SEED)


@pytest.mark.parametrize("p", ["0.1", True, None, torch.tensor(0.1)])
def test_a_probability_that_is_no_number_is_refused(p: Any) -> None:
    with pytest.raises(TypeError, match="dropout_p must be a number"):
        attention(*qkv(), dropout_p=p, dropout_seed=SEED)


def test_dropout_without_a_seed_or_with_another_kind_of_seed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dropout_p needs dropout_seed, int64 \[2\] on the device of q"):
        attention(*qkv(), dropout_p=0.1)
    for seed in (SEED.int(), SEED[:1], SEED[None], torch.zeros(4, dtype=torch.int64)[::2], SEED.to("meta")):
        with pytest.raises(ValueError, match="dropout_seed must be contiguous int64"):
            posed(0.1, seed)


@pytest.mark.parametrize("p", [0, 0.0, -0.0, 2.0**-40])
def test_a_call_that_drops_nothing_is_the_call_without_dropout(p: float) -> None:
    assert posed(p) == posed(p, None) == posed(0.0, None)
    assert posed(p).dropout is None


@pytest.mark.parametrize("p", [0.1, 0.5, 1 - 2.0**-24, 1 - 2.0**-53])
def test_the_kernel_is_told_the_least_word_and_one_over_the_share_that_is_kept(p: float) -> None:
    of = posed(p).dropout
    assert of is not None
    assert (of.seed, of.least, of.keep_scale) == (SEED.data_ptr(), least_word(p), keep_scale(p))
    assert of.keep_scale == pytest.approx(1 / (1 - p), rel=1e-6) or p > 1 - 2.0**-30
    assert ctypes.c_float(of.keep_scale).value < math.inf


def machine(hopper: bool) -> Machine:
    return Machine(CHIPS[-1], 132, 50 << 20, hopper=hopper)


@pytest.mark.parametrize("hopper", [False, True])
def test_dropout_goes_to_the_portable_kernel_on_hopper_too(hopper: bool) -> None:
    way, reason = choose_way(posed(0.1), machine(hopper))
    assert way.name == "general-64x64w4s2q-dropout"
    assert "drop weights" in reason


@WITH_STUB
@pytest.mark.parametrize("invariant", [False, True])
def test_dropout_over_pages_is_refused(stub: Stub, invariant: bool) -> None:
    del stub
    q, cache = torch.zeros(1, 1, 2, 64, dtype=torch.float16), torch.zeros(4, 16, 2, 64, dtype=torch.float16)
    table, used = torch.zeros(1, 4, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    given: dict[str, Any] = {"dropout_p": 0.1, "dropout_seed": SEED, "engine": OnCpu(), "batch_invariant": invariant}
    with pytest.raises(Unsupported, match="dropout is not built for keys in pages"):
        bind_paged(q, cache, cache, q.clone(), table, used, **given)


@WITH_STUB
def test_dropout_is_refused_where_bits_must_not_depend_on_the_batch_and_for_float8(stub: Stub) -> None:
    del stub
    q, k, v = qkv()
    given: dict[str, Any] = {"dropout_p": 0.1, "dropout_seed": SEED, "engine": OnCpu()}
    with pytest.raises(Unsupported, match="dropout is not built for batch_invariant"):
        bind_attention(q, k, v, torch.empty_like(q), batch_invariant=True, **given)
    scales = {"k_scale": torch.ones(2), "v_scale": torch.ones(2)}
    k8, v8 = (x.to(torch.float8_e4m3fn) for x in (k, v))
    with pytest.raises(Unsupported, match="dropout is not built for float8 keys and values"):
        bind_attention(q, k8, v8, torch.empty_like(q), **scales, **given)


@WITH_STUB
def test_a_remembered_call_and_its_gradients_read_the_seed_of_the_call(stub: Stub, engine: OnCpu) -> None:
    counted = Counted(engine, compiled=False)
    options = Options(names=("q", "k", "v", "seed"), dropout=0.1)
    for number in range(3):
        q, k, v = qkv(wants=True)
        seed, before = torch.tensor([number, 0]), stub.launches
        out = counted.quick.call((q, k, v, seed), options)
        assert isinstance(out, torch.Tensor)
        (forward,) = (stub.launch(n) for n in range(before, stub.launches))
        assert forward.argument(0, DroppingParameters).seed == seed.data_ptr()
        middle = stub.launches
        out.backward(torch.randn_like(out))
        prepare, *passes = (stub.launch(n) for n in range(middle, stub.launches))
        assert b"_drops_" not in prepare.name
        assert [b"_drops_" in one.name for one in (forward, *passes)] == [True] * 3
        for one in passes:
            found = one.argument(0, DroppingBackwardParameters)
            assert (found.seed, found.least) == (seed.data_ptr(), least_word(0.1))
            assert found.q == q.data_ptr()
    assert counted.prepared == 1


@WITH_STUB
def test_a_seed_that_changes_between_the_passes_is_noticed(stub: Stub, engine: OnCpu) -> None:
    del stub
    seed = SEED.clone()
    out = Counted(engine, compiled=False).quick.call(
        (*qkv(wants=True), seed), Options(names=("q", "k", "v", "seed"), dropout=0.1)
    )
    seed += 1
    assert isinstance(out, torch.Tensor)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# What calls without dropout have of it: nothing.


@pytest.mark.parametrize(
    ("dropping", "plain"), [(DroppingParameters, Parameters), (DroppingBackwardParameters, BackwardParameters)]
)
def test_parameters_with_dropout_begin_with_those_without(dropping: Any, plain: Any) -> None:
    for name, _ in fields_of(plain):
        assert getattr(dropping, name).offset == getattr(plain, name).offset
    assert dropping.seed.offset == ctypes.sizeof(plain) == ctypes.sizeof(dropping) - 16


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_kernels_without_dropout_are_compiled_from_text_that_does_not_name_it(chip: Any) -> None:
    without = [*every_general_kernel(chip), *every_shaped_kernel(chip)]
    backward = [*every_backward_kernel(chip), *every_shaped_backward_kernel(chip)]
    for entry in (*without, *backward):
        kind, size = ("BackwardParams", BackwardParameters) if entry in backward else ("AttentionParams", Parameters)
        assert f"__grid_constant__ {kind} p" in entry.source
        assert f"sizeof({kind}) == {ctypes.sizeof(size)}," in entry.source
        assert "rop" not in entry.source.replace("prop", "")


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_each_kernel_with_dropout_has_a_name_and_text_of_its_own_and_fits_its_chip(chip: Any) -> None:
    entries = [*every_dropping_kernel(chip), *every_dropping_backward_kernel(chip)]
    names = {entry.name for entry in entries}
    assert len(names) == len({entry.source for entry in entries}) == len(entries)
    others = {*every_shaped_kernel(chip), *every_shaped_backward_kernel(chip)}
    assert names.isdisjoint(entry.name for entry in others)
    for entry in entries:
        assert "_drops_" in entry.name
        assert "Dropping" in entry.source
        assert entry.shared_bytes <= chip.shared_bytes_per_block


def test_a_problem_with_dropout_keeps_all_its_other_features() -> None:
    plain, dropping = (problem for problem in (posed(0.0), posed(0.2)))
    assert replace(dropping, dropout=None) == plain


@WITH_STUB
@pytest.mark.parametrize("direction", PASSES)
def test_the_harness_binds_a_case_with_dropout_to_these_kernels(direction: str, stub: Stub, tmp_path: Path) -> None:
    case = Case(Shape(1, 2, 1, 65, 65, 64, True, window=20, dropout=0.1), "float16", direction)
    variant = CudaVariant("bench:lse", Site(torch.device("cuda", 0), 1, tmp_path, tmp_path))
    variant.engine = OnCpu()
    call = variant.bind(case, AttentionProblem().inputs(case, torch.Generator().manual_seed(1)))
    before = stub.launches
    call.plan()
    names = [stub.launch(number).name.decode() for number in range(before, stub.launches)]
    drops = {"forward": 1, "backward": 2, "both": 3}[direction]
    assert sum("_drops_" in name for name in names) == drops
    assert call.backend.count("_drops_") == drops


def test_a_mask_has_no_gradient_with_dropout_where_a_thread_has_too_few_registers() -> None:
    for width, refused in ((509, True), (512, False), (253, False)):
        tensor, mask = torch.empty(1, 2, 65, width, dtype=torch.float16), torch.empty(1, 2, 65, 65)
        shaping = Shaping(dropout=0.1, seed=SEED)
        given = problem_of(*[tensor] * 4, causal=False, alignment="top-left", mask=mask, shaping=shaping)
        problem = BackwardProblem(given, Gradients(*[given.q] * 4), 1.0, 0)
        way, buffers = PairBackward(machine(True)), HostBuffers()
        if not refused:
            assert way.bias_steps(problem, given.q, buffers)  # type: ignore[arg-type]
            continue
        with pytest.raises(Unsupported, match="the gradient of a mask with dropout and 509 columns off 16-byte"):
            way.bias_steps(problem, given.q, buffers)  # type: ignore[arg-type]
