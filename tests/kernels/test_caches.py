"""What a call finds in the caches: how many input sets it takes, and that none is read out of turn or unjudged."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import correctness
from kernels.attention.case import Case, Shape
from kernels.attention.interface import Plan
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.attention.workload import WORKLOAD
from kernels.harness import axes
from kernels.harness.contenders import Bound, bind_contender, build_contender, check_copies
from kernels.harness.input_sets import (
    AIM,
    MOST_SETS,
    Rotation,
    cache_bytes,
    copy_inputs,
    cpu_cache_bytes,
    free_bytes,
    plan_rotation,
)
from kernels.harness.workload import Call, Check, Site

CPU = torch.device("cpu")
PROBLEM = AttentionProblem()
CASE = Case(Shape(batch=2, heads=4, kv_heads=2, seq_q=9, seq_k=11, head_dim=8, causal=True), "bfloat16")
MOST = MOST_SETS["cpu"]
SIZE = st.integers(1, 1 << 40)


@given(SIZE, SIZE, SIZE)
def test_what_is_called_cold_has_turned_the_cache_over_since_it_was_last_read(size: int, cache: int, free: int) -> None:
    turns = plan_rotation("cold", size, cache, free, MOST)
    assert 1 <= turns.sets <= MOST
    assert turns.sets == 1 or turns.sets * size <= free
    passed_through = max((turns.sets - 1) * size, size / AIM)
    assert (turns.cache == "cold") == (passed_through >= cache)
    assert turns.cache in ("cold", "mixed")


@given(SIZE, SIZE)
def test_with_memory_to_spare_only_problems_tiny_beside_the_cache_are_not_cold(size: int, cache: int) -> None:
    turns = plan_rotation("cold", size, cache, 1 << 60, MOST)
    assert turns.cache == "cold" or (MOST - 1) * size < cache
    if turns.sets < MOST:
        assert (turns.sets - 1) * size >= AIM * cache > (turns.sets - 2) * size or turns.sets == 2


@given(SIZE, SIZE, SIZE)
def test_a_warm_cache_takes_one_set(size: int, cache: int, free: int) -> None:
    assert plan_rotation("warm", size, cache, free) == Rotation(1, "warm")


def test_a_set_is_what_one_call_reads_and_writes() -> None:
    inputs = PROBLEM.inputs(CASE, axes.case_generator(CASE, CPU, 1))
    tensors = (inputs.q, inputs.k, inputs.v, inputs.q)
    assert PROBLEM.set_bytes(CASE, inputs) == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_copies_hold_the_same_values_in_memory_of_their_own() -> None:
    inputs = PROBLEM.inputs(CASE, axes.case_generator(CASE, CPU, 1))
    made = copy_inputs(inputs, 4, PROBLEM.copied)
    assert made[0] is inputs
    for name in ("q", "k", "v"):
        tensors = [getattr(one, name) for one in made]
        assert len({tensor.data_ptr() for tensor in tensors}) == 4
        assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)


def cache_of(root: Path, cpu: int, level: int, size: str, shared: str, kind: str = "Unified") -> None:
    folder = root / f"cpu{cpu}" / "cache" / f"index{level}{kind}"
    folder.mkdir(parents=True)
    for name, text in {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}.items():
        (folder / name).write_text(f"{text}\n")


def test_the_last_level_cache_counts_once_for_the_processors_that_share_it(tmp_path: Path) -> None:
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        cache_of(tmp_path, cpu, 1, "64K", str(cpu), kind="Instruction")
        cache_of(tmp_path, cpu, 2, "1024K", str(cpu))
        cache_of(tmp_path, cpu, 3, "32M", shared)
    assert cpu_cache_bytes([0, 1], tmp_path) == 32 << 20
    assert cpu_cache_bytes([0, 1, 2], tmp_path) == 64 << 20
    assert cpu_cache_bytes([7], tmp_path) is None
    (tmp_path / "cpu0" / "cache" / "index3Unified" / "size").write_text("large\n")
    assert cpu_cache_bytes([0], tmp_path) == 1 << 20


@pytest.mark.skipif(not Path("/sys/devices/system/cpu/cpu0/cache").is_dir(), reason="this machine does not tell")
def test_this_machines_cache_and_memory_are_found() -> None:
    found = cache_bytes(CPU)
    assert found is not None
    assert 1 << 15 <= found <= 1 << 34
    assert 0 < free_bytes(CPU) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def contender(name: str, inputs: Inputs) -> Bound:
    return bind_contender(name, {name: build_contender(WORKLOAD, name, Site(CPU, 1, Path(), Path()))}, CASE, inputs)


def bound_on() -> tuple[Bound, correctness.Yardstick, Inputs]:
    inputs = PROBLEM.inputs(CASE, axes.case_generator(CASE, CPU, 1))
    by = correctness.exact_answer(inputs.q, inputs.k, inputs.v, causal=True, max_abs_error=0.01)
    return contender("sdpa:math", inputs), by, inputs


def copied(good: Bound, *plans: Plan) -> Bound:
    return replace(good, copies=tuple(Call(good.backend, plan) for plan in plans))


def test_a_copy_on_which_an_implementation_is_wrong_is_found() -> None:
    good, by, _ = bound_on()
    assert check_copies(copied(good, good.plan, good.plan), by) is None
    verdict: Check | None = check_copies(copied(good, good.plan, lambda: good.plan() + 1), by)
    assert verdict is not None
    assert not verdict.passed
    assert verdict.reason.startswith("on a copy of its inputs: max abs error")


def test_an_output_that_differs_in_its_last_bit_is_judged_and_not_condemned() -> None:
    good, by, inputs = bound_on()
    flash = contender("sdpa:flash", inputs)
    with good.scope():
        ours = good.plan()
    with flash.scope():
        theirs = flash.plan()
    assert not torch.equal(ours, theirs)
    assert check_copies(copied(good, lambda: theirs), by) is None
