"""Estimates how long Hopper's ways of computing a backward pass take, from how their blocks follow each other on
SMs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.attention.cuda.backward.plan import (
    MOST_BYTES_OF_PARTS,
    PARTS,
    PARTS_OF_LONG,
    BackwardProblem,
    bytes_of_parts,
    has_long_groups,
    is_small,
)
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import padded_head_dim

ELEMENTS_OF_TILE = 64 * 128
"""The elements of a tile that passes by at a time."""
HOPPER_ROWS = 128
"""The rows that a block of `backward90` keeps."""


@dataclass(frozen=True, slots=True)
class Price:
    """Microseconds: of the launches, of a block, and of a tile that passes by one that keeps keys, or queries."""

    launch: float
    block: float
    keys: float
    queries: float = 0.0


ONE_LAUNCH = {
    64: {64: Price(1.41, 2.71, 3.31, 1.43), 128: Price(0.98, 3.48, 2.06, 1.45)},
    128: {64: Price(2.78, 2.10, 3.41, 1.63), 128: Price(4.22, 1.10, 2.16, 1.41)},
}
"""The prices by padded head dimension and rows that a block keeps."""
THREE_LAUNCHES = {64: Price(0.75, 7.13, 2.67), 128: Price(7.02, 1.53, 2.28)}
"""The prices by padded head dimension. These and `ONE_LAUNCH` are fitted to times on an H200
(`results/backward-small-h200.jsonl`), from 197 keys on."""
TURN = {64: 2.05, 128: 2.3}
"""Microseconds after which the turn at a tile of queries has gone from one tile of keys to the next, by padded head
dimension: with 2 to 16 heads on an H100, 2026-11-23, what `backward90` with its sums in an order took longer than
without was this for each tile of keys of a head that began at the same time (2.0 to 2.4, `BACKWARD.md`)."""

IN_A_CIRCLE = 1.03
"""What a round of tiles takes in a cyclic order, over what it takes in any: 1.00 to 1.05 with 32 and 64 heads on an
H200, 2026-11-26 (`BACKWARD.md`)."""

PART_TILES = 1
"""A block leaves the sums of a part in the time in which so many tiles pass by, and the block that is last reads them
in as much: about half of what an SM can exchange with the L2 cache. An assumption, with which the model chooses the
fastest number of parts in three of three problems of 1,024 and 2,048 keys (H100, 2026-11-28)."""
PARTS_GAIN = 0.97
"""Groups are divided where that is expected to take at most so much of the time."""
MOST_PARTS_OF_WINDOW = 2
"""With a window more parts took longer in all of 11 problems, one of which, at D = 128, the model expects to be fastest
with 4 (H100, 2026-11-28, `BACKWARD.md`)."""


def passing_keys(problem: BackwardProblem, rows: int) -> list[int]:
    """How many tiles of queries pass by each tile of `rows` keys of a head of K, over all heads of its group."""
    f = problem.forward
    tile = ELEMENTS_OF_TILE // padded_head_dim(f.head_dim)
    all_tiles = -(-f.seq_q // tile)
    starts = range(0, f.seq_k, rows)
    firsts = [max(key - f.causal_offset, 0) // tile if f.causal else 0 for key in starts]
    window = f.window_offset
    ends = [all_tiles if window is None else max(-1, key + rows - 1 - window) // tile + 1 for key in starts]
    return [f.group * max(min(all_tiles, end) - first, 0) for first, end in zip(firsts, ends, strict=True)]


def passing_queries(problem: BackwardProblem, rows: int) -> list[int]:
    """How many tiles of keys pass by each tile of `rows` queries of a head."""
    f = problem.forward
    tile = ELEMENTS_OF_TILE // padded_head_dim(f.head_dim)
    ends = [min(row + rows, f.seq_q) + f.causal_offset if f.causal else f.seq_k for row in range(0, f.seq_q, rows)]
    return [-(-min(max(end, 0), f.seq_k) // tile) for end in ends]


def schedule_span(blocks: Sequence[float], sm_count: int) -> float:
    """The time at which the last block ends, if each begins in this order on the first free SM."""
    free = [0.0] * sm_count
    for block in blocks:
        heapq.heapreplace(free, free[0] + block)
    return max(free)


def one_launch(problem: BackwardProblem, rows: int, sm_count: int) -> float:
    """The microseconds of `backward-few90` with blocks of `rows` rows."""
    f = problem.forward
    price, turns = ONE_LAUNCH[padded_head_dim(f.head_dim)][rows], HOPPER_ROWS // rows
    keys = [price.block + price.keys * -(-n // turns) for n in passing_keys(problem, rows)]
    queries = [price.block + price.queries * -(-n // turns) for n in passing_queries(problem, rows)]
    return price.launch + schedule_span(keys * (f.batch * f.kv_heads) + queries * (f.batch * f.heads), sm_count)


def three_launches(problem: BackwardProblem, sm_count: int, parts: int = 1) -> float:
    """The microseconds of `backward90`, which takes the longest blocks first, with groups in so many parts."""
    f = problem.forward
    price, heads = THREE_LAUNCHES[padded_head_dim(f.head_dim)], f.batch * f.kv_heads
    leaving = PART_TILES if parts > 1 else 0
    blocks = []
    for n in passing_keys(problem, HOPPER_ROWS):
        for part in range(heads * parts):  # of each head of K the last one reads what all have left
            tiles = n // parts + leaving * (1 + (parts if part % parts == parts - 1 else 0))
            blocks.append(price.block + price.keys * tiles)
    return price.launch + schedule_span(blocks, sm_count)


def possible_parts(problem: BackwardProblem) -> list[int]:
    """The numbers of parts in which a group of heads can be divided; there is only 1 where heads have no group."""
    return [parts for parts in PARTS if problem.forward.group % parts == 0]


def best_parts(problem: BackwardProblem, machine: Machine) -> int:
    """The number of parts with which `backward90` should end first: of long groups those of two heads, else 1 unless
    that is sure to gain. With many rounds of tiles the model has nothing to say."""
    f = problem.forward
    possible = [parts for parts in possible_parts(problem) if bytes_of_parts(problem, parts) <= MOST_BYTES_OF_PARTS]
    if has_long_groups(problem):
        return max(parts for parts in possible if parts <= min(PARTS_OF_LONG, f.group // 2))
    if len(possible) == 1 or not is_small(problem, machine, HOPPER_ROWS):
        return 1
    most = PARTS[-1] if f.window_offset is None else MOST_PARTS_OF_WINDOW
    spans = {parts: three_launches(problem, machine.sm_count, parts) for parts in possible if parts <= most}
    best = min(spans, key=lambda parts: spans[parts])
    return best if spans[best] <= PARTS_GAIN * spans[1] else 1


def three_launches_in_turns(problem: BackwardProblem, sm_count: int) -> float:
    """The microseconds of `backward90` with ordered sums: a tile of keys begins at least one turn after the previous
    tile of its head."""
    f = problem.forward
    price, turn = THREE_LAUNCHES[padded_head_dim(f.head_dim)], TURN[padded_head_dim(f.head_dim)]
    free, begun = [0.0] * sm_count, [-turn] * (f.batch * f.kv_heads)
    for n in passing_keys(problem, HOPPER_ROWS):
        for head, before in enumerate(begun):
            begun[head] = max(free[0], before + turn)
            heapq.heapreplace(free, begun[head] + price.block + price.keys * n)
    return price.launch + max(free)


def three_launches_cyclic(problem: BackwardProblem, sm_count: int) -> float:
    """The microseconds of `backward90` with sums in a cyclic order: all tiles of a head begin at once, and where there
    are more tiles of keys than of queries, a tile of queries is added to all the time. Needs an SM for each tile of
    keys of a head."""
    f = problem.forward
    price, turn = THREE_LAUNCHES[padded_head_dim(f.head_dim)], TURN[padded_head_dim(f.head_dim)]
    tiles = passing_keys(problem, HOPPER_ROWS)
    rounds = -(-f.batch * f.kv_heads // (sm_count // len(tiles)))
    passing = max(IN_A_CIRCLE * price.keys * tiles[0], turn * len(tiles) * f.group)
    return price.launch + rounds * (price.block + passing)
