"""What is checked and measured: an attention problem and an element type. Needs no torch: a spec is judged first."""

from __future__ import annotations

import re
from dataclasses import dataclass

DTYPE_NAMES = ("float16", "bfloat16", "float32")
"""The element types a case can have, by the name used in case ids and result files."""

PASSES = ("forward", "backward", "both")
"""What is computed: the output; its gradients for q, k and v, from a forward pass made beforehand; or all of it."""

CASE_ID = re.compile(
    rf"b\d+-h\d+-kv\d+-q\d+-k\d+-d\d+-(causal|full)-({'|'.join(DTYPE_NAMES)})(-({'|'.join(PASSES[1:])}))?"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One attention problem without its element type.

    All sizes are element counts >= 1; `heads` is a multiple of `kv_heads`. A causal mask is aligned top-left, as in
    PyTorch: query i sees the keys 0..i.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool


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
        mask = "causal" if s.causal else "full"
        return f"b{s.batch}-h{s.heads}-kv{s.kv_heads}-q{s.seq_q}-k{s.seq_k}-d{s.head_dim}-{mask}-{self.dtype}" + (
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
        """The floating-point operations of a call: 2 B H S_q S_k D for each product, of which two are forward and five
        backward. A causal mask needs half of them."""
        s = self.shape
        products = {"forward": 2, "backward": 5, "both": 7}[self.direction]
        return 2.0 * products * s.batch * s.heads * s.seq_q * s.seq_k * s.head_dim
