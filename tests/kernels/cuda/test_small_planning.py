"""Which kernels for few keys a problem gets, and that they compile as they must. Needs no GPU."""

from __future__ import annotations

import dataclasses

import pytest

from kernels.attention.cuda.plan.planning import Layout, Machine, Problem
from kernels.attention.cuda.plan.variants import CHIPS, HEADERS, SOURCE
from kernels.attention.cuda.ways import small, small_hopper
from tests.kernels.cuda.every_kernel import every_small_forward_kernel, every_small_hopper_kernel

HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")
H200 = Machine(HOPPER, 132, 60 << 20, hopper=True)


def problem(
    seq_q: int,
    seq_k: int,
    *,
    head_dim: int = 64,
    heads: int = 8,
    kv_heads: int = 8,
    batch: int = 2,
    causal: bool = False,
) -> Problem:
    """Contiguous tensors."""
    q = Layout(heads * seq_q * head_dim, seq_q * head_dim, head_dim)
    kv = Layout(kv_heads * seq_k * head_dim, seq_k * head_dim, head_dim)
    return Problem("bfloat16", batch, heads, kv_heads, seq_q, seq_k, head_dim, causal, 0, q, kv, kv, q)


def names(of: Problem, machine: Machine = H200, *, dependent: bool = False) -> list[str]:
    found = [
        *small.small_ways(of, machine, dependent=dependent),
        *small_hopper.small_hopper_ways(of, machine, dependent=dependent),
    ]
    return [way.name for way in found]


@pytest.mark.parametrize("seq_k", [1, 16, 63, 64, 65, 128, 129, 200, 256, 257, 300, 512])
@pytest.mark.parametrize("head_dim", [8, 64, 72, 128])
def test_a_block_sees_all_keys_and_is_not_mostly_idle(seq_k: int, head_dim: int) -> None:
    found = [*small.small_ways(problem(100, seq_k, head_dim=head_dim), H200)]
    groups = [*small_hopper.small_hopper_ways(problem(100, seq_k, head_dim=head_dim), H200)]
    assert found or seq_k > 256
    assert groups or seq_k <= 64 or (seq_k > 256 and head_dim > 64)
    for shape in [*(way.kernel.shape for way in found), *(way.kernel.shape for way in groups)]:
        assert seq_k <= shape.all_keys
        assert shape.all_keys <= max(64, 2 * seq_k)


def test_beyond_512_keys_there_is_none() -> None:
    assert names(problem(64, 513)) == []
    assert names(problem(64, 257, head_dim=128)) == []


def test_what_cannot_be_read_sixteen_bytes_at_a_time_is_left_to_others() -> None:
    plain = problem(64, 64)
    assert names(dataclasses.replace(plain, head_dim=60)) == []
    assert names(dataclasses.replace(plain, q=dataclasses.replace(plain.q, address=8))) == []
    assert names(dataclasses.replace(plain, k=dataclasses.replace(plain.k, row=68))) == []


def test_a_grid_has_no_more_heads_or_batches_than_there_can_be() -> None:
    assert names(problem(64, 64, heads=65536, kv_heads=8)) == []
    assert names(problem(64, 64, batch=65536)) == []


def test_dependent_launches_are_hoppers_alone_and_never_found_by_default() -> None:
    assert all(name.endswith("-dependent") for name in names(problem(64, 64), dependent=True))
    assert not any("dependent" in name for name in names(problem(64, 64)))
    ampere = Machine(next(chip for chip in CHIPS if chip.name == "ampere"), 108, 40 << 20)
    assert names(problem(64, 64), ampere, dependent=True) == []
    assert names(problem(64, 64), ampere) != []


def test_turing_has_none_and_small_shared_memories_have_fewer() -> None:
    turing, ada = (Machine(next(c for c in CHIPS if c.name == name), 40, 4 << 20) for name in ("turing", "ada"))
    half = dataclasses.replace(problem(64, 64), dtype="float16")
    assert names(half, turing) == []
    assert set(names(problem(64, 512), ada)) < set(names(problem(64, 512)))


def test_clusters_are_not_padded_beyond_their_size() -> None:
    assert not any(name.endswith("c4") for name in names(problem(128, 512)))
    assert any(name.endswith("c4") for name in names(problem(256, 512)))


def test_names_are_unique_and_every_source_that_is_included_is_shipped() -> None:
    kernels = [*every_small_forward_kernel(HOPPER), *every_small_hopper_kernel(HOPPER)]
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    written = {f"small/{path.name}" for path in (SOURCE / "small").glob("*.cuh")}
    assert written == {name for name in HEADERS if name.startswith("small/")}
