"""The kernels for Hopper as ways of computing a problem: when they can be used, and their launches.

The kernels read Q, K and V through tensor maps, which the driver encodes from addresses and strides. Tensors that a map
cannot describe (rows that do not begin on 16 bytes, heads broadcast with stride 0) are left to the portable kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from kernels.attention.cuda.run.driver import TensorMap, cuda_driver
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.hopper_kernels import (
    CHUNK_BYTES,
    CHUNK_COLUMNS,
    HEAD_DIMS,
    MASK_BYTES,
    MASKED_SHAPES,
    NARROW_SHAPES,
    NARROW_SPLIT_SHAPES,
    NARROWER,
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
from kernels.attention.cuda.ways.portable import joining_step, make_room_for_parts, parameters_but_launch

MAP_STRIDE_LIMIT = 2**40  # bytes, of cuTensorMapEncodeTiled
L2_SHARE = 0.64
"""The fraction of the L2 cache that K and V of one section of heads may fill. It is less than 1 because half of the
cache is nearly as far from an SM as memory is."""
MASK_COLUMNS = 8
"""How many elements of a row of a mask a lane reads at once. The length of a row must be a multiple of it."""
LEAST_TILES_OF_PART = 4
"""The smallest number of key tiles in a part. With fewer, joining the parts costs more than cutting saves."""
MOST_PARTS = 64
SMALLER_TILE = 1.2
"""For kernels that copy their mask through shared memory: how many times as long as the first of them the others take
for the same number of rows."""
LEAST_ROWS_OVER_PAGES, LEAST_PIECE = 128, 16
"""With fewer queries in a sequence than the first, or fewer keys in a copy than the second, the portable kernel is
faster."""
LEAST_PIECE_AT_ONCE = 64
"""With this many keys in a copy or more, one thread that looks up the pages while it copies is faster than a warp that
looks them up ahead."""


def maps_describe(layout: Layout, sizes: tuple[int, int, int]) -> bool:
    """Return whether a tensor map can describe a tensor with these numbers of batches, heads and rows."""
    steps = [s for s, size in zip((layout.batch, layout.head, layout.row), sizes, strict=True) if size > 1]
    return layout.is_vector and all(0 < step * ELEMENT_BYTES < MAP_STRIDE_LIMIT for step in steps)


def hopper_refusal(problem: Problem, machine: Machine) -> str | None:
    """Return why no kernel of this module computes the problem; None if one does."""
    if not machine.hopper:
        return "needs tensor copies and wgmma, which only code compiled for sm_90a (H100, H200) has"
    if problem.sign != 1:
        return "the scale must be positive"
    if problem.shapes_scores or problem.dropout:
        return "softcap, slopes and dropout are not supported"
    if problem.pages is not None and not follows_pages(problem):
        return (
            f"with keys in pages, it needs at least {LEAST_ROWS_OVER_PAGES} queries without gaps between sequences, a "
            f"page size that is a multiple of {LEAST_PIECE}, and one head dimension of at most {max(PAGED_SHAPES)}"
        )
    if problem.dtype not in C_TYPE or widest_of(problem) > HEAD_DIMS[-1] or not problem.is_vector:
        return (
            f"needs float16 or bfloat16, a head dimension that is a multiple of 8 and at most {HEAD_DIMS[-1]}, "
            "and rows that start on 16-byte boundaries"
        )
    if problem.mask is not None and not (is_one_row(problem.mask) or shapes_for(problem, kernel_widths(problem)[0])):
        boundary = "16-byte (boolean: 8-byte)" if widest_of(problem) <= HEAD_DIMS[-2] else "16-byte"
        return f"a mask's rows must be contiguous, start on {boundary} boundaries and have a multiple of 8 keys"
    if not all(maps_describe(getattr(problem, name), sizes_of(problem, name)) for name in "qkv"):
        return "a tensor map cannot describe these strides"
    return None


def sizes_of(problem: Problem, name: str) -> tuple[int, int, int]:
    """Return the batches, heads and rows of `q`, `k` or `v` in memory. Packed sequences are one batch; for pages of K
    and V these are the pages, heads, and keys in a page."""
    heads, rows = (problem.heads, problem.seq_q) if name == "q" else (problem.kv_heads, problem.seq_k)
    if problem.pages is not None:
        return (1, heads, total_rows(problem)) if name == "q" else (problem.pages.count, heads, problem.pages.size)
    if problem.lengths is None:
        return problem.batch, heads, rows
    return 1, heads, problem.lengths.total_q if name == "q" else problem.lengths.total_k


def follows_pages(problem: Problem) -> bool:
    """Return whether the kernel for keys in pages computes this problem, which has keys in pages."""
    assert problem.pages is not None
    apart = problem.seq_q * problem.q.row, problem.seq_q * problem.out.row
    in_a_row = problem.lengths is not None or problem.batch == 1 or (problem.q.batch, problem.out.batch) == apart
    enough = problem.invariant or problem.seq_q >= LEAST_ROWS_OVER_PAGES
    enough = enough and problem.width == problem.head_dim and kernel_widths(problem)[0].of_k in PAGED_SHAPES
    return in_a_row and enough and piece_of(problem.pages.size) >= LEAST_PIECE


def piece_of(page: int) -> int:
    """Return how many keys one copy moves: a number that divides both a page and a key tile."""
    return math.gcd(page, *(shape.keys for shape in PAGED_SHAPES.values()))


def total_rows(problem: Problem) -> int:
    """Return the number of rows of Q in all sequences together, which follow each other in memory."""
    return problem.lengths.total_q if problem.lengths else problem.batch * problem.seq_q


def fetches_mask(mask: Mask, keys: int) -> bool:
    """Return whether a lane can read eight neighbouring elements of a mask at once at the start of any tile."""
    size = MASK_BYTES[mask.dtype]
    apart = (mask.address, mask.batch, mask.head, mask.row)
    return mask.key == size and keys % MASK_COLUMNS == 0 and all(x % min(VECTOR_BYTES, 8 * size) == 0 for x in apart)


def hopper_ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """Return every way of this module that computes the problem, but for `bias_ways`; an empty list if `refusal` gives
    a reason."""
    if hopper_refusal(problem, machine) is not None:
        return []
    packed = problem.lengths is not None
    if problem.pages is not None:
        return paged_ways(problem, machine)
    tensor = problem.mask.dtype if problem.mask else None
    way_list = [
        HopperWay(kernel_for(problem, widths, shape, mask=tensor, packed=packed), machine)
        for widths in kernel_widths(problem)
        for shape in shapes_for(problem, widths)
    ]
    if problem.mask is not None:
        way_list = order_masked(way_list, problem)
    way_list += split_ways(problem, machine)
    return [way for way in way_list if way.tiles(problem) <= MAX_BLOCKS]


def invariant_way(problem: Problem, machine: Machine) -> HopperWay | None:
    """Return the way for batch-invariant calls, which depends on no length and no number of sequences; None if
    `hopper_refusal` gives a reason, or if only kernels for pairs of heads compute the problem."""
    if hopper_refusal(problem, machine) is not None:
        return None
    if problem.pages is not None:
        return paged_ways(problem, machine)[0]
    mask, left, widths = problem.mask, problem.window_offset is not None, kernel_widths(problem)[0]
    if mask is not None and is_one_row(mask):
        shapes = bias_shapes(widths.of_k, problem.causal, left)
    else:
        shapes = [shape for shape in shapes_for(problem, widths) if shape.sharers == 1]
    tensor, packed = mask.dtype if mask else None, problem.lengths is not None
    kernels = [kernel_for(problem, widths, shape, mask=tensor, packed=packed) for shape in shapes[:1]]
    return HopperWay(kernels[0], machine) if kernels else None


def paged_ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """Return the ways for keys in pages, the preferred one first. If a key tile takes many copies, that is the one
    whose producer looks up the pages of a tile while the copies of another tile wait."""
    pages, widths = problem.pages, kernel_widths(problem)[0]
    assert pages is not None
    usual = kernel_for(problem, widths, PAGED_SHAPES[widths.of_k], packed=True, paged=True)
    kernels = [replace(usual, ahead=True), usual] if piece_of(pages.size) < LEAST_PIECE_AT_ONCE else [usual]
    return [HopperWay(kernel, machine) for kernel in kernels]


def bias_ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """Return the ways for a mask that is the same for all rows, with any layout; an empty list for other problems."""
    mask, has_window_start = problem.mask, problem.window_offset is not None
    if mask is None or not is_one_row(mask) or hopper_refusal(problem, machine) is not None:
        return []
    widths = kernel_widths(problem)[0]
    kernels = (
        kernel_for(problem, widths, shape, mask=mask.dtype)
        for shape in bias_shapes(widths.of_k, problem.causal, has_window_start)
    )
    way_list = [HopperWay(kernel, machine) for kernel in kernels]
    return [way for way in way_list if way.tiles(problem) <= MAX_BLOCKS]


def order_masked(found: list[HopperWay], problem: Problem) -> list[HopperWay]:
    """Return the ways for a mask, which have no prices, with the presumably fastest one first.

    The ways that copy the mask through shared memory come first, ordered by the rows that one SM computes; for all but
    the first shape these are multiplied by SMALLER_TILE.
    """
    staged = [way for way in found if way.kernel.shape.masks]

    def rows(way: HopperWay) -> float:
        shape = way.kernel.shape
        rounds = -(-way.tiles(problem) // way.machine.sm_count)
        return rounds * shape.rows * shape.sharers * (1.0 if way is staged[0] else SMALLER_TILE)

    return [*sorted(staged, key=rows), *(way for way in found if way not in staged)]


def split_ways(problem: Problem, machine: Machine) -> list[HopperWay]:
    """Return the way that cuts the keys into parts, if the row tiles alone leave half of the SMs without work; else an
    empty list."""
    widths = kernel_widths(problem)[0]
    shape = (NARROW_SPLIT_SHAPES if widths.narrow else SPLIT_SHAPES).get(widths.of_k)
    if not problem.is_dense or shape is None:
        return []
    kernel = kernel_for(problem, widths, shape, split=True)
    rows = HopperWay(kernel, machine).tiles(problem)
    most = min(MOST_PARTS, -(-problem.seq_k // shape.keys) // LEAST_TILES_OF_PART)
    if 2 * rows > machine.sm_count or most < 2:
        return []
    return [HopperWay(kernel, machine, fewest_parts(rows, machine.sm_count, most))]


def shapes_for(problem: Problem, widths: Widths) -> list[Shape]:
    """Return the shapes that have enough registers for the features of a problem, the preferred one first."""
    mask, head_dim = problem.mask, widths.of_k
    if mask is None and widths.narrow:
        return [*NARROW_SHAPES[(*widths, problem.causal)]]
    if mask is None:
        return [*(PACKED_SHAPES if problem.lengths is not None else SHAPES)[head_dim, problem.causal]]
    if not fetches_mask(mask, problem.seq_k):
        return []
    kind = head_dim, MASK_BYTES[mask.dtype] > 2
    staged = staged_shapes(head_dim, mask.dtype) if is_staged(mask, problem.seq_k) else ()
    most = mask_sharers(mask, problem)
    return [*(shape for shape in staged if shape.sharers <= most), *MASKED_SHAPES.get(kind, ())]


def is_staged(mask: Mask, keys: int) -> bool:
    """Return whether tiles of a mask for which `fetches` is true can also be copied through shared memory: each row has
    memory that no other row uses, and all rows begin on 16 bytes."""
    apart = (mask.address, mask.batch, mask.head, mask.row)
    return mask.row >= keys * MASK_BYTES[mask.dtype] and all(x % VECTOR_BYTES == 0 for x in apart)


def is_one_row(mask: Mask) -> bool:
    """Return whether a mask is the same for all rows of a head."""
    return mask.row == 0


def mask_sharers(mask: Mask, problem: Problem) -> int:
    """Return how many heads that follow each other share a mask: 2 (the same head of two batches, or two heads of one
    batch) or 1."""
    follow = problem.batch if mask.batch == 0 and mask.head != 0 else problem.heads
    return 2 if follow % 2 == 0 and 0 in (mask.batch, mask.head) else 1


class Widths(NamedTuple):
    """The widths of a kernel's products: that of K, and that of V if it is less, else 0."""

    of_k: int
    narrow: int = 0


