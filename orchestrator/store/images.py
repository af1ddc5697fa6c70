"""The records of prepared images in the bucket: one small object for each image, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.core.errors import DocumentUnreadable, NotFound
from orchestrator.core.images import PREFIX, ImageRecord, image_recorded_in, record_object
from orchestrator.ports import Bucket, Clock, Images
from orchestrator.store.documents import StoredDocument, swap


class ImageRecords:
    """The records of all images."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    def every(self) -> tuple[tuple[ImageRecord, ...], Mapping[str, str]]:
        """The records that can be read, in the order of their names; and for each other object why it cannot be
        read."""
        names = [entry.name for entry in self._bucket.list(PREFIX) if entry.name.endswith(".json")]
        records: list[ImageRecord] = []
        unreadable: dict[str, str] = {}
        for name, blob in sorted(self._bucket.read_many(names).items()):
            try:
                records.append(ImageRecord.parse(image_recorded_in(name), blob.data))
            except DocumentUnreadable as exc:
                unreadable[name] = str(exc)
        return tuple(records), unreadable

    def create(self, record: ImageRecord) -> None:
        """Stores the record; one that is already there stays as it is."""
        self._bucket.create(record_object(record.name), record.dump())

    def update(self, name: str, change: Callable[[ImageRecord], ImageRecord]) -> ImageRecord:
        """Applies `change` to the record and returns the result. Raises `NotFound`, `DocumentUnreadable`,
        `Unavailable`."""

        def parse(data: bytes | None) -> ImageRecord:
            if data is None:
                raise NotFound(f"there is no image {name} in this bucket", hint="`bench image list` lists them")
            return ImageRecord.parse(name, data)

        document = StoredDocument(record_object(name), ImageRecord, parse, ImageRecord.dump)
        return swap(self._bucket, self._clock, document, change)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Prepared images: their records in the bucket, and the cloud that has them. The cloud is a function, as its client
    is slow to load."""

    records: ImageRecords
    cloud: Callable[[], Images]
