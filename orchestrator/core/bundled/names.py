"""Attention's implementations and axes, and how they are said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

WORKLOAD: Final = "attention"
Implementation = Literal["bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math"]
IMPLEMENTATIONS: Final[tuple[Implementation, ...]] = (
    "bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math",
)  # fmt: skip
"""In the order in which they stand beside each other."""
DEFAULT: Final[Implementation] = "sdpa:default"
"""The baseline that speed-ups are over where nothing else is asked for."""
SLOWEST: Final = ("sdpa:math",)
"""What figures leave out where there is anything else."""
FAMILY: Final = "sdpa:"
"""What figures leave out of a name."""
AXES: Final = ("dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal")
"""The columns of its result files; files of older runs may have no others to go by."""
WORDS: Final = (("causal true", "causal"), ("causal false", "full"))
"""How the values of an axis are said."""


def is_of(axes: Iterable[Mapping[str, str]]) -> bool:
    """Whether cases are attention's, by their axes."""
    return any("head_dim" in one for one in axes)


def in_words(said: str) -> str:
    """Axes and values as a person says them."""
    for plain, word in WORDS:
        said = said.replace(plain, word)
    return said
