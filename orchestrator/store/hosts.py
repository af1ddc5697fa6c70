"""The records of hosts in the bucket: one small object for each host, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.hosts import HostRecord, Target, record_object
from orchestrator.ports import Bucket, Clock
from orchestrator.store.swap import Document, swap


def host_document(target: Target) -> Document[HostRecord]:
    def parse(data: bytes | None) -> HostRecord:
        return HostRecord(target=str(target)) if data is None else HostRecord.parse(target.zone, data)

    def dump(record: HostRecord) -> bytes:
        return record.model_dump_json(by_alias=True).encode()

    return Document(record_object(target.zone), HostRecord, parse, dump)


def update_host(bucket: Bucket, clock: Clock, target: Target, change: Callable[[HostRecord], HostRecord]) -> HostRecord:
    """Applies `change` to the host's record and returns the result. Raises `Unavailable` when others were faster every
    time."""
    return swap(bucket, clock, host_document(target), change)
