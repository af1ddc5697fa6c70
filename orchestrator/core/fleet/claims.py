"""Who measures a child: an object that is created once. Of two machines that try, one gets it, with no clock involved.

A scheduler may start a child twice (a controller that lost its memory does). Each start is an attempt of its own, with
a machine's name of its own, and begins with the claim of that attempt. What decides what counts is the case, which is
created once as well: the second copy of a child finds it there and measures the next one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from orchestrator.core.foreign import document, words

ATTEMPTS = 12
"""More often no child is tried: names of claims end there."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a machine writes when it takes an attempt of a child."""

    child: int
    attempt: int
    machine: str
    """Node, host or VM, as its engine calls it."""
    at: str = ""

    def dump(self) -> bytes:
        return json.dumps({"schema": 1, **asdict(self)}, sort_keys=True).encode()


def parse(data: bytes) -> Claim | None:
    """The claim in an object, or None for what is none: a machine wrote it, so it is believed in nothing but this."""
    try:
        found = document(data)
        child, attempt = found["child"], found["attempt"]
        if type(child) is not int or type(attempt) is not int or child < 0 or not 1 <= attempt <= ATTEMPTS:
            return None
        return Claim(child, attempt, words(str(found["machine"]), 100), words(str(found.get("at", "")), 40))
    except (ValueError, KeyError, TypeError):
        return None
