"""Measures the portable kernel against every backend of PyTorch, and the code paths of other chips with it.

    python -m kernels.attention.cuda.campaign.portable OUT.jsonl [--quick]

Writes one JSON object a line: `environment`, `build`, `host` (what a call costs the host), then one `cell` for each
problem. A contender that is wrong on a cell's inputs has no time there, only its error. `fa2@sm_75` and the like are
the PTX that those chips run, translated by this device's driver: that code on this chip, not the speed of that chip.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention.cuda.campaign.timing import Call, Times, between_events, compare
from kernels.attention.cuda.compiler import Target
from kernels.attention.cuda.driver import driver
from kernels.attention.cuda.engine import Engine
from kernels.attention.cuda.errors import BuildFailed, Unavailable
from kernels.attention.cuda.ladder import bind_rung
from kernels.attention.cuda.launching import Bound, Step
from kernels.attention.cuda.operator import bind
from kernels.attention.cuda.variants import entry_point

BATCH, HEADS = 4, 16
LENGTHS = (512, 1024, 2048, 4096, 8192)
RIVALS = ("flash", "efficient", "cudnn")
TRANSLATED = ("compute_75", "compute_80", "compute_89")
LADDER_LENGTH = 1024
GEMM_SIZE = 8192
HOST_CALLS = 2000
RELATIVE_ERROR = {"float16": 1.2e-3, "bfloat16": 8e-3}


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


def tflops(batch: int, heads: int, seq: int, head_dim: int, causal: bool, us: float) -> float:
    """4 B H S^2 D operations, half of them if causal, over the time."""
    return 4 * batch * heads * seq**2 * head_dim * (0.5 if causal else 1.0) / us / 1e6


@dataclasses.dataclass(frozen=True)
class Cell:
    """One problem: batch 4, 16 heads, as many queries as keys."""

    dtype: str
    head_dim: int
    causal: bool
    seq: int
    ladder: bool = False


def cells(quick: bool) -> Iterator[Cell]:
    for dtype in ("float16", "bfloat16"):
        for head_dim in (64, 128):
            for causal in (False, True):
                for seq in LENGTHS[:2] if quick else LENGTHS:
                    yield Cell(dtype, head_dim, causal, seq, ladder=seq == LADDER_LENGTH and dtype == "float16")


@dataclasses.dataclass(frozen=True)
class Nothing:
    """An empty kernel: what a launch costs in itself."""

    name: str = "nothing"
    threads: int = 128
    shared_bytes: int = 0

    @property
    def source(self) -> str:
        return entry_point(self.name, self.threads, "(void)p")


def environment(engine: Engine) -> dict[str, Any]:
    """Where this was measured, and the rate of a large matrix product there: the roof that a kernel can hope for."""
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(12):
        before, after = between_events(lambda: a @ b)
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
    return {
        "kind": "environment",
        "device": torch.cuda.get_device_name(),
        "sm_count": engine.machine.sm_count,
        "driver": driver_version(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "gemm_tflops": 2 * GEMM_SIZE**3 / statistics.median(times[2:]) / 1e9,
        "recorded_at": datetime.now(UTC).isoformat(),
    }


def driver_version() -> str:
    """The kernel driver's version, as the file system shows it; CUDA's own number where it does not."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
        return next(word for word in words if word.count(".") >= 1 and word[0].isdigit())
    except (OSError, StopIteration):
        return str(torch.version.cuda)


