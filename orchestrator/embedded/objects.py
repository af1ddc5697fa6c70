"""Objects on disk: an index in SQLite and a file for each object's bytes.

Names of objects are data: they are only in the index. The files have random names, so that no object's name reaches the
file system, whatever it contains. Every change is one transaction, checked and made under one lock. A reader that has
opened a file can read it to the end, whatever is written in between.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import google_crc32c

from orchestrator.embedded.documents import private_file, private_folder
from orchestrator.embedded.errors import ApiError

MOST_NAME_BYTES = 1024
KEPT = ("metadata", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "customTime")
"""The fields of an object that an upload or a patch may set, in addition to its type."""
TABLES = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS objects (bucket TEXT, name TEXT, body TEXT, PRIMARY KEY (bucket, name)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object. `blob` is the name of the file with its bytes. Times are RFC 3339 in UTC, and hashes are in
    base64."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    crc32c: str
    md5: str
    content_type: str
    created: str
    updated: str
    blob: str
    parts: int = 0
    """From how many objects it was composed; 0 if it was uploaded."""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def body(self) -> str:
        """The object as JSON text for the index."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


@lru_cache(8192)
def parse_stored(body: str) -> StoredObject:
    """The object of a text in the index: lists of a growing log read the same texts again and again."""
    return StoredObject(**json.loads(body))


@dataclass(frozen=True, slots=True)
class Preconditions:
    """The preconditions of a request, from its query; None: no such condition."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def read(cls, query: Mapping[str, str], prefix: str = "if") -> Preconditions:
        """The preconditions in a query. Raises `ApiError` (400) if one is not a number."""

        def number(name: str) -> int | None:
            text = query.get(prefix + name)
            if text is None:
                return None
            try:
                return int(text)
            except ValueError as exc:
                raise ApiError(400, f"Invalid long value: '{text}'.") from exc

        return cls(
            number("GenerationMatch"),
            number("GenerationNotMatch"),
            number("MetagenerationMatch"),
            number("MetagenerationNotMatch"),
        )

    def check(self, found: StoredObject | None, *, reading: bool = False) -> None:
        """Checks the preconditions against the present object. Raises `ApiError`: 412 if one does not hold, or 304 if a
        reader has this object already."""
        generation, metageneration = (found.generation, found.metageneration) if found else (0, 0)
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise precondition_error()
        if self.not_generation == generation or (found and self.not_metageneration == metageneration):
            raise ApiError(304, "Not Modified", "notModified") if reading else precondition_error()


def precondition_error() -> ApiError:
    """The 412 error of a precondition that does not hold."""
    return ApiError(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


def no_bucket() -> ApiError:
    return ApiError(404, "The specified bucket does not exist.")


def check_name(name: str) -> None:
    """Checks the name of an object by Cloud Storage's rules, and refuses NUL too. Raises `ApiError` (400)."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise ApiError(400, "The object name is not valid UTF-8.") from exc
    forbidden = {"\r", "\n", "\0"} & set(name)
    if not 1 <= size <= MOST_NAME_BYTES or forbidden or name in (".", "..") or name.startswith(".well-known/acme-"):
        raise ApiError(400, f"Disallowed unicode characters present in object name, or its length is {size}.")


