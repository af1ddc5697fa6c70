"""How long tests wait for the real world: other processes do not live in simulated time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 600.0
"""A limit only ends what hangs. A machine that stands still for a minute breaks no test."""


def living(pid: int) -> bool:
    """Whether there is such a process, and it is more than an entry that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def await_truth(condition: Callable[[], object], what: str = "what was waited for", pause_s: float = 0.05) -> None:
    """Returns as soon as the condition is true; fails when it does not become so."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen"
        time.sleep(pause_s)
