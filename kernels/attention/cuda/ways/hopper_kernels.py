"""The kernels for Hopper: their shapes, their sources, and their parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, VECTOR_BYTES
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT
from kernels.attention.cuda.run.driver import TensorMap

WARPGROUP_THREADS, WARPGROUP_ROWS = 128, 64
MASK_TYPES = {
    "bool": "BoolTensor",
    "float16": "HalfTensor<Half>",
    "bfloat16": "HalfTensor<BFloat16>",
    "float32": "FloatTensor",
}
MASK_SHORT = {"bool": "bool", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
MASK_BYTES = {"bool": 1, "float16": 2, "bfloat16": 2, "float32": 4}
CHUNK_COLUMNS, CHUNK_BYTES = 64, 128
MASK_PADDING = 8
BIAS_BYTES = 4
HEAD_DIMS = (32, 64, 96, 128, 160, 192, 256)
"""The widths of a kernel's matrix products, in columns. Shared memory holds whole chunks of 64 columns."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block works: its consumer warpgroups of 64 rows, the keys of a tile, the tiles of K and V in flight
    (`stages`)."""

    warpgroups: int
    keys: int
    stages: int
    ping_pong: bool = False
    masks: int = 0
    """Tiles of a mask in flight through shared memory; 0 if the mask is read straight into registers."""

    sharers: int = 1
    """Heads with the same mask that a block computes at the same time."""

    biases: int = 0
    """Tiles in flight of a mask that is the same for all rows, which has one number for each key."""

    @property
    def rows(self) -> int:
        return self.warpgroups // self.sharers * WARPGROUP_ROWS

    @property
    def name(self) -> str:
        """The name of the shape, e.g. `192x128s2p`: 192 rows, 128 keys, 2 stages. `p` stands for ping-pong, `m2` for
        two stages of a mask, `b4` for four stages of a mask that is the same for all rows."""
        masks = f"m{self.masks}" if self.masks else ""
        masks += f"x{self.sharers}" if self.sharers > 1 else ""
        masks += f"b{self.biases}" if self.biases else ""
        return f"{self.rows}x{self.keys}s{self.stages}{'p' if self.ping_pong else ''}{masks}"

    def shared_bytes(self, head_dim: int, value_dim: int) -> int:
        """Return the bytes of dynamic shared memory for the padded widths of K and V: Q once, K and V for each
        stage."""
        of_k, of_v = (-(-width // CHUNK_COLUMNS) * CHUNK_COLUMNS for width in (head_dim, value_dim))
        elements = self.rows * of_k + self.stages * self.keys * (of_k + of_v)
        return self.sharers * elements * ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class HopperKernel:
    """One specialisation of `source/hopper/fa90.cuh`. `head_dim` is padded; `right` and `left` say which edges of the
    scores are masked."""

    dtype: str
    head_dim: int
    right: bool
    left: bool
    shape: Shape
    mask: str | None = None
    """The element type of the mask tensor; None without one."""
    packed: bool = False
    """Whether its input is sequences of different lengths that follow each other."""
    split: bool = False
    """Whether the keys of each row are cut into parts, whose results `Combine` joins."""
    paged: bool = False
    """Whether its keys are in pages."""
    ahead: bool = False
    """Whether a warp looks up the pages of the tile after the one that is being copied."""
    narrow: int = 0
    """The padded width of V and the output where it is less than that of K; else 0."""
    sinks: bool = False
    """Whether each head has a score that takes its share of the weights."""
    float8: bool = False
    """Whether Q, K and a transposed V have eight bits an element. `dtype` is that of the output."""
    ones: bool = False
    """Whether rows of ones below a transposed V sum the weights; there is no log-sum-exp then."""

    @property
    def value_dim(self) -> int:
        """The padded width of V and the output."""
        return self.narrow or self.head_dim

    @property
    def name(self) -> str:
        mask = {(False, False): "full", (True, False): "causal", (True, True): "window", (False, True): "tail"}
        tensor = "" if self.mask is None else f"_{MASK_SHORT[self.mask]}"
        kinds = {"_ahead": self.ahead, "_paged": self.paged, "_packed": self.packed, "_split": self.split}
        kinds |= {"_float8": self.float8}
        ones = "_ones" if self.ones else ""
        tensor += next((kind for kind, is_it in kinds.items() if is_it), "") + ("_sinks" if self.sinks else "") + ones
        widths = f"d{self.head_dim}{f'v{self.narrow}' if self.narrow else ''}"
        return f"fa90_{SHORT[self.dtype]}_{widths}_{mask[self.right, self.left]}{tensor}_{self.shape.name}"

    @property
    def threads(self) -> int:
        return (self.shape.warpgroups + 1) * WARPGROUP_THREADS

    @property
    def shared_bytes(self) -> int:
        if self.float8:  # a chunk is 128 columns, and V has chunks of keys for each of its columns
            shape = self.shape
            columns = -(-shape.keys // CHUNK_BYTES) * (self.head_dim + 8 * self.ones)
            return CHUNK_BYTES * (shape.rows + shape.stages * (shape.keys + columns))
        masks = self.shape.masks * self.shape.rows * self.mask_columns * MASK_BYTES[self.mask] if self.mask else 0
        biases = self.shape.biases * (self.shape.keys + MASK_PADDING) * BIAS_BYTES
        return self.shape.shared_bytes(self.head_dim, self.value_dim) + masks + biases

    @property
    def mask_columns(self) -> int:
        """The width in elements of a mask tile in shared memory, which is also the distance between its rows; for
        booleans an odd multiple of 16."""
        return self.shape.keys | VECTOR_BYTES if self.mask == "bool" else self.shape.keys + MASK_PADDING

    @property
    def source(self) -> str:
        s = self.shape
        numbers = ", ".join(map(str, (self.head_dim, s.warpgroups, s.keys, s.stages)))
        flags = ", ".join(str(flag).lower() for flag in (self.right, self.left, s.ping_pong))
        tensor = f", {MASK_TYPES[self.mask]}" if self.mask else ""
        if self.packed or self.split:
            kinds = (self.packed, self.split, self.paged)
            tensor = f", NoTensor, {', '.join(str(flag).lower() for flag in kinds)}"
        if s.masks:
            tensor += f", false, false, false, {s.masks}, {s.sharers}"
        if s.biases:
            tensor += f", false, false, false, 0, 1, {s.biases}"
        if self.ahead:
            tensor += ", 0, 1, 0, true"
        if self.narrow or self.sinks or self.float8 or self.ones:
            counts = f"{s.masks}, {s.sharers}, {s.biases}"
            sequences = ", ".join(str(flag).lower() for flag in (self.packed, self.split, self.paged))
            tensor = f", {MASK_TYPES.get(self.mask or '', 'NoTensor')}, {sequences}, {counts}"
            tensor += f", {str(self.ahead).lower()}, {self.value_dim}"
            tensor += "".join(f", {str(flag).lower()}" for flag in (self.sinks, self.float8, self.ones))
        config = f"Hopper<{C_TYPE[self.dtype]}, {numbers}, {flags}{tensor}>"
        names = [*"qkv", *(["mask"] if s.masks else [])]
        maps = ", ".join(f"const __grid_constant__ TensorMap {name}" for name in names)
        parameters = f"{maps}, const __grid_constant__ HopperParams p"
        return (
            f'#include "hopper/fa90.cuh"\n'
            f'extern "C" __global__ void __launch_bounds__({self.threads}, 1)\n'
            f"{self.name}({parameters}) {{\n  attention_fa90<{config}>(q, k, v, {names[-1]}, p);\n}}\n"
            f'static_assert(sizeof(HopperParams) == {ctypes.sizeof(HopperParameters)}, "parameters differ");\n'
            f'static_assert(sizeof(TensorMap) == {ctypes.sizeof(TensorMap)}, "tensor maps differ");\n'
        )


class HopperParameters(ctypes.Structure):
    """`HopperParams` of `source/hopper/problem.cuh`, field for field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "lse", "counter")),
        *((name, ctypes.c_int64) for name in ("out_batch", "out_head", "out_row")),
        *((name, Divisor) for name in ("heads", "group", "row_tiles", "section", "section_tiles")),
        *((name, ctypes.c_int32) for name in ("all_heads", "tiles", "seq_q", "seq_k", "value_dim")),
        *((name, ctypes.c_int32) for name in ("last_offset", "first_offset")),
        ("scale_log2", ctypes.c_float),
        ("mask", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("mask_batch", "mask_head", "mask_row")),
        *((name, ctypes.c_void_p) for name in ("q_starts", "k_starts")),
        *((name, ctypes.c_int32) for name in ("sequences", "align_ends")),
        ("batches", Divisor),
        *((name, ctypes.c_void_p) for name in ("partial_out", "partial_lse")),
        ("part_tiles", Divisor),
        ("splits", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("block_table", "k_lengths")),
        ("table_row", ctypes.c_int64),
        ("page", Divisor),
        *((name, ctypes.c_int32) for name in ("pages", "piece", "queries")),
        ("mask_key", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("sinks", "q_scale", "k_scale", "v_scale")),
    ]


