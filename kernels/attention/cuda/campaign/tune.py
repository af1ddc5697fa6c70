"""Compares tiles: each candidate against PyTorch's FlashAttention-2 and against the others, on the same inputs.

    python -m kernels.attention.cuda.campaign.tune CANDIDATES.json OUT.jsonl

CANDIDATES.json: {"target": "sm_90", "batch": 4, "heads": 16, "dtypes": [...], "lengths": [...], "causal": [...],
"tiles": {"64": [[rows, keys, warps, stages, q_in_registers], ...], "128": [...]}, "backends": ["flash"]}.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention.cuda.build import build_one
from kernels.attention.cuda.campaign.timing import Call, compare
from kernels.attention.cuda.compiler import Target
from kernels.attention.cuda.engine import Engine
from kernels.attention.cuda.errors import BuildFailed
from kernels.attention.cuda.operator import bind
from kernels.attention.cuda.variants import Chip, Kernel, Tile

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def say(*words: object) -> None:
    """To standard output, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def sdpa(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Call:
    """PyTorch's attention pinned to a backend, whose context it enters on each call."""
    chosen = BACKENDS[backend]

    def call() -> object:
        with sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def with_tile(engine: Engine, head_dim: int, causal: bool, tile: Tile) -> Chip:
    """The engine's chip, with this tile for everything."""
    tiles = {**engine.chip.large, (head_dim, causal): tile}
    return dataclasses.replace(engine.chip, large=tiles, small=tiles)


def tflops(batch: int, heads: int, seq: int, head_dim: int, causal: bool, us: float) -> float:
    """4 B H S^2 D operations, half of them if causal, over the time."""
    return 4 * batch * heads * seq**2 * head_dim * (0.5 if causal else 1.0) / us / 1e6


def main() -> None:
    wanted: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    out_path = Path(sys.argv[2])
    engine = Engine(torch.device("cuda"), target=Target(wanted["target"]))
    candidates = [
        Kernel(dtype, int(head_dim), causal, True, Tile(*tile))
        for head_dim, tiles in wanted["tiles"].items()
        for tile in tiles
        for causal in map(bool, wanted["causal"])
        for dtype in wanted["dtypes"]
    ]
    started = time.perf_counter()
    usable: set[str] = set()

    def build(kernel: Kernel) -> str | None:
        try:
            build_one(kernel, engine.target, engine.find_compiler(), engine.cache)
        except BuildFailed as exc:
            say("unusable", str(exc)[:200])
            return None
        return kernel.name

    with ThreadPoolExecutor(16) as pool:
        usable.update(name for name in pool.map(build, candidates) if name)
    say(f"built {len(usable)} of {len(candidates)} in {time.perf_counter() - started:.1f} s")

    batch, heads = wanted["batch"], wanted["heads"]
    with out_path.open("a") as out:
        for head_dim, tiles in ((int(d), [Tile(*t) for t in ts]) for d, ts in wanted["tiles"].items()):
            for causal in map(bool, wanted["causal"]):
                for dtype in wanted["dtypes"]:
                    for seq in wanted["lengths"]:
                        row = measure(engine, wanted, usable, tiles, dtype, batch, heads, seq, head_dim, causal)
                        out.write(json.dumps(row) + "\n")
                        out.flush()


def measure(
    engine: Engine,
    wanted: dict[str, Any],
    usable: set[str],
    tiles: list[Tile],
    dtype: str,
    batch: int,
    heads: int,
    seq: int,
    head_dim: int,
    causal: bool,
) -> dict[str, Any]:
    torch.manual_seed(seq)
    shape = (batch, heads, seq, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) for _ in range(3))
    calls: dict[str, Call] = {name: sdpa(name, q, k, v, causal) for name in wanted["backends"]}
    expected = sdpa("flash", q, k, v, causal)()
    assert isinstance(expected, torch.Tensor)
    machine = engine.machine
    for tile in tiles:
        name = Kernel(dtype, head_dim, causal, True, tile).name
        if name not in usable:
            continue
        out = torch.full_like(q, math.nan)
        engine.machine = dataclasses.replace(machine, chip=with_tile(engine, head_dim, causal, tile))
        try:
            call: Callable[[], None] = bind(q, k, v, out, causal=causal, engine=engine)
        except BuildFailed as exc:  # PTX shows its spills only when the driver translates it
            say("unusable", str(exc)[:200])
            continue
        call()
        error = ((out.float() - expected.float()).norm() / expected.float().norm()).item()
        if not error < 1.2e-2:
            say("WRONG", name, seq, error)
            continue
        calls[name.partition("_vector_")[2]] = call
    engine.machine = machine
    times = compare(calls, burst_rounds=wanted["burst_rounds"], graph_rounds=wanted["graph_rounds"], seed=seq)
    row: dict[str, Any] = {"dtype": dtype, "head_dim": head_dim, "causal": causal, "seq": seq}
    for regime in ("burst", "graph"):
        speed = {
            name: tflops(batch, heads, seq, head_dim, causal, getattr(one, f"{regime}_median_us"))
            for name, one in times.items()
            if getattr(one, f"{regime}_us")
        }
        row[regime] = speed
        base = speed.get("flash") or 1.0
        say(
            f"{dtype[:2]} d{head_dim} {'causal' if causal else 'full'} {seq} {regime}: "
            + " ".join(f"{name} {x:.0f} ({x / base:.3f})" for name, x in speed.items())
        )
    return row


if __name__ == "__main__":
    main()
