"""Compare-and-swap for every document of the bucket that changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from orchestrator.core.errors import Unavailable
from orchestrator.ports import Bucket, Clock

ATTEMPTS: Final = 12
"""How often a change is tried again when other clients were faster: about 20 s in all."""
LONGEST_PAUSE_S: Final = 3.2

D = TypeVar("D")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Document(Generic[D]):
    """One object of the bucket that many change: its name, the type it is read as, and both directions. `parse` gets
    None where there is no object yet; `dump` gives the same bytes for the same value."""

    name: str
    kind: type[D]
    parse: Callable[[bytes | None], D]
    dump: Callable[[D], bytes]


def swap(bucket: Bucket, clock: Clock, document: Document[D], change: Callable[[D], D | R]) -> D | R:
    """Stores what `change` makes of the document, and returns it; again on the newer one when somebody was first.
    Anything that is not of the document's kind is a refusal: it is returned and nothing is stored. What is equal to
    what is there is not stored either, except where there is no object yet.

    An answer that was lost is not taken for somebody else's write: the bytes that are there are compared with ours. If
    another write followed ours by then, `change` is called on the result, so it must leave alone what it finds done.
    Raises `Unavailable` when others were faster every time, and what `parse` raises.
    """
    for attempt in range(ATTEMPTS):
        blob = bucket.read(document.name)
        there = document.parse(blob.data if blob is not None else None)
        wanted = change(there)
        if not isinstance(wanted, document.kind) or (blob is not None and wanted == there):
            return wanted
        data = document.dump(wanted)
        if bucket.replace(document.name, data, generation=blob.generation if blob is not None else 0) is not None:
            return wanted
        now = bucket.read(document.name)
        if now is not None and now.data == data:
            return wanted
        clock.sleep(min(LONGEST_PAUSE_S, random.uniform(0.02, 0.1) * 2**attempt))
    raise Unavailable(
        f"gs://{bucket.name}/{document.name} changed {ATTEMPTS} times while it was updated",
        hint="many clients write to it at the same time: run the same command again",
    )
