"""What is checked and measured: an attention problem and an element type. Needs no torch: a spec is judged first."""

from __future__ import annotations

import re
from dataclasses import dataclass

DTYPE_NAMES = ("float16", "bfloat16", "float32")
"""The element types a case can have, by the name used in case ids and result files."""

PASSES = ("forward", "backward", "both")
"""What is computed: the output; its gradients for q, k and v, from a forward pass made beforehand; or all of it."""

CASE_ID = re.compile(
    r"b\d+-h\d+-kv\d+-q\d+-k\d+-d\d+(-v\d+)?-(causal|full)(-w\d+)?(-sinks)?(-p0\.\d+)?"
    rf"-({'|'.join(DTYPE_NAMES)})(-({'|'.join(PASSES[1:])}))?"
)
VALUE_WIDTH, WINDOW, SINKS, DROPOUT = "a width of V of its own", "a window", "sinks", "dropout by a seeded counter"
"""What a shape may have beside a plain one. Not every implementation computes each of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One attention problem without its element type.

    All sizes are element counts >= 1; `heads` is a multiple of `kv_heads`. A causal mask is aligned top-left, as in
    PyTorch: query i sees the keys 0..i; with a `window`, at most the last so many of these. V and the output are
    `value_dim` wide, 0 where that is `head_dim`. `sinks`: each head has a learned score that every row has besides.
    `dropout` is the probability with which a weight is dropped (`dropout.py`), 0 or from 0.0001 to 0.9999.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool
    value_dim: int = 0
    window: int = 0
    sinks: bool = False
    dropout: float = 0.0

    @property
    def width(self) -> int:
        """The width of V and the output."""
        return self.value_dim or self.head_dim

    @property
    def features(self) -> tuple[str, ...]:
        """What an implementation must compute for it beside plain attention."""
        has = {VALUE_WIDTH: self.width != self.head_dim, WINDOW: self.window > 0, SINKS: self.sinks}
        has[DROPOUT] = self.dropout > 0
        return tuple(name for name, needed in has.items() if needed)

    @property
    def pairs(self) -> int:
        """The pairs of a query and a key of a head; with a window, those that are seen."""
        if not self.window:
            return self.seq_q * self.seq_k
        hidden = max(0, self.seq_q - self.window)
        return pairs_under_mask(self.seq_q, self.seq_k) - pairs_under_mask(hidden, self.seq_k)

    @property
    def kind(self) -> str:
        """The part of a case's id between the sizes and the element type."""
        width = f"v{self.value_dim}-" if self.width != self.head_dim else ""
        window = f"-w{self.window}" if self.window else ""
        dropout = f"-p{self.dropout}" if self.dropout else ""
        return f"{width}{'causal' if self.causal else 'full'}{window}{'-sinks' if self.sinks else ''}{dropout}"


def pairs_under_mask(rows: int, keys: int) -> int:
    """The pairs of a query and a key under a causal mask, aligned top-left."""
    square = min(rows, keys)
    return square * (square + 1) // 2 + (rows - square) * keys


def refuse_features(case: Case, name: str, computed: tuple[str, ...] = ()) -> str | None:
    """Why an implementation that computes these features alone cannot take a case; None if it can."""
    lacking = [feature for feature in case.shape.features if feature not in computed]
    return f"{name} is called here without {' and '.join(lacking)}, which this case has" if lacking else None


@dataclass(frozen=True, slots=True)
class Case:
    """One shape, one element type and one of `PASSES`: what every implementation is checked and timed on."""

    shape: Shape
    dtype: str
    direction: str = PASSES[0]

    @property
    def id(self) -> str:
        """The name of the case in file names and result files. It names the pass unless that is the forward pass."""
        s = self.shape
        return f"b{s.batch}-h{s.heads}-kv{s.kv_heads}-q{s.seq_q}-k{s.seq_k}-d{s.head_dim}-{s.kind}-{self.dtype}" + (
            "" if self.direction == PASSES[0] else f"-{self.direction}"
        )

    @property
    def axes(self) -> dict[str, str]:
        """The cells of its row: axis by axis, as text."""
        s = self.shape
        return {
            "dtype": self.dtype,
            "batch": str(s.batch),
            "heads": str(s.heads),
            "kv_heads": str(s.kv_heads),
            "seq_q": str(s.seq_q),
            "seq_k": str(s.seq_k),
            "head_dim": str(s.head_dim),
            "causal": "true" if s.causal else "false",
        }

    @property
    def flops(self) -> float:
        """The floating-point operations of a call: 2 B H S_q S_k D for each product, of which two are forward (one as
        wide as V) and five backward (two as wide as V). A causal mask needs half of them; with a window, those of the
        keys that are seen are counted."""
        s = self.shape
        of_keys, of_values = {"forward": (1, 1), "backward": (3, 2), "both": (4, 3)}[self.direction]
        return 2.0 * s.batch * s.heads * s.pairs * (of_keys * s.head_dim + of_values * s.width)
