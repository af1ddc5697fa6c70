"""Keys cut into parts by Hopper's kernel, on a GPU, against float64."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import bind_attention
from tests.kernels.cuda.exactly import exact
from tests.kernels.cuda.on_gpu import assert_replays_alike

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="no Hopper device"
    ),
]

WAYS = {64: "fa90-128x128s3p-split", 128: "fa90-128x128s2p-split"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [40, 64, 104, 128])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(128, 16384), (64, 5000), (300, 4097), (1, 1100)])
def test_parts_of_the_keys_make_the_whole(seq_q: int, seq_k: int, head_dim: int, causal: bool) -> None:
    for dtype, error in ((torch.float16, 1.2e-3), (torch.bfloat16, 8e-3)):
        generator = torch.Generator("cuda").manual_seed(seq_k)
        q, k, v = (
            torch.randn(1, h, s, head_dim, device="cuda", generator=generator).to(dtype)
            for h, s in ((8, seq_q), (4, seq_k), (4, seq_k))
        )
        out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan, device="cuda")
        options = {"causal": causal, "causal_alignment": "bottom-right", "lse": lse}
        call = bind_attention(q, k, v, out, way=WAYS[64 if head_dim <= 64 else 128], **options)  # type: ignore[arg-type]
        call()
        first = out.clone()
        for _ in range(20):
            call()
        assert torch.equal(out, first)
        want, want_lse = exact(q, k, v, seq_k - seq_q if causal else None)
        assert ((out.double() - want).norm() / want.norm()).item() < error
        assert (lse.double() - want_lse).abs().max().item() < 2e-4


def test_a_captured_graph_of_parts_gives_the_same_bits() -> None:
    q, k, v = (torch.randn(1, 16, s, 128, device="cuda").bfloat16() for s in (128, 16384, 16384))
    out = torch.empty_like(q)
    assert_replays_alike(bind_attention(q, k, v, out, way=WAYS[128]), out)


def test_where_rows_fill_the_chip_there_are_no_parts() -> None:
    q, k, v = (torch.randn(4, 16, 4096, 128, device="cuda").bfloat16() for _ in range(3))
    with pytest.raises(Unsupported, match="no way named"):
        bind_attention(q, k, v, torch.empty_like(q), way=WAYS[128])
