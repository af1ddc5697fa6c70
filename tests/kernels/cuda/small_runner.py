"""Compiles the kernels for few keys for the CPU and runs launches of them, a fiber for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.attention.cuda.posing import problem_of
from kernels.attention.cuda.small import SmallKernel, parameters_of
from tests.kernels.cuda.compiled import answered, compiled
from tests.kernels.cuda.simt_runner import storage_of


class Job(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("entry", "grid_x", "grid_y", "grid_z", "shared", "eager", "reverse", "pad")
        ),
        *((name, ctypes.c_int64) for name in ("q", "k", "v", "out", "lse")),
    ]


@dataclass(frozen=True)
class SmallRunner:
    """A program that holds some kernels."""

    program: Path
    kernels: tuple[SmallKernel, ...]

    def run(
        self,
        kernel: SmallKernel,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        *,
        scratch: Path,
        alignment: str = "top-left",
        with_lse: bool = True,
        eager: bool = False,
        reverse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Launch `kernel`; `out` gives layout and poison of the output. Returns the output and the log-sum-exp."""
        storages = [storage_of(tensor) for tensor in (q, k, v, out)]
        problem = problem_of(q, k, v, out, causal=kernel.causal, alignment=alignment)
        parameters = parameters_of(problem, kernel.shape.all_rows, q.shape[3] ** -0.5)
        job = Job(
            entry=self.kernels.index(kernel),
            grid_x=parameters.row_tiles,
            grid_y=problem.heads,
            grid_z=problem.batch,
            shared=kernel.shared_bytes,
            eager=eager,
            reverse=reverse,
            q=len(storages[0]),
            k=len(storages[1]),
            v=len(storages[2]),
            out=len(storages[3]),
            lse=problem.batch * problem.heads * problem.seq_q * 4 if with_lse else 0,
        )
        data = answered(self.program, bytes(job) + bytes(parameters) + b"".join(storages), scratch)
        filled = torch.frombuffer(data[: job.out], dtype=out.dtype)
        result = torch.as_strided(filled, out.shape, out.stride())
        if not with_lse:
            return result, None
        return result, torch.frombuffer(data[job.out :], dtype=torch.float32).view(out.shape[:3])


def compile_small(kernels: Sequence[SmallKernel], folder: Path, *, flags: Sequence[str] = ()) -> SmallRunner:
    """Compile with g++."""
    table = ", ".join(f"{{{kernel.name}, {kernel.threads}}}" for kernel in kernels)
    text = "".join(kernel.source for kernel in kernels)
    text += "struct Entry { void (*kernel)(SmallParams); int threads; };\n"
    text += f"static const Entry entries[] = {{{table}}};\n"
    program = compiled(text, "small_main.cc", 800, folder, flags=flags)
    return SmallRunner(program, tuple(kernels))
