"""The kernels for Hopper: which there are, what they are given, and when they can be used.

A kernel reads Q, K and V through tensor maps, which the driver encodes from addresses and strides. What a map cannot
describe (rows that do not begin on 16 bytes, heads broadcast with stride 0) is left to the portable kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from kernels.attention.cuda.driver import TensorMap, driver
from kernels.attention.cuda.launching import Buffers, Step
from kernels.attention.cuda.parameters import Divisor
from kernels.attention.cuda.planning import (
    ELEMENT_BYTES,
    LOG2_E,
    MAX_BLOCKS,
    VECTOR_BYTES,
    Layout,
    Machine,
    Mask,
    Problem,
    section_for,
)
from kernels.attention.cuda.variants import C_TYPE, SHORT

WARPGROUP_THREADS, WARPGROUP_ROWS = 128, 64
MASK_TYPES = {
    "bool": "BoolTensor",
    "float16": "HalfTensor<Half>",
    "bfloat16": "HalfTensor<BFloat16>",
    "float32": "FloatTensor",
}
MASK_SHORT = {"bool": "bool", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
MASK_BYTES = {"bool": 1, "float16": 2, "bfloat16": 2, "float32": 4}
MASK_COLUMNS = 8
"""What a lane fetches of a row of a mask at once; there must be no half of it at a row's end."""
CHUNK_COLUMNS = 64
HEAD_DIMS = (32, 64, 96, 128, 160, 192, 256)
"""What a kernel's products are wide; shared memory holds whole chunks of 64 columns."""
MAP_STRIDE_LIMIT = 2**40  # bytes, of cuTensorMapEncodeTiled
L2_SHARE = 0.64
"""Of the L2 cache, for the K and V of a section of heads: half of it is as far from an SM as memory is near."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block works: consumer warpgroups of 64 rows, keys a tile, tiles of K and V in flight."""

    warpgroups: int
    keys: int
    stages: int
    ping_pong: bool = False

    @property
    def rows(self) -> int:
        return self.warpgroups * WARPGROUP_ROWS

    @property
    def name(self) -> str:
        """E.g. `192x128s2p`: 192 rows, 128 keys, 2 stages; p for ping-pong."""
        return f"{self.rows}x{self.keys}s{self.stages}{'p' if self.ping_pong else ''}"

    def shared_bytes(self, head_dim: int) -> int:
        """Dynamic shared memory for a padded head dimension: Q once, K and V a stage."""
        columns = -(-head_dim // CHUNK_COLUMNS) * CHUNK_COLUMNS
        return (self.rows + 2 * self.stages * self.keys) * columns * ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class HopperKernel:
    """One specialisation of `source/hopper/fa90.cuh`. `head_dim` is padded; `right`, `left`: which edges are masked."""

    dtype: str
    head_dim: int
    right: bool
    left: bool
    shape: Shape
    mask: str | None = None
    """The element type of a mask that is a tensor."""
    packed: bool = False
    """Whether it takes sequences of different lengths, one behind the other."""

    @property
    def name(self) -> str:
        mask = {(False, False): "full", (True, False): "causal", (True, True): "window", (False, True): "tail"}
        tensor = "" if self.mask is None else f"_{MASK_SHORT[self.mask]}"
        tensor += "_packed" if self.packed else ""
        return f"fa90_{SHORT[self.dtype]}_d{self.head_dim}_{mask[self.right, self.left]}{tensor}_{self.shape.name}"

    @property
    def threads(self) -> int:
        return (self.shape.warpgroups + 1) * WARPGROUP_THREADS

    @property
    def shared_bytes(self) -> int:
        return self.shape.shared_bytes(self.head_dim)

    @property
    def source(self) -> str:
        s = self.shape
        numbers = ", ".join(map(str, (self.head_dim, s.warpgroups, s.keys, s.stages)))
        flags = ", ".join(str(flag).lower() for flag in (self.right, self.left, s.ping_pong))
        tensor = ", NoTensor, true" if self.packed else f", {MASK_TYPES[self.mask]}" if self.mask else ""
        config = f"Hopper<{C_TYPE[self.dtype]}, {numbers}, {flags}{tensor}>"
        maps = ", ".join(f"const __grid_constant__ TensorMap {name}" for name in "qkv")
        parameters = f"{maps}, const __grid_constant__ HopperParams p"
        return (
            f'#include "hopper/fa90.cuh"\n'
            f'extern "C" __global__ void __launch_bounds__({self.threads}, 1)\n'
            f"{self.name}({parameters}) {{\n  attention_fa90<{config}>(q, k, v, p);\n}}\n"
            f'static_assert(sizeof(HopperParams) == {ctypes.sizeof(HopperParameters)}, "parameters differ");\n'
            f'static_assert(sizeof(TensorMap) == {ctypes.sizeof(TensorMap)}, "tensor maps differ");\n'
        )


class HopperParameters(ctypes.Structure):
    """`HopperParams` of `source/hopper/problem.cuh`, field for field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "lse", "counter")),
        *((name, ctypes.c_int64) for name in ("out_batch", "out_head", "out_row")),
        *((name, Divisor) for name in ("heads", "group", "row_tiles", "section", "section_tiles")),
        *((name, ctypes.c_int32) for name in ("all_heads", "tiles", "seq_q", "seq_k", "head_dim")),
        *((name, ctypes.c_int32) for name in ("last_offset", "first_offset")),
        ("scale_log2", ctypes.c_float),
        ("mask", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("mask_batch", "mask_head", "mask_row")),
        *((name, ctypes.c_void_p) for name in ("q_starts", "k_starts")),
        *((name, ctypes.c_int32) for name in ("sequences", "align_ends")),
        ("batches", Divisor),
    ]


FULL, CAUSAL = False, True


def turns(warpgroups: int, keys: int, stages: int) -> Shape:
    """With ping-pong."""
    return Shape(warpgroups, keys, stages, ping_pong=True)


SHAPES: dict[tuple[int, bool], tuple[Shape, ...]] = {
    (32, FULL): (turns(3, 128, 3), turns(4, 64, 4), turns(2, 128, 3)),
    (32, CAUSAL): (turns(3, 128, 3), turns(4, 64, 4), Shape(2, 64, 4)),
    (64, FULL): (turns(3, 128, 2), turns(4, 64, 4), turns(2, 128, 3)),
    (64, CAUSAL): (turns(3, 128, 2), Shape(4, 64, 4), turns(4, 64, 4), Shape(2, 64, 4)),
    (96, FULL): (Shape(2, 128, 2), turns(2, 128, 2), Shape(2, 176, 2), turns(3, 96, 2)),
    (96, CAUSAL): (Shape(2, 128, 2), turns(2, 128, 2), turns(3, 96, 2), Shape(2, 64, 4)),
    (128, FULL): (Shape(2, 128, 2), turns(2, 128, 2), Shape(2, 176, 2), turns(2, 64, 4)),
    (128, CAUSAL): (Shape(2, 128, 2), turns(2, 128, 2), Shape(2, 64, 4)),
    (160, FULL): (Shape(2, 112, 2), turns(2, 112, 2), Shape(2, 96, 2)),
    (160, CAUSAL): (Shape(2, 112, 2), turns(2, 96, 2), Shape(2, 64, 3)),
    (192, FULL): (Shape(2, 112, 2), turns(2, 112, 2), Shape(2, 96, 2)),
    (192, CAUSAL): (Shape(2, 112, 2), turns(2, 96, 2), Shape(2, 64, 3)),
    (256, FULL): (Shape(2, 80, 2), turns(2, 80, 2), turns(2, 64, 2)),
    (256, CAUSAL): (Shape(2, 80, 2), turns(2, 80, 2), Shape(2, 64, 2)),
}
"""The shapes that won somewhere, by padded head dimension and mask; the first is for what was not measured."""
WIDER = {32: 64, 96: 128}
"""Kernels of another width that compute a head dimension too: the wider are older, and may be as fast."""

MASKED_SHAPES: dict[tuple[int, bool], tuple[Shape, ...]] = {
    (64, False): (turns(2, 128, 3),),
    (64, True): (turns(2, 96, 3),),
    (128, False): (turns(2, 128, 2),),
    (128, True): (Shape(2, 96, 2),),
    (160, False): (Shape(2, 96, 2),),
    (160, True): (Shape(2, 64, 3),),
    (192, False): (Shape(2, 96, 2),),
    (192, True): (Shape(2, 64, 3),),
}
"""The same with a mask that is a tensor, by whether its elements take more than 16 bits: keys in groups of 32. At 256
columns there are no registers for one."""

PACKED_SHAPES = SHAPES | {
    (64, CAUSAL): (turns(2, 128, 3), Shape(2, 64, 4)),
    (256, CAUSAL): (Shape(2, 64, 2),),
}
"""The same for packed sequences, whose limits take a few registers more."""


def table() -> Iterator[HopperKernel]:
    """Every kernel without a window, which is built on demand."""
    for (head_dim, right), shapes in SHAPES.items():
        for shape, dtype in product(shapes, C_TYPE):
            yield HopperKernel(dtype, head_dim, right, False, shape)


def maps(layout: Layout, sizes: tuple[int, int, int]) -> bool:
    """Whether a tensor map can describe a tensor with these sizes of batch, head and row."""
    steps = [s for s, size in zip((layout.batch, layout.head, layout.row), sizes, strict=True) if size > 1]
    return layout.is_vector and all(0 < step * ELEMENT_BYTES < MAP_STRIDE_LIMIT for step in steps)


def refusal(problem: Problem, machine: Machine) -> str | None:
    """Why no kernel here computes the problem; None if they do."""
    if not machine.hopper:
        return "this device, or what is compiled for, has no tensor copies and no wgmma"
    if problem.mask is not None and not fetches(problem.mask, problem.seq_k):
        return "a mask's rows must be contiguous, begin on 16 bytes (8 if boolean) and have a multiple of 8 keys"
    if problem.sign != 1:
        return "no scales that are not positive"
    if problem.pages is not None:
        return "no keys in pages"
    if problem.dtype not in C_TYPE or problem.head_dim > HEAD_DIMS[-1] or not problem.is_vector:
        return "head dimensions up to 256, rows that begin on 16 bytes"
    if not all(maps(getattr(problem, name), sizes_of(problem, name)) for name in "qkv"):
        return "a tensor map cannot describe these strides"
    return None


def sizes_of(problem: Problem, name: str) -> tuple[int, int, int]:
    """Batches, heads and rows of `q`, `k` or `v` as it lies in memory: packed sequences are one batch."""
    heads, rows = (problem.heads, problem.seq_q) if name == "q" else (problem.kv_heads, problem.seq_k)
    if problem.lengths is None:
        return problem.batch, heads, rows
    return 1, heads, problem.lengths.total_q if name == "q" else problem.lengths.total_k


def fetches(mask: Mask, keys: int) -> bool:
    """Whether eight neighbouring elements of a mask can be fetched wherever a tile begins."""
    size = MASK_BYTES[mask.dtype]
    apart = (mask.address, mask.batch, mask.head, mask.row)
    return mask.key == size and keys % MASK_COLUMNS == 0 and all(x % min(VECTOR_BYTES, 8 * size) == 0 for x in apart)


def ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """Every kernel here that computes the problem; none where `refusal` gives a reason."""
    if refusal(problem, machine) is not None:
        return []
    windowed, packed = problem.window_offset is not None, problem.lengths is not None
    tensor = problem.mask.dtype if problem.mask else None
    found = [
        HopperWay(HopperKernel(problem.dtype, head_dim, problem.causal, windowed, shape, tensor, packed), machine)
        for head_dim in widths(problem.head_dim)
        for shape in shapes_for(head_dim, problem.causal, tensor, packed)
    ]
    return [way for way in found if way.tiles(problem) <= MAX_BLOCKS]


def shapes_for(head_dim: int, causal: bool, tensor: str | None, packed: bool) -> tuple[Shape, ...]:
    """The shapes that have registers for all that a problem has."""
    if tensor is not None:
        return MASKED_SHAPES.get((head_dim, MASK_BYTES[tensor] > 2), ())
    return (PACKED_SHAPES if packed else SHAPES)[head_dim, causal]


def widths(head_dim: int) -> list[int]:
    """The widths of the kernels that compute a head dimension, the usual one first."""
    least = next(width for width in HEAD_DIMS if head_dim <= width)
    return [WIDER[least], least] if least in WIDER else [least]


def section(problem: Problem, machine: Machine) -> int:
    """How many heads of Q are worked on at a time; without a mask one: its rows follow each other."""
    return section_for(problem, int(machine.l2_bytes * L2_SHARE)) if problem.causal else 1


@dataclass(frozen=True, slots=True)
class HopperWay:
    """One of these kernels."""

    kernel: HopperKernel
    machine: Machine

    @property
    def name(self) -> str:
        """E.g. `fa90-192x128s2p`; `fa90-192x96s2p-d96` for a kernel that is narrower than the usual one."""
        head_dim = self.kernel.head_dim
        return f"fa90-{self.kernel.shape.name}{f'-d{head_dim}' if head_dim in WIDER else ''}"

    def tiles(self, problem: Problem) -> int:
        """Tiles of rows over all sections of heads; no less than there can be in packed sequences."""
        if problem.lengths is not None:
            return problem.heads * (problem.lengths.total_q // self.kernel.shape.rows + problem.batch)
        heads = section(problem, self.machine)
        return -(-problem.batch * problem.heads // heads) * heads * -(-problem.seq_q // self.kernel.shape.rows)

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """One launch: no more blocks than SMs, which share out the tiles."""
        shape, tiles, heads = self.kernel.shape, self.tiles(problem), section(problem, self.machine)
        row_tiles = -(-problem.seq_q // shape.rows)
        parameters = HopperParameters(
            out=problem.out.address,
            lse=buffers.lse,
            counter=buffers.counter(),
            out_batch=problem.out.batch * ELEMENT_BYTES,
            out_head=problem.out.head * ELEMENT_BYTES,
            out_row=problem.out.row * ELEMENT_BYTES,
            heads=Divisor.of(problem.heads),
            group=Divisor.of(problem.heads // problem.kv_heads),
            row_tiles=Divisor.of(row_tiles),
            section=Divisor.of(heads),
            section_tiles=Divisor.of(heads * row_tiles),
            all_heads=problem.batch * problem.heads,
            tiles=tiles,
            seq_q=problem.seq_q,
            seq_k=problem.seq_k,
            head_dim=problem.head_dim,
            last_offset=problem.causal_offset,
            first_offset=problem.window_offset or 0,
            scale_log2=scale * LOG2_E,
        )
        if problem.mask is not None:
            mask = problem.mask
            parameters.mask, parameters.mask_batch = mask.address, mask.batch
            parameters.mask_head, parameters.mask_row = mask.head, mask.row
            if mask.batch == 0 and mask.head != 0:  # of a head, for all batches: they follow each other
                parameters.batches = Divisor.of(problem.batch)
        if problem.lengths is not None:
            lengths = problem.lengths
            parameters.q_starts, parameters.k_starts = lengths.q_starts, lengths.k_starts
            parameters.sequences, parameters.align_ends = problem.batch, lengths.align_ends
            parameters.seq_q = lengths.total_q
        q, k, v = map_of(problem, "q", shape.rows), *(map_of(problem, name, shape.keys) for name in "kv")
        return [Step(self.kernel, (min(tiles, self.machine.sm_count), 1, 1), (q, k, v, parameters))]


def map_of(problem: Problem, name: str, box_rows: int) -> TensorMap:
    """The map of `q`, `k` or `v`, of which a copy moves `box_rows` rows of 64 columns."""
    layout: Layout = getattr(problem, name)
    batch, heads, rows = sizes_of(problem, name)
    row = layout.row or problem.head_dim  # dimensions of size 1 have no stride, and a map wants one
    sizes, strides = (problem.head_dim, rows, heads, batch), (row, layout.head or row, layout.batch or row)
    made = driver().tensor_map(
        problem.dtype, layout.address, sizes, [s * ELEMENT_BYTES for s in strides], (CHUNK_COLUMNS, box_rows, 1, 1)
    )
    made.tensor = name
    return made
