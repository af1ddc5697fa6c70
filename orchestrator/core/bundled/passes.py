"""Which pass of attention a case computes: the output, the gradients, or both. Only the case's id says which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

Pass = Literal["forward", "backward", "both"]
FORWARD: Final[Pass] = "forward"
AXIS: Final = "pass"
PRODUCTS: Final = {"forward": 2, "backward": 5, "both": 7}
"""How many matrix products each pass computes."""
MOVED: Final = {"forward": 2, "backward": 4, "both": 4}
"""How many tensors like Q, and how many like K, a call reads or writes at least once."""
NAMED: Final = re.compile(r"b\d+-h\d+-kv\d+-q\d+-k\d+-d\d+-(?:causal|full)-[a-z0-9]+-(backward|both)")


def suffix(direction: str) -> str:
    """The end of a case's id. It is empty for a forward pass, so that ids from before the other passes stay valid."""
    return "" if direction == FORWARD else f"-{direction}"


def with_pass(case_id: str, axes: Mapping[str, str]) -> dict[str, str]:
    """The axes of a case from its file, with its pass added unless that is forward."""
    named = NAMED.fullmatch(case_id)
    return {**axes, AXIS: named[1]} if named else dict(axes)
