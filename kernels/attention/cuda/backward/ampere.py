"""The backward pass by mma.sync with five products, for chips from Ampere on: dQ is summed in float32 in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kernels.attention.cuda.backward.kernels import BackwardParameters, PrepareKernel, entry_point
from kernels.attention.cuda.backward.plan import (
    MOST_ROWS,
    BackwardProblem,
    copy_parameters,
    heads_of_section,
    portable_refusal,
    preparing_step,
    with_numbers,
)
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, MAX_BLOCKS, Machine, check_kind
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, Chip, padded_head_dim
from kernels.attention.cuda.run.launching import Buffers, Step

NUMBER_BYTES = 8
"""The bytes for a row of Q beside its elements: its log-sum-exp and delta, in float32."""


class SummingShape(ABC):
    """How a block that sums dQ in memory works: it keeps `keys` keys and takes `queries` queries at a time, over
    `warps` warps, each of which has `fragments` times 16 keys; an SM is to have registers for `blocks` blocks. Its
    kernels are called `family` and stand in `source/backward/HEADER.cuh`."""

    __slots__ = ()
    family: ClassVar[str]
    header: ClassVar[str]
    keys: int
    queries: int
    warps: int
    fragments: int
    blocks: int

    @property
    def is_shared(self) -> bool:
        """Whether warps share keys, so that P goes through shared memory."""
        return self.warps * self.fragments * 16 > self.keys

    @property
    @abstractmethod
    def name(self) -> str:
        """The shape in the names of its kernels."""

    @abstractmethod
    def shared_bytes(self, head_dim: int) -> int:
        """Dynamic shared memory, for a padded head dimension."""

    @abstractmethod
    def config(self, element: str, head_dim: int) -> str:
        """The specialisation in C++."""


@dataclass(frozen=True, slots=True)
class AmpereShape(SummingShape):
    """A block keeps `keys` keys and takes `queries` queries at a time, over `warps` warps, each of which has
    `fragments` times 16 keys; `stages` tiles of queries and `slopes` tiles of dS have a place; a warp computes its
    scores of a tile in `parts`; an SM is to have registers for `blocks` blocks."""

    keys: int
    queries: int
    warps: int
    fragments: int
    stages: int
    slopes: int
    parts: int
    blocks: int

    family: ClassVar[str] = "backward80"
    header: ClassVar[str] = "ampere"

    @property
    def name(self) -> str:
        """E.g. `128x64w4f2s2b1h2`."""
        numbers = f"w{self.warps}f{self.fragments}s{self.stages}b{self.slopes}h{self.parts}"
        return f"{self.keys}x{self.queries}{numbers}"

    def shared_bytes(self, head_dim: int) -> int:
        rows = (2 * self.keys + 2 * self.stages * self.queries) * head_dim * ELEMENT_BYTES
        scores = (self.slopes + self.is_shared) * self.keys * self.queries * ELEMENT_BYTES
        return rows + scores + self.stages * self.queries * NUMBER_BYTES

    def config(self, element: str, head_dim: int) -> str:
        numbers = (self.keys, self.queries, self.warps, self.fragments, self.stages, self.slopes, self.parts)
        return f"Ampere<{', '.join([element, *map(str, (head_dim, *numbers))])}>"


SHAPES: dict[int, tuple[AmpereShape, ...]] = {
    64: (AmpereShape(128, 64, 4, 2, 2, 1, 2, 2), AmpereShape(64, 64, 4, 1, 2, 1, 2, 2)),
    128: (
        AmpereShape(128, 64, 8, 2, 1, 1, 1, 1),
        AmpereShape(64, 128, 8, 2, 1, 1, 1, 1),
        AmpereShape(64, 32, 4, 1, 2, 1, 1, 1),
    ),
    256: (
        AmpereShape(64, 64, 8, 2, 2, 1, 1, 1),
        AmpereShape(64, 64, 8, 2, 1, 1, 1, 1),
        AmpereShape(32, 32, 4, 1, 1, 1, 1, 1),
    ),
}
"""The shapes by padded head dimension. The first is the fastest where every SM has a block; the others have fewer keys,
for small grids and for chips with less shared memory."""


WIDE_FILL = 0.5
"""The share of the SMs that the first shape for head dimensions over 128 is to have blocks for: with blocks for 128 of
132 SMs it was faster than half as many keys, with 64 slower (one H100, 2026-11-27, `BACKWARD.md`)."""


@dataclass(frozen=True, slots=True)
class SummingKernel:
    """The kernel that goes through the queries."""

    dtype: str
    head_dim: int
    shape: SummingShape
    value_dim: int = 0
    """The padded width of V where K and V have two; else 0."""

    @property
    def name(self) -> str:
        """E.g. `backward80_bf16_d64_64x64w4f1s2b1h2`; `d256v128` where K and V have two widths."""
        widths = f"d{self.head_dim}{f'v{self.value_dim}' if self.value_dim else ''}"
        return f"{self.shape.family}_{SHORT[self.dtype]}_{widths}_{self.shape.name}"

    @property
    def threads(self) -> int:
        return self.shape.warps * 32

    @property
    def shared_bytes(self) -> int:
        return self.shape.shared_bytes(self.head_dim)

    @property
    def source(self) -> str:
        s = self.shape
        config = s.config(C_TYPE[self.dtype], self.head_dim)
        config = f"{config[:-1]}, {self.value_dim}>" if self.value_dim else config
        text = entry_point(s.header, self.name, self.threads, f"backward_{s.header}<{config}>", blocks=s.blocks)
        return f'{text}static_assert({config}::BYTES == {self.shared_bytes}, "shared memory differs");\n'


@dataclass(frozen=True, slots=True)
class AmpereConvertKernel:
    """The kernel that makes dQ from its sums, by `source/backward/ampere_sums.cuh`: tiles of so many queries, shared by
    so many warps."""

    dtype: str
    head_dim: int
    queries: int
    warps: int

    shared_bytes = 0

    @property
    def name(self) -> str:
        """E.g. `backward80_convert_bf16_d64_64w4`: 64 queries and 4 warps."""
        return f"backward80_convert_{SHORT[self.dtype]}_d{self.head_dim}_{self.queries}w{self.warps}"

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def source(self) -> str:
        config = f"AmpereSums<{C_TYPE[self.dtype]}, {self.head_dim}, {self.queries}, {self.warps}>"
        return entry_point("ampere_sums", self.name, self.threads, f"backward_ampere_convert<{config}>")


@dataclass(frozen=True, slots=True)
class AmpereBackward:
    """One pass over keys, with dQ summed in float32: the order of the additions, and so dQ's last bits, may differ from
    run to run."""

    machine: Machine
    shape: SummingShape

    same_bits = False

    @property
    def name(self) -> str:
        """E.g. `backward80-64x64w4f1s2b1h2`."""
        return f"{self.shape.family}-{self.shape.name}"

    def key_tiles(self, problem: BackwardProblem) -> int:
        """The number of tiles of keys of a head of K."""
        return -(-problem.forward.seq_k // self.shape.keys)

    def blocks(self, problem: BackwardProblem) -> int:
        """The number of blocks, each of which has its own keys."""
        f = problem.forward
        return f.batch * f.kv_heads * self.key_tiles(problem)

    def steps(self, problem: BackwardProblem, buffers: Buffers) -> list[Step]:
        """The three launches: the numbers of rows and zeros; the main kernel; dQ from its sums. Raises
        `Unsupported`."""
        f, shape, size = problem.forward, self.shape, padded_head_dim(problem.widest)
        check_kind(f, self.machine)
        convert = AmpereConvertKernel(f.dtype, size, shape.queries, shape.warps)
        heads = self.heads_of_section(problem)
        prepare, main, end = steps_around_sums(problem, buffers, self.key_tiles(problem), heads, convert)
        value_dim = 0 if f.width == f.head_dim else padded_head_dim(f.width)
        return [prepare, Step(SummingKernel(f.dtype, size, shape, value_dim), (main.items, 1, 1), (main,)), end]

    def heads_of_section(self, problem: BackwardProblem) -> int:
        """The number of heads in a section: all tiles of a section are taken before those of the next one."""
        return heads_of_section(problem, self.machine, self.shape.keys)


def steps_around_sums(
    problem: BackwardProblem, buffers: Buffers, key_tiles: int, heads: int, kernel: AmpereConvertKernel
) -> tuple[Step, BackwardParameters, Step]:
    """The launch for the numbers of rows and zeros; the parameters of the main kernel, which sums dQ, with sections of
    so many `heads` of K of so many tiles; the launch of the kernel that makes dQ from them. Raises `Unsupported`."""
    f, size = problem.forward, padded_head_dim(problem.widest)
    query_tiles = -(-f.seq_q // kernel.queries)
    stat_rows = query_tiles * kernel.queries
    parameters = with_numbers(problem, stat_rows, buffers)
    parameters.sums = buffers.scratch(problem.heads * stat_rows * size * 4)
    main, convert, of_values = (copy_parameters(parameters) for _ in range(3))
    of_values.head_dim = f.width
    main.section, main.section_tiles = Divisor.of(heads), Divisor.of(heads * key_tiles)
    main.items = -(-f.batch * f.kv_heads // heads) * heads * key_tiles
    main.query_tiles, convert.tiles = query_tiles, Divisor.of(query_tiles)
    most = max(main.items, problem.heads * query_tiles)
    if most > MAX_BLOCKS:
        raise Unsupported(f"{most} blocks do not fit a grid of {MAX_BLOCKS}: split the batch")
    prepare = preparing_step(PrepareKernel(f.dtype, size, True, True), problem, stat_rows, of_values)
    return prepare, main, Step(kernel, (problem.heads * query_tiles, 1, 1), (convert,))


def ampere_refusal(problem: BackwardProblem, machine: Machine) -> str | None:
    """Why these kernels do not compute the problem; None if they do."""
    refused = portable_refusal(problem, machine, max(SHAPES))
    return rows_refusal(problem, SHAPES[padded_head_dim(problem.widest)]) if refused is None else refused


def rows_refusal(problem: BackwardProblem, shapes: Sequence[SummingShape]) -> str | None:
    """Why none of these shapes can count the rows; None if all can."""
    if problem.heads * (problem.forward.seq_q + max(shape.queries for shape in shapes)) > MOST_ROWS:
        return "too many rows: this kernel counts them in 32 bits"
    return None


def shapes_of(head_dim: int, chip: Chip) -> list[AmpereShape]:
    """The shapes for which a chip has enough shared memory, in the order of the table."""
    size = padded_head_dim(head_dim)
    return [shape for shape in SHAPES[size] if shape.shared_bytes(size) <= chip.shared_bytes_per_block]


def ampere_ways(problem: BackwardProblem, machine: Machine) -> list[AmpereBackward]:
    """Every way of this kind; the preferred one is the first."""
    if ampere_refusal(problem, machine) is not None:
        return []
    shapes = shapes_of(problem.widest, machine.chip)
    return ways_of(problem, machine, shapes, WIDE_FILL if problem.widest > 128 else 1.0)


def ways_of(
    problem: BackwardProblem, machine: Machine, shapes: Sequence[SummingShape], fill: float = 1.0
) -> list[AmpereBackward]:
    """The ways of these shapes in their order. Where the first has no blocks for `fill` of the SMs, those with the
    fewest keys come first."""
    ways = [AmpereBackward(machine, shape) for shape in shapes]
    if ways[0].blocks(problem) < fill * machine.sm_count:
        ways.sort(key=lambda way: way.shape.keys)
    return ways


def kernels_of(dtype: str, size: int, shapes: Sequence[SummingShape]) -> Iterator[SummingKernel | AmpereConvertKernel]:
    """The kernels that go through the queries, and those that convert the sums, some of which several shapes share."""
    yield from (SummingKernel(dtype, size, shape) for shape in shapes)
    converts = (AmpereConvertKernel(dtype, size, shape.queries, shape.warps) for shape in shapes)
    yield from {convert.name: convert for convert in converts}.values()
