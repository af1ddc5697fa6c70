"""Ways for few keys: kernels that read all keys of a head at once and compute softmax over them in one pass.

There are two kinds. `registers` loads Q, K and V from global memory straight into the fragments of the tensor cores;
each warp has different keys, and all warps of a block have the same rows. `shared` copies everything into shared memory
first, where several groups of rows use it. Both join the results of their warps in shared memory. README.md says which
kind is faster where.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, LOG2_E, MAX_TILE_SPAN, Machine, Problem
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, Chip
from kernels.attention.cuda.run.launching import Buffers, Step

MAX_GRID_YZ = 65535
SHARED_BYTES_FOR_TWO = 96 * 1024
"""Up to this many bytes, the exchange between warps gets memory that nothing else uses. A second block still fits on an
SM with 228 KB."""


class SmallParameters(ctypes.Structure):
    """`SmallParams` of `source/small/problem.cuh`, field for field. Strides are in bytes."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse")),
        *((name, ctypes.c_int64) for name in ("q_batch", "q_head", "q_row", "k_batch", "k_head", "v_batch", "v_head")),
        *((name, ctypes.c_int64) for name in ("out_batch", "out_head", "out_row")),
        *((name, ctypes.c_uint32) for name in ("k_row", "v_row")),
        ("group", Divisor),
        *((name, ctypes.c_int32) for name in ("heads", "row_tiles", "seq_q", "seq_k", "head_dim", "causal_offset")),
        ("scale_log2", ctypes.c_float),
    ]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block works: it has `row_warps` times `key_warps` warps, and each computes `rows` rows by `keys` keys."""

    kind: str
    rows: int
    row_warps: int
    key_warps: int
    keys: int

    @property
    def name(self) -> str:
        """The name of the shape, e.g. `r16k4x32`: registers, 16 rows per block, 4 warps with 32 keys each; `s32k4x64`
        for the kind in shared memory."""
        return f"{self.kind[0]}{self.all_rows}k{self.key_warps}x{self.keys}"

    @property
    def all_rows(self) -> int:
        return self.rows * self.row_warps

    @property
    def all_keys(self) -> int:
        return self.keys * self.key_warps

    @property
    def threads(self) -> int:
        return self.row_warps * self.key_warps * 32

    def shared_bytes(self, head_dim: int) -> int:
        """Return the bytes of dynamic shared memory for a padded head dimension."""
        exchange = exchange_bytes(self.all_rows, head_dim, self.key_warps)
        if self.kind == "registers":
            return 0 if self.key_warps == 1 else exchange
        tiles = (self.all_rows + 2 * self.all_keys) * head_dim * ELEMENT_BYTES
        return tiles + exchange if tiles + exchange <= SHARED_BYTES_FOR_TWO else max(tiles, exchange)


def exchange_bytes(rows: int, head_dim: int, parties: int) -> int:
    """Return the bytes of shared memory through which `parties` exchange results: the float32 output, and a maximum and
    a sum for each row."""
    return rows * parties * (head_dim * 4 + 8)


def in_registers(rows: int, warps: int, keys: int) -> Shape:
    return Shape("registers", rows, 1, warps, keys)


def in_shared(row_warps: int, key_warps: int, keys: int) -> Shape:
    return Shape("shared", 16, row_warps, key_warps, keys)


SHAPES: dict[int, tuple[Shape, ...]] = {
    64: (
        *(in_registers(16, 4, 16), in_registers(16, 2, 32), in_registers(16, 1, 64), in_registers(32, 4, 16)),
        *(in_registers(16, 4, 32), in_registers(16, 8, 16), in_registers(32, 4, 32), in_registers(32, 8, 16)),
        *(in_registers(16, 8, 32), in_registers(16, 4, 64), in_registers(32, 8, 32), in_registers(32, 4, 64)),
        *(in_shared(2, 4, 32), in_shared(2, 4, 64), in_shared(4, 4, 64), in_shared(2, 8, 64), in_shared(4, 4, 128)),
    ),
    128: (
        *(in_registers(16, 4, 16), in_registers(16, 2, 32), in_registers(16, 8, 16), in_registers(16, 4, 32)),
        *(in_shared(2, 4, 16), in_shared(2, 4, 32), in_shared(4, 4, 32), in_shared(2, 4, 64), in_shared(4, 4, 64)),
    ),
}
"""The shapes by padded head dimension. Measurements decide between the shapes that fit a problem."""


PREFERRED, FEW_ROWS = ("small-r16k4x16", "small-r16k4x32", "small-s32k4x64"), 4096
"""The ways to choose where nothing was measured, and the largest number of rows in all heads for which to choose them.
The first way that has enough keys is chosen. They were the fastest on an H200 at batch 2, 8 heads and 64, 128 and 256
keys."""


class BlockShape(Protocol):
    """How a block works: its name, its number of threads, and the bytes of shared memory for a head dimension."""

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

    def shared_bytes(self, head_dim: int) -> int: ...


S = TypeVar("S", bound=BlockShape)


@dataclass(frozen=True)
class Entry(Generic[S]):
    """One entry point for few keys. `dependent` kernels start early and wait on the device for the previous launch."""

    dtype: str
    head_dim: int
    causal: bool
    shape: S
    dependent: bool = False

    @property
    def name(self) -> str:
        """The name of the entry point, e.g. `small_bf16_d64_causal_r16k4x32`."""
        mask = "causal" if self.causal else "full"
        name = f"small_{SHORT[self.dtype]}_d{self.head_dim}_{mask}_{self.shape.name}"
        return f"{name}_dependent" if self.dependent else name

    @property
    def threads(self) -> int:
        return self.shape.threads

    @property
    def shared_bytes(self) -> int:
        return self.shape.shared_bytes(self.head_dim)


@dataclass(frozen=True)
class SmallKernel(Entry[Shape]):
    """One specialisation of `source/small/registers.cuh` or `source/small/shared.cuh`."""

    @property
    def source(self) -> str:
        """The text of a translation unit with this kernel as its only entry point. The kernel asks for only one block
        per SM, so that the loads get many registers."""
        s = self.shape
        sizes = (s.rows, s.key_warps, s.keys) if s.kind == "registers" else (s.row_warps, s.key_warps, s.keys)
        flags = (str(flag).lower() for flag in (self.causal, self.dependent))
        config = ", ".join([C_TYPE[self.dtype], str(self.head_dim), *map(str, sizes), *flags])
        template = {"registers": "InRegisters", "shared": "InShared"}[s.kind]
        return (
            f'#include "small/{s.kind}.cuh"\n'
            f'extern "C" __global__ void __launch_bounds__({self.threads}, 1)\n'
            f"{self.name}(const __grid_constant__ SmallParams p) {{\n"
            f"  attention_in_{s.kind}<{template}<{config}>>(p);\n}}\n"
            f'static_assert(sizeof(SmallParams) == {ctypes.sizeof(SmallParameters)}, "parameters differ");\n'
        )


@dataclass(frozen=True, slots=True)
class Small:
    """A way: one kernel, with one block for each row tile."""

    kernel: SmallKernel

    @property
    def name(self) -> str:
        """The name of the way, e.g. `small-r16k4x32` or `small-r16k4x32-dependent`."""
        return f"small-{self.kernel.shape.name}{'-dependent' if self.kernel.dependent else ''}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the only launch."""
        parameters = parameters_of(problem, self.kernel.shape.all_rows, scale)
        parameters.lse = buffers.lse
        grid = (parameters.row_tiles, problem.heads, problem.batch)
        return [Step(self.kernel, grid, (parameters,), self.kernel.dependent)]