def widest_of(problem: Problem) -> int:
    """Return the head dimension of K or V, whichever is greater."""
    return max(problem.head_dim, problem.width)


def kernel_widths(problem: Problem) -> list[Widths]:
    """Return the widths of the kernels that compute a problem's head dimensions, the usual one first. Where K and V
    differ and no kernel is made for that, they count as equally wide: copies fill the missing columns with zeros."""
    least = next(width for width in HEAD_DIMS if widest_of(problem) <= width)
    if problem.width <= NARROWER.get(least, 0):
        return [Widths(least, NARROWER[least])]
    return [Widths(WIDER[least]), Widths(least)] if least in WIDER else [Widths(least)]


def kernel_for(problem: Problem, widths: Widths, shape: Shape, **features: Any) -> HopperKernel:
    """Return the kernel of these widths and shape for a problem's element type and limits, with these features."""
    limits = problem.causal, problem.window_offset is not None
    return HopperKernel(problem.dtype, widths.of_k, *limits, shape, narrow=widths.narrow, **features)


def concurrent_heads(problem: Problem, machine: Machine) -> int:
    """Return how many heads of Q are computed at the same time; 1 if the problem is not causal, because then the rows
    of a head follow each other."""
    return section_for(problem, int(machine.l2_bytes * L2_SHARE)) if problem.causal else 1


