"""The kernels for few keys, run on the CPU with a fiber for each thread, against attention in float64."""

from __future__ import annotations

import math
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.small import SmallKernel, in_registers, in_shared
from tests.kernels.cuda.small_runner import SmallRunner, compile_small
from tests.kernels.cuda.test_simt import ERROR, expected

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or platform.system() != "Linux", reason="needs g++ on Linux to compile the kernels"
)

FOUR = SmallKernel("bfloat16", 64, True, in_registers(16, 4, 16))
ONE = SmallKernel("float16", 64, True, in_registers(16, 1, 64))
WIDE = SmallKernel("float16", 64, False, in_registers(32, 4, 32))
DEEP = SmallKernel("bfloat16", 128, True, in_registers(16, 8, 16))
SHARED = SmallKernel("float16", 64, True, in_shared(2, 4, 64))
SHARED_DEEP = SmallKernel("bfloat16", 128, False, in_shared(2, 4, 32))
OVER_ALL = SmallKernel("float16", 64, False, in_shared(4, 4, 64))
MANY = SmallKernel("bfloat16", 64, False, in_registers(16, 8, 16))
SHARED_MANY = SmallKernel("float16", 64, True, in_shared(1, 8, 16))
KERNELS = (FOUR, ONE, WIDE, DEEP, SHARED, SHARED_DEEP, OVER_ALL, MANY, SHARED_MANY)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> SmallRunner:
    return compile_small(KERNELS, tmp_path_factory.mktemp("small"))


def draw(kernel: SmallKernel, heads: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seq_q * 1000 + seq_k)
    dtype = getattr(torch, kernel.dtype)
    return [
        torch.randn(2, s, h, head_dim, generator=generator).to(dtype).transpose(1, 2)
        for h, s in ((heads, seq_q), (kv_heads, seq_k), (kv_heads, seq_k))
    ]


def assert_right(
    runner: SmallRunner,
    kernel: SmallKernel,
    tensors: list[torch.Tensor],
    scratch: Path,
    *,
    alignment: str = "top-left",
    eager: bool = False,
    reverse: bool = False,
) -> None:
    q, k, v = tensors
    got, lse = runner.run(
        kernel,
        q,
        k,
        v,
        torch.full_like(q, math.nan),
        scratch=scratch,
        alignment=alignment,
        eager=eager,
        reverse=reverse,
    )
    assert lse is not None
    offset = k.shape[2] - q.shape[2] if alignment == "bottom-right" else 0
    want, want_lse = expected(q, k, v, kernel.causal, offset)
    assert bool(got.isfinite().all()), "an element was not written, or is not a number"
    assert (got.double() - want).norm().item() <= ERROR[kernel.dtype] * want.norm().item()
    seen = want_lse.isfinite()
    assert torch.equal(lse.isfinite(), seen)
    if bool(seen.any()):
        assert (lse.double() - want_lse)[seen].abs().max().item() < 1e-4


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_kind_agrees_with_float64_however_copies_and_warps_are_timed(
    runner: SmallRunner, tmp_path: Path, kernel: SmallKernel
) -> None:
    keys = kernel.shape.all_keys
    for eager, reverse in ((False, False), (True, True)):
        tensors = draw(kernel, 2, 1, 67, keys - 3, kernel.head_dim)
        assert_right(runner, kernel, tensors, tmp_path, eager=eager, reverse=reverse)


@pytest.mark.parametrize("seq", [1, 7, 15, 16, 17, 63, 64])
@pytest.mark.parametrize("kernel", [FOUR, ONE], ids=lambda kernel: kernel.name)
def test_any_number_of_rows_and_keys_that_fits_is_right(
    runner: SmallRunner, tmp_path: Path, kernel: SmallKernel, seq: int
) -> None:
    assert_right(runner, kernel, draw(kernel, 2, 2, seq, seq, 64), tmp_path)


@pytest.mark.parametrize("seq", [65, 127, 128])
def test_ragged_ends_beyond_one_tile_of_keys_are_right(runner: SmallRunner, tmp_path: Path, seq: int) -> None:
    for kernel in (WIDE, DEEP, SHARED_DEEP):
        assert_right(runner, kernel, draw(kernel, 1, 1, seq, seq, kernel.head_dim), tmp_path)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 64), (64, 1), (20, 50), (50, 20), (200, 60)])