def small_padded_head_dim(head_dim: int) -> int | None:
    """Return the head dimension of the kernel that computes `head_dim`; None if there is none."""
    return next((size for size in SHAPES if head_dim <= size), None)


def shape_fits(shape: Shape, problem: Problem, chip: Chip, head_dim: int) -> bool:
    """Return whether a block of this shape reads all keys, fits on the chip, and is not half idle."""
    enough = problem.seq_k <= shape.all_keys
    wasteful = shape.all_keys > 64 and problem.seq_k * 2 <= shape.all_keys
    return enough and not wasteful and shape.shared_bytes(head_dim) <= chip.shared_bytes_per_block


def small_ways(problem: Problem, machine: Machine, *, dependent: bool = False) -> list[Small]:
    """Return every way of this kind that computes a problem; there may be none."""
    size = small_padded_head_dim(problem.head_dim)
    span = max(problem.k.row, problem.v.row) * ELEMENT_BYTES * problem.seq_k
    if (
        size is None
        or problem.dtype not in machine.chip.dtypes
        or min(machine.chip.capabilities) < 80  # cp.async
        or not problem.is_vector
        or max(problem.heads, problem.batch) > MAX_GRID_YZ
        or span >= MAX_TILE_SPAN
        or (dependent and not machine.hopper)
    ):
        return []
    return [
        Small(SmallKernel(problem.dtype, size, problem.causal, shape, dependent))
        for shape in SHAPES[size]
        if shape_fits(shape, problem, machine.chip, size)
    ]


def parameters_of(problem: Problem, rows: int, scale: float) -> SmallParameters:
    """Return the parameters of a launch whose blocks compute `rows` rows of Q each. The caller sets the address of the
    log-sum-exp."""
    q, k, v, out = problem.q, problem.k, problem.v, problem.out
    steps = {
        f"{name}_{axis}": getattr(of, axis) * ELEMENT_BYTES
        for name, of in (("q", q), ("k", k), ("v", v), ("out", out))
        for axis in ("batch", "head", "row")
    }
    return SmallParameters(
        q=q.address,
        k=k.address,
        v=v.address,
        out=out.address,
        **steps,
        group=Divisor.of(problem.heads // problem.kv_heads),
        heads=problem.heads,
        row_tiles=-(-problem.seq_q // rows),
        seq_q=problem.seq_q,
        seq_k=problem.seq_k,
        head_dim=problem.head_dim,
        causal_offset=problem.causal_offset,
        scale_log2=scale * LOG2_E,
    )
