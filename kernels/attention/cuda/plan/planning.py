"""Decides how a problem is computed: which kernel, what grid, how many splits. Pure: no torch, no device."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.variants import (
    MAX_HEAD_DIM,
    SCALAR_TILES,
    WIDE_HEAD_DIMS,
    Chip,
    Kernel,
    padded_head_dim,
)

LOG2_E = 1.4426950408889634
ELEMENT_BYTES = 2
VECTOR_BYTES = 16
MAX_TILE_SPAN = 2**31  # bytes between the first and the last row of a tile of keys: addressed by 32 bits
MAX_BLOCKS = 2**31 - 1  # along x in a grid
MAX_SPLITS, MIN_TILES_PER_SPLIT = 64, 8
REGISTERS_PER_SM, REGISTERS_PER_THREAD, SHARED_BYTES_RESERVED = 65536, 255, 1024


def scale_of(given: float | None, head_dim: int) -> float:
    """The scale of a call, or its default of 1 / sqrt(head_dim). Raises `Unsupported` if it is not finite.

    It is 0 if its product with log2(e) is 0 in float32. Kernels are given that product, and those for positive scales
    multiply scores of minus infinity by it.
    """
    scale = 1.0 / math.sqrt(head_dim) if given is None else given
    if not math.isfinite(scale):
        raise Unsupported(f"scale must be finite, not {scale}")
    return scale if ctypes.c_float(scale * LOG2_E).value else 0.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a [B, H, S, D] tensor: strides of batch, head and row in elements, and the address of its start."""

    batch: int
    head: int
    row: int
    address: int = 0

    @property
    def is_vector(self) -> bool:
        """Whether every row starts on a 16-byte boundary."""
        steps = (self.batch, self.head, self.row)
        return self.address % VECTOR_BYTES == 0 and all(s * ELEMENT_BYTES % VECTOR_BYTES == 0 for s in steps)


