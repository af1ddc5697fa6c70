"""The kernels for Hopper as ways of computing a problem: when they can be used, and their launches.

A kernel reads Q, K and V through tensor maps, which the driver encodes from addresses and strides. What a map cannot
describe (rows that do not begin on 16 bytes, heads broadcast with stride 0) is left to the portable kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import (
    ELEMENT_BYTES,
    LOG2_E,
    MAX_BLOCKS,
    VECTOR_BYTES,
    Layout,
    Machine,
    Mask,
    Problem,
    fewest_parts,
    section_for,
)
from kernels.attention.cuda.plan.variants import C_TYPE
from kernels.attention.cuda.run.driver import TensorMap, driver
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.hopper_kernels import (
    CHUNK_COLUMNS,
    HEAD_DIMS,
    MASK_BYTES,
    MASKED_SHAPES,
    PACKED_SHAPES,
    PAGED_SHAPES,
    SHAPES,
    SPLIT_SHAPES,
    WIDER,
    HopperKernel,
    HopperParameters,
    Shape,
    bias_shapes,
    staged_shapes,
)
from kernels.attention.cuda.ways.portable import joining, make_room_for_parts, parameters_but_launch

MAP_STRIDE_LIMIT = 2**40  # bytes, of cuTensorMapEncodeTiled
L2_SHARE = 0.64
"""Of the L2 cache, for the K and V of a section of heads: half of it is as far from an SM as memory is near."""
MASK_COLUMNS = 8
"""What a lane fetches of a row of a mask at once; there must be no half of it at a row's end."""
LEAST_TILES_OF_PART = 4
"""Of keys: fewer, and joining the parts costs more than it saves."""
MOST_PARTS = 64
SMALLER_TILE = 1.2
"""Of kernels whose mask is staged: how many times as long all but the first take for as many rows."""
LEAST_ROWS_OVER_PAGES, LEAST_PIECE = 128, 16
"""Queries of a sequence and keys of a copy, below which the portable kernel takes less."""
LEAST_PIECE_AT_ONCE = 64
"""Keys of a copy, from which on one thread that looks up pages as it copies takes less than a warp that looks ahead."""


def maps(layout: Layout, sizes: tuple[int, int, int]) -> bool:
    """Whether a tensor map can describe a tensor with these sizes of batch, head and row."""
    steps = [s for s, size in zip((layout.batch, layout.head, layout.row), sizes, strict=True) if size > 1]
    return layout.is_vector and all(0 < step * ELEMENT_BYTES < MAP_STRIDE_LIMIT for step in steps)


def refusal(problem: Problem, machine: Machine) -> str | None:
    """Why no kernel here computes the problem; None if they do."""
    if not machine.hopper:
        return "this device, or what is compiled for, has no tensor copies and no wgmma"
    if problem.sign != 1:
        return "no scales that are not positive"
    if problem.pages is not None and not follows(problem):
        return "keys in pages of a multiple of 16 keys, head dimensions to 128, and queries that follow each other"
    if problem.dtype not in C_TYPE or problem.head_dim > HEAD_DIMS[-1] or not problem.is_vector:
        return "head dimensions up to 256, rows that begin on 16 bytes"
    if problem.mask is not None and not (is_one_row(problem.mask) or shapes_for(problem, widths(problem.head_dim)[0])):
        begin = "16 bytes (8 if boolean)" if problem.head_dim <= HEAD_DIMS[-2] else "16 bytes"
        return f"a mask's rows must be contiguous, begin on {begin} and have a multiple of 8 keys"
    if not all(maps(getattr(problem, name), sizes_of(problem, name)) for name in "qkv"):
        return "a tensor map cannot describe these strides"
    return None


def sizes_of(problem: Problem, name: str) -> tuple[int, int, int]:
    """Batches, heads and rows of `q`, `k` or `v` as it lies in memory: packed sequences are one batch."""
    heads, rows = (problem.heads, problem.seq_q) if name == "q" else (problem.kv_heads, problem.seq_k)
    if problem.pages is not None:
        return (1, heads, total_rows(problem)) if name == "q" else (problem.pages.count, heads, problem.pages.size)
    if problem.lengths is None:
        return problem.batch, heads, rows
    return 1, heads, problem.lengths.total_q if name == "q" else problem.lengths.total_k


def follows(problem: Problem) -> bool:
    """Whether the kernel for keys in pages computes a problem with such."""
    assert problem.pages is not None
    apart = problem.seq_q * problem.q.row, problem.seq_q * problem.out.row
    in_a_row = problem.lengths is not None or problem.batch == 1 or (problem.q.batch, problem.out.batch) == apart
    enough = problem.seq_q >= LEAST_ROWS_OVER_PAGES and widths(problem.head_dim)[0] in PAGED_SHAPES
    return in_a_row and enough and piece_of(problem.pages.size) >= LEAST_PIECE


