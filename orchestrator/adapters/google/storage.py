"""A Google Cloud Storage bucket, or one in the embedded cloud, by google-cloud-storage."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from google.api_core.exceptions import NotFound as ObjectMissing
from google.api_core.exceptions import PreconditionFailed
from google.api_core.retry import Retry
from google.auth.credentials import Credentials
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption

from orchestrator.adapters.files import crc32c, write_atomically
from orchestrator.adapters.google.credentials import credentials_for
from orchestrator.adapters.google.errors import is_transient, lost_answer, translate_google_errors
from orchestrator.adapters.google.network import Session, transfer_limit_s
from orchestrator.core.errors import BenchError, DocumentUnreadable, LocalError, NotFound, Unavailable, too_large
from orchestrator.ports import DATA_BYTES, DOCUMENT_BYTES, Blob, Clock, ObjectEntry

THREADS: Final = 8
PAGE: Final = 1000
LARGE: Final = 1_000_000
LARGEST: Final = 256 << 20
"""Bytes of an object whose size nobody knows before: twice what any is that is read at once."""
CHUNK_BYTES: Final = 4 << 20
"""Of a resumable upload: what is sent again if the line breaks."""
FIELDS: Final = "items(name,size,generation,crc32c,metadata,updated),nextPageToken"
DAMAGED: Final = 3
"""How often an object is asked for that arrives with a wrong checksum."""


class GoogleBucket:
    """Implements `orchestrator.ports.Bucket`.

    `endpoint` is the base URL of another server that speaks the same protocol; without `credentials`, requests to it
    carry none. `patience_s` bounds how long one operation is retried while the service does not answer, `answer_s` how
    long a silence may last. `calls` counts the HTTP requests that were sent. `clock` is what the server's time is
    compared with.
    """

    def __init__(
        self,
        name: str,
        endpoint: str | None = None,
        *,
        credentials: Credentials | None = None,
        patience_s: float = 10.0,
        answer_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._seen = False
        self._patience_s = patience_s
        self._silence_s = min(answer_s, patience_s)
        self._session = Session(credentials or credentials_for(endpoint), endpoint, clock)
        self._client = Client(
            project="unused",  # only needed to make buckets; without one the client would search for it
            credentials=self._session.credentials,
            client_options=self._session.client_options("storage"),
            _http=self._session,
        )
        self._client._bucket_metadata_cache = None  # else a thread asks for the bucket, for traces that nobody reads
        self._bucket = self._client.bucket(name)

    @property
    def name(self) -> str:
        return self._name

    @property
    def calls(self) -> int:
        return self._session.calls

    def offset(self) -> timedelta:
        """What to add to the client's clock for the server's time, by the `Date` of the answers so far; asked for with
        one request when there was none. Nothing when the server does not answer."""
        if not self._session.offset.known:
            with suppress(BenchError), translate_google_errors("ask for the time"):
                self._glance()  # what needs the answer will fail by itself, and say why
        return self._session.offset.value

    def close(self) -> None:
        self._client.close()

    def create(self, name: str, data: bytes, *, content_type: str = "application/json") -> bool:
        return self._upload(name, io.BytesIO(data), len(data), content_type, generation=0) is not None

    def replace(
        self,
        name: str,
        data: bytes,
        *,
        generation: int | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> int | None:
        return self._upload(name, io.BytesIO(data), len(data), content_type, generation=generation, metadata=metadata)

    def read(self, name: str, *, largest: int = DOCUMENT_BYTES) -> Blob | None:
        with self._translate(f"read {self._url(name)}"):
            try:
                blob = self._fetch(name, largest)
            except ObjectMissing:
                self._confirm()
                return None
        self._seen = True
        return blob

    def read_many(self, names: Sequence[str], *, largest: int = DATA_BYTES) -> Mapping[str, Blob]:
        def read(name: str) -> Blob | None:
            with suppress(DocumentUnreadable):
                return self.read(name, largest=largest)
            return None

        with ThreadPoolExecutor(THREADS, thread_name_prefix="bucket") as pool:
            blobs = zip(names, pool.map(read, names), strict=True)
            return {name: blob for name, blob in blobs if blob is not None}

    def list(
        self, prefix: str, *, after: str = "", matching: str = "", most: int | None = None
    ) -> tuple[ObjectEntry, ...]:
        pattern = re.compile("[^/]*".join(map(re.escape, matching.split("*"))))  # emulators may not know matchGlob
        with self._translate(f"list {self._url(prefix)}"):
            listing = self._client.list_blobs(
                self._bucket,
                prefix=prefix,
                start_offset=after or None,  # inclusive
                match_glob=matching or None,
                fields=FIELDS,
                page_size=PAGE,
                **self._patience(),
            )
            # The client's objects cost ten times as much as the answer that they are made of.
            entries = (_entry(item) for page in listing.pages for item in page.raw_page.get("items", ()))
            wanted = (entry for entry in entries if entry.name > after)
            listed = tuple(islice((one for one in wanted if not matching or pattern.fullmatch(one.name)), most))
        self._seen = True
        return listed

    def download(self, entry: ObjectEntry, to: Path) -> None:
        what = self._url(entry.name)
        missing = "it was deleted after it was listed: run the same command again"
        with translate_google_errors(f"download {what}", missing=missing):
            data = self._fetch(entry.name, max(entry.size, LARGEST), entry.size).data
        self._seen = True
        arrived = crc32c(data)
        if entry.crc32c and arrived != entry.crc32c:
            raise Unavailable(
                f"{what} is not what was listed: its checksum is {arrived}, not {entry.crc32c}",
                hint=f"it changed in between: run the same command again; {to} was not changed",
            )
        write_atomically(to, data)

    def upload(self, name: str, source: Path, *, content_type: str) -> bool:
        try:
            with source.open("rb") as file:
                size = source.stat().st_size
                # To ask first is cheaper than to send it all for nothing; small files are sent with the condition.
                if size > LARGE and any(entry.name == name for entry in self.list(name)):
                    return False
                return self._upload(name, file, size, content_type, generation=0) is not None
        except OSError as exc:
            raise LocalError(f"cannot read {source}: {exc.strerror or exc}", hint="check that the file exists") from exc

    def compose(self, name: str, sources: Sequence[str]) -> None:
        missing = "one of its parts was deleted: run the same command again"
        with translate_google_errors(f"compose {self._url(name)}", missing=missing):
            self._bucket.blob(name).compose([self._bucket.blob(source) for source in sources], **self._patience())
        self._seen = True

    # --- below the port ---

    def _patience(self, size: int = 0) -> dict[str, Any]:
        """How long the client waits and retries: longer for a transfer of `size` bytes."""
        until_s = self._patience_s + (transfer_limit_s(size) if size > LARGE else 0)
        retry = Retry(predicate=is_transient, initial=0.1, maximum=2.0, multiplier=2.0, timeout=until_s)
        return {"timeout": self._silence_s, "retry": retry}

    def _url(self, name: str) -> str:
        return f"gs://{self._name}/{name}"

    @contextmanager
    def _translate(self, doing: str) -> Iterator[None]:
        """Ours for theirs; a 404 here is the bucket's, since a missing object is an answer and not an error."""
        try:
            with translate_google_errors(doing):
                yield
        except AttributeError as exc:  # of the client, for an answer without a body
            raise lost_answer(doing, "the answer is empty, so it is not from the service") from exc
        except NotFound as exc:
            raise NotFound(
                f"cannot {doing}: there is no bucket gs://{self._name}",
                hint=f"`bench init` creates it, or `gcloud storage buckets create gs://{self._name}`;"
                " BENCH_BUCKET names another",
            ) from exc

    def _upload(
        self,
        name: str,
        stream: io.BufferedIOBase,
        size: int,
        content_type: str,
        *,
        generation: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> int | None:
        blob = self._bucket.blob(name, chunk_size=CHUNK_BYTES)
        if metadata:
            blob.metadata = dict(metadata)
        doing = f"store {self._url(name)}"
        with self._translate(doing):
            try:
                blob.upload_from_file(
                    stream,
                    size=size,
                    content_type=content_type,
                    if_generation_match=generation,
                    checksum="crc32c",
                    rewind=True,
                    **self._patience(size),
                )
            except PreconditionFailed:
                return None
            except DataCorruption as exc:
                raise lost_answer(doing, "what arrived has another checksum") from exc
        self._seen = True
        return int(blob.generation)

    def _fetch(self, name: str, largest: int, size: int = 0) -> Blob:
        """The object as it is stored, checked against the checksum that the server sends with it; asked for again if
        wrong."""
        for attempt in range(1, DAMAGED + 1):
            blob, sink = self._bucket.blob(name), Sink(self._url(name), largest)
            try:
                blob.download_to_file(sink, raw_download=True, checksum="crc32c", **self._patience(size))
                return Blob(sink.getvalue(), int(blob.generation or 0))
            except DataCorruption as exc:
                if attempt == DAMAGED:
                    raise lost_answer(f"read {self._url(name)}", "what arrived has another checksum") from exc
        raise AssertionError("the last attempt returns or raises")

    def _glance(self) -> None:
        listing = self._client.list_blobs(self._bucket, max_results=1, fields=FIELDS, **self._patience())
        next(iter(listing.pages), None)

    def _confirm(self) -> None:
        """Raises if it is the bucket that is missing: a 404 does not say, and to get a bucket takes one more right."""
        if not self._seen:
            self._glance()
            self._seen = True


class Sink(io.BytesIO):
    """What is downloaded, in memory. Raises `DocumentUnreadable` for more than `largest` bytes, and `Unavailable` if it
    takes too long."""

    def __init__(self, url: str, largest: int) -> None:
        super().__init__()
        self._url, self._largest, self._begun = url, largest, time.monotonic()

    def write(self, data: Any) -> int:
        count = super().write(data)
        if self.tell() > self._largest:
            raise too_large(self._url, self._largest)
        if time.monotonic() - self._begun > transfer_limit_s(self.tell()):
            raise lost_answer(f"read {self._url}", f"{self.tell()} bytes took too long")
        return count


def _entry(item: Mapping[str, Any]) -> ObjectEntry:
    updated = item.get("updated")
    return ObjectEntry(
        name=str(item["name"]),
        size=int(item.get("size") or 0),
        generation=int(item.get("generation") or 0),
        crc32c=str(item.get("crc32c") or ""),
        metadata=dict(item.get("metadata") or {}),
        updated=datetime.fromisoformat(str(updated)) if updated else None,
    )
