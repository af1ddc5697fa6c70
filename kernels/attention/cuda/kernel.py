"""The CUDA kernel as the harness sees it."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch

from kernels.attention.cuda.compile.build import describe_built, source_sha256
from kernels.attention.cuda.compile.compiler import compiler_flags
from kernels.attention.cuda.errors import BuildFailed, CudaError, Unavailable
from kernels.attention.cuda.operator import attention, bind_attention
from kernels.attention.cuda.plan.planning import kernel_refusal
from kernels.attention.cuda.plan.variants import chip_of
from kernels.attention.cuda.run.engine import Engine, engines
from kernels.attention.interface import BuildRecord, Plan


class CudaKernel:
    """Our kernels on one device; an `AttentionKernel`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.engine: Engine | None = None

    @property
    def name(self) -> str:
        """E.g. `cuda-sm90`; which kernel runs differs from case to case; each plan names it."""
        return f"cuda-sm{self.capability()}"

    def capability(self) -> int:
        major, minor = torch.cuda.get_device_capability(self.device)
        return int(major * 10 + minor)

    def build(self, out_dir: Path, cache_dir: Path) -> BuildRecord:
        """Compile and load every kernel of this chip; the resources of each go to `out_dir`/kernels.json."""
        started = time.perf_counter()
        try:
            engine = Engine(self.device, cache_dir=cache_dir)
            built = engine.build_all()
        except (CudaError, Unavailable, OSError) as exc:
            raise BuildFailed(f"the CUDA kernels do not load: {exc}") from exc
        self.engine = engine
        engines[engine.device.index] = engine
        compiler, rows = engine.find_compiler(), describe_built(built)
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / "kernels.json").write_text(json.dumps(rows, indent=1) + "\n")
        return BuildRecord(
            implementation="bench",
            compiler=compiler.name,
            compiler_version=compiler.version,
            flags=(f"-arch={engine.target.name}", *compiler_flags()),
            seconds=time.perf_counter() - started,
            cached=all(one.cached for one in built),
            source_sha256=source_sha256(engine.entries()),
            artifact_sha256=hashlib.sha256(b"".join(one.image for one in built)).hexdigest(),
            details={"target": engine.target.name, "chip": engine.chip.name, "kernels": rows},
        )

    def supports(self, case: Any) -> str | None:
        """Why this device has no kernel for the case; None if it has one."""
        chip = chip_of(self.capability())
        if chip is None:
            return "the CUDA kernel needs compute capability 7.5 or newer"
        return kernel_refusal(chip, case.dtype, case.shape.head_dim)

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None = None
    ) -> torch.Tensor:
        """The output, like q."""
        out: torch.Tensor = attention(q, k, v, causal=causal, scale=scale, engine=self.engine)
        return out

    def prepare(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> Plan:
        """A plan that writes into one output tensor, made now; its `runs` names the kernels that it launches."""
        out = torch.empty_like(q)
        bound = bind_attention(q, k, v, out, causal=causal, scale=scale, engine=self.engine)

        def call() -> torch.Tensor:
            bound()
            return out

        call.runs = bound.kernels  # type: ignore[attr-defined]
        return call


def cuda_kernel(device: torch.device) -> CudaKernel:
    """The CUDA kernel for a device, not yet built."""
    return CudaKernel(device)
