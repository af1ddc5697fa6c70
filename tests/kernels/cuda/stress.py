"""Checks that every launch gives the same bits: two streams compute while a third copies as fast as it can.

python3 -m tests.kernels.cuda.stress --launches 10000
python3 -m tests.kernels.cuda.stress --launches 10000 --pass backward

The backward pass runs in its deterministic mode. In the other mode the last bits of dQ may differ by design.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention.cuda.calls.backward import bind_backward
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.run.engine import Engine, engine_of
from kernels.attention.cuda.run.launching import Bound

NOISE_BYTES, NOISE_EVERY = 64 * 2**20, 3
Shape = tuple[int, int, int, int, int, int, bool]
SHAPES: tuple[Shape, ...] = (
    # batch, heads, kv_heads, seq_q, seq_k, head_dim, causal
    (4, 16, 16, 2048, 2048, 128, True),
    (4, 16, 16, 2048, 2048, 64, True),
    (4, 16, 16, 1024, 1024, 128, False),
    (4, 16, 16, 1024, 1024, 64, False),
    (4, 16, 16, 512, 512, 128, False),
    (1, 8, 8, 2048, 2048, 64, False),
    (3, 7, 7, 1111, 1111, 128, True),
    (3, 7, 7, 1111, 1111, 64, False),
    (2, 33, 33, 640, 640, 64, True),
    (2, 8, 8, 256, 256, 64, False),
    (2, 8, 8, 128, 128, 64, True),
    (4, 64, 8, 1, 8192, 128, False),
)


@dataclass(slots=True)
class Lane:
    """One stream with its call. `written` are the outputs of the call, `wanted` the bits of the first launch, and
    `differing` counts the launches whose outputs differ from them."""

    stream: torch.cuda.Stream
    call: Bound
    written: tuple[torch.Tensor, ...]
    wanted: tuple[torch.Tensor, ...]
    differing: torch.Tensor

    def launch(self) -> None:
        with torch.cuda.stream(self.stream):
            for tensor in self.written:
                tensor.fill_(math.nan)
            self.call()
            off = [(bit_pattern(a) != bit_pattern(b)).any() for a, b in zip(self.written, self.wanted, strict=True)]
            self.differing += torch.stack(off).any()


def bit_pattern(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bits as integers, so that NaN equals itself and zero does not equal minus zero."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def make_lanes(engine: Engine, shape: Shape, dtype: torch.dtype, direction: str) -> list[Lane]:
    """Return two calls on the same inputs, each with another stream and other outputs. Both are compared with what the
    first call wrote."""
    batch, heads, kv_heads, seq_q, seq_k, head_dim, causal = shape
    q, k, v, slope = (
        torch.randn(batch, h, s, head_dim, device="cuda", dtype=dtype)
        for h, s in ((heads, seq_q), (kv_heads, seq_k), (kv_heads, seq_k), (heads, seq_q))
    )
    lanes: list[Lane] = []
    for _ in range(2):
        out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
        written: tuple[torch.Tensor, ...] = (out, lse)
        call = bind_attention(q, k, v, out, causal=causal, lse=lse, engine=engine)
        call()
        if direction == "backward":
            written = gradients = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
            tensors, options = {"q": q, "k": k, "v": v}, Options(causal)
            call = bind_backward(tensors, out, lse, slope, gradients, options, engine=engine, deterministic=True)
            call()
        wanted = lanes[0].wanted if lanes else tuple(one.clone() for one in written)
        zero = torch.zeros((), device="cuda", dtype=torch.int64)
        lanes.append(Lane(torch.cuda.Stream(), call, written, wanted, zero))
    torch.cuda.synchronize()
    return lanes


def stress_engine(engine: Engine, launches: int, direction: str = "forward") -> dict[str, Any]:
    """Return a row with the number of launches and of differing launches, in all and by shape. The launches are divided
    evenly over all shapes and both element types."""
    started, rows = time.perf_counter(), []
    noise = torch.cuda.Stream()
    source = torch.empty(NOISE_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    each = -(-launches // (2 * len(SHAPES)))
    for shape in SHAPES:
        for dtype in (torch.bfloat16, torch.float16):
            pair = make_lanes(engine, shape, dtype, direction)
            for number in range(each):
                if number % NOISE_EVERY == 0:
                    with torch.cuda.stream(noise):
                        target.copy_(source)
                pair[number % 2].launch()
            torch.cuda.synchronize()
            differing = sum(int(one.differing) for one in pair)
            rows.append(
                {"shape": list(shape), "dtype": str(dtype)[6:], "way": pair[0].call.way, "differing": differing}
            )
    return {
        "kind": "stress",
        "pass": direction,
        "launches": each * len(rows),
        "differing": sum(row["differing"] for row in rows),
        "shapes": rows,
        "seconds": round(time.perf_counter() - started, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--pass", dest="direction", choices=("forward", "backward"), default="forward")
    options = parser.parse_args()
    with torch.no_grad():
        outcome = stress_engine(engine_of(torch.device("cuda")), options.launches, options.direction)
    sys.stdout.write(json.dumps(outcome) + "\n")
    return 1 if outcome["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
