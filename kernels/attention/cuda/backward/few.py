"""The backward pass on Hopper where every block has an SM: one launch, no workspace, the same bits in every run."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention.cuda.backward.costs import one_launch, three_launches
from kernels.attention.cuda.backward.kernels import BackwardParameters, cpp_flag, mapped_entry_point
from kernels.attention.cuda.backward.plan import BackwardProblem, map_of, parameters_of, windowless_refusal
from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, Machine
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, padded_head_dim
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.hopper import maps_describe

ROWS = (64, 128)
"""The numbers of rows that a block may keep."""
TILE_ELEMENTS = 64 * 128
"""The elements of a tile that passes by at a time."""
BOX_ROWS = 64
"""The rows that one copy moves."""
MOST_ROUNDS = 3
MAPS = ("q", "k", "v", "dout", "out")


@dataclass(frozen=True, slots=True)
class FewBackwardKernel:
    """A specialisation of `source/backward/few.cuh`."""

    dtype: str
    head_dim: int
    rows: int
    causal: bool

    threads = 384

    @property
    def name(self) -> str:
        """E.g. `backward_few90_bf16_d64_causal_128`."""
        mask = "causal" if self.causal else "full"
        return f"backward_few90_{SHORT[self.dtype]}_d{self.head_dim}_{mask}_{self.rows}"

    @property
    def shared_bytes(self) -> int:
        stages, passing = 4 if self.rows == min(ROWS) else 3, TILE_ELEMENTS // self.head_dim
        kept = 2 * self.rows * self.head_dim * ELEMENT_BYTES
        tiles = stages * (3 * TILE_ELEMENTS * ELEMENT_BYTES + 8 * max(self.rows, passing))
        return kept + tiles + 8 * (4 + 5 * stages)

    @property
    def source(self) -> str:
        config = f"BackwardFew<{C_TYPE[self.dtype]}, {self.head_dim}, {self.rows}, {cpp_flag(self.causal)}>"
        return mapped_entry_point("few", self.name, self.threads, MAPS, config, self.shared_bytes)


@dataclass(frozen=True, slots=True)
class FewBackward:
    """Blocks that keep `rows` keys, for dK and dV, and blocks that keep as many queries, for dQ, in one launch."""

    machine: Machine
    rows: int

    same_bits = True

    @property
    def name(self) -> str:
        """E.g. `backward-few90-128`."""
        return f"backward-few90-{self.rows}"

    def blocks(self, problem: BackwardProblem) -> tuple[int, int]:
        """The number of blocks that keep keys, and of those that keep queries."""
        f = problem.forward
        return f.batch * f.kv_heads * -(-f.seq_k // self.rows), f.batch * f.heads * -(-f.seq_q // self.rows)

    def steps(self, problem: BackwardProblem, buffers: Buffers) -> list[Step]:
        """The single launch; it needs no memory of `buffers`."""
        del buffers
        f = problem.forward
        keys, queries = self.blocks(problem)
        kernel = FewBackwardKernel(f.dtype, padded_head_dim(f.head_dim), self.rows, f.causal)
        made: BackwardParameters = parameters_of(problem)
        made.items, made.query_tiles = keys, -(-f.seq_q // self.rows)
        made.tiles = Divisor.of(-(-f.seq_k // self.rows))
        given = [map_of(problem, name, BOX_ROWS) for name in MAPS]
        return [Step(kernel, (keys + queries, 1, 1), (*given, made))]

    def has_few_rounds(self, problem: BackwardProblem) -> bool:
        """Whether there are so few blocks for each SM that this way may be the fastest."""
        return sum(self.blocks(problem)) <= MOST_ROUNDS * self.machine.sm_count

    def is_one_round(self, problem: BackwardProblem) -> bool:
        """Whether each block has an SM of its own."""
        return sum(self.blocks(problem)) <= self.machine.sm_count


def few_refusal(problem: BackwardProblem, machine: Machine) -> str | None:
    """Why these kernels do not compute the problem; None if they do."""
    f = problem.forward
    if not maps_describe(f.out, (f.batch, f.heads, f.seq_q)):
        return "a tensor map cannot describe the output's strides"
    return windowless_refusal(problem, machine)


def few_ways(problem: BackwardProblem, machine: Machine) -> list[FewBackward]:
    """Every way of this kind; the preferred one is the first. That is the one with the fewest rows if each block then
    has an SM, else the one that is expected to end first."""
    if few_refusal(problem, machine) is not None:
        return []
    ways = [FewBackward(machine, rows) for rows in ROWS]
    if ways[0].is_one_round(problem):
        return ways
    if not ways[-1].has_few_rounds(problem):
        return ways[::-1]
    return sorted(ways, key=lambda way: one_launch(problem, way.rows, machine.sm_count))


def is_before_hopper(way: FewBackward, problem: BackwardProblem) -> bool:
    """Whether the way is expected to take less than `backward90`. It is only called where there are few rounds of
    blocks."""
    if way.is_one_round(problem) and way.rows == min(ROWS):
        return True
    sms = way.machine.sm_count
    few = FewBackward(way.machine, max(ROWS)).has_few_rounds(problem)
    return few and one_launch(problem, way.rows, sms) < three_launches(problem, sms)


def is_before_ordered(way: FewBackward, problem: BackwardProblem, ordered_us: float) -> bool:
    """Whether the way is expected to take less than `backward90` takes with sums in an order, for callers that want the
    same bits. It is only called where the way is not faster than `backward90`. With more rounds of blocks it is never
    faster."""
    sms = way.machine.sm_count
    few = FewBackward(way.machine, max(ROWS)).has_few_rounds(problem)
    return few and one_launch(problem, way.rows, sms) < ordered_us
