"""A way for everything that the plain kernels do not support: windows, masks, lengths, packed heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import (
    MAX_BLOCKS,
    Machine,
    Problem,
    check_problem,
    section_for,
    slots_per_sm,
    splits_for,
    visible_keys,
)
from kernels.attention.cuda.plan.variants import (
    C_TYPE,
    PADDED_HEAD_DIMS,
    SCALAR_TILES,
    SHORT,
    WIDE_HEAD_DIMS,
    Chip,
    Tile,
    entry_point,
    padded_head_dim,
    wide_padded,
)
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.portable import (
    joining_step,
    make_room_for_parts,
    parameters_but_launch,
    with_dropout,
)

PAGED = "paged"
"""The value of `mask` in a kernel for keys in pages. No kernel supports both a mask and pages."""
MASK_TYPES = {
    None: "NoMask",
    "bool": "BoolMask",
    "float16": "HalfMask",
    "bfloat16": "BFloat16Mask",
    "float32": "FloatMask",
    PAGED: "PagedKeys",
}
MASK_SHORT = {None: "free", "bool": "bool", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", PAGED: PAGED}
WIDE_64 = Tile(128, 64, 4, 2, False)
"""The tile for many rows at head dimension 64 without a mask, which would need registers."""
NARROW_128, NARROW_256 = Tile(64, 32, 4, 1, True), Tile(64, 32, 4, 1, False)


@dataclass(frozen=True, slots=True)
class GeneralKernel:
    """A specialisation of `attention_general` in `source/fa2.cuh`; `mask` is a mask's element type, PAGED or None."""

    dtype: str
    head_dim: int
    vector: bool
    mask: str | None
    tile: Tile
    shaped: int = 0
    """The columns of the output that a block computes, where scores are shaped; else 0."""
    drops: bool = False
    """It has dropout."""

    @property
    def name(self) -> str:
        """The name of the entry point, e.g. `general_bf16_d128_free_vector_64x64w4s2q`."""
        kind = "vector" if self.vector else "scalar"
        kind += f"_shaped{self.shaped}" if self.shaped else ""
        kind += "_drops" if self.drops else ""
        return f"general_{SHORT[self.dtype]}_d{self.head_dim}_{MASK_SHORT[self.mask]}_{kind}_{self.tile.name}"

    @property
    def threads(self) -> int:
        return self.tile.warps * 32

    @property
    def shared_bytes(self) -> int:
        return self.tile.shared_bytes(self.head_dim)

    @property
    def source(self) -> str:
        """The text of a translation unit with this kernel as its only entry point."""
        t = self.tile
        numbers = ", ".join(map(str, (self.head_dim, t.rows, t.keys, t.warps, t.stages)))
        flags = ", ".join(str(flag).lower() for flag in (t.q_in_registers, True, self.vector))
        config = f"{C_TYPE[self.dtype]}, {numbers}, {flags}, {MASK_TYPES[self.mask]}"
        config += f", {self.shaped}, true" if self.shaped else f", {self.head_dim}, false" if self.drops else ""
        config += ", true" if self.drops else ""
        call = f"attention_general<Config<{config}>>(p)"
        return entry_point(self.name, self.threads, call, drops=self.drops, blocks=1 if self.drops else None)


@dataclass(frozen=True, slots=True)
class GeneralLaunch:
    """A planned launch. The grid is (blocks, splits, columns); a tile has the rows of `pack` heads of Q, and there are
    `columns` blocks for the columns of the output."""

    kernel: GeneralKernel
    pack: int
    row_tiles: int
    section: int
    blocks: int
    splits: int
    columns: int = 1


def base_tile(chip: Chip, size: int, *, vector: bool, masked: bool) -> Tile:
    """Return the chip's small tile, or a narrower one where the small tile would leave too few registers for the
    additional work of this kernel."""
    if size == 128 and masked and (chip.name == "turing" or not vector):
        return NARROW_128
    if chip.name == "ada" and size == 256 and vector:
        return NARROW_256
    return chip.small[size, True] if vector else SCALAR_TILES[size]


def has_room(chip: Chip, size: int, *, vector: bool, masked: bool) -> bool:
    """Return whether kernels of this kind can use WIDE_64 on the chip."""
    return chip.name in ("ampere", "hopper") and size == 64 and vector and not masked