FULL, CAUSAL = False, True


def ping_pong_shape(warpgroups: int, keys: int, stages: int) -> Shape:
    """Return a shape with ping-pong: the warpgroups take turns."""
    return Shape(warpgroups, keys, stages, ping_pong=True)


SHAPES: dict[tuple[int, bool], tuple[Shape, ...]] = {
    (32, FULL): (ping_pong_shape(3, 128, 3), ping_pong_shape(4, 64, 4), ping_pong_shape(2, 128, 3)),
    (32, CAUSAL): (ping_pong_shape(3, 128, 3), ping_pong_shape(4, 64, 4), Shape(2, 64, 4)),
    (64, FULL): (ping_pong_shape(3, 128, 2), ping_pong_shape(4, 64, 4), ping_pong_shape(2, 128, 3)),
    (64, CAUSAL): (ping_pong_shape(3, 128, 2), Shape(4, 64, 4), ping_pong_shape(4, 64, 4), Shape(2, 64, 4)),
    (96, FULL): (Shape(2, 128, 2), ping_pong_shape(2, 128, 2), Shape(2, 176, 2), ping_pong_shape(3, 96, 2)),
    (96, CAUSAL): (Shape(2, 128, 2), ping_pong_shape(2, 128, 2), ping_pong_shape(3, 96, 2), Shape(2, 64, 4)),
    (128, FULL): (Shape(2, 128, 2), ping_pong_shape(2, 128, 2), Shape(2, 176, 2), ping_pong_shape(2, 64, 4)),
    (128, CAUSAL): (Shape(2, 128, 2), ping_pong_shape(2, 128, 2), Shape(2, 64, 4)),
    (160, FULL): (Shape(2, 112, 2), ping_pong_shape(2, 112, 2), Shape(2, 96, 2)),
    (160, CAUSAL): (Shape(2, 112, 2), ping_pong_shape(2, 96, 2), Shape(2, 64, 3)),
    (192, FULL): (Shape(2, 112, 2), ping_pong_shape(2, 112, 2), Shape(2, 96, 2)),
    (192, CAUSAL): (Shape(2, 112, 2), ping_pong_shape(2, 96, 2), Shape(2, 64, 3)),
    (256, FULL): (Shape(2, 80, 2), ping_pong_shape(2, 80, 2), ping_pong_shape(2, 64, 2)),
    (256, CAUSAL): (Shape(2, 80, 2), ping_pong_shape(2, 80, 2), Shape(2, 64, 2)),
}
"""The shapes that were fastest in some cell, by padded head dimension and mask. The first is used where nothing was
measured."""
WIDER = {32: 64, 96: 128}
"""By width, a wider kernel that also computes these head dimensions. The wider kernels are older and may be as fast."""
NARROWER = {192: 128}
"""By width, the width of V in kernels with a narrower V."""
NARROW_SHAPES: dict[tuple[int, int, bool], tuple[Shape, ...]] = {
    (192, 128, FULL): (ping_pong_shape(2, 128, 2),),
    (192, 128, CAUSAL): (ping_pong_shape(2, 128, 2),),
}
"""The shapes for a narrower V, by the padded widths of K and V and mask. They have registers for packed sequences and a
left limit too. With a mask, such kernels have the shapes of those with a wide V."""

