"""nvcc without its own headers, for the tests that ask whether kernels compile, and to what: a third less of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.attention.cuda.compile.compiler import Compiled, Compiler, Nvcc, Target
from kernels.attention.interface import BuildFailed

BUILTINS = Path(__file__).with_name("builtins.cuh")
READ_FIRST = "cuda_runtime.h"
"""nvcc includes a file of this name before every text: the one in its own folder, unless one is nearer."""


@dataclass(frozen=True)
class Lean:
    """A compiler that finds our few declarations in the place of nvcc's headers."""

    inner: Compiler

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def version(self) -> str:
        return self.inner.version

    def compile(self, sources: Sequence[str], headers: Mapping[str, str], target: Target) -> list[Compiled]:
        try:
            return self.inner.compile(sources, {**headers, READ_FIRST: BUILTINS.read_text()}, target)
        except BuildFailed:  # another nvcc may want other declarations; what is wrong with a kernel it says again
            return self.inner.compile(sources, headers, target)


def lean(compiler: Compiler) -> Compiler:
    """The same compiler, if it reads no headers of its own, as NVRTC does not."""
    return Lean(compiler) if isinstance(compiler, Nvcc) else compiler
