"""The leases of a shared grid: one object a grid, changed by compare-and-swap by whoever hands out its cases."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.errors import NotFound
from orchestrator.core.naming import grid_object
from orchestrator.core.run.leases import SharedGrid
from orchestrator.ports import Bucket, Clock
from orchestrator.store.swap import Document, swap


def grid_document(lead: str) -> Document[SharedGrid]:
    def parse(data: bytes | None) -> SharedGrid:
        if data is None:
            raise NotFound(f"{lead} shares no grid", hint="`bench status` lists the runs in this bucket")
        return SharedGrid.parse(data)

    return Document(grid_object(lead), SharedGrid, parse, SharedGrid.dump)


def read_grid(bucket: Bucket, lead: str) -> SharedGrid:
    """Raises `NotFound`, `GridUnreadable`."""
    blob = bucket.read(grid_object(lead))
    return grid_document(lead).parse(None if blob is None else blob.data)


def update_grid(bucket: Bucket, clock: Clock, lead: str, change: Callable[[SharedGrid], SharedGrid]) -> SharedGrid:
    """The grid after `change`. Raises `NotFound`, `GridUnreadable`, and `Unavailable` when others were faster every
    time."""
    return swap(bucket, clock, grid_document(lead), change)