MASKED_SHAPES: dict[tuple[int, bool], tuple[Shape, ...]] = {
    (64, False): (ping_pong_shape(2, 128, 3),),
    (64, True): (ping_pong_shape(2, 96, 3),),
    (128, False): (ping_pong_shape(2, 128, 2),),
    (128, True): (Shape(2, 96, 2),),
    (160, False): (Shape(2, 96, 2),),
    (160, True): (Shape(2, 64, 3),),
    (192, False): (Shape(2, 96, 2),),
    (192, True): (Shape(2, 64, 3),),
}
"""The shapes for a mask tensor that is read straight into registers, by padded head dimension and whether its elements
take more than 16 bits; the keys are in groups of 32. At 256 columns there are no registers for a mask, and it is copied
through shared memory."""

STAGED_SHAPES: dict[tuple[int, bool], tuple[Shape, ...]] = {
    (64, False): (Shape(4, 64, 3, ping_pong=True, masks=2), Shape(2, 128, 2, ping_pong=True, masks=2)),
    (64, True): (Shape(4, 64, 3, ping_pong=True, masks=2, sharers=2), Shape(2, 128, 2, ping_pong=True, masks=2)),
    (128, False): (Shape(2, 112, 2, ping_pong=True, masks=2),),
    (128, True): (Shape(2, 80, 2, masks=2),),
    (160, False): (Shape(2, 80, 2, ping_pong=True, masks=2),),
    (160, True): (Shape(2, 64, 2, ping_pong=True, masks=2),),
    (192, False): (Shape(2, 80, 2, ping_pong=True, masks=2),),
    (192, True): (Shape(2, 64, 2, ping_pong=True, masks=2),),
    (256, False): (Shape(2, 64, 2, masks=1),),
    (256, True): (Shape(2, 48, 2, masks=2),),
}
"""The shapes for masks of numbers whose rows differ and whose tiles are copied through shared memory, by the same key.
The first is the fastest if there are enough tiles."""
STAGED_BOOL_SHAPES = {256: (Shape(2, 64, 2, masks=2),)}
"""The same for boolean masks, by padded head dimension, where there are no registers for a mask."""


