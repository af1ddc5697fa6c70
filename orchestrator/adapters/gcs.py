"""A Google Cloud Storage bucket, or one in the embedded cloud: the real client, kept on a short leash."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import quote

import google_crc32c
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import NotFound as ObjectMissing
from google.api_core.exceptions import PreconditionFailed, from_http_response
from google.api_core.retry import Retry
from google.auth.credentials import Credentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption

from orchestrator.adapters.clock import Offset, SystemClock
from orchestrator.adapters.files import write_atomically
from orchestrator.adapters.google_auth import credentials_for
from orchestrator.adapters.google_errors import is_transient, translated
from orchestrator.core.errors import BenchError, LocalError, NotFound, Unavailable
from orchestrator.ports import Blob, Clock, Entry

THREADS: Final = 8
PAGE: Final = 1000
LARGE: Final = 1_000_000
FIELDS: Final = "items(name,size,generation,crc32c,metadata,updated),nextPageToken"
STORAGE: Final = "https://storage.googleapis.com"
DAMAGED: Final = 3
"""How often an object is asked for that arrives with a wrong checksum."""


class GoogleBucket:
    """Implements `orchestrator.ports.Bucket`.

    `endpoint` is the base URL of another server that speaks the same protocol; requests to it carry no credentials.
    `patience_s` bounds how long one operation is retried while the service does not answer; the client's own default is
    two minutes. `calls` counts the HTTP requests that were sent. `clock` is what the server's time is compared with.
    """

    def __init__(
        self,
        name: str,
        project: str | None = None,
        endpoint: str | None = None,
        *,
        credentials: Credentials | None = None,
        patience_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._seen = False
        self._patience_s = patience_s
        self._timeout = (min(3.0, patience_s), patience_s)
        self._retry = Retry(predicate=is_transient, initial=0.1, maximum=2.0, multiplier=2.0, timeout=patience_s)
        credentials = credentials or credentials_for(endpoint)
        self._session = CountingSession(credentials, clock or SystemClock())
        self._client = Client(
            project=project or "unused",  # only needed to make buckets; None would start a search for one
            credentials=credentials,
            client_options=ClientOptions(api_endpoint=endpoint) if endpoint else None,
            _http=self._session,
        )
        # Else a thread of the client's asks for the bucket behind our back, for labels of traces that nobody reads.
        self._client._bucket_metadata_cache = None
        self._bucket = self._client.bucket(name)
        self._listing = f"{(endpoint or STORAGE).rstrip('/')}/storage/v1/b/{quote(name, safe='')}/o"

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
            try:
                with translated(f"ask {self._url('')} for the time"):
                    next(
                        iter(self._client.list_blobs(self._bucket, max_results=1, fields=FIELDS, **self._patience)),
                        None,
                    )
            except BenchError:
                pass  # what needs the answer will fail by itself, and say why
        return self._session.offset.value

    def close(self) -> None:
        self._client.close()

    def create(self, name: str, data: bytes, *, content_type: str = "application/json") -> bool:
        return self._upload(name, data, content_type, generation=0) is not None

    def replace(
        self,
        name: str,
        data: bytes,
        *,
        generation: int | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> int | None:
        return self._upload(name, data, content_type, generation=generation, metadata=metadata)

    def read(self, name: str) -> Blob | None:
        with self._doing(f"read {self._url(name)}"):
            try:
                found = self._fetch(name)
            except ObjectMissing:
                self._confirm()
                return None
        self._seen = True
        return found

    def read_many(self, names: Sequence[str]) -> Mapping[str, Blob]:
        if not names:
            return {}
        with ThreadPoolExecutor(min(THREADS, len(names)), thread_name_prefix="bucket") as pool:
            blobs = pool.map(self.read, names)
            return {name: blob for name, blob in zip(names, blobs, strict=True) if blob is not None}

    def list(self, prefix: str, *, after: str = "") -> tuple[Entry, ...]:
        with self._doing(f"list {self._url(prefix)}"):
            entries = tuple(_entry(item) for item in self._items(prefix, after))
        self._seen = True
        return tuple(entry for entry in entries if entry.name > after)

    def download(self, entry: Entry, to: Path) -> None:
        what = self._url(entry.name)
        with translated(f"download {what}", missing="it was there when it was listed: fetch again"):
            data = self._fetch(entry.name).data
        self._seen = True
        arrived = crc32c(data)
        if entry.crc32c and arrived != entry.crc32c:
            raise Unavailable(
                f"{what} is not what was listed: its checksum is {arrived}, not {entry.crc32c}",
                hint=f"it changed in between: fetch again; {to} was left as it was",
            )
        write_atomically(to, data)

    def upload(self, name: str, source: Path, *, content_type: str) -> bool:
        try:
            with source.open("rb") as file:
                size = source.stat().st_size
                # To ask first is cheaper than to send it all for nothing; small files are sent with the condition.
                if size > LARGE and any(entry.name == name for entry in self.list(name)):
                    return False
                return self._upload(name, file, content_type, generation=0, size=size) is not None
        except OSError as exc:
            raise LocalError(f"cannot read {source}: {exc.strerror or exc}", hint="check that the file exists") from exc

    def compose(self, name: str, sources: Sequence[str]) -> None:
        with translated(f"compose {self._url(name)}", missing="one of its parts is gone: try again"):
            self._bucket.blob(name).compose([self._bucket.blob(source) for source in sources], **self._patience)
        self._seen = True

    # --- below the port ---

    def _items(self, prefix: str, after: str) -> Iterator[Mapping[str, Any]]:
        """What is listed, as the service says it: the client's objects cost ten times as much as the answer."""
        asked = {"prefix": prefix, "fields": FIELDS, "maxResults": PAGE, "projection": "noAcl", "prettyPrint": "false"}
        if after:
            asked["startOffset"] = after  # inclusive
        page: Any = {"nextPageToken": ""}
        while "nextPageToken" in page:
            page = self._retry(self._page)({**asked, "pageToken": token} if (token := page["nextPageToken"]) else asked)
            yield from page.get("items", ())

    def _page(self, asked: Mapping[str, Any]) -> Any:
        answer = self._session.request("GET", self._listing, params=asked, timeout=self._timeout)
        if not answer.ok:
            raise from_http_response(answer)  # type: ignore[no-untyped-call]
        return answer.json()

    @property
    def _patience(self) -> dict[str, Any]:
        return {"timeout": self._timeout, "retry": self._retry}

    def _url(self, name: str) -> str:
        return f"gs://{self._name}/{name}"

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Ours for theirs; a 404 here is the bucket's, since a missing object is an answer and not an error."""
        try:
            with translated(what):
                yield
        except NotFound as exc:
            raise NotFound(
                f"cannot {what}: there is no bucket gs://{self._name}",
                hint=f"`bench init` makes it, or `gcloud storage buckets create gs://{self._name}`;"
                " BENCH_BUCKET names another",
            ) from exc

    def _upload(
        self,
        name: str,
        data: bytes | io.BufferedReader,
        content_type: str,
        *,
        generation: int | None,
        metadata: Mapping[str, str] | None = None,
        size: int | None = None,
    ) -> int | None:
        blob = self._bucket.blob(name)
        if metadata:
            blob.metadata = dict(metadata)
        stream: Any = io.BytesIO(data) if isinstance(data, bytes) else data
        with self._doing(f"store {self._url(name)}"):
            try:
                blob.upload_from_file(
                    stream,
                    size=len(data) if isinstance(data, bytes) else size,
                    content_type=content_type,
                    if_generation_match=generation,
                    checksum="crc32c",
                    rewind=True,
                    **self._patience,
                )
            except PreconditionFailed:
                return None
        self._seen = True
        return int(blob.generation)

    def _fetch(self, name: str) -> Blob:
        """The object, checked against the checksum that the server sent with it; asked for again if wrong."""
        for _ in range(DAMAGED - 1):
            try:
                return self._fetch_once(name)
            except DataCorruption:
                continue
        return self._fetch_once(name)

    def _fetch_once(self, name: str) -> Blob:
        blob = self._bucket.blob(name)
        data = blob.download_as_bytes(checksum="crc32c", single_shot_download=True, **self._patience)
        return Blob(data, int(blob.generation or 0))

    def _confirm(self) -> None:
        """Raises if it is the bucket that is missing: a 404 does not say, and to get a bucket takes one more right."""
        if not self._seen:
            listing = self._client.list_blobs(self._bucket, max_results=1, fields=FIELDS, **self._patience)
            next(iter(listing), None)
            self._seen = True


class CountingSession(AuthorizedSession):
    """A session that counts its requests, whichever thread sends them, and learns the server's time from answers."""

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        super().__init__(credentials)  # type: ignore[no-untyped-call]
        self.calls = 0
        self.offset = Offset()
        self._clock = clock
        self._lock = Lock()

    def request(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self.calls += 1
        sent = self._clock.now()
        answer = super().request(*args, **kwargs)  # type: ignore[no-untyped-call]
        if "Date" in answer.headers and "Age" not in answer.headers:  # a cache tells the time of long ago
            self.offset.learn(answer.headers["Date"], sent, self._clock.now())
        return answer


def crc32c(data: bytes) -> str:
    """The checksum in the notation of object metadata: base64 of the big-endian crc32c."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _entry(item: Mapping[str, Any]) -> Entry:
    updated = item.get("updated")
    return Entry(
        name=str(item["name"]),
        size=int(item.get("size") or 0),
        generation=int(item.get("generation") or 0),
        crc32c=str(item.get("crc32c") or ""),
        metadata=dict(item.get("metadata") or {}),
        updated=datetime.fromisoformat(str(updated)) if updated else None,
    )
