"""Claims: by creating an object a machine takes an attempt of a child. Of two machines that try, one succeeds, and no
clock is involved.

A scheduler may start a child twice (a controller that lost its memory does). Each start is a separate attempt with its
own machine name, and begins with the claim of that attempt. Each case is also created only once: a second copy of a
child finds the stored case and measures the next one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from orchestrator.core.foreign import document, words

ATTEMPTS = 12
"""The most attempts of a child. Claims have no names for more."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The document that a machine writes when it takes an attempt of a child."""

    child: int
    attempt: int
    machine: str
    """The name of the node, host or VM, as its engine calls it."""
    at: str = ""

    def dump(self) -> bytes:
        return json.dumps({"schema": 1, **asdict(self)}, sort_keys=True).encode()


def parse(data: bytes) -> Claim | None:
    """The claim in an object, or None if it is not valid. A machine wrote it, so nothing else is taken from it."""
    try:
        found = document(data)
        child, attempt = found["child"], found["attempt"]
        if type(child) is not int or type(attempt) is not int or child < 0 or not 1 <= attempt <= ATTEMPTS:
            return None
        return Claim(child, attempt, words(str(found["machine"]), 100), words(str(found.get("at", "")), 40))
    except (ValueError, KeyError, TypeError):
        return None
