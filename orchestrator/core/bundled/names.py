"""Attention's implementations and axes, and how they are said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

WORKLOAD: Final = "attention"
KERNEL: Final = "bench"
"""The bundled kernel."""
IMPLEMENTATIONS: Final = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
"""What is measured where nothing else is asked for, in the order in which they stand beside each other."""
VARIANTS: Final = {
    KERNEL: r"(@sm_[0-9]{2,3})?(:lse)?", "sdpa": ":(default|flash|efficient|cudnn|math)", "fa4": "", "flex": "",
}  # fmt: skip
"""Every implementation that the harness knows, and what may follow its name: its own registry, for what runs here."""
CHOICES: Final = (*IMPLEMENTATIONS, "bench:lse", "bench@sm_80", "fa4", "flex")
"""Their full names, for a message; of those with a number in them, one."""
DEFAULT: Final = "sdpa:default"
"""The baseline that speed-ups are over where nothing else is asked for."""
SLOWEST: Final = ("sdpa:math",)
"""What figures leave out where there is anything else."""
FAMILY: Final = "sdpa:"
"""What figures leave out of a name."""
AXES: Final = ("dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal")
"""The columns of its result files; files of older runs may have no others to go by."""
WORDS: Final = (("causal true", "causal"), ("causal false", "full"))
"""How the values of an axis are said."""


def is_implementation(name: str) -> bool:
    """Whether the harness knows an implementation of this name."""
    return any(re.fullmatch(f"{first}{rest}", name, re.ASCII) for first, rest in VARIANTS.items())


def is_kernel(name: str) -> bool:
    """Whether it is the bundled kernel, or a variant of it."""
    return re.fullmatch(f"{KERNEL}{VARIANTS[KERNEL]}", name, re.ASCII) is not None


def is_of(axes: Iterable[Mapping[str, str]]) -> bool:
    """Whether cases are attention's, by their axes."""
    return any("head_dim" in one for one in axes)


def in_words(said: str) -> str:
    """Axes and values as a person says them."""
    for plain, word in WORDS:
        said = said.replace(plain, word)
    return said
