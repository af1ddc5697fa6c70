"""The table of kernels: which tile each chip runs for each element type, head dimension and mask.

Every entry is one specialisation of `source/fa2.cuh`. Nothing else decides which kernels exist: the build makes each of
them and fails if one is missing, spills registers, or asks for more shared memory than its chip has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from kernels.attention.cuda.plan.parameters import DroppingParameters, Parameters

SOURCE = Path(__file__).parents[1] / "source"
HEADERS = (
    *("device.cuh", "params.cuh", "tile.cuh", "warp.cuh", "scope.cuh", "paged.cuh", "block.cuh", "results.cuh"),
    *("dropout.cuh", "fa2.cuh", "decode.cuh", "float8.cuh"),
    *(
        f"hopper/{name}.cuh"
        for name in ("instructions", "problem", "schedule", "wgmma", "mask", "bias", "producer", "consumer", "fa90")
    ),
    *(
        f"small/{name}.cuh"
        for name in ("instructions", "problem", "scores", "exchange", "registers", "shared", "warpgroups")
    ),
    *(f"backward/{name}.cuh" for name in ("problem", "products", "prepare", "pair", "small")),
    *(
        f"backward/{name}.cuh"
        for name in ("instructions", "wgmma", "order", "hopper", "convert", "few", "cluster", "wide")
    ),
    *(f"backward/{name}.cuh" for name in ("ampere_sums", "ampere", "turing")),
)

C_TYPE = {"float16": "Half", "bfloat16": "BFloat16"}
SHORT = {"float16": "fp16", "bfloat16": "bf16"}
PADDED_HEAD_DIMS = (64, 128, 256)
MAX_HEAD_DIM = PADDED_HEAD_DIMS[-1]
WIDE_HEAD_DIMS = (*PADDED_HEAD_DIMS, 512, 576)
"""Those of the kernels that shape scores, by the wider of K and V. Only Hopper has shared memory for the last one."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one block works: `rows` of Q by `keys` of K at a time, over `warps`; `stages` tiles of K and V in flight."""

    rows: int
    keys: int
    warps: int
    stages: int
    q_in_registers: bool

    @property
    def name(self) -> str:
        """E.g. `128x64w4s2q`: the q tells that Q is kept in registers."""
        return f"{self.rows}x{self.keys}w{self.warps}s{self.stages}{'q' if self.q_in_registers else ''}"

    def shared_bytes(self, head_dim: int) -> int:
        """Dynamic shared memory for a padded head dimension: Q once, K and V for each stage."""
        return (self.rows + 2 * self.stages * self.keys) * head_dim * 2


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of the table. `head_dim` is padded; `vector` kernels need 16-byte alignment, the others nothing."""

    dtype: str
    head_dim: int
    causal: bool
    vector: bool
    tile: Tile

    @property
    def name(self) -> str:
        """The entry point's name, e.g. `fa2_bf16_d128_causal_vector_128x64w4s2`."""
        mask, kind = "causal" if self.causal else "full", "vector" if self.vector else "scalar"
        return f"fa2_{SHORT[self.dtype]}_d{self.head_dim}_{mask}_{kind}_{self.tile.name}"

    @property
    def threads(self) -> int:
        return self.tile.warps * 32

    @property
    def shared_bytes(self) -> int:
        return self.tile.shared_bytes(self.head_dim)

    @property
    def source(self) -> str:
        """A translation unit whose one entry point is this kernel."""
        t = self.tile
        arguments = [C_TYPE[self.dtype], self.head_dim, t.rows, t.keys, t.warps, t.stages]
        flags = [t.q_in_registers, self.causal, self.vector]
        config = ", ".join([*map(str, arguments), *(str(flag).lower() for flag in flags)])
        return entry_point(self.name, self.threads, f"attention_fa2<Config<{config}>>(p)")


@dataclass(frozen=True, slots=True)
class RowsKernel:
    """A kernel of `source/results.cuh` that changes the results of another, a warp a row."""

    dtype: str

    kind: ClassVar[str]
    threads = 128
    shared_bytes = 0
    rows_per_block = 4

    @property
    def name(self) -> str:
        return f"{self.kind}_{SHORT[self.dtype]}"

    @property
    def source(self) -> str:
        return entry_point(self.name, self.threads, f"attention_{self.kind}<{C_TYPE[self.dtype]}>(p)")


class Combine(RowsKernel):
    """The kernel that joins the parts of a computation split over the keys."""

    kind = "combine"


class SinksKernel(RowsKernel):
    """The kernel that adds sinks to the results of any other."""

    kind = "sinks"


class Entry(Protocol):
    """A kernel that can be built, loaded and launched."""

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def shared_bytes(self) -> int: ...

    @property
    def source(self) -> str: ...


def entry_point(
    name: str, threads: int, call: str, *, header: str = "fa2.cuh", blocks: int | None = None, drops: bool = False
) -> str:
    """An `extern "C"` kernel, so that its name is the same for every compiler. `blocks`: how many blocks an SM must at
    least have registers for; by default the compiler decides. `drops`: its parameters are those with dropout.

    It refuses to compile if the two sides disagree about the parameters' size.
    """
    kind, size = ("DroppingParams", DroppingParameters) if drops else ("AttentionParams", Parameters)
    return (
        f'#include "{header}"\n'
        f'extern "C" __global__ void __launch_bounds__({threads}{"" if blocks is None else f", {blocks}"})\n'
        f"{name}(const __grid_constant__ {kind} p) {{\n  {call};\n}}\n"
        f'static_assert(sizeof({kind}) == {ctypes.sizeof(size)}, "parameters differ");\n'
    )


