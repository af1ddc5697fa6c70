"""The problems that tuning measures. The problems of published measurements are in grids.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernels.attention.cuda.plan.variants import SHORT

BF16, FP16 = "bfloat16", "float16"
HEAD_DIMS, MASKS = (64, 128), (False, True)
DECODE_LENGTHS = (8192, 32768, 131072)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One problem. `group` names the measurement that it belongs to."""

    group: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool

    @property
    def flops(self) -> float:
        """The floating-point operations of a call: 4 B H S_q S_k D, half of that if causal."""
        return 4.0 * self.batch * self.heads * self.seq_q * self.seq_k * self.head_dim * (0.5 if self.causal else 1.0)

    @property
    def set_bytes(self) -> int:
        """The bytes of Q, K, V and the output together, which a call must at least move."""
        rows = 2 * self.heads * self.seq_q + 2 * self.kv_heads * self.seq_k
        return 2 * self.batch * rows * self.head_dim

    @property
    def name(self) -> str:
        """The name of the cell, e.g. `main bf16 b4 h16 q1024 k1024 d128 causal`; `h64/8` if K and V have fewer heads
        than Q."""
        heads = f"h{self.heads}" if self.heads == self.kv_heads else f"h{self.heads}/{self.kv_heads}"
        sizes = f"b{self.batch} {heads} q{self.seq_q} k{self.seq_k} d{self.head_dim}"
        return f"{self.group} {SHORT[self.dtype]} {sizes} {'causal' if self.causal else 'full'}"


def select_cells(cells: Iterable[Cell], wanted: str) -> list[Cell]:
    """Return the cells whose names contain all words of `wanted`, which are separated by spaces."""
    wanted_words = wanted.split()
    return [cell for cell in cells if set(wanted_words) <= set(cell.name.split())]
