"""The backward pass over few keys: one launch, no workspace, the same bits in every run."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention.cuda.backward.kernels import BackwardParameters, entry_point
from kernels.attention.cuda.backward.plan import BackwardProblem, parameters_of, portable_refusal
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, MAX_BLOCKS, Machine, check_kind
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, Chip, padded_head_dim
from kernels.attention.cuda.run.launching import Buffers, Step

MOST_ROWS = 512
"""The most queries or keys for which these kernels are offered."""
MOST_STAGES, ROWS_IN_FLIGHT = 4, 256
SURE_KEYS = {64: {32: 256, 64: 256, 128: 128}, 128: {32: 256, 64: 256, 128: 64}}
"""Keys up to which this is taken before Hopper's other kernel, by padded head dimension and kept rows: as far as it was
measured to be faster (`results/backward-small-h200.jsonl`)."""
SURE_QUERIES, SURE_SCORES = 512, 256 * 256
"""The same of the queries that a block goes through, over all heads of a group, and of their scores."""


@dataclass(frozen=True, slots=True)
class SmallShape:
    """A block keeps `rows` rows; `groups` groups of warps go through what passes by, each `columns` at a time."""

    rows: int
    groups: int
    columns: int

    @property
    def name(self) -> str:
        """E.g. `32x4c16`."""
        return f"{self.rows}x{self.groups}c{self.columns}"

    @property
    def threads(self) -> int:
        return self.rows * 2 * self.groups

    @property
    def passing(self) -> int:
        """The rows of a tile that passes by."""
        return self.groups * self.columns

    def shared_bytes(self, head_dim: int, stages: int) -> int:
        """Dynamic shared memory in bytes, with `stages` tiles in flight."""
        row, tile = head_dim * ELEMENT_BYTES, self.passing * head_dim * ELEMENT_BYTES
        keys = 2 * self.rows * row + stages * (3 * tile + 8 * self.passing)
        queries = 3 * self.rows * row + stages * 2 * tile + 8 * self.rows
        exchange = 0 if self.groups == 1 else 2 * self.rows * head_dim * self.groups * 4
        return max(keys, queries, exchange)

    def stages(self, head_dim: int, chip: Chip) -> int:
        """The number of tiles in flight for which a chip has room; fewer than two are too few."""
        most = min(MOST_STAGES, ROWS_IN_FLIGHT // self.passing)
        fitting = [n for n in range(1, most + 1) if self.shared_bytes(head_dim, n) <= chip.shared_bytes_per_block]
        return max(fitting, default=0)


SHAPES: dict[int, tuple[SmallShape, ...]] = {
    64: (
        *(SmallShape(32, 2, 32), SmallShape(32, 4, 32)),
        *(SmallShape(64, 2, 32), SmallShape(64, 2, 64)),
        *(SmallShape(128, 1, 64), SmallShape(128, 1, 32)),
    ),
    128: (
        *(SmallShape(32, 2, 32), SmallShape(32, 4, 32), SmallShape(32, 4, 16)),
        *(SmallShape(64, 2, 32), SmallShape(128, 1, 32)),
    ),
}
"""The shapes by padded head dimension."""


@dataclass(frozen=True, slots=True)
class SmallBackwardKernel:
    """A specialisation of `source/backward/small.cuh`."""

    dtype: str
    head_dim: int
    shape: SmallShape
    stages: int

    @property
    def name(self) -> str:
        """E.g. `backward_small_bf16_d64_32x4c32s2`."""
        return f"backward_small_{SHORT[self.dtype]}_d{self.head_dim}_{self.shape.name}s{self.stages}"

    @property
    def threads(self) -> int:
        return self.shape.threads

    @property
    def shared_bytes(self) -> int:
        return self.shape.shared_bytes(self.head_dim, self.stages)

    @property
    def source(self) -> str:
        s = self.shape
        numbers = (self.head_dim, s.rows // 16, s.groups, s.columns, self.stages)
        config = f"BackwardSmall<{', '.join([C_TYPE[self.dtype], *map(str, numbers)])}>"
        text = entry_point("small", self.name, self.threads, f"backward_small<{config}>")
        same = f"SmallBytes<{config}>::value == {self.shared_bytes} && {config}::THREADS == {self.threads}"
        return f'{text}static_assert({same}, "blocks differ");\n'


@dataclass(frozen=True, slots=True)
class SmallBackward:
    """Blocks that keep keys, for dK and dV, and blocks that keep queries, for dQ, in one launch."""

    machine: Machine
    shape: SmallShape

    same_bits = True

    @property
    def name(self) -> str:
        """E.g. `backward-small-32x4c32`."""
        return f"backward-small-{self.shape.name}"

    def blocks(self, problem: BackwardProblem) -> tuple[int, int]:
        """The number of blocks that keep keys, and of those that keep queries."""
        f = problem.forward
        key_tiles, query_tiles = -(-f.seq_k // self.shape.rows), -(-f.seq_q // self.shape.rows)
        return f.batch * f.kv_heads * key_tiles, f.batch * f.heads * query_tiles

    def steps(self, problem: BackwardProblem, buffers: Buffers) -> list[Step]:
        """The single launch; it needs no memory of `buffers`. Raises `Unsupported`."""
        del buffers
        f = problem.forward
        check_kind(f, self.machine)
        keys, queries = self.blocks(problem)
        if keys + queries > MAX_BLOCKS:
            raise Unsupported(f"{keys + queries} blocks do not fit a grid of {MAX_BLOCKS}: split the batch")
        size = padded_head_dim(f.head_dim)
        kernel = SmallBackwardKernel(f.dtype, size, self.shape, self.shape.stages(size, self.machine.chip))
        made: BackwardParameters = parameters_of(problem)
        made.items, made.query_tiles = keys, -(-f.seq_q // self.shape.rows)
        made.tiles = Divisor.of(-(-f.seq_k // self.shape.rows))
        return [Step(kernel, (keys + queries, 1, 1), (made,))]

    def is_one_round(self, problem: BackwardProblem) -> bool:
        """Whether each block has an SM of its own."""
        return sum(self.blocks(problem)) <= self.machine.sm_count


def small_refusal(problem: BackwardProblem, machine: Machine) -> str | None:
    """Why the kernels for few keys do not compute the problem; None if they do."""
    f, refused = problem.forward, portable_refusal(problem, machine)
    if refused is not None:
        return refused
    if max(f.seq_q, f.seq_k) > MOST_ROWS:
        return f"more than {MOST_ROWS} queries or keys are not supported"
    return None


def small_ways(problem: BackwardProblem, machine: Machine) -> list[SmallBackward]:
    """Every way of this kind; the preferred one is the first. Ways are sorted by rows: the fewest with which each block
    has its own SM, else the most; then by the fewest tiles that pass by, the smallest such tiles, and the most
    groups."""
    if small_refusal(problem, machine) is not None:
        return []
    f, size = problem.forward, padded_head_dim(problem.forward.head_dim)
    shapes = [shape for shape in SHAPES[size] if shape.stages(size, machine.chip) > 1]
    ways = [SmallBackward(machine, shape) for shape in shapes]

    def order(way: SmallBackward) -> tuple[bool, int, int, int, int]:
        is_single_round, shape = way.is_one_round(problem), way.shape
        tiles = -(-max(f.seq_q, f.seq_k) // shape.passing)
        return not is_single_round, shape.rows if is_single_round else -shape.rows, tiles, shape.passing, -shape.groups

    return sorted(ways, key=order)


def is_surely_faster(way: SmallBackward, problem: BackwardProblem) -> bool:
    """Whether the way is preferred to Hopper's other kernel: every block has an SM, and the problem is not larger than
    those for which it was measured to be faster."""
    f, queries = problem.forward, problem.forward.group * problem.forward.seq_q
    few = f.seq_k <= SURE_KEYS[padded_head_dim(f.head_dim)][way.shape.rows]
    return few and queries <= SURE_QUERIES and queries * f.seq_k <= SURE_SCORES and way.is_one_round(problem)
