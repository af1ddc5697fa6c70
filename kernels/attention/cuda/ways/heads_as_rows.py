"""One query of many heads that share a head of K, computed as if the heads were queries of a single head."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.attention.cuda.plan import planning
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, Layout, Machine, Problem, plan_problem
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.decode import has_many_heads, is_narrow
from kernels.attention.cuda.ways.hopper import MOST_PARTS, HopperWay, hopper_refusal, split_ways
from kernels.attention.cuda.ways.portable import Portable

LEAST_KEYS, WIDEST, LEAST_KEYS_OF_PART = 2048, 128, 256
"""The fewest keys and the largest head dimension that were measured, and the fewest keys of a part."""
FEW_BYTES = 8 << 20
"""Up to so many bytes of K and V, the portable kernel with its smaller tiles was faster than Hopper's."""
MANY_JOINED_BYTES = 6 << 20
"""With more bytes of parts, if these are a quarter of K and V, half as many parts were faster."""


@dataclass(frozen=True, slots=True)
class HeadsAsRows:
    """A way of computing the problem that `as_rows` returns."""

    way: HopperWay | Portable

    @property
    def name(self) -> str:
        """The name of the way, e.g. `rows-fa90-128x128s3p-split-16`."""
        return f"rows-{self.way.name}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the launches of the way for the other problem."""
        return self.way.steps(as_rows(problem), scale, buffers)


def as_rows(problem: Problem) -> Problem:
    """Return the problem in which the heads that share a head of K are queries of one head. All see all keys."""

    def rows_of(layout: Layout) -> Layout:
        return replace(layout, head=problem.group * layout.head, row=layout.head)

    heads = {"heads": problem.kv_heads, "seq_q": problem.group, "q": rows_of(problem.q), "out": rows_of(problem.out)}
    return replace(problem, causal=False, causal_offset=0, sinks=0, **heads)  # type: ignore[arg-type]


def row_ways(problem: Problem, machine: Machine) -> list[HeadsAsRows]:
    """Return the way that cuts the keys of such a problem into parts. An empty list if decoding in narrow tiles is
    faster, if there are enough tiles without cutting, and for what was not measured."""
    measured = machine.hopper and problem.seq_k >= LEAST_KEYS and problem.head_dim <= WIDEST
    posed = as_rows(problem)
    if (
        not measured
        or not has_many_heads(problem)
        or is_narrow(problem, machine.chip)
        or hopper_refusal(posed, machine)
    ):
        return []
    if bytes_of_keys(posed) > FEW_BYTES:
        ways = split_ways(posed, machine)
        return [
            HeadsAsRows(replace(way, parts=parts_for(posed, way.tiles_of_part(posed), machine.sm_count)))
            for way in ways
        ]
    launch = plan_problem(posed, machine, splits=1)
    parts = parts_for(posed, launch.blocks, machine.sm_count * planning.blocks_per_sm(launch.kernel, machine.chip))
    return [HeadsAsRows(Portable(plan_problem(posed, machine, splits=parts)))]


def bytes_of_keys(problem: Problem) -> int:
    return 2 * problem.batch * problem.kv_heads * problem.seq_k * problem.head_dim * ELEMENT_BYTES


def parts_for(problem: Problem, tiles: int, slots: int) -> int:
    """Return the smallest number of parts that fills the slots, or half of it if joining them takes too long."""
    parts = planning.fewest_parts(tiles, slots, min(MOST_PARTS, problem.seq_k // LEAST_KEYS_OF_PART))
    joined = parts * problem.out_rows * problem.head_dim * 4
    return parts // 2 if joined > MANY_JOINED_BYTES and 4 * joined >= bytes_of_keys(problem) else parts
