"""A user's own workload on a CUDA device: Triton and .cu kernels, other streams, sticky errors, memory that runs out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from orchestrator.core.workload import template_text
from tests.kernels.harness_process import HarnessProcess, named
from tests.kernels.test_cheats import own

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SOFTMAX_CU = """
extern "C" __global__ void softmax_rows(float* out, const float* x, int cols) {
  extern __shared__ float part[];
  const float* row = x + (long long)blockIdx.x * cols;
  float most = -3.4e38f, sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) most = fmaxf(most, row[i]);
  part[threadIdx.x] = most;
  __syncthreads();
  for (int i = 0; i < blockDim.x; ++i) most = fmaxf(most, part[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += expf(row[i] - most);
  part[threadIdx.x] = sum;
  __syncthreads();
  sum = 0.f;
  for (int i = 0; i < blockDim.x; ++i) sum += part[i];
  for (int i = threadIdx.x; i < cols; i += blockDim.x) out[(long long)blockIdx.x * cols + i] = expf(row[i] - most) / sum;
}
extern "C" __global__ void out_of_bounds(float* out, const float* x, int cols) { out[1ll << 40] = x[0]; }
extern "C" __global__ void does_not_compile(float* out) { out[0] = nonsense; }
"""
GPU = """import torch
axes = {"rows": [1024], "cols": [4096], "dtype": ["float32", "float16"]}
def inputs(rows, cols, dtype, device, generator):
    return torch.randn(rows, cols, device=device, dtype=dtype, generator=generator)
def outputs(x):
    return torch.empty_like(x)
def reference(x):
    return torch.softmax(x, -1)
def baseline_torch(out, x):
    return torch.softmax(x, -1)
ENTRY = {"cuda": "softmax.cu", "grid": "rows", "block": 256, "smem": "256 * 4", "only": {"dtype": ["float32"]}}
kernel_cuda = {**ENTRY, "entry": "softmax_rows", "args": ["out", "x", "int32(cols)"]}
kernel_sticky = {**ENTRY, "entry": "out_of_bounds", "args": ["out", "x", "int32(cols)"]}
kernel_broken = {**ENTRY, "cuda": "broken.cu", "entry": "does_not_compile", "args": ["out"]}
side = None
def kernel_other_stream(out, x):
    global side
    side = side or torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000)
        out.copy_(torch.softmax(x, -1))
    return out
def kernel_too_much_memory(out, x):
    return torch.empty(1 << 46, device=x.device)
"""


def test_on_a_gpu_each_fault_and_cheat_costs_its_own_row(tmp_path: Path) -> None:
    good, broken = SOFTMAX_CU.rsplit("extern", 1)
    (tmp_path / "soft.py").write_text(GPU)
    (tmp_path / "softmax.cu").write_text(good)
    (tmp_path / "broken.cu").write_text(f"extern{broken}")
    with HarnessProcess("measure", own(tmp_path / "soft.py", repeats=10, regime="both"), tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    single, half = named(facts, "case_finished")
    assert set(single["median_us"]) == {"torch", "cuda", "torch:aa"}, single["skipped"]
    assert set(half["median_us"]) == {"torch", "torch:aa"}, half["skipped"]
    assert half["skipped"]["cuda"] == "it is for dtype float32 only"
    for case in (single, half):
        assert "out of memory" in case["skipped"]["too_much_memory"]
        assert any(
            words in case["skipped"]["other_stream"] for words in ("untrusted", "max abs error", "NaN", "captured")
        )
    assert "illegal" in single["skipped"]["sticky"]
    assert "nonsense" in single["skipped"]["broken"]
    rows = harness.rows(single["case_id"])
    regimes = {row["regime"] for row in rows if row["implementation"] == "cuda" and row["latency_us"]}
    assert regimes == {"burst", "graph"}
    assert all(row["hidden"] == "true" for row in rows if row["regime"] == "burst" and row["latency_us"])


def test_the_workload_that_bench_new_writes_measures_triton(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "norm.py").write_text(template_text("norm"))
    with HarnessProcess("measure", own(tmp_path / "norm.py", repeats=10, regime="both"), tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0, [case["skipped"] for case in named(facts, "case_finished")] + [harness.log()[-2000:]]
    for case in named(facts, "case_finished"):
        assert set(case["median_us"]) == {"torch", "by_hand", "triton", "torch:aa"}, case["skipped"]