@dataclass(frozen=True, slots=True)
class Chip:
    """What a family of chips offers and which tiles it runs.

    `large` and `small` map (padded head dimension, causal) to a tile; `small` is for grids that `large` would leave
    slots empty. Shared memory is what one block may ask for, and what an SM has for its blocks together.
    """

    name: str
    capabilities: frozenset[int]
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    dtypes: tuple[str, ...]
    large: dict[tuple[int, bool], Tile]
    small: dict[tuple[int, bool], Tile]


def both_masks(tiles: dict[int, Tile]) -> dict[tuple[int, bool], Tile]:
    return {(head_dim, causal): tile for head_dim, tile in tiles.items() for causal in (False, True)}


SCALAR_TILES = {64: Tile(64, 64, 4, 1, True), 128: Tile(64, 64, 4, 1, True), 256: Tile(64, 16, 4, 1, False)}
"""For any alignment and any head dimension: loads and stores element by element, through registers."""

KIB = 1024
BOTH = ("float16", "bfloat16")

D64_FULL, D64_CAUSAL = Tile(128, 128, 4, 1, False), Tile(128, 96, 4, 1, True)
D256 = both_masks({256: Tile(64, 64, 4, 1, False)})

CHIPS = (
    Chip(
        name="turing",
        capabilities=frozenset({75}),
        shared_bytes_per_block=64 * KIB,
        shared_bytes_per_sm=64 * KIB,
        dtypes=("float16",),
        large=both_masks({64: Tile(128, 64, 4, 1, True), 128: Tile(128, 64, 8, 1, True), 256: SCALAR_TILES[256]}),
        small=both_masks({64: Tile(64, 64, 4, 1, True), 128: Tile(64, 64, 4, 1, True), 256: SCALAR_TILES[256]}),
    ),
    Chip(
        name="ampere",
        capabilities=frozenset({80, 87}),
        shared_bytes_per_block=163 * KIB,
        shared_bytes_per_sm=164 * KIB,
        dtypes=BOTH,
        large={(64, False): D64_FULL, (64, True): D64_CAUSAL, **both_masks({128: Tile(128, 64, 4, 1, False)}), **D256},
        small={**both_masks({64: Tile(64, 64, 4, 2, True), 128: Tile(64, 64, 4, 2, True)}), **D256},
    ),
    Chip(
        name="ada",
        capabilities=frozenset({86, 88, 89, 120, 121}),
        shared_bytes_per_block=99 * KIB,
        shared_bytes_per_sm=100 * KIB,
        dtypes=BOTH,
        large={
            (64, False): D64_FULL,
            (64, True): D64_CAUSAL,
            (128, False): Tile(128, 32, 4, 1, False),
            (128, True): Tile(64, 64, 4, 1, True),
            **D256,
        },
        small={**both_masks({64: Tile(64, 64, 4, 1, True), 128: Tile(64, 64, 4, 1, True)}), **D256},
    ),
    Chip(
        name="hopper",
        capabilities=frozenset({90, 100, 103, 110}),
        shared_bytes_per_block=227 * KIB,
        shared_bytes_per_sm=228 * KIB,
        dtypes=BOTH,
        large={(64, False): D64_FULL, (64, True): D64_CAUSAL, **both_masks({128: Tile(128, 64, 4, 2, False)}), **D256},
        small={**both_masks({64: Tile(64, 64, 4, 2, True), 128: Tile(64, 64, 4, 2, True)}), **D256},
    ),
)
"""Only the hopper row was chosen by measuring; NOTES.md has the figures. The others follow from shared memory, from the
register reports, and from how the same code did on an H200 when its driver translated it."""


def chip_of(capability: int) -> Chip | None:
    """The family of a compute capability (75, 80, 89, 90 ...); None for chips older than Turing.

    A chip that the table does not know runs as the family with the least shared memory that has its instructions.
    """
    for chip in CHIPS:
        if capability in chip.capabilities:
            return chip
    ada = next(chip for chip in CHIPS if chip.name == "ada")
    return ada if capability > 75 else None


def padded_head_dim(head_dim: int) -> int:
    """The head dimension of the kernel that computes `head_dim` (1..256)."""
    return next(size for size in PADDED_HEAD_DIMS if head_dim <= size)


def wide_padded(head_dim: int) -> int:
    """The same of the kernels that shape scores (1..576)."""
    return next(size for size in WIDE_HEAD_DIMS if head_dim <= size)


def kernel_table(chip: Chip) -> Iterator[Kernel | Combine]:
    """Every kernel of a chip, each once."""
    seen: set[str] = set()
    for dtype in chip.dtypes:
        entries: list[Kernel | Combine] = [Combine(dtype)]
        for head_dim in PADDED_HEAD_DIMS:
            for causal in (False, True):
                tiles = (chip.large[head_dim, causal], chip.small[head_dim, causal])
                entries.extend(Kernel(dtype, head_dim, causal, True, tile) for tile in tiles)
                entries.append(Kernel(dtype, head_dim, causal, False, SCALAR_TILES[head_dim]))
        for entry in entries:
            if entry.name not in seen:
                seen.add(entry.name)
                yield entry


def header_sources() -> dict[str, str]:
    """The sources that every entry includes, by the name it includes them by."""
    return {name: (SOURCE / name).read_text() for name in HEADERS}