@dataclass(frozen=True, slots=True)
class HopperWay:
    """A way: one of the kernels for Hopper, on a machine, with the keys cut into `parts`."""

    kernel: HopperKernel
    machine: Machine
    parts: int = 1

    @property
    def name(self) -> str:
        """The name of the way, e.g. `fa90-192x128s2p`; `fa90-192x96s2p-d96` for a kernel that is narrower than the
        usual one; `fa90-128x128s2-v128` if its V is narrower than K; `fa90-128x128s2p-split-8` if the keys are cut
        into 8 parts; `fa90-128x128s2-ahead` if pages are looked up ahead."""
        head_dim, narrow, parts = self.kernel.head_dim, self.kernel.narrow, ""
        if self.kernel.split:
            parts = f"-split-{self.parts}"
        elif self.kernel.ahead:
            parts = "-ahead"
        widths = f"-d{head_dim}" if head_dim in WIDER else f"-v{narrow}" if narrow else ""
        return f"fa90-{self.kernel.shape.name}{widths}{parts}{'+sinks' if self.kernel.sinks else ''}"

    def with_sinks(self) -> HopperWay | None:
        """The way whose kernel takes sinks too; None if another launch must add them."""
        if self.kernel.mask or self.kernel.split:
            return None
        return replace(self, kernel=replace(self.kernel, sinks=True))

    def tiles(self, problem: Problem) -> int:
        """Return the number of row tiles in all sections of heads and all parts. For packed sequences it is an upper
        bound."""
        return self.parts * self.tiles_of_part(problem)

    def tiles_of_part(self, problem: Problem) -> int:
        """Return the number of row tiles of one part; for packed sequences an upper bound."""
        if problem.lengths is not None or problem.pages is not None:
            return problem.heads * (total_rows(problem) // self.kernel.shape.rows + problem.batch)
        heads, sharing = self.section(problem), problem.batch * problem.heads // self.kernel.shape.sharers
        return -(-sharing // heads) * heads * -(-problem.seq_q // self.kernel.shape.rows)

    def section(self, problem: Problem) -> int:
        """Return how many heads, or pairs of heads that share a mask, are computed at the same time."""
        return max(1, concurrent_heads(problem, self.machine) // self.kernel.shape.sharers)

    def parameters(self, problem: Problem, scale: float, buffers: Buffers) -> HopperParameters:
        """Return the parameters of a launch, but for those of parts."""
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
            value_dim=problem.width,
            last_offset=problem.causal_offset,
            first_offset=problem.window_offset or 0,
            scale_log2=scale * LOG2_E,
            sinks=problem.sinks,
        )
        if problem.mask is not None:
            mask = problem.mask
            parameters.mask, parameters.mask_batch = mask.address, mask.batch
            parameters.mask_head, parameters.mask_row, parameters.mask_key = mask.head, mask.row, mask.key
            if mask.batch == 0 and mask.head != 0:  # all batches of a head share the mask, and follow each other
                parameters.batches = Divisor.of(problem.batch)
        if problem.lengths is not None:
            lengths = problem.lengths
            parameters.q_starts, parameters.k_starts = lengths.q_starts, lengths.k_starts
            parameters.sequences, parameters.align_ends = problem.batch, lengths.align_ends
            parameters.seq_q = lengths.total_q
        if problem.pages is not None:
            self.page(problem, parameters)
        return parameters

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the launch, which has at most one block per SM; the blocks divide the tiles among them. If the keys
        are cut, a second launch joins the parts."""
        shape, parameters = self.kernel.shape, self.parameters(problem, scale, buffers)
        joined = self.join(problem, scale, buffers, parameters)
        keys = shape.keys if problem.pages is None else parameters.piece
        tensors = [map_of(problem, "q", shape.rows), *(map_of(problem, name, keys) for name in "kv")]
        if shape.masks:
            tensors.append(map_of_mask(problem, self.kernel))
        blocks = min(parameters.tiles, self.machine.sm_count)
        return [Step(self.kernel, (blocks, 1, 1), (*tensors, parameters)), *joined]

    def page(self, problem: Problem, parameters: HopperParameters) -> None:
        """Set the parameters that describe pages. Queries that are not packed count as sequences of the same length."""
        pages = problem.pages
        assert pages is not None
        parameters.block_table, parameters.k_lengths = pages.table, pages.lengths
        parameters.table_row, parameters.page = pages.row, Divisor.of(pages.size)
        parameters.pages, parameters.piece, parameters.queries = pages.count, piece_of(pages.size), problem.seq_q
        parameters.sequences, parameters.align_ends = problem.batch, pages.align_ends
        parameters.seq_q, parameters.seq_k = total_rows(problem), pages.most

    def join(self, problem: Problem, scale: float, buffers: Buffers, parameters: HopperParameters) -> list[Step]:
        """Return the launch that joins the parts; an empty list if there are none. Allocates the memory of the parts
        and sets its addresses in `parameters`."""
        if not self.kernel.split:
            return []
        join_parameters = parameters_but_launch(problem, scale)
        join_parameters.lse, join_parameters.splits = buffers.lse, self.parts
        make_room_for_parts(problem, join_parameters, buffers)
        parameters.partial_out, parameters.partial_lse = join_parameters.partial_out, join_parameters.partial_lse
        parameters.splits, parameters.part_tiles = self.parts, Divisor.of(self.tiles_of_part(problem))
        return [joining_step(problem, join_parameters)]


def map_of(problem: Problem, name: str, box_rows: int) -> TensorMap:
    """Return the tensor map of `q`, `k` or `v`. One copy moves `box_rows` rows of 64 columns, or 128 of eight bits."""
    layout: Layout = getattr(problem, name)
    batch, heads, rows = sizes_of(problem, name)
    columns = problem.width if name == "v" else problem.head_dim
    row = layout.row or columns  # dimensions of size 1 have no stride, but a map needs one
    sizes, strides = (columns, rows, heads, batch), (row, layout.head or row, layout.batch or row)
    dtype, box_columns = (problem.dtype, CHUNK_COLUMNS) if problem.float8 is None else ("float8", CHUNK_BYTES)
    made = cuda_driver().tensor_map(
        dtype, layout.address, sizes, [s * ELEMENT_BYTES for s in strides], (box_columns, box_rows, 1, 1)
    )
    made.tensor = name
    return made


def map_of_mask(problem: Problem, kernel: HopperKernel) -> TensorMap:
    """Return the tensor map of a mask that is copied through shared memory. Broadcast dimensions have size 1."""
    mask = problem.mask
    assert mask is not None
    sizes = (problem.seq_k, problem.seq_q, problem.heads if mask.head else 1, problem.batch if mask.batch else 1)
    strides = (mask.row, mask.head or mask.row, mask.batch or mask.row)
    box = (kernel.mask_columns, kernel.shape.rows, 1, 1)
    made = cuda_driver().tensor_map(mask.dtype, mask.address, sizes, strides, box, swizzled=False)
    made.tensor = "mask"
    return made