def tile_for(problem: Problem, machine: Machine) -> Tile:
    """Return the tile for a problem: WIDE_64 if it fits and there are more blocks than SMs, else the base tile. Lengths
    that only the device knows need a tile for which `C::REPEATS` is true in the source."""
    size, blocks = padded_head_dim(problem.head_dim), problem.batch * problem.heads * -(-problem.seq_q // WIDE_64.rows)
    kind = {"vector": problem.is_vector, "masked": problem.mask is not None}
    if has_room(machine.chip, size, **kind) and blocks > machine.sm_count and not problem.invariant:
        return WIDE_64
    tile = base_tile(machine.chip, size, **kind)
    unknown = problem.lengths or problem.pages
    return NARROW_256 if unknown and size == 256 and tile.keys > NARROW_256.keys else tile


WIDE_TILES = {512: Tile(64, 16, 4, 1, False), 576: Tile(144, 16, 9, 1, False)}
"""In the second a row is 72 chunks, which nine warps copy four rows of at a time."""
NINE_WARPS_OUT = 192
"""The columns for which nine warps have registers."""
WIDEST_DROPPING = 128
"""The widest heads for which kernels with dropout have registers for all columns at once."""
DROPPING_OUT = {256: 128}
"""The columns for which kernels with dropout have registers, by padded head dimension, if not for all."""


def shaped_kernel(chip: Chip, dtype: str, dims: tuple[int, int], *, vector: bool, mask: str | None) -> GeneralKernel:
    """Return the kernel that shapes scores, for `dims` of K and V. Raises `Unsupported` if the chip cannot hold it."""
    size, out = wide_padded(max(dims)), padded_head_dim(min(dims[1], PADDED_HEAD_DIMS[-1]))
    out = min(out, NINE_WARPS_OUT) if size == WIDE_HEAD_DIMS[-1] else out
    tile = WIDE_TILES.get(size) or base_tile(chip, size, vector=vector, masked=True)
    if size == 256 and tile.keys > NARROW_256.keys:
        tile = NARROW_256
    kernel = GeneralKernel(dtype, size, vector, mask, tile, out)
    if kernel.shared_bytes > chip.shared_bytes_per_block:
        wanted = f"head dimensions {dims[0]} of K and {dims[1]} of V take {kernel.shared_bytes} bytes of shared memory"
        raise Unsupported(f"{wanted}; a block on {chip.name} chips has {chip.shared_bytes_per_block}")
    return kernel


def dropping_kernel(kernel: GeneralKernel, *, shaping: bool) -> GeneralKernel:
    """Return the kernel with dropout, which has registers for fewer columns of heads of 256. Without `shaping` it does
    not shape scores, for heads of at most 128."""
    if not shaping and kernel.head_dim <= WIDEST_DROPPING:
        return replace(kernel, drops=True, shaped=0)
    return replace(kernel, drops=True, shaped=min(kernel.shaped, DROPPING_OUT.get(kernel.head_dim, kernel.shaped)))


def kernel_for(problem: Problem, tile: Tile | None, chip: Chip) -> GeneralKernel:
    """Return the kernel with a tile; without one, that which shapes scores."""
    mask = problem.mask.dtype if problem.mask else PAGED if problem.pages else None
    if tile is None:
        dims = problem.head_dim, problem.width
        kernel = shaped_kernel(chip, problem.dtype, dims, vector=problem.is_vector, mask=mask)
        return dropping_kernel(kernel, shaping=problem.needs_shaping) if problem.dropout else kernel
    return GeneralKernel(problem.dtype, padded_head_dim(problem.head_dim), problem.is_vector, mask, tile)


def heads_to_pack(problem: Problem, rows: int) -> int:
    """Return how many heads to pack: a whole group if the queries of one head do not fill a tile, else 1."""
    return problem.group if problem.seq_q < rows else 1


def plan_general(
    problem: Problem, machine: Machine, *, splits: int | None = None, tile: Tile | None = None, pack: int | None = None
) -> GeneralLaunch:
    """Return the launch for a problem with all its features. `splits`, `tile` and `pack` override the choice. Raises
    `Unsupported` if the kernel cannot compute it."""
    check_problem(problem, machine)
    if problem.is_shaped:
        kernel = kernel_for(problem, None, machine.chip)
        tile = kernel.tile
    else:
        tile = tile or tile_for(problem, machine)
        kernel = kernel_for(problem, tile, machine.chip)
    pack = pack or heads_to_pack(problem, tile.rows)
    packs = problem.batch * problem.heads // pack
    row_tiles = -(-problem.seq_q * pack // tile.rows)
    section = max(1, section_for(problem, machine.l2_bytes) // pack)
    blocks = -(-packs // section) * section * row_tiles
    if blocks > MAX_BLOCKS:
        raise Unsupported(f"{blocks} blocks do not fit a grid of {MAX_BLOCKS}: split the batch")
    tiles = -(-visible_keys(problem, -(-tile.rows // pack)) // tile.keys)
    if splits is None and problem.invariant:
        splits = 1
    if splits is None:
        slots = slots_per_sm(kernel.shared_bytes, kernel.threads, machine.chip)
        splits = splits_for(packs * row_tiles, machine.sm_count, slots, tiles)
    columns = -(-problem.width // kernel.shaped) if kernel.shaped else 1
    return GeneralLaunch(kernel, pack, row_tiles, section, blocks, max(1, min(splits, tiles)), columns)


@dataclass(frozen=True, slots=True)
class General:
    """The way `general`, with a launch that `plan_general` planned."""

    launch: GeneralLaunch

    @property
    def name(self) -> str:
        """The name of the way, e.g. `general-64x64w4s2q`; with 8 packed heads and the keys cut into 4 parts,
        `general-64x64w4s2q-pack8-4`."""
        launch = self.launch
        pack = f"-pack{launch.pack}" if launch.pack > 1 else ""
        parts = f"-{launch.splits}" if launch.splits > 1 else ""
        shaped = f"-shaped{launch.kernel.shaped}" if launch.kernel.shaped else ""
        shaped += "-dropout" if launch.kernel.drops else ""
        return f"general-{launch.kernel.tile.name}{shaped}{'' if launch.kernel.vector else '-scalar'}{pack}{parts}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the launch of the kernel, and of the kernel that joins the parts if there are several."""
        launch = self.launch
        parameters = parameters_but_launch(problem, scale)
        parameters.lse = buffers.lse
        parameters.pack, parameters.packs = Divisor.of(launch.pack), Divisor.of(problem.heads // launch.pack)
        parameters.all_heads = problem.batch * problem.heads // launch.pack
        parameters.row_tiles = Divisor.of(launch.row_tiles)
        parameters.section = Divisor.of(launch.section)
        parameters.section_tiles = Divisor.of(launch.section * launch.row_tiles)
        parameters.splits = launch.splits
        make_room_for_parts(problem, parameters, buffers)
        main = with_dropout(parameters, problem)
        steps = [Step(launch.kernel, (launch.blocks, launch.splits, launch.columns), (main,))]
        return steps if launch.splits == 1 else [*steps, joining_step(problem, parameters)]