def piece_of(page: int) -> int:
    """How many keys of a tile one copy moves, all of one page."""
    return math.gcd(page, *(shape.keys for shape in PAGED_SHAPES.values()))


def total_rows(problem: Problem) -> int:
    """Of Q over all sequences, where they follow each other."""
    return problem.lengths.total_q if problem.lengths else problem.batch * problem.seq_q


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
    if problem.pages is not None:
        return paged_ways(problem, machine)
    tensor = problem.mask.dtype if problem.mask else None
    found = [
        HopperWay(HopperKernel(problem.dtype, head_dim, problem.causal, windowed, shape, tensor, packed), machine)
        for head_dim in widths(problem.head_dim)
        for shape in shapes_for(problem, head_dim)
    ]
    if problem.mask is not None:
        found = order_masked(found, problem)
    found += split_ways(problem, machine)
    return [way for way in found if way.tiles(problem) <= MAX_BLOCKS]


def paged_ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """The kernels for keys in pages; first, where a tile of keys comes in many copies, the one whose producer looks up
    the pages of a tile while the copies of another wait."""
    pages, width, left = problem.pages, widths(problem.head_dim)[0], problem.window_offset is not None
    assert pages is not None
    usual = HopperKernel(problem.dtype, width, problem.causal, left, PAGED_SHAPES[width], packed=True, paged=True)
    kernels = [replace(usual, ahead=True), usual] if piece_of(pages.size) < LEAST_PIECE_AT_ONCE else [usual]
    return [HopperWay(kernel, machine) for kernel in kernels]


def bias_ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """The kernels for a mask that is the same for all rows, however it lies; none for other problems."""
    mask, left = problem.mask, problem.window_offset is not None
    if mask is None or not is_one_row(mask) or refusal(problem, machine) is not None:
        return []
    width = widths(problem.head_dim)[0]
    kernels = (
        HopperKernel(problem.dtype, width, problem.causal, left, shape, mask.dtype)
        for shape in bias_shapes(width, problem.causal, left)
    )
    found = [HopperWay(kernel, machine) for kernel in kernels]
    return [way for way in found if way.tiles(problem) <= MAX_BLOCKS]


