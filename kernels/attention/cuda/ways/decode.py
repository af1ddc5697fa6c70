"""Decoding, few queries over many keys, as a way of computing a problem: its kernels, its plan and its launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import Machine, Problem, fewest_parts, visible_keys
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, Chip, entry_point, padded
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.portable import joining, make_room_for_parts, parameters_but_launch

MOST_ROWS, FEW_ROWS = 128, 64
"""Packed rows, queries times heads of a group, up to which this is a way, and up to which it is the one to take where
nothing was measured: each 16 or 32 read all of K and V."""
MOST_SPLITS = 128
LEAST_KEYS = 256
"""The least number of keys for a block: with fewer, joining the parts would cost more than reading them."""
MOST_JOINED_BYTES = 256 * 1024
"""Parts that one block joins by itself when it is the last; more are joined by a kernel of their own."""
MOST_NARROW_ITEMS, MOST_NARROW_BYTES = {"hopper": 10}, 64 * 1024
"""By chip, up to how many tiles of 16 rows more than `FEW_ROWS` are cut into such, as far as that was timed, and the
parts of them that one block joins by itself."""


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """`rows` packed rows a block; each of its `warps` takes `keys` at a time, with `stages` tiles on their way."""

    rows: int
    keys: int
    warps: int
    stages: int

    @property
    def name(self) -> str:
        """E.g. `16x16w8s3`."""
        return f"{self.rows}x{self.keys}w{self.warps}s{self.stages}"


@dataclass(frozen=True, slots=True)
class DecodeKernel:
    """A specialisation of `source/decode.cuh`. `head_dim` is padded; rows must start on 16-byte boundaries."""

    dtype: str
    head_dim: int
    tile: DecodeTile
    paged: bool = False

    @property
    def name(self) -> str:
        """The entry point's name, e.g. `decode_bf16_d128_16x16w8s3`, `decode_paged_bf16_d128_16x16w8s3`."""
        kind = "decode_paged" if self.paged else "decode"
        return f"{kind}_{SHORT[self.dtype]}_d{self.head_dim}_{self.tile.name}"

    @property
    def threads(self) -> int:
        return self.tile.warps * 32

    @property
    def shared_bytes(self) -> int:
        """Q once, K and V for every stage of every warp."""
        t = self.tile
        return (t.rows + 2 * t.warps * t.stages * t.keys) * self.head_dim * 2

    @property
    def source(self) -> str:
        """A translation unit whose one entry point is this kernel."""
        t = self.tile
        config = f"{C_TYPE[self.dtype]}, {self.head_dim}, {t.rows // 16}, {t.keys}, {t.warps}, {t.stages}"
        config += ", true" if self.paged else ""
        call = f"attention_decode<DecodeConfig<{config}>>(p)"
        # Left to itself the compiler aims at two blocks an SM, which shared memory has no room for, and spills.
        return entry_point(self.name, self.threads, call, header="decode.cuh", blocks=1 if self.paged else None)


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
        (128, 16): DecodeTile(16, 16, 8, 3),
        (128, 32): DecodeTile(32, 16, 8, 3),
        (256, 16): DecodeTile(16, 16, 4, 3),
    },
}
"""The tile of a chip for a padded head dimension and a number of packed rows, 16 or 32."""


def every_kernel(chip: Chip) -> Iterator[DecodeKernel]:
    """All kernels that a plan may choose on a chip."""
    for paged, dtype, ((head_dim, _), tile) in itertools.product((False, True), chip.dtypes, TILES[chip.name].items()):
        yield DecodeKernel(dtype, head_dim, tile, paged)


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """A decision: the grid is (items, splits), an item being a row tile of a head of K and V of a batch.

    With `tickets` the block that ends last joins the parts of its item; without, `attention_combine` joins them all.
    """

    kernel: DecodeKernel
    row_tiles: int
    items: int
    splits: int
    tickets: bool


