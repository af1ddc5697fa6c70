"""The names of attention's implementations and axes, and the words in which messages show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

WORKLOAD: Final = "attention"
KERNEL: Final = "bench"
"""The bundled kernel."""
IMPLEMENTATIONS: Final = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
"""The implementations that a run measures by default, in the order in which tables show them."""
VARIANTS: Final = {
    KERNEL: r"(@sm_[0-9]{2,3})?(:lse)?", "sdpa": ":(default|flash|efficient|cudnn|math)", "fa4": "", "flex": "",
}  # fmt: skip
"""Each implementation that the harness knows, and a pattern of what may follow its name. It repeats the harness's
registry for the client."""
CHOICES: Final = (*IMPLEMENTATIONS, "bench:lse", "bench@sm_80", "fa4", "flex")
"""Full names for messages. A name that contains a number has one example here."""
DEFAULT: Final = "sdpa:default"
"""The default baseline of speed-ups."""
SLOWEST: Final = ("sdpa:math",)
"""Implementations that figures leave out if they have any other to show."""
FAMILY: Final = "sdpa:"
"""The prefix that figures remove from a name."""
AXES: Final = ("dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal")
"""The axis columns of attention's result files. In files of older runs they may be all that identifies a case."""
WORDS: Final = (("causal true", "causal"), ("causal false", "full"))
"""`axis value` in a result, and the word that messages use for it."""


def is_implementation(name: str) -> bool:
    """Whether the harness knows an implementation of this name."""
    return any(re.fullmatch(f"{first}{rest}", name, re.ASCII) for first, rest in VARIANTS.items())


def is_kernel(name: str) -> bool:
    """Whether `name` is the bundled kernel or a variant of it."""
    return re.fullmatch(f"{KERNEL}{VARIANTS[KERNEL]}", name, re.ASCII) is not None


def is_of(axes: Iterable[Mapping[str, str]]) -> bool:
    """Whether these cases, given by their axes, belong to attention."""
    return any("head_dim" in one for one in axes)


def in_words(text: str) -> str:
    """`text` with each `axis value` of `WORDS` replaced by its word."""
    for plain, word in WORDS:
        text = text.replace(plain, word)
    return text
