"""The backward pass by mma.sync with five products, for Turing: V in registers, the rest in 64 KB of shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kernels.attention.cuda.backward.ampere import AmpereBackward, SummingShape, rows_refusal, ways_of
from kernels.attention.cuda.backward.plan import BackwardProblem, plain_refusal
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, Machine
from kernels.attention.cuda.plan.variants import padded_head_dim


@dataclass(frozen=True, slots=True)
class TuringShape(SummingShape):
    """A block keeps `keys` keys and takes `queries` queries at a time, over `warps` warps, each of which has
    `fragments` times 16 keys and computes its scores of a tile in `parts`; an SM is to have registers for `blocks`
    blocks."""

    keys: int
    queries: int
    warps: int
    fragments: int
    parts: int
    blocks: int

    family: ClassVar[str] = "backward75"
    header: ClassVar[str] = "turing"

    @property
    def name(self) -> str:
        """E.g. `64x64w8f2h1`."""
        return f"{self.keys}x{self.queries}w{self.warps}f{self.fragments}h{self.parts}"

    def shared_bytes(self, head_dim: int) -> int:
        rows = (self.keys + 2 * self.queries) * head_dim * ELEMENT_BYTES
        return rows + (1 + self.is_shared) * self.keys * self.queries * ELEMENT_BYTES

    def config(self, element: str, head_dim: int) -> str:
        numbers = (self.keys, self.queries, self.warps, self.fragments, self.parts)
        return f"Turing<{', '.join([element, *map(str, (head_dim, *numbers))])}>"


SHAPES: dict[int, tuple[TuringShape, ...]] = {
    64: (TuringShape(128, 32, 4, 2, 2, 2), TuringShape(64, 64, 4, 1, 2, 2)),
    128: (TuringShape(128, 32, 8, 1, 1, 1), TuringShape(64, 64, 8, 2, 1, 1)),
}
"""The shapes by padded head dimension: first the fastest where every SM has a block, then one with fewer keys."""


def turing_ways(problem: BackwardProblem, machine: Machine) -> list[AmpereBackward]:
    """Every way of this kind; the preferred one is the first."""
    if machine.chip.name != "turing" or plain_refusal(problem) is not None:
        return []
    shapes = SHAPES[padded_head_dim(problem.forward.head_dim)]
    return [] if rows_refusal(problem, shapes) is not None else ways_of(problem, machine, shapes)
