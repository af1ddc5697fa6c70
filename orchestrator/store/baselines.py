"""Named baselines in the bucket: one small object for each name, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from orchestrator.core.baselines import NAME, Baseline, Baselines, checked_name, dump, parse
from orchestrator.core.naming import BASELINES_PREFIX, baseline_object
from orchestrator.ports import Bucket, Clock
from orchestrator.store.swap import Document, swap

Refused = TypeVar("Refused")


def baseline_document(name: str) -> Document[dict[str, Baseline]]:
    def read(data: bytes | None) -> dict[str, Baseline]:
        return {} if data is None else parse(name, data)

    def write(baselines: dict[str, Baseline]) -> bytes:
        return dump(name, baselines)

    return Document(baseline_object(checked_name(name)), dict, read, write)


class BaselineStore:
    """The named baselines of a bucket. If two clients set baselines of one name at the same time, for example of a T4
    and of an H100, both are kept."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    def names(self) -> tuple[str, ...]:
        """Every name that was ever set, in order; a removed name is still listed, without baselines. Objects whose
        names are not names of baselines are left out."""
        objects = (entry.name.removeprefix(BASELINES_PREFIX) for entry in self._bucket.list(BASELINES_PREFIX))
        names = (object_name.removesuffix(".json") for object_name in objects if object_name.endswith(".json"))
        return tuple(name for name in names if NAME.fullmatch(name))

    def read(self, name: str) -> Mapping[str, Baseline]:
        """The baselines of a name by device; empty where there is no such name. Raises `BaselinesUnreadable`."""
        blob = self._bucket.read(baseline_object(checked_name(name)))
        return {} if blob is None else parse(name, blob.data)

    def update(self, name: str, change: Callable[[Baselines], dict[str, Baseline] | Refused]) -> Baselines | Refused:
        """Stores `change(baselines)` and returns it. When another client was faster, `change` is applied to the newer
        baselines. If it returns anything but a dictionary, that is a refusal: it is returned and nothing is stored.
        Raises `BaselinesUnreadable`, and `Unavailable` when others were faster every time."""
        return swap(self._bucket, self._clock, baseline_document(name), change)

    def clear(self, name: str) -> None:
        """Replaces the object of the name with an empty one, whether it is readable or not."""
        self._bucket.replace(baseline_object(checked_name(name)), dump(name, {}), generation=None)