def host_cost(engine: Engine) -> dict[str, Any]:
    """Microseconds of the host's time a call: of a bound plan, of the driver's launch of an empty kernel, of SDPA.

    Medians of 15 turns. The queue never fills: the host waits for the device before each turn.
    """
    q = torch.randn(1, 1, 64, 64, device="cuda", dtype=torch.float16)
    out = torch.empty_like(q)
    plan = bind(q, q, q, out, engine=engine)
    nothing = Bound(engine, "nothing", [Step(Nothing(), (1, 1, 1), plan.plan[0].arguments)], ())
    _, config, function, arguments = nothing.steps[0]
    launch = driver().library.cuLaunchKernelEx
    calls: dict[str, Call] = {"bound": plan, "empty": lambda: launch(config, function, arguments, None)}
    with torch.no_grad():
        calls["sdpa"] = lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)
        took: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(16):
            for name, call in calls.items():
                torch.cuda.synchronize()
                started = time.perf_counter()
                for _ in range(HOST_CALLS // 16):
                    call()
                took[name].append((time.perf_counter() - started) / (HOST_CALLS // 16) * 1e6)
    return {"kind": "host", **{f"{name}_us": statistics.median(times[1:]) for name, times in took.items()}}


def contenders(
    cell: Cell, engines: dict[str, Engine], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[dict[str, Call], dict[str, torch.Tensor], dict[str, str]]:
    """The calls of a cell with their outputs, and why the others cannot run."""
    calls: dict[str, Call] = {}
    outputs: dict[str, torch.Tensor] = {}
    absent: dict[str, str] = {}
    for name, engine in engines.items():
        try:
            outputs[name] = torch.full_like(q, float("nan"))
            calls[name] = bind(q, k, v, outputs[name], causal=cell.causal, engine=engine)
            calls[name]()
        except (Unavailable, BuildFailed) as exc:
            absent[name] = str(exc)
    if cell.ladder:
        for rung in ("naive", "tiled"):
            outputs[rung] = torch.full_like(q, float("nan"))
            calls[rung] = bind_rung(rung, q, k, v, outputs[rung], causal=cell.causal, engine=engines["fa2"])
            calls[rung]()
    for rival in RIVALS:
        try:
            call = sdpa(rival, q, k, v, cell.causal)
            result = call()
        except RuntimeError as exc:
            absent[rival] = str(exc).splitlines()[0]
            continue
        assert isinstance(result, torch.Tensor)
        calls[rival], outputs[rival] = call, result
    return calls, outputs, absent


def exact(cell: Cell, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in float64 for the first and the last head: enough to judge every tile of a head."""
    picked = []
    for b, h in ((0, 0), (BATCH - 1, HEADS - 1)):
        parts = []
        keys = torch.arange(cell.seq, device="cuda")
        for rows in torch.arange(cell.seq, device="cuda").split(2048):
            scores = q[b, h, rows].double() @ k[b, h].double().T * cell.head_dim**-0.5
            if cell.causal:
                scores = scores.masked_fill(keys[None] > rows[:, None], float("-inf"))
            parts.append(torch.softmax(scores, -1) @ v[b, h].double())
        picked.append(torch.cat(parts))
    return torch.stack(picked)


def measure(cell: Cell, engines: dict[str, Engine], quick: bool) -> dict[str, Any]:
    torch.manual_seed(cell.seq * 7 + cell.head_dim)
    shape = (BATCH, HEADS, cell.seq, cell.head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=getattr(torch, cell.dtype)) for _ in range(3))
    calls, outputs, absent = contenders(cell, engines, q, k, v)
    want = exact(cell, q, k, v)
    errors: dict[str, dict[str, float]] = {}
    for name, output in outputs.items():
        if name in absent:
            continue
        got = torch.stack([output[0, 0], output[-1, -1]]).double()
        relative = ((got - want).norm() / want.norm()).item()
        errors[name] = {"max_abs": (got - want).abs().max().item(), "relative": relative}
        if not relative < RELATIVE_ERROR[cell.dtype]:
            absent[name] = f"wrong: relative error {relative:.3g}"
            calls.pop(name, None)
    del outputs
    rounds = (5, 3) if quick else (11, 5)
    times = compare(calls, burst_rounds=rounds[0], graph_rounds=rounds[1], seed=cell.seq)
    return {
        "kind": "cell",
        **dataclasses.asdict(cell),
        "batch": BATCH,
        "heads": HEADS,
        "errors": errors,
        "absent": absent,
        "times": {name: summary(cell, one) for name, one in times.items()},
    }


def summary(cell: Cell, times: Times) -> dict[str, Any]:
    """Medians and quartiles in microseconds, and the rate that the medians mean."""
    found: dict[str, Any] = {}
    for regime, values in (("burst", times.burst_us), ("graph", times.graph_us)):
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        found[regime] = {
            "median_us": middle,
            "quartiles_us": [low, high],
            "tflops": tflops(BATCH, HEADS, cell.seq, cell.head_dim, cell.causal, middle),
        }
    return found


def write(out: TextIO, row: dict[str, Any]) -> None:
    out.write(json.dumps(row) + "\n")
    out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the CUDA kernel on this GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="two lengths and fewer rounds: does everything run?")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda")
    engine = Engine(device)
    started = time.perf_counter()
    built = engine.build_all()
    engines = {"fa2": engine}
    for name in TRANSLATED:
        target = Target(name)
        if target.capability <= torch.cuda.get_device_capability()[0] * 10 + torch.cuda.get_device_capability()[1]:
            engines[f"fa2@sm_{target.capability}"] = Engine(device, target=target)
    with asked.out.open("w") as out:
        write(out, environment(engine))
        write(
            out,
            {
                "kind": "build",
                "seconds": time.perf_counter() - started,
                "kernels": len(built),
                "compiler": f"{engine.find_compiler().name} {engine.find_compiler().version}",
                "cached": sum(one.cached for one in built),
                "slowest_s": max(one.seconds for one in built),
                "registers": max(one.resources.registers for one in built if one.resources),
                "spill_bytes": sum(one.resources.spill_bytes for one in built if one.resources),
            },
        )
        write(out, host_cost(engine))
        for cell in cells(asked.quick):
            row = measure(cell, engines, asked.quick)
            write(out, row)
            speed = {name: round(times["burst"]["tflops"]) for name, times in row["times"].items()}
            say(cell.dtype, cell.head_dim, "causal" if cell.causal else "full", cell.seq, speed)
            for name, reason in row["absent"].items():
                if not reason.startswith(("turing", "No")):
                    say("   ", name, reason[:120])


if __name__ == "__main__":
    main()
