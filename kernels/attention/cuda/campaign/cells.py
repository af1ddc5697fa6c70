"""Which problems the campaign measures, in the order in which they matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

BF16, FP16 = "bfloat16", "float16"
HEAD_DIMS, MASKS = (64, 128), (False, True)
MAIN_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
SMALL_LENGTHS = (64, 128, 256, 512)
DECODE_LENGTHS = (8192, 32768, 131072)
FLEX_LENGTHS = (1024, 4096)
SUSTAINED_LENGTH = 4096
ASSUMED_TFLOPS, ASSUMED_BYTES_PER_S, LEAST_US = 400.0, 3.0e12, 4.0


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One problem. `group` says why it is measured: main, small, decode, long or middle."""

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
        """4 B H S_q S_k D, half of them if causal."""
        return 4.0 * self.batch * self.heads * self.seq_q * self.seq_k * self.head_dim * (0.5 if self.causal else 1.0)

    @property
    def set_bytes(self) -> int:
        """Bytes of Q, K, V and the output together: what a call must move at least."""
        rows = 2 * self.heads * self.seq_q + 2 * self.kv_heads * self.seq_k
        return 2 * self.batch * rows * self.head_dim

    @property
    def guess_us(self) -> float:
        """What a good kernel may take here: for dividing the time there is, not for judging."""
        by_rate, by_bytes = self.flops / ASSUMED_TFLOPS / 1e6, self.set_bytes / ASSUMED_BYTES_PER_S * 1e6
        return max(LEAST_US, by_rate, by_bytes)

    @property
    def mask(self) -> str:
        return "causal" if self.causal else "full"

    @property
    def short_dtype(self) -> str:
        return {BF16: "bf16", FP16: "fp16"}[self.dtype]

    @property
    def name(self) -> str:
        """E.g. `main bf16 b4 h16 q1024 k1024 d128 causal`; h64/8 where K and V have fewer heads."""
        heads = f"h{self.heads}" if self.heads == self.kv_heads else f"h{self.heads}/{self.kv_heads}"
        sizes = f"b{self.batch} {heads} q{self.seq_q} k{self.seq_k} d{self.head_dim}"
        return f"{self.group} {self.short_dtype} {sizes} {self.mask}"

    @property
    def with_flex(self) -> bool:
        """FlexAttention compiles for each shape, so it is measured in a few."""
        return self.group == "main" and self.dtype == BF16 and self.seq_q in FLEX_LENGTHS

    @property
    def sustained(self) -> bool:
        return self.group == "main" and self.dtype == BF16 and self.seq_q == SUSTAINED_LENGTH


def square(group: str, dtype: str, batch: int, heads: int, seq: int, head_dim: int, causal: bool) -> Cell:
    """A cell with as many keys as queries, and a head of K and V for each of Q."""
    return Cell(group, dtype, batch, heads, heads, seq, seq, head_dim, causal)


def main_cells(dtype: str) -> Iterator[Cell]:
    for head_dim, causal, seq in product(HEAD_DIMS, MASKS, MAIN_LENGTHS):
        yield square("main", dtype, 4, 16, seq, head_dim, causal)


def small_cells(dtype: str) -> Iterator[Cell]:
    for causal, seq in product(MASKS, SMALL_LENGTHS):
        yield square("small", dtype, 2, 8, seq, 64, causal)


def decode_cells(dtype: str) -> Iterator[Cell]:
    """One query a sequence against a long cache, eight heads of Q to one of K and V."""
    for batch, seq_k in product((1, 4), DECODE_LENGTHS):
        yield Cell("decode", dtype, batch, 64, 8, 1, seq_k, 128, False)
    yield Cell("decode", dtype, 4, 64, 8, 1, DECODE_LENGTHS[1], 64, False)


def other_cells(dtype: str) -> Iterator[Cell]:
    for head_dim, causal in product(HEAD_DIMS, MASKS):
        yield square("middle", dtype, 2, 8, 2048, head_dim, causal)
        yield square("long", dtype, 1, 16, 16384, head_dim, causal)


def campaign() -> list[Cell]:
    """Every cell, the most telling first: what a short budget leaves out is at the end."""
    found: list[Cell] = []
    for dtype in (BF16, FP16):
        found += [*main_cells(dtype), *small_cells(dtype)]
        if dtype == BF16:
            found += [*decode_cells(dtype), *other_cells(dtype)]
    return found


def quick() -> list[Cell]:
    """One cell of each kind: does everything run?"""
    return [
        square("main", BF16, 4, 16, 1024, 128, True),
        square("small", FP16, 2, 8, 128, 64, False),
        Cell("decode", BF16, 1, 64, 8, 1, 8192, 128, False),
    ]


def chosen(cells: Iterable[Cell], wanted: str) -> list[Cell]:
    """The cells whose name has every one of the words of `wanted`."""
    words = wanted.split()
    return [cell for cell in cells if set(words) <= set(cell.name.split())]


def as_row(cell: Cell) -> dict[str, Any]:
    return dataclasses.asdict(cell)


def from_row(row: dict[str, Any]) -> Cell:
    return Cell(**row)
