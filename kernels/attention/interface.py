"""The one interface behind which the CPU kernel and the CUDA kernels stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from kernels.attention.case import Case
from kernels.harness.workload import BuildFailed, BuildRecord, Plan, Unavailable

__all__ = ["DTYPES", "AttentionKernel", "BuildFailed", "BuildRecord", "Plan", "Unavailable"]

DTYPES: Mapping[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
"""The element types a case can have, by the name used in case ids and result files."""


class AttentionKernel(Protocol):
    """Forward attention, softmax(scale * Q K^T) V, on one kind of device.

    Tensors are [B, H, S, D] with any batch, head and sequence strides. K and V may have fewer heads than Q (grouped
    queries): query head h reads KV head h // (H / H_kv). `run` and `prepare` may be called only after `build`.
    """

    @property
    def name(self) -> str:
        """The value of the `backend` column, e.g. `cpu-avx512`."""
        ...

    def build(self, out_dir: Path, cache_dir: Path) -> BuildRecord:
        """Compile or take from `cache_dir`, then load; logs go to `out_dir`. Raises `BuildFailed`."""
        ...

    def supports(self, case: Case) -> str | None:
        """None when the case can run, else the reason why it cannot."""
        ...

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None = None
    ) -> torch.Tensor:
        """The output, shape [B, H, S_q, D], as `q` is. `scale` defaults to 1/sqrt(D). Raises `Unavailable`."""
        ...

    def prepare(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> Plan:
        """A plan bound to these tensors: it gives the same result as `run`, with the least work at each call. If the
        code that runs differs from case to case, the plan's attribute `runs` is the value of the `backend` column."""
        ...
