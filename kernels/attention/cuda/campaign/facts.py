"""Where a campaign ran, what building cost, and what a call costs the host."""

from __future__ import annotations

import platform
import statistics
import time
from datetime import UTC, datetime
from typing import Any

import torch

from kernels.attention.cuda.campaign.portable import driver_version
from kernels.attention.cuda.campaign.timing import Call, Gauges, between_events
from kernels.attention.cuda.engine import Engine
from kernels.attention.cuda.operator import attention, bind

GEMM_SIZE = 8192
COPY_BYTES = 2**31
HOST_CALLS, HOST_TURNS = 200, 9
HOST_SHAPES = ((1, 1, 64, 64), (2, 8, 128, 64), (2, 8, 512, 64), (4, 16, 256, 128), (1, 64, 256, 128))


def median_ms(call: Call, times: int = 12) -> float:
    """Milliseconds of one call, the first two left out."""
    found: list[float] = []
    for _ in range(times):
        before, after = between_events(call)
        torch.cuda.synchronize()
        found.append(before.elapsed_time(after))
    return statistics.median(found[2:])


def environment(engine: Engine, about: dict[str, Any]) -> dict[str, Any]:
    """The machine, the versions, and its two roofs: a large matrix product's rate and a large copy's."""
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gemm = median_ms(lambda: a @ b)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy = median_ms(lambda: target.copy_(source))
    return {
        "kind": "environment",
        "device": torch.cuda.get_device_name(),
        "sm_count": engine.machine.sm_count,
        "l2_bytes": engine.machine.l2_bytes,
        "driver": driver_version(),
        "python": platform.python_version(),
        **about,
        "gemm_tflops": round(2 * GEMM_SIZE**3 / gemm / 1e9, 1),
        "copy_gb_per_s": round(2 * COPY_BYTES / copy / 1e6, 1),
        "state": Gauges().read(),
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def build(engine: Engine) -> dict[str, Any]:
    """Compile and load everything the engine has, and what the compiler said of it."""
    started = time.perf_counter()
    built = engine.build_all()
    seconds = time.perf_counter() - started
    compiler = engine.find_compiler()
    return {
        "kind": "build",
        "kernels": len(built),
        "seconds": round(seconds, 2),
        "compiler": f"{compiler.name} {compiler.version}",
        "cached": sum(one.cached for one in built),
        "slowest_s": round(max(one.seconds for one in built), 2),
        **resources(engine),
    }


def resources(engine: Engine) -> dict[str, Any]:
    """Registers, spills, and warnings that ptxas made wgmma wait for itself, over all kernels loaded so far."""
    built = list(engine.built.values())
    logs = [function.log for function in engine.functions.values()]
    logs += [path.read_text() for path in engine.cache.folder.glob(f"*-{engine.target.name}-*.json")]
    return {
        "loaded": len(built),
        "registers": max((one.resources.registers for one in built if one.resources), default=0),
        "spill_bytes": sum(one.resources.spill_bytes for one in built if one.resources),
        "serialised": sum("serializ" in log.lower() for log in logs),
    }


def host_cost(engine: Engine) -> dict[str, Any]:
    """Microseconds of the host's time an eager call: our operator, allocation and checks included; SDPA; a bound call.

    Medians of turns of 200 calls. The queue never fills: the host waits for the device before each turn.
    """
    rows = []
    for shape in HOST_SHAPES:
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        plan = bind(q, k, v, torch.empty_like(q), engine=engine)
        calls: dict[str, Call] = {
            "attention": lambda q=q, k=k, v=v: attention(q, k, v),  # type: ignore[misc]
            "sdpa": lambda q=q, k=k, v=v: torch.nn.functional.scaled_dot_product_attention(q, k, v),  # type: ignore[misc]
            "bound": plan,
        }
        took: dict[str, list[float]] = {name: [] for name in calls}
        with torch.no_grad():
            for _ in range(HOST_TURNS):
                for name, call in calls.items():
                    torch.cuda.synchronize()
                    started = time.perf_counter()
                    for _ in range(HOST_CALLS):
                        call()
                    took[name].append((time.perf_counter() - started) / HOST_CALLS * 1e6)
        rows.append(
            {"shape": list(shape), **{f"{name}_us": round(statistics.median(t[1:]), 2) for name, t in took.items()}}
        )
    return {"kind": "host", "shapes": rows}