def staged_shapes(head_dim: int, mask: str) -> tuple[Shape, ...]:
    """Return the shapes that copy a mask of this element type through shared memory, the usual one first."""
    if mask == "bool":
        return STAGED_BOOL_SHAPES.get(head_dim, ())
    return STAGED_SHAPES.get((head_dim, MASK_BYTES[mask] > 2), ())


BIAS_STAGES = 4
BIAS_SHAPES: dict[tuple[int, bool], tuple[Shape, ...]] = {
    **{(width, right): SHAPES[width, right] for width in (64, 128) for right in (FULL, CAUSAL)},
    (160, FULL): (Shape(2, 96, 2),),
    (160, CAUSAL): SHAPES[160, CAUSAL],
    (192, FULL): (Shape(2, 96, 2),),
    (192, CAUSAL): SHAPES[192, CAUSAL],
    (256, FULL): (Shape(2, 80, 2), ping_pong_shape(2, 64, 2)),
    (256, CAUSAL): (Shape(2, 64, 2),),
}
"""The shapes that have registers for a mask that is the same for all rows, by padded head dimension and `right`."""
LEFT_BIAS_SHAPES = {
    64: ping_pong_shape(2, 128, 3),
    128: Shape(2, 128, 2),
    160: Shape(2, 64, 3),
    192: Shape(2, 64, 3),
    256: Shape(2, 48, 2),
}
"""The shapes that have registers for such a mask and a left edge too, by padded head dimension."""


def bias_shapes(head_dim: int, right: bool, left: bool) -> list[Shape]:
    """Return the shapes for a mask that is the same for all rows, the usual one first."""
    with_left = [shape for width, shape in LEFT_BIAS_SHAPES.items() if width == head_dim]
    return [replace(shape, biases=BIAS_STAGES) for shape in (with_left if left else BIAS_SHAPES[head_dim, right])]


PACKED_SHAPES = SHAPES | {
    (64, CAUSAL): (ping_pong_shape(2, 128, 3), Shape(2, 64, 4)),
    (256, FULL): (Shape(2, 80, 2), ping_pong_shape(2, 64, 2)),
    (256, CAUSAL): (Shape(2, 64, 2),),
}
"""The shapes for packed sequences, whose limits need a few more registers."""

SPLIT_SHAPES = {64: ping_pong_shape(2, 128, 3), 128: ping_pong_shape(2, 128, 2)}
NARROW_SPLIT_SHAPES = {192: ping_pong_shape(2, 128, 2)}
"""The shapes for few rows over many keys, which are cut into parts; by padded head dimension, and for a narrower V."""
PAGED_SHAPES = {64: ping_pong_shape(2, 128, 3), 128: Shape(2, 128, 2)}
"""The shapes for keys in pages; by padded head dimension."""


FLOAT8_WIDTHS = (64, 128)
FLOAT8_SHAPES = {
    (64, True): Shape(2, 192, 3),
    (64, False): ping_pong_shape(3, 96, 4),
    (128, True): Shape(2, 128, 4),
    (128, False): ping_pong_shape(2, 128, 4),
}
"""The shapes for Q, K and V of eight bits, by padded head dimension and `ones`."""


def hopper_table() -> Iterator[HopperKernel]:
    """Yield every plain kernel without a window, a mask or packed sequences. The others are built on demand."""
    for (head_dim, right), shapes in SHAPES.items():
        for shape, dtype in product(shapes, C_TYPE):
            yield HopperKernel(dtype, head_dim, right, False, shape)
    for (head_dim, narrow, right), shapes in NARROW_SHAPES.items():
        for shape, dtype in product(shapes, C_TYPE):
            yield HopperKernel(dtype, head_dim, right, False, shape, narrow=narrow)
