"""The kernels that the `backend` column names are those that CUPTI sees run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from kernels.attention.case import Case, Shape
from kernels.attention.workload import WORKLOAD
from kernels.harness.workload import Site
from tests.kernels.cuda.on_gpu import ON_GPU

pytestmark = ON_GPU
DEV = torch.device("cuda", 0)
PROFILES = 5
"""How often is tried: of a process's first profiles the first kernels may be missing, and more of them while other
processes use the device."""


@pytest.mark.parametrize("name", ["bench", "bench:lse"])
@pytest.mark.parametrize(
    "shape",
    [Shape(2, 8, 8, 128, 128, 64, False), Shape(2, 8, 8, 4096, 4096, 64, True), Shape(1, 64, 8, 1, 8192, 128, False)],
)
def test_what_is_named_is_what_ran(name: str, shape: Shape) -> None:
    from torch.profiler import ProfilerActivity, profile

    case = Case(shape, "bfloat16")
    site = Site(DEV, 0, Path(tempfile.mkdtemp()), Path.home() / ".cache" / "bench-kernels")
    implementation = WORKLOAD.implementation(name, site)
    implementation.build(site)
    inputs = WORKLOAD.problem().inputs(case, torch.Generator(DEV).manual_seed(1))
    call = implementation.bind(case, inputs)
    ran: set[str] = set()
    for _ in range(PROFILES):
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            call.plan()
            torch.cuda.synchronize()
        if ran := {one.key for one in seen.key_averages() if one.device_type.name == "CUDA"}:
            break
    named = set(call.backend.removesuffix("+lse").split("+"))
    assert named <= ran, (named, ran)