class Incoming:
    """The bytes of an upload. They are written to a new file, counted and hashed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / secrets.token_hex(16)
        self.file: IO[bytes] = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self.size = 0
        self.crc: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        self.md5 = hashlib.md5(usedforsecurity=False)

    def write(self, piece: bytes) -> None:
        self.file.write(piece)
        self.size += len(piece)
        self.crc.update(piece)
        self.md5.update(piece)

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self.crc.digest()).decode()

    @property
    def md5_hash(self) -> str:
        return base64.b64encode(self.md5.digest()).decode()

    def check(self, announced: Mapping[str, Any]) -> None:
        """Compares the bytes with the hashes that were announced (`crc32c`, `md5Hash`, in base64). Raises `ApiError`
        (400) if one differs."""
        for kind, word, value in (("crc32c", "CRC32C", self.crc32c), ("md5Hash", "MD5 hash", self.md5_hash)):
            if announced.get(kind) not in (None, "", value):
                raise ApiError(
                    400, f'Provided {word} "{announced[kind]}" doesn\'t match calculated {word} "{value}".', "invalid"
                )

    def drop(self) -> None:
        """Deletes the file."""
        self.file.close()
        self.path.unlink(missing_ok=True)


class Objects:
    """The object store. Thread-safe. `now` is the cloud's clock."""

    def __init__(self, folder: Path, now: Callable[[], datetime]) -> None:
        private_folder(folder)
        self.blobs = folder / "blobs"
        private_folder(self.blobs)
        index = folder / "index.sqlite"
        private_file(index)
        self.now = now
        self.lock = threading.RLock()
        self.index = sqlite3.connect(index, check_same_thread=False, isolation_level=None)
        self.index.execute("PRAGMA journal_mode=WAL")
        self.index.execute("PRAGMA synchronous=OFF")  # safe if the process is killed, which is what happens here
        self.index.executescript(TABLES)
        self.latest = 0
        self._sweep()

    def _sweep(self) -> None:
        """Deletes files of uploads that an earlier process did not finish, and finds the largest generation number."""
        used_blobs = set()
        for (body,) in self.index.execute("SELECT body FROM objects"):
            stored = json.loads(body)
            used_blobs.add(stored["blob"])
            self.latest = max(self.latest, stored["generation"])
        for path in self.blobs.iterdir():
            if path.name not in used_blobs:
                path.unlink()

    def close(self) -> None:
        with self.lock:
            self.index.close()

    # Buckets

    def make_bucket(self, name: str) -> bool:
        """Creates a bucket. Returns whether it did not exist before."""
        with self.lock:
            return self.index.execute("INSERT OR IGNORE INTO buckets VALUES (?)", (name,)).rowcount == 1

    def has_bucket(self, name: str) -> bool:
        with self.lock:
            return self.index.execute("SELECT 1 FROM buckets WHERE name=?", (name,)).fetchone() is not None

    def bucket_names(self) -> list[str]:
        with self.lock:
            return [name for (name,) in self.index.execute("SELECT name FROM buckets ORDER BY name")]

    def drop_bucket(self, name: str) -> None:
        """Deletes a bucket. Raises `ApiError`: 404 if there is none, or 409 if it is not empty."""
        with self.lock:
            if not self.has_bucket(name):
                raise no_bucket()
            if self.index.execute("SELECT 1 FROM objects WHERE bucket=? LIMIT 1", (name,)).fetchone():
                raise ApiError(409, "The bucket you tried to delete is not empty.", "conflict")
            self.index.execute("DELETE FROM buckets WHERE name=?", (name,))

    # Objects

    def find(self, bucket: str, name: str) -> StoredObject | None:
        """The object, or None. Raises `ApiError` (404) if there is no such bucket."""
        with self.lock:
            row = self.index.execute("SELECT body FROM objects WHERE bucket=? AND name=?", (bucket, name)).fetchone()
            if row is None and not self.has_bucket(bucket):
                raise no_bucket()
        return parse_stored(row[0]) if row else None

    def get(self, bucket: str, name: str, wanted: Preconditions, generation: str | None = None) -> StoredObject:
        """The object. Raises `ApiError`: 404 if there is none, or the errors of `wanted.check`."""
        stored = self.find(bucket, name)
        if stored is None or generation not in (None, "", str(stored.generation)):
            raise ApiError(404, f"No such object: {bucket}/{name}")
        wanted.check(stored, reading=True)
        return stored

    def open(self, stored: StoredObject) -> IO[bytes]:
        """The file with the object's bytes. Raises `FileNotFoundError` if the object has been replaced or deleted."""
        return (self.blobs / stored.blob).open("rb")

    def read(
        self, bucket: str, name: str, wanted: Preconditions, generation: str | None
    ) -> tuple[StoredObject, IO[bytes]]:
        """(object, file with its bytes), consistent with each other. Raises the errors of `get`."""
        while True:
            stored = self.get(bucket, name, wanted, generation)
            try:
                return stored, self.open(stored)
            except FileNotFoundError:
                continue  # the object was replaced in between: try again

    def incoming(self) -> Incoming:
        return Incoming(self.blobs)

    def commit(
        self,
        bucket: str,
        name: str,
        description: Mapping[str, Any],
        data: Incoming,
        wanted: Preconditions,
        *,
        parts: int = 0,
    ) -> StoredObject:
        """Stores the bytes as an object, in place of an object of the same name. `description` is that in the
        request. Raises `ApiError`, and then nothing has changed."""
        try:
            check_name(name)
            data.check(description)
            data.file.close()
            with self.lock:
                before = self.find(bucket, name)
                wanted.check(before)
                moment = storage_time(self.now())
                stored = StoredObject(
                    bucket=bucket,
                    name=name,
                    generation=self._generation(),
                    metageneration=1,
                    size=data.size,
                    crc32c=data.crc32c,
                    md5="" if parts else data.md5_hash,
                    content_type=str(description.get("contentType") or "application/octet-stream"),
                    created=moment,
                    updated=moment,
                    blob=data.path.name,
                    parts=parts,
                    fields=fields_of(description),
                )
                self._put(stored)
        except BaseException:
            data.drop()
            raise
        if before is not None:
            (self.blobs / before.blob).unlink(missing_ok=True)
        return stored

    def patch(
        self, bucket: str, name: str, changes: Mapping[str, Any], wanted: Preconditions, *, merge: bool = True
    ) -> StoredObject:
        """Changes the fields of an object. A null removes a field. With `merge`, metadata keys that are not given stay,
        and a null removes a key. Raises `ApiError`."""
        with self.lock:
            stored = self.get(bucket, name, Preconditions())
            wanted.check(stored)
            fields = dict(stored.fields)
            for key in KEPT:
                if key not in changes:
                    continue
                value = changes[key]
                if key == "metadata" and isinstance(value, dict):
                    merged = (dict(fields.get("metadata", {})) if merge else {}) | value
                    value = {metadata_key: text for metadata_key, text in merged.items() if text is not None} or None
                fields[key] = value
            changed = replace(
                stored,
                metageneration=stored.metageneration + 1,
                updated=storage_time(self.now()),
                content_type=str(changes.get("contentType") or stored.content_type),
                fields=fields_of(fields),
            )
            self._put(changed)
        return changed

    def delete(self, bucket: str, name: str, wanted: Preconditions, generation: str | None = None) -> None:
        """Deletes an object. Raises `ApiError`: 404 if there is none, or 412 if a precondition does not hold."""
        with self.lock:
            stored = self.get(bucket, name, Preconditions(), generation)
            wanted.check(stored)
            self.index.execute("DELETE FROM objects WHERE bucket=? AND name=?", (bucket, name))
        (self.blobs / stored.blob).unlink(missing_ok=True)

    def names_from(self, bucket: str, start: str) -> Iterator[StoredObject]:
        """A bucket's objects in the order of their names' bytes, from `start` on. They are read in groups, so that a
        change in between may be seen. Raises `ApiError` (404) if there is no such bucket."""
        if not self.has_bucket(bucket):
            raise no_bucket()
        comparison = ">="
        while True:
            with self.lock:
                rows = self.index.execute(
                    f"SELECT body FROM objects WHERE bucket=? AND name{comparison}? ORDER BY name LIMIT 500",
                    (bucket, start),
                ).fetchall()
            for (body,) in rows:
                stored = parse_stored(body)
                start, comparison = stored.name, ">"
                yield stored
            if len(rows) < 500:
                return

    def _put(self, stored: StoredObject) -> None:
        self.index.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", (stored.bucket, stored.name, stored.body())
        )

    def _generation(self) -> int:
        self.latest = max(self.latest + 1, int(self.now().timestamp() * 1_000_000))
        return self.latest


def fields_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a description that are stored. Raises `ApiError` (400) if the metadata is not a mapping of
    texts."""
    kept = {key: description[key] for key in KEPT if description.get(key) is not None}
    metadata = kept.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ApiError(400, "Invalid value for field 'metadata': a map of strings is expected.")
    return kept


def storage_time(moment: datetime) -> str:
    """A time in RFC 3339 format, in UTC with milliseconds and a Z, as Cloud Storage writes it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