def order_masked(found: list[HopperWay], problem: Problem) -> list[HopperWay]:
    """Ways for a mask, which have no prices, the one first that should be fastest: of those whose mask is staged, with
    the fewest rows that an SM goes through, a smaller tile's counted as somewhat more."""
    staged = [way for way in found if way.kernel.shape.masks]

    def rows(way: HopperWay) -> float:
        shape = way.kernel.shape
        rounds = -(-way.tiles(problem) // way.machine.sm_count)
        return rounds * shape.rows * shape.sharers * (1.0 if way is staged[0] else SMALLER_TILE)

    return [*sorted(staged, key=rows), *(way for way in found if way not in staged)]


def split_ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """The kernel that cuts keys into parts, where row tiles alone leave half of the SMs without work."""
    head_dim = widths(problem.head_dim)[0]
    if not problem.is_plain or head_dim not in SPLIT_SHAPES:
        return []
    shape = SPLIT_SHAPES[head_dim]
    kernel = HopperKernel(problem.dtype, head_dim, problem.causal, False, shape, split=True)
    rows = HopperWay(kernel, machine).tiles(problem)
    most = min(MOST_PARTS, -(-problem.seq_k // shape.keys) // LEAST_TILES_OF_PART)
    if 2 * rows > machine.sm_count or most < 2:
        return []
    return [HopperWay(kernel, machine, fewest_parts(rows, machine.sm_count, most))]


def shapes_for(problem: Problem, head_dim: int) -> list[Shape]:
    """The shapes that have registers for all that a problem has, the one to take first."""
    mask = problem.mask
    if mask is None:
        return [*(PACKED_SHAPES if problem.lengths is not None else SHAPES)[head_dim, problem.causal]]
    if not fetches(mask, problem.seq_k):
        return []
    kind = head_dim, MASK_BYTES[mask.dtype] > 2
    staged = staged_shapes(head_dim, mask.dtype) if is_staged(mask, problem.seq_k) else ()
    most = sharers(mask, problem)
    return [*(shape for shape in staged if shape.sharers <= most), *MASKED_SHAPES.get(kind, ())]


def is_staged(mask: Mask, keys: int) -> bool:
    """Whether tiles of a mask that lanes could fetch can be copied through shared memory: each row has its own, and all
    begin on 16 bytes."""
    apart = (mask.address, mask.batch, mask.head, mask.row)
    return mask.row >= keys * MASK_BYTES[mask.dtype] and all(x % VECTOR_BYTES == 0 for x in apart)


def is_one_row(mask: Mask) -> bool:
    """Whether a mask is the same for all rows of a head."""
    return mask.row == 0


def sharers(mask: Mask, problem: Problem) -> int:
    """How many heads that follow each other share a mask: the same one of two batches, two of one batch, or 1."""
    follow = problem.batch if mask.batch == 0 and mask.head != 0 else problem.heads
    return 2 if follow % 2 == 0 and 0 in (mask.batch, mask.head) else 1


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
    parts: int = 1

    @property
    def name(self) -> str:
        """E.g. `fa90-192x128s2p`; `fa90-192x96s2p-d96` for a kernel that is narrower than the usual one; with the keys
        in 8 parts `fa90-128x128s2p-split-8`; with pages looked up ahead `fa90-128x128s2-ahead`."""
        head_dim, parts = self.kernel.head_dim, f"-split-{self.parts}" if self.kernel.split else ""
        parts += "-ahead" if self.kernel.ahead else ""
        return f"fa90-{self.kernel.shape.name}{f'-d{head_dim}' if head_dim in WIDER else ''}{parts}"

    def tiles(self, problem: Problem) -> int:
        """Tiles of rows over all sections of heads and parts; no less than there can be in packed sequences."""
        return self.parts * self.tiles_of_part(problem)

    def tiles_of_part(self, problem: Problem) -> int:
        """Those of one part."""
        if problem.lengths is not None or problem.pages is not None:
            return problem.heads * (total_rows(problem) // self.kernel.shape.rows + problem.batch)
        heads, sharing = self.section(problem), problem.batch * problem.heads // self.kernel.shape.sharers
        return -(-sharing // heads) * heads * -(-problem.seq_q // self.kernel.shape.rows)

    def section(self, problem: Problem) -> int:
        """How many heads, or pairs of heads, are worked on at a time."""
        return max(1, section(problem, self.machine) // self.kernel.shape.sharers)

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """One launch: no more blocks than SMs, which share out the tiles."""
        shape, tiles, heads = self.kernel.shape, self.tiles(problem), self.section(problem)
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
            parameters.mask_head, parameters.mask_row, parameters.mask_key = mask.head, mask.row, mask.key
            if mask.batch == 0 and mask.head != 0:  # of a head, for all batches: they follow each other
                parameters.batches = Divisor.of(problem.batch)
        if problem.lengths is not None:
            lengths = problem.lengths
            parameters.q_starts, parameters.k_starts = lengths.q_starts, lengths.k_starts
            parameters.sequences, parameters.align_ends = problem.batch, lengths.align_ends
            parameters.seq_q = lengths.total_q
        if problem.pages is not None:
            self.page(problem, parameters)
        joined = self.join(problem, scale, buffers, parameters)
        keys = shape.keys if problem.pages is None else parameters.piece
        tensors = [map_of(problem, "q", shape.rows), *(map_of(problem, name, keys) for name in "kv")]
        if shape.masks:
            tensors.append(map_of_mask(problem, self.kernel))
        return [Step(self.kernel, (min(tiles, self.machine.sm_count), 1, 1), (*tensors, parameters)), *joined]

    def page(self, problem: Problem, parameters: HopperParameters) -> None:
        """What there is to say of pages. Queries that are not packed are sequences of one length."""
        pages = problem.pages
        assert pages is not None
        parameters.block_table, parameters.k_lengths = pages.table, pages.lengths
        parameters.table_row, parameters.page = pages.row, Divisor.of(pages.size)
        parameters.pages, parameters.piece, parameters.queries = pages.count, piece_of(pages.size), problem.seq_q
        parameters.sequences, parameters.align_ends = problem.batch, pages.align_ends
        parameters.seq_q, parameters.seq_k = total_rows(problem), pages.most

    def join(self, problem: Problem, scale: float, buffers: Buffers, parameters: HopperParameters) -> list[Step]:
        """The launch that joins the parts, if there are parts; they get their memory here."""
        if not self.kernel.split:
            return []
        own = parameters_but_launch(problem, scale)
        own.lse, own.splits = buffers.lse, self.parts
        make_room_for_parts(problem, own, buffers)
        parameters.partial_out, parameters.partial_lse = own.partial_out, own.partial_lse
        parameters.splits, parameters.part_tiles = self.parts, Divisor.of(self.tiles_of_part(problem))
        return [joining(problem, own)]


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


def map_of_mask(problem: Problem, kernel: HopperKernel) -> TensorMap:
    """The map of a mask that comes through shared memory: dimensions that it is broadcast over have one place."""
    mask = problem.mask
    assert mask is not None
    sizes = (problem.seq_k, problem.seq_q, problem.heads if mask.head else 1, problem.batch if mask.batch else 1)
    strides = (mask.row, mask.head or mask.row, mask.batch or mask.row)
    box = (kernel.mask_columns, kernel.shape.rows, 1, 1)
    made = driver().tensor_map(mask.dtype, mask.address, sizes, strides, box, swizzled=False)
    made.tensor = "mask"
    return made
