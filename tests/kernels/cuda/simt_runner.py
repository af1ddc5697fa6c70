"""Compiles the CUDA kernels' own source for the CPU and runs launches of it, a fiber for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.attention.cuda.ladder import Rung
from kernels.attention.cuda.planning import Launch, Machine, check
from kernels.attention.cuda.portable import parameters_of
from kernels.attention.cuda.posing import problem_of
from kernels.attention.cuda.variants import Entry, Kernel, Tile, chip_of
from tests.kernels.cuda.compiled import answered, compiled


class Job(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("entry", "combine", "grid_x", "grid_y", "combine_blocks", "shared", "eager", "reverse")
        ),
        *((name, ctypes.c_int64) for name in ("q", "k", "v", "out", "lse", "partial_out", "partial_lse")),
    ]


@dataclass(frozen=True)
class Runner:
    """A program that holds some kernels, compiled for one code path."""

    program: Path
    kernels: tuple[Entry, ...]
    arch: int

    def run(
        self,
        kernel: Kernel | Rung,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        *,
        scratch: Path,
        scale: float,
        alignment: str = "top-left",
        splits: int = 1,
        section: int = 2,
        eager: bool = False,
        reverse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Launch `kernel`; `out` gives layout and poison of the output. Returns the output and the log-sum-exp."""
        storages = [storage_of(tensor) for tensor in (q, k, v, out)]
        problem = problem_of(q, k, v, out, causal=kernel.causal, alignment=alignment)
        chip = chip_of(self.arch // 10)
        assert chip is not None
        check(problem, Machine(chip, 1, 1 << 20))
        # A lower rung has no plan of its own: it takes whole heads, and this kernel stands in for the launch's shape.
        shape = (
            kernel if isinstance(kernel, Kernel) else Kernel(kernel.dtype, 64, False, True, Tile(64, 64, 4, 1, True))
        )
        tiles = -(-problem.seq_k // shape.tile.keys)
        row_tiles = -(-problem.seq_q // shape.tile.rows)
        per_split = -(-tiles // splits)
        splits = -(-tiles // per_split)
        all_heads = problem.batch * problem.heads
        section = min(section, all_heads) if shape.causal else all_heads
        blocks = -(-all_heads // section) * section * row_tiles
        if isinstance(kernel, Rung) and kernel.rung == "naive":
            blocks = -(-all_heads * problem.seq_q // kernel.rows)
        launch = Launch(shape, blocks, row_tiles, section, splits, per_split)
        parameters = parameters_of(problem, launch, scale)
        rows = all_heads * problem.seq_q
        combine = launch.combine
        job = Job(
            entry=self.kernels.index(kernel),
            combine=-1 if combine is None else self.kernels.index(combine),
            grid_x=launch.blocks,
            grid_y=splits,
            combine_blocks=-(-rows // 4),
            shared=kernel.shared_bytes,
            eager=eager,
            reverse=reverse,
            q=len(storages[0]),
            k=len(storages[1]),
            v=len(storages[2]),
            out=len(storages[3]),
            lse=rows * 4,
            partial_out=splits * rows * problem.head_dim * 4 if splits > 1 else 0,
            partial_lse=splits * rows * 4 if splits > 1 else 0,
        )
        data = answered(self.program, bytes(job) + bytes(parameters) + b"".join(storages), scratch)
        filled = torch.frombuffer(data[: job.out], dtype=out.dtype)
        result = torch.as_strided(filled, out.shape, out.stride())
        lse = torch.frombuffer(data[job.out :], dtype=torch.float32).view(out.shape[:3])
        return result, lse


def storage_of(tensor: torch.Tensor) -> bytes:
    """The bytes from a tensor's first element to its last, holes included."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.as_strided(tensor, (span,), (1,))
    return bytes(flat.contiguous().view(torch.int16).numpy().tobytes())


def compile_runner(kernels: Sequence[Entry], arch: int, folder: Path, *, flags: Sequence[str] = ()) -> Runner:
    """Compile with g++; `arch` is 750 or 800."""
    table = ", ".join(f"{{{kernel.name}, {kernel.threads}}}" for kernel in kernels)
    text = "".join(kernel.source for kernel in kernels)
    text += "struct Entry { void (*kernel)(AttentionParams); int threads; };\n"
    text += f"static const Entry entries[] = {{{table}}};\n"
    program = compiled(text, "main.cc", arch, folder, flags=flags)
    return Runner(program, tuple(kernels), arch)
