"""Decoding, few queries over many keys, as a way of computing a problem: its kernels, its plan and its launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import Machine, Problem, fewest_parts, visible_keys
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, Chip, entry_point, padded_head_dim
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.portable import joining_step, make_room_for_parts, parameters_but_launch

MOST_ROWS, FEW_ROWS = 128, 64
"""Limits of the packed rows (queries times heads of a group), because each 16 or 32 of them read all of K and V: with
more than the first, decoding is not a way; up to the second, it is chosen where nothing was measured."""
MOST_SPLITS = 128
LEAST_KEYS = 256
"""The smallest number of keys for a block: with fewer, joining the parts would cost more than reading the keys."""
MOST_JOINED_BYTES = 256 * 1024
"""Up to this many bytes of partial results of an item, the block that ends last joins them; more are joined by a
separate kernel."""
INVARIANT_PARTS, INVARIANT_KEYS = 16, 512
"""In batch-invariant calls a sequence's keys are cut by their number alone: into so many parts, none but the last with
fewer keys than this; up to twice as many keys are one part."""
MOST_NARROW_ITEMS = {"hopper": 10}
"""For problems with more than `FEW_ROWS` rows that are cut into tiles of 16 rows: by chip, the largest number of such
tiles. Larger numbers were not timed."""
NARROW_PARTS, NARROW_KEYS = 16, 512
"""The keys of such problems are cut into at most the first number of parts, or into parts of at least the second number
of keys, whichever gives more parts. A block joins 16 parts at once."""
LEAST_KEYS_OF_MANY_HEADS = 1024
"""The fewest keys with which one query of more than `FEW_ROWS` heads was timed."""


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """A block computes `rows` packed rows. Each of its `warps` reads `keys` at a time, and has `stages` tiles in
    flight."""

    rows: int
    keys: int
    warps: int
    stages: int

    @property
    def name(self) -> str:
        """The name of the tile, e.g. `16x16w8s3`."""
        return f"{self.rows}x{self.keys}w{self.warps}s{self.stages}"


@dataclass(frozen=True, slots=True)
class DecodeKernel:
    """A specialisation of `source/decode.cuh`. `head_dim` is padded. Rows must start on 16-byte boundaries."""

    dtype: str
    head_dim: int
    tile: DecodeTile
    paged: bool = False
    float8: bool = False

    @property
    def name(self) -> str:
        """The entry point's name, e.g. `decode_bf16_d128_16x16w8s3`, `decode_paged_float8_bf16_d128_16x32w8s3`."""
        kind = f"decode{'_paged' if self.paged else ''}{'_float8' if self.float8 else ''}"
        return f"{kind}_{SHORT[self.dtype]}_d{self.head_dim}_{self.tile.name}"

    @property
    def threads(self) -> int:
        return self.tile.warps * 32

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory: Q once, and K and V for every stage of every warp."""
        t = self.tile
        return (2 * t.rows + 2 * t.warps * t.stages * t.keys * (1 if self.float8 else 2)) * self.head_dim

    @property
    def source(self) -> str:
        """The text of a translation unit with this kernel as its only entry point."""
        t = self.tile
        config = f"{C_TYPE[self.dtype]}, {self.head_dim}, {t.rows // 16}, {t.keys}, {t.warps}, {t.stages}"
        config += f", {'true' if self.paged else 'false'}, true" if self.float8 else ", true" if self.paged else ""
        call = f"attention_decode<DecodeConfig<{config}>>(p)"
        # Without a limit the compiler plans for two blocks per SM, for which shared memory has no room, and spills.
        alone = self.paged or self.float8 or t.warps == 8
        return entry_point(self.name, self.threads, call, header="decode.cuh", blocks=1 if alone else None)


TILES = {
    "turing": {
        (64, 16): DecodeTile(16, 32, 4, 1),
        (64, 32): DecodeTile(32, 32, 4, 1),
        (128, 16): DecodeTile(16, 16, 4, 1),
        (256, 16): DecodeTile(16, 16, 2, 1),
    },
    "ampere": {
        (64, 16): DecodeTile(16, 32, 4, 2),
        (64, 32): DecodeTile(32, 16, 4, 4),
        (128, 16): DecodeTile(16, 16, 4, 2),
        (128, 32): DecodeTile(32, 16, 4, 2),
        (256, 16): DecodeTile(16, 16, 4, 2),
    },
    "ada": {
        (64, 16): DecodeTile(16, 32, 4, 2),
        (64, 32): DecodeTile(32, 16, 4, 4),
        (128, 16): DecodeTile(16, 16, 4, 2),
        (128, 32): DecodeTile(32, 16, 4, 2),
        (256, 16): DecodeTile(16, 16, 2, 2),
    },
    "hopper": {
        (64, 16): DecodeTile(16, 32, 8, 3),
        (64, 32): DecodeTile(32, 32, 8, 3),
        (128, 1): DecodeTile(16, 16, 8, 1),
        (128, 16): DecodeTile(16, 16, 8, 3),
        (128, 32): DecodeTile(32, 16, 8, 3),
        (256, 16): DecodeTile(16, 16, 4, 3),
    },
}
"""By chip, then by padded head dimension and rows of a tile (16 or 32; 1 if one query of many heads has another tile of
16): the tile."""
FLOAT8_TILES = {
    "turing": {64: DecodeTile(16, 32, 4, 1), 128: DecodeTile(16, 32, 4, 1), 256: DecodeTile(16, 32, 2, 1)},
    "ampere": {64: DecodeTile(16, 32, 4, 4), 128: DecodeTile(16, 32, 4, 2), 256: DecodeTile(16, 16, 4, 4)},
    "ada": {64: DecodeTile(16, 32, 4, 4), 128: DecodeTile(16, 32, 4, 2), 256: DecodeTile(16, 16, 2, 4)},
    "hopper": {64: DecodeTile(16, 32, 8, 6), 128: DecodeTile(16, 32, 8, 3), 256: DecodeTile(16, 16, 4, 6)},
}
"""The same for keys of eight bits, by the padded head dimension."""


def every_kernel(chip: Chip) -> Iterator[DecodeKernel]:
    """Yield all kernels that a plan may choose on a chip."""
    for paged, dtype, ((head_dim, _), tile) in itertools.product((False, True), chip.dtypes, TILES[chip.name].items()):
        yield DecodeKernel(dtype, head_dim, tile, paged)
    for paged, dtype, (head_dim, tile) in itertools.product(
        (False, True), chip.dtypes, FLOAT8_TILES[chip.name].items()
    ):
        yield DecodeKernel(dtype, head_dim, tile, paged, True)


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """A planned launch. The grid is (items, splits); an item is one row tile of one head of K and V in one batch.

    With `tickets`, the block that ends last joins the parts of its item. Without, `attention_combine` joins all parts.
    A part has `least_tiles` tiles of keys, unless the keys end.
    """

    kernel: DecodeKernel
    row_tiles: int
    items: int
    splits: int
    tickets: bool
    least_tiles: int = 0


def why_not(problem: Problem) -> str | None:
    """Return why decoding cannot compute a problem; None if it can."""
    if problem.float8 and (problem.is_shaped or problem.head_dim % 16):
        return "they need a head dimension that is a multiple of 16, values as wide as keys, and no shaped scores"
    if problem.is_shaped:
        return "decoding does not shape scores, and K and V have one head dimension of at most 256"
    if not problem.is_vector:
        return "decoding needs a head dimension that is a multiple of 8, and rows that start on 16-byte boundaries"
    if problem.mask is not None:
        return "decoding does not support masks"
    if problem.sign != 1:
        return "decoding needs a positive scale"
    rows = problem.seq_q * problem.group
    if rows > MOST_ROWS and not problem.float8:
        return (
            f"{problem.seq_q} queries times {problem.group} heads per head of K are {rows} rows, more than {MOST_ROWS}"
        )
    if problem.batch * problem.kv_heads * rows >= 2**31:
        return "decoding needs fewer than 2^31 rows in the whole batch"
    return None


def tile_for(problem: Problem, chip: Chip) -> DecodeTile:
    """Return the tile for a problem: 32 rows if 16 would read the keys twice and the chip has a tile of 32; but 16 if
    there are many rows and so few heads of K that the keys are read from the L2 cache and there are too few blocks."""
    tiles, size = TILES[chip.name], padded_head_dim(problem.head_dim)
    if problem.float8:
        return FLOAT8_TILES[chip.name][size]
    narrow = is_narrow(problem, chip)
    wanted = 16 if problem.seq_q * problem.group <= 16 or narrow else 32
    if narrow and has_many_heads(problem):
        wanted = 1
    return tiles.get((size, wanted), tiles[size, 16])


def is_narrow(problem: Problem, chip: Chip) -> bool:
    """Return whether to use tiles of 16 rows for many rows, though there are tiles of 32, because K has few heads."""
    rows = problem.seq_q * problem.group
    items = problem.batch * problem.kv_heads * -(-rows // 16)
    two = problem.is_plain and (padded_head_dim(problem.head_dim), 32) in TILES[chip.name]
    return two and FEW_ROWS < rows <= MOST_ROWS and items <= MOST_NARROW_ITEMS.get(chip.name, 0)


def has_many_heads(problem: Problem) -> bool:
    """Return whether more than `FEW_ROWS` heads share a head of K and have one query each, which sees all keys."""
    sees_all = not problem.causal or problem.causal_offset >= problem.seq_k - 1
    many = problem.group > FEW_ROWS and problem.seq_k >= LEAST_KEYS_OF_MANY_HEADS
    return problem.is_plain and problem.seq_q == 1 and many and sees_all


def blocks_per_sm(kernel: DecodeKernel, chip: Chip) -> int:
    return max(1, chip.shared_bytes_per_sm // (kernel.shared_bytes + 1024))


def splits_for(items: int, slots: int, keys: int) -> int:
    """Return the smallest number of parts that fills the slots; at most MOST_SPLITS, and few enough that joining parts
    of LEAST_KEYS keys or more is worth it."""
    return fewest_parts(items, slots, max(1, min(MOST_SPLITS, keys // LEAST_KEYS)))


def plan_decode(
    problem: Problem,
    machine: Machine,
    *,
    tile: DecodeTile | None = None,
    splits: int | None = None,
    tickets: bool | None = None,
) -> DecodeLaunch:
    """Return the launch for a problem for which `why_not` returns None. `tile`, `splits` and `tickets` override the
    choice."""
    tile = tile or tile_for(problem, machine.chip)
    paged, float8 = problem.pages is not None, problem.float8 is not None
    kernel = DecodeKernel(problem.dtype, padded_head_dim(problem.head_dim), tile, paged, float8)
    rows = problem.seq_q * problem.group
    row_tiles = -(-rows // tile.rows)
    items = problem.batch * problem.kv_heads * row_tiles
    least_tiles = 0
    if splits is None and problem.invariant:
        least_tiles = -(-INVARIANT_KEYS // tile.keys)
        keys = problem.pages.most if problem.pages else problem.seq_k
        splits = max(1, min(INVARIANT_PARTS, -(-keys // (least_tiles * tile.keys))))
    if splits is None:
        keys, narrow = visible_keys(problem, problem.seq_q), is_narrow(problem, machine.chip)
        slots = machine.sm_count * (1 if narrow else blocks_per_sm(kernel, machine.chip))
        splits = splits_for(items, slots, keys)
        if narrow:
            splits = min(splits, max(NARROW_PARTS, keys // NARROW_KEYS))
    if tickets is None:
        tickets = splits * min(rows, tile.rows) * problem.head_dim * 4 <= MOST_JOINED_BYTES
    return DecodeLaunch(kernel, row_tiles, items, min(splits, MOST_SPLITS), tickets and splits > 1, least_tiles)


@dataclass(frozen=True, slots=True)
class Decode:
    """The way `decode`, with a launch that `plan_decode` planned."""

    launch: DecodeLaunch

    @property
    def name(self) -> str:
        """The name of the way, e.g. `decode-16x16w8s3`; `decode-16x16w8s3-32` if the keys are cut into 32 parts."""
        parts = self.launch.splits
        return f"decode-{self.launch.kernel.tile.name}{'' if parts == 1 else f'-{parts}'}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the launch of the kernel, and of the kernel that joins the parts if this one does not join them."""
        launch = self.launch
        parameters = parameters_but_launch(problem, scale)
        parameters.lse = buffers.lse
        parameters.row_tiles = Divisor.of(launch.row_tiles)
        parameters.pack, parameters.packs = Divisor.of(problem.group), Divisor.of(problem.kv_heads)
        parameters.all_heads = problem.batch * problem.kv_heads
        parameters.splits, parameters.least_tiles = launch.splits, launch.least_tiles
        make_room_for_parts(problem, parameters, buffers)
        if launch.tickets:
            parameters.tickets = buffers.counter(4 * launch.items)
        steps = [Step(launch.kernel, (launch.items, launch.splits, 1), (parameters,))]
        if launch.splits > 1 and not launch.tickets:
            steps.append(joining_step(problem, parameters))
        return steps
