"""What of attention a case computes: its output, the gradients, or both. Only the case's id says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

Pass = Literal["forward", "backward", "both"]
FORWARD: Final[Pass] = "forward"
AXIS: Final = "pass"
PRODUCTS: Final = {"forward": 2, "backward": 5, "both": 7}
"""Products of matrices in each."""
MOVED: Final = {"forward": 2, "backward": 4, "both": 4}
"""How many tensors like Q, and how many like K, a call reads or writes at least once."""
NAMED: Final = re.compile(r"b\d+-h\d+-kv\d+-q\d+-k\d+-d\d+-(?:causal|full)-[a-z0-9]+-(backward|both)")


def suffix(direction: str) -> str:
    """What the id of a case ends in: a forward pass is not named, so that it is called as it was before others were."""
    return "" if direction == FORWARD else f"-{direction}"


def with_pass(case_id: str, axes: Mapping[str, str]) -> dict[str, str]:
    """The axes of a case as they stand in its file, and its pass where that is not forward."""
    named = NAMED.fullmatch(case_id)
    return {**axes, AXIS: named[1]} if named else dict(axes)
