"""Calls of remembered kernels, compared with fresh ones."""

from __future__ import annotations

import pytest
import torch

from kernels.attention.cuda.calls.moving import Answer
from kernels.attention.cuda.calls.quick import Quick
from tests.kernels.cuda.stub_driver import OnCpu, Stub


@pytest.fixture(params=[False, True], ids=["portable", "hopper"])
def engine(request: pytest.FixtureRequest, stub: Stub) -> OnCpu:
    return OnCpu(hopper=request.param)


def draw(*shape: int, kv_heads: int | None = None, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    batch, heads, seq, head_dim = shape
    sizes = [shape, *[(batch, kv_heads or heads, seq, head_dim)] * 2]
    return [torch.randn(size).to(dtype) for size in sizes]


def call(
    quick: Quick,
    tensors: list[torch.Tensor],
    *,
    causal: bool = False,
    scale: float | None = None,
    alignment: str = "top-left",
    lse: bool = False,
) -> Answer:
    return quick.attention(*tensors, causal, scale, alignment, lse)
