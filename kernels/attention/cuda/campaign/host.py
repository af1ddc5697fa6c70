"""What a call from Python costs: ours against PyTorch's, output and checks included.

    python -m kernels.attention.cuda.campaign.host --out host.jsonl

`back to back` is the wall time of calls without a wait between them, which shows the slower of host and device. `host`
is the time until a call returns while the device is kept busy. `sync` waits for the device after each call.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.baseline import BACKENDS
from kernels.attention.cuda.operator import attention, bind_attention

Call = Callable[[], object]
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
BACK_TO_BACK_S, MAX_CALLS, SYNC_CALLS = 0.01, 500, 30
SPIN_CYCLES, CALLS_UNDER_SPIN = 4_000_000, 100


def say_line(*words: object) -> None:
    """Print the words to standard output and flush it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def sdpa_call(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Call:
    """Return a call of PyTorch's attention with one backend. Each call enters the context of the backend."""
    chosen = BACKENDS[backend]

    def call() -> object:
        with sdpa_kernel(chosen):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def contending_calls(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> dict[str, Call]:
    """Return the calls by name: ours (plain, with log-sum-exp, bound in advance), PyTorch's default, and each backend
    of PyTorch that supports the problem. A call that raises RuntimeError is left out."""

    calls: dict[str, Call] = {
        "ours": partial(attention, q, k, v, causal=causal),
        "ours+lse": partial(attention, q, k, v, causal=causal, return_lse=True),
        "bound": bind_attention(q, k, v, torch.empty_like(q), causal=causal),
        "sdpa": partial(scaled_dot_product_attention, q, k, v, is_causal=causal),
    }
    calls |= {backend: sdpa_call(backend, q, k, v, causal) for backend in ("cudnn", "flash", "efficient")}
    usable = {}
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as exc:
            say_line("no", name, str(exc)[:100])
        else:
            usable[name] = call
    return usable


def back_to_back(call: Call) -> float:
    """Return the wall microseconds per call over calls of about BACK_TO_BACK_S in all, at least 10 and at most
    MAX_CALLS."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(10, min(MAX_CALLS, int(BACK_TO_BACK_S / (time.perf_counter() - started))))
    started = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count * 1e6


def host_only(call: Call) -> float:
    """Return the mean microseconds until a call returns, while a spin kernel keeps the device busy."""
    torch.cuda.synchronize()
    torch.cuda._sleep(SPIN_CYCLES)
    started = time.perf_counter()
    for _ in range(CALLS_UNDER_SPIN):
        call()
    passed = time.perf_counter() - started
    torch.cuda.synchronize()
    return passed / CALLS_UNDER_SPIN * 1e6


def synchronised_time(call: Call) -> float:
    """Return the mean microseconds from a call to the end of its work on the device, one call at a time."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(SYNC_CALLS):
        call()
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / SYNC_CALLS * 1e6


REGIMES: Mapping[str, Callable[[Call], float]] = {
    "back to back": back_to_back,
    "host": host_only,
    "sync": synchronised_time,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="append a row for each length and regime to this file")
    options = parser.parse_args()
    chance = random.Random(1)
    for seq in options.lengths:
        shape = (options.batch, options.heads, seq, options.head_dim)
        q, k, v = (torch.randn(shape, device="cuda", dtype=getattr(torch, options.dtype)) for _ in range(3))
        calls = contending_calls(q, k, v, options.causal)
        for regime, measure in REGIMES.items():
            times: dict[str, list[float]] = {name: [] for name in calls}
            for round_ in range(options.rounds + 1):
                for name in chance.sample(list(calls), len(calls)):
                    us = measure(calls[name])
                    if round_:
                        times[name].append(us)
            medians = {name: statistics.median(values) for name, values in times.items()}
            median_text = " ".join(f"{name} {value:.2f}" for name, value in medians.items())
            say_line(f"s{seq} {regime}: {median_text} | sdpa/ours {medians['sdpa'] / medians['ours']:.2f}")
            if options.out:
                row = {
                    "shape": shape,
                    "causal": options.causal,
                    "dtype": options.dtype,
                    "regime": regime,
                    "us": medians,
                }
                with options.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
