"""`python3 -m kernels.harness.profiled`: one implementation on one case, called a few times for a profiler to look at.

Under Nsight Compute only the call between the profiler's start and stop is replayed. With `--out` PyTorch's profiler
looks at a block of calls, and writes its table and a trace that Chrome and Perfetto open.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels.forms.load import load_workload
from kernels.harness import axes, environment
from kernels.harness.answers import synchronize
from kernels.harness.bench import Bench
from kernels.harness.contenders import bind_contender, build_contender
from kernels.harness.own import OwnWorkload
from kernels.harness.spec import Spec, original_name, parse_spec
from kernels.harness.starting import describe_workload
from kernels.harness.steps import default_cache
from kernels.harness.workload import Site

WARM_CALLS = 3
BLOCK = 5
"""The number of calls in a block of a trace."""
MOST_ROWS = 40


def main(arguments: list[str]) -> int:
    """Makes the profile and returns 0; failures are raised."""
    parser = argparse.ArgumentParser(prog="python3 -m kernels.harness.profiled")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--case", required=True)
    parser.add_argument("--implementation", required=True)
    parser.add_argument("--out", default="", help="the stem of what PyTorch's profiler writes; none under ncu")
    options = parser.parse_args(arguments)
    spec = parse_spec(options.spec.read_text(encoding="utf-8"), describe_workload)
    if spec.threads:
        torch.set_num_threads(spec.threads)
    device = environment.default_device()
    with torch.inference_mode(), tempfile.TemporaryDirectory(prefix="bench-profile-") as logs:
        call = make_caller(
            spec, options.case, options.implementation, Site(device, spec.threads, Path(logs), default_cache())
        )
        for _ in range(WARM_CALLS):
            call()
        synchronize(device)
        if options.out:
            trace_calls(call, device, options.implementation, options.out)
        else:
            torch.cuda.profiler.start()
            call()
            synchronize(device)
            torch.cuda.profiler.stop()
    return 0


def make_caller(spec: Spec, case_id: str, name: str, site: Site) -> Callable[[], Any]:
    """One call of an implementation on a case's inputs."""
    device = site.device
    case: Any = next(one for one in spec.measure if one.id == case_id)
    if isinstance(spec.workload, OwnWorkload):
        definition = load_workload(spec.workload.form, Path(spec.workload.path))
        bench = Bench(definition, original_name(name), device)
        bench.bind(dict(case.values), axes.case_seed(case, spec.seed, "inputs"))
        return lambda: bench.call(0)
    crew = {original_name(name): build_contender(spec.workload, original_name(name), site)}
    inputs = spec.workload.problem().inputs(case, axes.case_generator(case, device, spec.seed))
    bound = bind_contender(name, crew, case, inputs)

    def call() -> None:
        with bound.scope():
            bound.plan()

    return call


def trace_calls(call: Callable[[], Any], device: torch.device, name: str, stem: str) -> None:
    """Makes a block of calls under PyTorch's profiler. Writes its table as JSON, and its trace compressed."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=kinds, record_shapes=False) as seen:
        for number in range(BLOCK):
            with torch.profiler.record_function(f"{name} call {number + 1}"):
                call()
                synchronize(device)
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as folder:
        plain = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(plain))
        with gzip.open(f"{stem}.trace.json.gz", "wb") as packed:
            packed.write(plain.read_bytes())
    table = sorted(
        (operation_row(one) for one in seen.key_averages()), key=lambda one: -(one["device_us"] or one["cpu_us"])
    )
    content = {"schema": 1, "tool": "torch.profiler", "calls": BLOCK, "rows": table[:MOST_ROWS]}
    Path(f"{stem}.table.json").write_text(json.dumps(content, indent=1) + "\n")


def operation_row(one: Any) -> dict[str, Any]:
    """One operation: how often it ran, and its own microseconds on the host and on the device, over all calls."""
    on_device = getattr(one, "self_device_time_total", 0.0)
    return {
        "name": str(one.key)[:200], "count": int(one.count), "cpu_us": round(float(one.self_cpu_time_total), 3),
        "device_us": round(float(on_device or 0.0), 3),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