@dataclass(frozen=True, slots=True)
class Mask:
    """What is added to the scaled scores, or which keys are seen: element type, address, and strides in bytes, 0 where
    it is broadcast."""

    dtype: str
    address: int
    batch: int
    head: int
    row: int
    key: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sequences of different lengths, one behind the other in packed tensors.

    Sequence b is rows q_starts[b] .. q_starts[b + 1] - 1; both arrays are int32 on the device. With `align_ends` the
    limits of what a row sees count from the last key for the last row of each sequence.
    """

    q_starts: int
    k_starts: int
    total_q: int
    align_ends: bool
    total_k: int = 0


@dataclass(frozen=True, slots=True)
class Pages:
    """K and V in pages of `size` keys. Sequence b's key j lies in page `table[b][j // size]`, at row j % size.

    `table` and `lengths`, the keys of each sequence, are addresses of int32 on the device; `row` is the table's stride
    in entries, `most` the number of keys that a row of it can name, and `count` how many pages the cache has. The
    layouts of K and V have pages for batches. With `align_ends` the limits of what a row sees count from the last key
    for the last row of each sequence.
    """

    table: int
    lengths: int
    row: int
    size: int
    most: int
    align_ends: bool
    count: int


@dataclass(frozen=True, slots=True)
class Slopes:
    """ALiBi: by how much each key of distance lowers a score, float32 by head of Q; the stride of batches in floats, 0
    where they share the slopes. Key i + level is the one nearest to query i."""

    address: int
    batch: int
    level: int


@dataclass(frozen=True, slots=True)
class Dropping:
    """Dropout: the address of seed and offset, int64 on the device; the least word of a weight that is kept; and what
    those weights are multiplied by."""

    seed: int
    least: int
    keep_scale: float


@dataclass(frozen=True, slots=True)
class Float8:
    """K and V are float8 e4m3, each element times a scale of its head: the addresses of the scales, float32 by head of
    K. The layouts of K and V count pairs of elements. So is Q, whose `dtype` is then the output's, if it has a
    scale."""

    k_scale: int
    v_scale: int
    q_scale: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """One attention call without its data.

    Row r of Q sees the keys up to r + causal_offset if `causal`, and from r + window_offset on if that is a number.
    With `lengths`, `batch` counts sequences and `seq_q` and `seq_k` are the longest; with `pages` `seq_k` is. `sign` is
    that of the scale: -1, 0 or 1; kernels are given its absolute value, and 1 in the place of 0. `value_dim` is the
    width of V and the output, 0 where it is that of Q and K. `softcap` limits scores to +-softcap, 0 does not. `sinks`
    is the address of a score for each head of Q that has no value, 0 where there is none. `invariant`: the bits of a
    row may depend on nothing but the row, its keys and the kernel. `float8`: K and V have eight bits an element.
    """

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool
    causal_offset: int
    q: Layout
    k: Layout
    v: Layout
    out: Layout
    window_offset: int | None = None
    mask: Mask | None = None
    lengths: Lengths | None = None
    sign: int = 1
    pages: Pages | None = None
    value_dim: int = 0
    softcap: float = 0.0
    slopes: Slopes | None = None
    sinks: int = 0
    invariant: bool = False
    float8: Float8 | None = None
    dropout: Dropping | None = None

    @property
    def width(self) -> int:
        """The width of V and the output."""
        return self.value_dim or self.head_dim

    @property
    def shapes_scores(self) -> bool:
        """Whether scores are capped or fall with the distance."""
        return bool(self.softcap or self.slopes)

    @property
    def needs_shaping(self) -> bool:
        """Whether it shapes scores, or K's and V's widths are ones that only the kernels that shape scores and some of
        Hopper's have."""
        return self.shapes_scores or self.width != self.head_dim or self.head_dim > MAX_HEAD_DIM

    @property
    def is_shaped(self) -> bool:
        """Whether it needs shaping, or weights are dropped."""
        return self.needs_shaping or self.dropout is not None

    @property
    def is_dense(self) -> bool:
        """Whether it has no window, mask, lengths, pages, shaped scores, dropout or odd scale; widths may be any."""
        features = (self.window_offset, self.mask, self.lengths, self.pages, self.float8, self.dropout)
        return self.sign == 1 and not self.shapes_scores and all(feature is None for feature in features)

    @property
    def is_plain(self) -> bool:
        """Whether it is dense, and K and V have one width up to 256: what the kernels without features compute."""
        return self.is_dense and not self.is_shaped

    @property
    def has_keys(self) -> bool:
        """Whether there is an element to compute and a key to see."""
        return min(self.batch, self.heads, self.seq_q, self.seq_k) > 0

    @property
    def group(self) -> int:
        """How many heads of Q share a head of K and V."""
        return self.heads // self.kv_heads

    @property
    def out_rows(self) -> int:
        """Rows of the output over all heads."""
        return self.heads * (self.lengths.total_q if self.lengths else self.batch * self.seq_q)

    @property
    def is_vector(self) -> bool:
        return (
            self.head_dim % 8 == 0
            and self.width % 8 == 0
            and all(x.is_vector for x in (self.q, self.k, self.v, self.out))
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """The chip that is used. `hopper` says whether kernels may use the instructions that only Hopper has."""

    chip: Chip
    sm_count: int
    l2_bytes: int
    hopper: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A decision. The kernel's grid is (blocks, splits); with more than one split, `Combine` runs after it."""

    kernel: Kernel
    blocks: int
    row_tiles: int
    section: int
    splits: int
    tiles_per_split: int


def kernel_refusal(chip: Chip, dtype: str, head_dim: int, widest: int = MAX_HEAD_DIM) -> str | None:
    """Why a chip has no kernel for an element type and head dimension; None if it has one."""
    if dtype not in ("float16", "bfloat16"):
        return f"the CUDA kernel computes float16 and bfloat16, not {dtype}"
    if dtype not in chip.dtypes:
        return f"{chip.name} chips have no {dtype} tensor cores"
    if not 1 <= head_dim <= widest:
        return f"the CUDA kernel supports head dimensions 1 to {widest}, not {head_dim}"
    return None


def check_kind(problem: Problem, machine: Machine) -> None:
    """Raises `Unsupported` for an element type or a head dimension that no kernel computes."""
    widths = {problem.head_dim, problem.width}
    reason = next(
        filter(None, (kernel_refusal(machine.chip, problem.dtype, one, WIDE_HEAD_DIMS[-1]) for one in widths)), None
    )
    if reason:
        raise Unsupported(reason)
    not_with = {
        "keys in pages": problem.pages,
        "float8 keys and values": problem.float8,
        "batch_invariant, as which weights are dropped depends on the batch": problem.invariant,
    }
    for what, has in not_with.items():
        if problem.dropout and has:
            raise Unsupported(f"dropout is not built for {what}")


def check_problem(problem: Problem, machine: Machine) -> None:
    """Raises `Unsupported` for a problem that no kernel for 16-bit keys computes."""
    check_kind(problem, machine)
    if problem.float8:
        raise Unsupported("keys and values of eight bits are computed by decoding alone")
    sizes = (problem.batch, problem.heads, problem.kv_heads, problem.seq_q, problem.seq_k)
    if min(sizes) < 1:
        raise Unsupported(f"every size must be at least 1: batch, heads, kv_heads, seq_q, seq_k are {sizes}")
    if problem.heads % problem.kv_heads:
        raise Unsupported(f"{problem.heads} heads of Q cannot share {problem.kv_heads} heads of K and V equally")
    widest = max(problem.k.row, problem.v.row) * ELEMENT_BYTES * 64
    if widest >= MAX_TILE_SPAN:
        raise Unsupported(f"64 rows of K or V span {widest} bytes; the kernel addresses less than {MAX_TILE_SPAN}")
    if max(problem.seq_q, problem.seq_k) >= 2**30:
        raise Unsupported("sequences must be shorter than 2^30")


def blocks_per_sm(kernel: Kernel, chip: Chip) -> int:
    """How many blocks an SM holds at a time, if each thread takes all the registers it may."""
    return slots_per_sm(kernel.shared_bytes, kernel.threads, chip)


def slots_per_sm(shared_bytes: int, threads: int, chip: Chip) -> int:
    """How many blocks of any kernel an SM holds at a time, by their shared memory and threads."""
    by_shared = chip.shared_bytes_per_sm // (shared_bytes + SHARED_BYTES_RESERVED)
    by_registers = REGISTERS_PER_SM // (threads * (REGISTERS_PER_THREAD + 1))
    return max(1, min(by_shared, by_registers))


def visible_keys(problem: Problem, queries: int) -> int:
    """How many keys at most `queries` neighbouring queries see together; at least 1."""
    if problem.window_offset is None or not problem.causal:
        return problem.seq_k
    return max(1, min(problem.seq_k, problem.causal_offset - problem.window_offset + queries))


def splits_for(blocks: int, sm_count: int, blocks_per_sm: int, tiles: int) -> int:
    """The number of parts into which the keys are cut so that the grid fills the chip.

    It is one if there is a block for 80 % of the SMs already. Otherwise it is the least number with at least 95 % of
    the best share of busy slots over the waves. Each part keeps at least 8 tiles, as joining smaller ones costs too
    much.
    """
    most = min(MAX_SPLITS, tiles // MIN_TILES_PER_SPLIT)
    if blocks >= 0.8 * sm_count or most <= 1:
        return 1

    return fewest_parts(blocks, sm_count * blocks_per_sm, most)


def fewest_parts(blocks: int, slots: int, most: int) -> int:
    """The fewest parts, at most `most`, to cut each block in for at least 95 % of the best share of busy slots."""

    def busy(parts: int) -> float:
        waves = blocks * parts / slots
        return waves / math.ceil(waves)

    best = max(busy(parts) for parts in range(1, most + 1))
    return next(parts for parts in range(1, most + 1) if busy(parts) >= 0.95 * best)


def plan_problem(problem: Problem, machine: Machine, *, splits: int | None = None) -> Launch:
    """How to compute a problem on a machine. `splits` overrides the choice. Raises `Unsupported`."""
    check_problem(problem, machine)
    if problem.is_shaped:
        raise Unsupported(
            f"the plain kernels shape no scores, and K and V have equal head dimensions 1 to {MAX_HEAD_DIM}"
        )
    chip, size = machine.chip, padded_head_dim(problem.head_dim)
    all_heads = problem.batch * problem.heads
    kernel = choose_kernel(problem, machine, size)
    row_tiles = -(-problem.seq_q // kernel.tile.rows)
    tiles = -(-problem.seq_k // kernel.tile.keys)
    section = section_for(problem, machine.l2_bytes) if problem.causal else all_heads
    blocks = -(-all_heads // section) * section * row_tiles
    if blocks > MAX_BLOCKS:
        raise Unsupported(f"{blocks} blocks do not fit a grid of {MAX_BLOCKS}: split the batch")
    if splits is None:
        splits = splits_for(all_heads * row_tiles, machine.sm_count, blocks_per_sm(kernel, chip), tiles)
    per_split = -(-tiles // max(1, min(splits, tiles)))
    return Launch(kernel, blocks, row_tiles, section, -(-tiles // per_split), per_split)


def choose_kernel(problem: Problem, machine: Machine, size: int) -> Kernel:
    """The kernel with the small tile where the large one would give an SM one block at most."""
    chip = machine.chip
    if not problem.is_vector:
        return Kernel(problem.dtype, size, problem.causal, False, SCALAR_TILES[size])
    large = Kernel(problem.dtype, size, problem.causal, True, chip.large[size, problem.causal])
    blocks = problem.batch * problem.heads * -(-problem.seq_q // large.tile.rows)
    if blocks > machine.sm_count:
        return large
    return Kernel(problem.dtype, size, problem.causal, True, chip.small[size, problem.causal])


def section_for(problem: Problem, l2_bytes: int) -> int:
    """How many heads of Q to work on at a time, so that their K and V fit the L2 cache.

    Sections have the same size if that takes at most twice as many as needed, because the longest rows of a short last
    section would run alone at the end.
    """
    per_kv_head = problem.seq_k * (problem.head_dim + problem.width) * ELEMENT_BYTES
    group, kv_heads = problem.heads // problem.kv_heads, problem.batch * problem.kv_heads
    fewest = -(-kv_heads // max(1, l2_bytes // per_kv_head))
    even = next((count for count in range(fewest, 2 * fewest + 1) if kv_heads % count == 0), fewest)
    return -(-kv_heads // even) * group
