"""Every way there is beside PyTorch's backends at small shapes, in CUDA graphs: which one pays where.

    python -m kernels.attention.cuda.campaign.small --lengths 64 128 256 512 --ways small --dependent

`warm` replays calls on one set of inputs; `cold` rotates over sets that together exceed the L2 cache; `burst` is one
call on an idle chip with a cold L2 cache. Prints microseconds a call, the fastest first, and the speed-up over the
fastest backend.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention.cuda import dispatch
from kernels.attention.cuda.build import build_all
from kernels.attention.cuda.campaign.contenders import BACKENDS
from kernels.attention.cuda.campaign.host import say, sdpa
from kernels.attention.cuda.campaign.timing import between_events, capture, compare
from kernels.attention.cuda.engine import Engine, engine_of
from kernels.attention.cuda.errors import BuildFailed, Unsupported
from kernels.attention.cuda.hopper import HopperWay
from kernels.attention.cuda.operator import bind, problem_of
from kernels.attention.cuda.small import Small
from kernels.attention.cuda.small_hopper import SmallHopper
from kernels.attention.cuda.variants import Entry

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Call = Callable[[], object]
COLD_BYTES = 192 * 2**20
MAX_SETS = 256
GRAPH_CALLS = 128
ERROR = 1.2e-2


def inputs_of(shape: Sequence[int], dtype: torch.dtype, sets: int) -> list[Inputs]:
    """Random q, k and v, several times."""
    return [
        (
            torch.randn(*shape, device="cuda", dtype=dtype),
            torch.randn(*shape, device="cuda", dtype=dtype),
            torch.randn(*shape, device="cuda", dtype=dtype),
        )
        for _ in range(sets)
    ]


def contenders(
    engine: Engine, sets: Sequence[Inputs], causal: bool, prefixes: Sequence[str], dependent: bool
) -> dict[str, list[Call]]:
    """For each way and backend its calls, one for each set of inputs; what computes wrongly is left out, loudly."""
    found: dict[str, list[Call]] = {}
    for backend in ("cudnn", "flash", "efficient"):
        calls = [sdpa(backend, *one, causal) for one in sets]
        try:
            calls[0]()
        except RuntimeError as exc:
            say("no", backend, str(exc)[:80])
            continue
        found[backend] = calls
    q, k, v = sets[0]
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal)
    problem = problem_of(q, k, v, q, causal=causal, alignment="top-left")
    all_ways = dispatch.ways(problem, engine.machine)
    if dependent:
        all_ways += dispatch.ways(problem, engine.machine, dependent=True)
    wanted = [way for way in all_ways if any(way.name.startswith(prefix) for prefix in prefixes)]
    kernels: list[Entry] = [way.kernel for way in wanted if isinstance(way, Small | SmallHopper | HopperWay)]
    build_all(kernels, engine.target, engine.find_compiler(), engine.cache)  # in parallel; bind finds them in the cache
    for name in dict.fromkeys(way.name for way in wanted):
        try:
            outs = [torch.full_like(one[0], math.nan) for one in sets]
            calls = [
                bind(*one, out, causal=causal, way=name, engine=engine) for one, out in zip(sets, outs, strict=True)
            ]
        except (BuildFailed, Unsupported) as exc:
            say("unusable", name, str(exc)[:150])
            continue
        calls[0]()
        error = ((outs[0].float() - expected).norm() / expected.norm()).item()
        if not error < ERROR:
            say("WRONG", name, tuple(q.shape), f"error {error:.3g}")
            continue
        found[name] = list(calls)
    return found


def graphs(found: dict[str, list[Call]], *, cold: bool, rounds: int) -> dict[str, float]:
    """Median microseconds a call, from graphs replayed in random order."""
    per_graph = {name: max(GRAPH_CALLS, len(calls)) if cold else GRAPH_CALLS for name, calls in found.items()}
    replays = {name: capture(calls if cold else calls[:1], per_graph[name]) for name, calls in found.items()}
    times: dict[str, list[float]] = {name: [] for name in found}
    order, chance = list(found), random.Random(1)
    for round_ in range(rounds + 1):
        chance.shuffle(order)
        events = [(name, *between_events(replays[name])) for name in order]
        torch.cuda.synchronize()
        for name, before, after in events:
            if round_:  # the first replay of a graph uploads it
                times[name].append(before.elapsed_time(after) * 1e3 / per_graph[name])
    return {name: statistics.median(values) for name, values in times.items()}


def report(label: str, us: dict[str, float], top: int) -> None:
    backends = {name: us[name] for name in us if name in BACKENDS}
    best = min(backends.values())
    ours = sorted((value, name) for name, value in us.items() if name not in BACKENDS)
    peers = " ".join(f"{name} {value:.2f}" for name, value in backends.items())
    say(f"{label}: {peers} | " + ", ".join(f"{name} {value:.2f} ({best / value:.2f}x)" for value, name in ours[:top]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--masks", nargs="+", default=["full"], choices=["full", "causal"])
    parser.add_argument("--regimes", nargs="+", default=["warm", "cold"], choices=["warm", "cold", "burst"])
    parser.add_argument("--ways", nargs="+", default=["small"], help="beginnings of the names of ways to time")
    parser.add_argument("--dependent", action="store_true", help="also those with programmatic dependent launch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--top", type=int, default=6, help="how many of ours to print")
    parser.add_argument("--jsonl", type=Path, help="append every time to this file")
    wanted = parser.parse_args()
    engine = engine_of(torch.device("cuda"))
    for head_dim in wanted.head_dims:
        for seq in wanted.lengths:
            shape = (wanted.batch, wanted.heads, seq, head_dim)
            per_set = 4 * math.prod(shape) * 2
            sets = min(MAX_SETS, max(2, COLD_BYTES // per_set)) if "cold" in wanted.regimes else 1
            inputs = inputs_of(shape, getattr(torch, wanted.dtype), sets)
            for mask in wanted.masks:
                found = contenders(engine, inputs, mask == "causal", wanted.ways, wanted.dependent)
                for regime in wanted.regimes:
                    if regime == "burst":
                        first = {name: calls[0] for name, calls in found.items()}
                        times = compare(first, burst_rounds=wanted.rounds, graph_rounds=0, seed=seq)
                        us = {name: one.burst_median_us for name, one in times.items()}
                    else:
                        us = graphs(found, cold=regime == "cold", rounds=wanted.rounds)
                    report(f"d{head_dim} s{seq} {mask} {regime}", us, wanted.top)
                    if wanted.jsonl:
                        row = {"shape": shape, "mask": mask, "dtype": wanted.dtype, "regime": regime, "us": us}
                        with wanted.jsonl.open("a") as out:
                            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