def why_not(problem: Problem) -> str | None:
    """Why decoding cannot compute a problem; None if it can."""
    if not problem.is_vector:
        return "decoding needs rows that start on 16-byte boundaries"
    if problem.mask is not None:
        return "decoding has no masks"
    if problem.sign != 1:
        return "decoding has no scales that are not positive"
    rows = problem.seq_q * problem.group
    if rows > MOST_ROWS:
        return f"{problem.seq_q} queries of {problem.group} heads are {rows} packed rows, more than {MOST_ROWS}"
    if problem.batch * problem.kv_heads * rows >= 2**31:
        return "there are more items than a grid can have"
    return None


def tile_for(problem: Problem, chip: Chip) -> DecodeTile:
    """32 rows where 16 would read the keys twice and the chip has registers for it; 16 where many rows share so few
    heads of K that their keys come from the L2 cache and there are too few blocks."""
    tiles, size = TILES[chip.name], padded(problem.head_dim)
    wanted = 16 if problem.seq_q * problem.group <= 16 or is_narrow(problem, chip) else 32
    return tiles.get((size, wanted), tiles[size, 16])


def is_narrow(problem: Problem, chip: Chip) -> bool:
    """Whether many rows go through tiles of 16 though there are tiles of 32: where few heads of K are all there are."""
    rows = problem.seq_q * problem.group
    items = problem.batch * problem.kv_heads * -(-rows // 16)
    two = problem.is_plain and (padded(problem.head_dim), 32) in TILES[chip.name]
    return two and rows > FEW_ROWS and items <= MOST_NARROW_ITEMS.get(chip.name, 0)


def blocks_per_sm(kernel: DecodeKernel, chip: Chip) -> int:
    return max(1, chip.shared_bytes_per_sm // (kernel.shared_bytes + 1024))


def splits_for(items: int, slots: int, keys: int) -> int:
    """The least number of parts that fill the slots, with parts that are long enough to be worth joining."""
    return fewest_parts(items, slots, max(1, min(MOST_SPLITS, keys // LEAST_KEYS)))


def plan_decode(
    problem: Problem,
    machine: Machine,
    *,
    tile: DecodeTile | None = None,
    splits: int | None = None,
    tickets: bool | None = None,
) -> DecodeLaunch:
    """How to decode a problem for which there is no `why_not`. The options override the choice."""
    tile = tile or tile_for(problem, machine.chip)
    kernel = DecodeKernel(problem.dtype, padded(problem.head_dim), tile, problem.pages is not None)
    rows = problem.seq_q * problem.group
    row_tiles = -(-rows // tile.rows)
    items = problem.batch * problem.kv_heads * row_tiles
    if splits is None:
        slots = machine.sm_count * blocks_per_sm(kernel, machine.chip)
        splits = splits_for(items, slots, visible_keys(problem, problem.seq_q))
    if tickets is None:
        most = MOST_NARROW_BYTES if is_narrow(problem, machine.chip) else MOST_JOINED_BYTES
        tickets = splits * min(rows, tile.rows) * problem.head_dim * 4 <= most
    return DecodeLaunch(kernel, row_tiles, items, min(splits, MOST_SPLITS), tickets and splits > 1)


@dataclass(frozen=True, slots=True)
class Decode:
    """`decode`, as `plan_decode` decided."""

    launch: DecodeLaunch

    @property
    def name(self) -> str:
        """E.g. `decode-16x16w8s3`; with the keys in 32 parts, `decode-16x16w8s3-32`."""
        parts = self.launch.splits
        return f"decode-{self.launch.kernel.tile.name}{'' if parts == 1 else f'-{parts}'}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """The kernel, and the one that joins the parts if the kernel does not do that itself."""
        launch = self.launch
        parameters = parameters_but_launch(problem, scale)
        parameters.lse = buffers.lse
        parameters.row_tiles = Divisor.of(launch.row_tiles)
        parameters.pack, parameters.packs = Divisor.of(problem.group), Divisor.of(problem.kv_heads)
        parameters.all_heads = problem.batch * problem.kv_heads
        parameters.splits = launch.splits
        make_room_for_parts(problem, parameters, buffers)
        if launch.tickets:
            parameters.tickets = buffers.counter(4 * launch.items)
        steps = [Step(launch.kernel, (launch.items, launch.splits, 1), (parameters,))]
        if launch.splits > 1 and not launch.tickets:
            steps.append(joining(problem, parameters))
        return steps
