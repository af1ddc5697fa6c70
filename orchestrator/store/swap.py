"""Compare-and-swap for every document of the bucket that changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from orchestrator.core.errors import Unavailable
from orchestrator.ports import Bucket, Clock

ATTEMPTS: Final = 12
"""How often a change is tried when other clients are faster: about 20 s in all."""
LONGEST_PAUSE_S: Final = 3.2

D = TypeVar("D")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Document(Generic[D]):
    """One object of the bucket that many clients change: its name, the type of its value, and how to read and write it.
    `parse` gets None where there is no object yet. `dump` must return the same bytes for the same value."""

    name: str
    kind: type[D]
    parse: Callable[[bytes | None], D]
    dump: Callable[[D], bytes]


def swap(bucket: Bucket, clock: Clock, document: Document[D], change: Callable[[D], D | R]) -> D | R:
    """Stores `change(value)` and returns it. When another client was faster, `change` is applied to the newer value. If
    `change` returns anything that is not of the document's kind, that is a refusal: it is returned and nothing is
    stored. A value that did not change is not stored either, unless there is no object yet.

    If the answer to our own write was lost, the bytes in the bucket are compared with ours, so that it is not taken for
    a write of another client. If yet another write has followed ours, `change` is applied to the result of both, so it
    must do nothing where its work is already done. Raises `Unavailable` when others were faster every time, and what
    `parse` raises.
    """
    for attempt in range(ATTEMPTS):
        blob = bucket.read(document.name)
        present = document.parse(blob.data if blob is not None else None)
        wanted = change(present)
        if not isinstance(wanted, document.kind) or (blob is not None and wanted == present):
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
