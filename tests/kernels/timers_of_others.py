"""The same calls by this harness and by others' timers: medians in microseconds as CSV.

    python3 -m tests.kernels.timers_of_others > timers.csv

A timer that is not installed, or cannot do a call, leaves its cell empty and says why on standard error. NVBench runs
in a process of its own for each cell: one process may run its benchmarks once.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.cuda.operator import bind_attention
from kernels.harness.cupti import span_of, trace_activities
from kernels.harness.timers import timer_for
from kernels.harness.turns import Contender, Turns

Call = Callable[[], object]
Sizes = tuple[int, int, int, int, bool]
CALLS: tuple[Sizes, ...] = (
    # batch, heads, tokens, head dimension, causal
    (2, 8, 64, 64, False),
    (2, 8, 256, 64, False),
    (2, 8, 512, 128, True),
    (4, 16, 512, 128, False),
    (4, 16, 1024, 128, True),
    (4, 16, 2048, 128, False),
    (4, 16, 4096, 128, False),
)
KINDS = ("bench", "cudnn")
SETS, SAMPLES = 4, 15


def backend_of(kind: str) -> AbstractContextManager[object]:
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if kind == "cudnn" else nullcontext()


def calls_of(sizes: Sizes, kind: str) -> list[Call]:
    """Return the same call on each of several sets of bf16 inputs, warmed up."""
    batch, heads, tokens, head_dim, causal = sizes
    calls: list[Call] = []
    for _ in range(SETS):
        q, k, v = (torch.randn(batch, heads, tokens, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        if kind == "bench":
            calls.append(bind_attention(q, k, v, torch.empty_like(q), causal=causal))
        else:
            calls.append(partial(scaled_dot_product_attention, q, k, v, is_causal=causal))
    for call in calls * 3:
        call()
    torch.cuda.synchronize()
    return calls


def by_harness(regime: str, calls: list[Call]) -> float:
    contender, turns = Contender("call", tuple(calls), nullcontext), Turns(len(calls))
    timer = timer_for(torch.device("cuda", torch.cuda.current_device()), regime)(contender)
    samples = [timer(turns.take(contender, timer.calls_made)).latency_us for _ in range(SAMPLES + 3)]
    return statistics.median(samples[3:])


def by_do_bench(calls: list[Call]) -> float:
    from triton.testing import do_bench  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return 1000 * float(do_bench(calls[0], return_mode="median"))


def by_do_bench_graph(calls: list[Call]) -> float:
    from triton.testing import do_bench_cudagraph  # type: ignore[import-not-found, import-untyped, unused-ignore]

    with torch.cuda.stream(torch.cuda.Stream()):
        return 1000 * float(do_bench_cudagraph(calls[0], return_mode="median"))


def by_torch_benchmark(calls: list[Call]) -> float:
    from torch.utils.benchmark import Timer

    return 1e6 * float(Timer("call()", globals={"call": calls[0]}).blocked_autorange(min_run_time=0.2).median)


def by_cupti(calls: list[Call]) -> float:
    """Return the median span of a call's kernels, first start to last end, on a device that was idle before."""

    def run_calls() -> None:
        for number in range(SAMPLES):
            calls[number % len(calls)]()
            torch.cuda.synchronize()

    activities = trace_activities(run_calls)
    per_call = len(activities) // SAMPLES
    spans = [span_of(activities[first : first + per_call]) for first in range(0, per_call * SAMPLES, per_call)]
    return statistics.median(spans) / 1000


def by_nvbench(calls: list[Call]) -> float:
    """Return NVBench's mean of isolated measurements, each after it has cleared the L2 cache."""
    import cuda.bench as bench  # type: ignore[import-not-found, import-untyped, unused-ignore]

    def present_call(state: Any) -> None:
        def launch(launched: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(launched.get_stream().addressof())):
                calls[0]()

        state.exec(launch)

    bench.register(present_call)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nvbench.json"
        bench.run_all_benchmarks(["timers", "--json", str(path), "--quiet", "--timeout", "0.5"])
        document = json.loads(path.read_text())
    [state] = document["benchmarks"][0]["states"]
    [mean] = [summary for summary in state["summaries"] if summary["tag"] == "nv/cold/time/gpu/mean"]
    [value] = [float(datum["value"]) for datum in mean["data"] if datum["name"] == "value"]
    return 1e6 * value


TIMERS: dict[str, Callable[[list[Call]], float]] = {
    "harness graph": lambda calls: by_harness("graph", calls),
    "harness burst": lambda calls: by_harness("burst", calls),
    "cupti": by_cupti,
    "triton do_bench": by_do_bench,
    "triton do_bench_cudagraph": by_do_bench_graph,
    "torch.utils.benchmark": by_torch_benchmark,
}


def measure_nvbench(sizes: Sizes, kind: str) -> float:
    """Measure one cell with NVBench in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, str(CALLS.index(sizes)), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout.split()[-1])


def measure_cell(sizes: Sizes, kind: str) -> dict[str, str]:
    """Return what each timer says of a call, in microseconds, empty where one says nothing. Their order is random."""
    cells = dict.fromkeys([*TIMERS, "nvbench"], "")
    with backend_of(kind):
        calls = calls_of(sizes, kind)
        for name in random.sample(list(cells), len(cells)):
            try:
                value = measure_nvbench(sizes, kind) if name == "nvbench" else TIMERS[name](calls)
                cells[name] = f"{value:.2f}"
            except Exception as error:  # another's timer may fail in any way
                sys.stderr.write(f"{kind} {sizes}, {name}: {type(error).__name__}: {error}\n"[:300])
    return cells


def main(arguments: list[str]) -> int:
    if arguments:  # one cell by NVBench, for `measure_nvbench`
        with backend_of(arguments[1]):
            sys.stdout.write(f"{by_nvbench(calls_of(CALLS[int(arguments[0])], arguments[1]))}\n")
        return 0
    device = torch.cuda.get_device_name()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["device", "batch", "heads", "tokens", "head_dim", "causal", "implementation", *TIMERS, "nvbench"])
    for sizes in CALLS:
        for kind in KINDS:
            writer.writerow([device, *sizes, kind, *measure_cell(sizes, kind).values()])
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