def test_both_causal_alignments_and_cross_lengths_agree_with_float64(
    runner: SmallRunner, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    for kernel in (FOUR, ONE, SHARED):
        assert_right(runner, kernel, draw(kernel, 2, 1, seq_q, seq_k, 64), tmp_path, alignment=alignment)


@pytest.mark.parametrize("head_dim", [8, 24, 56, 72, 120])
def test_head_dimensions_that_are_multiples_of_eight_are_padded_right(
    runner: SmallRunner, tmp_path: Path, head_dim: int
) -> None:
    for kernel in (DEEP, SHARED_DEEP) if head_dim > 64 else (FOUR, SHARED):
        assert_right(runner, kernel, draw(kernel, 2, 1, 19, 60, head_dim), tmp_path)


@pytest.mark.parametrize("kernel", [FOUR, ONE, SHARED], ids=lambda kernel: kernel.name)
def test_a_value_that_is_no_number_spoils_the_rows_that_see_it_and_no_other(
    runner: SmallRunner, tmp_path: Path, kernel: SmallKernel
) -> None:
    q, k, v = draw(kernel, 1, 1, 40, 40, 64)
    clean, _ = runner.run(kernel, q, k, v, torch.zeros_like(q), scratch=tmp_path)
    q[0, 0, 5] = math.nan
    q[1, 0, 7] = math.inf
    got, _ = runner.run(kernel, q, k, v, torch.zeros_like(q), scratch=tmp_path)
    assert bool(got[0, 0, 5].isnan().all())
    assert bool(got[1, 0, 7].isnan().all())
    rest = torch.ones(2, 1, 40, dtype=torch.bool)
    rest[0, 0, 5] = rest[1, 0, 7] = False
    assert torch.equal(got[rest], clean[rest])


@pytest.mark.parametrize("kernel", [FOUR, SHARED], ids=lambda kernel: kernel.name)
def test_a_key_that_is_no_number_reaches_every_row_that_sees_it(
    runner: SmallRunner, tmp_path: Path, kernel: SmallKernel
) -> None:
    q, k, v = draw(kernel, 1, 1, 40, 40, 64)
    k[0, 0, 33] = math.nan
    got, lse = runner.run(kernel, q, k, v, torch.zeros_like(q), scratch=tmp_path)
    assert lse is not None
    assert bool(lse[0, 0, :33].isfinite().all())
    assert bool(lse[0, 0, 33:].isnan().all())
    assert bool(got[0, 0, 33:].isnan().all())
    assert bool(got[1].isfinite().all())


def test_large_scores_do_not_overflow(runner: SmallRunner, tmp_path: Path) -> None:
    for kernel in (FOUR, WIDE, SHARED):
        q, k, v = draw(kernel, 1, 1, 33, 64, 64)
        assert_right(runner, kernel, [q * 30, k, v], tmp_path)


def test_without_a_log_sum_exp_the_output_is_the_same(runner: SmallRunner, tmp_path: Path) -> None:
    for kernel in (FOUR, ONE, SHARED):
        q, k, v = draw(kernel, 2, 1, 40, 40, 64)
        with_lse, _ = runner.run(kernel, q, k, v, torch.zeros_like(q), scratch=tmp_path)
        without, none = runner.run(kernel, q, k, v, torch.zeros_like(q), scratch=tmp_path, with_lse=False)
        assert none is None
        assert torch.equal(with_lse, without)


def test_the_source_is_clean_under_the_address_sanitizer(tmp_path: Path) -> None:
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    probe = subprocess.run(
        ["g++", *flags, "-x", "c++", "-", "-o", str(tmp_path / "probe")], input="int main(){}", text=True
    )
    if probe.returncode:
        pytest.skip("this g++ has no address sanitizer")
    runner = compile_small((FOUR, ONE, SHARED), tmp_path, flags=flags)
    for kernel in (FOUR, ONE, SHARED):
        assert_right(runner, kernel, draw(kernel, 2, 1, 33, 61, 64), tmp_path, eager=True)
        assert_right(runner, kernel, draw(kernel, 1, 1, 3, 17, 40), tmp_path, alignment="bottom-right")
