"""A Google Cloud Storage bucket, or one in the embedded cloud, by its JSON API."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import google_crc32c

from orchestrator.adapters.asking import Damaged, good, insisted, stated, told, understood, unread, whole
from orchestrator.adapters.files import write_atomically
from orchestrator.adapters.signing import signer_of
from orchestrator.adapters.web import Body, HttpRefused, ReplyTooLarge, Signer, Web, WebReply
from orchestrator.adapters.web_answer import LARGEST
from orchestrator.core.errors import BenchError, DocumentUnreadable, LocalError, NotFound, Unavailable, too_large
from orchestrator.ports import DATA_BYTES, DOCUMENT_BYTES, Blob, Clock, ObjectEntry

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

THREADS: Final = 8
PAGE: Final = 1000
LARGE: Final = 1_000_000
FIELDS: Final = "items(name,size,generation,crc32c,metadata,updated),nextPageToken"
STORAGE: Final = "https://storage.googleapis.com"
JSON: Final = "application/json"
PIECE: Final = 1 << 20
DAMAGED: Final = 3
"""How often an object is asked for that arrives with a wrong checksum."""


class GoogleBucket:
    """Implements `orchestrator.ports.Bucket`.

    `endpoint` is the base URL of another server that speaks the same protocol; without `credentials`, requests to it
    carry none. `patience_s` bounds how long one operation is retried while the service does not answer, `answer_s` how
    long one answer may take. `calls` counts the HTTP requests that were sent. `clock` is what the server's time is
    compared with.
    """

    def __init__(
        self,
        name: str,
        endpoint: str | None = None,
        *,
        credentials: Credentials | Signer | None = None,
        patience_s: float = 10.0,
        answer_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._seen = False
        self._patience_s, self._answer_s = patience_s, min(answer_s, patience_s)
        self._web = Web(signer_of(credentials, endpoint), clock)
        base = (endpoint or STORAGE).rstrip("/")
        objects = f"/storage/v1/b/{quote(name, safe='')}/o"
        self._objects = base + objects
        self._downloads, self._uploads = f"{base}/download{objects}", f"{base}/upload{objects}"

    @property
    def name(self) -> str:
        return self._name

    @property
    def calls(self) -> int:
        return self._web.calls

    def offset(self) -> timedelta:
        """What to add to the client's clock for the server's time, by the `Date` of the answers so far; asked for with
        one request when there was none. Nothing when the server does not answer."""
        if not self._web.offset.known:
            try:
                with told(f"ask {self._url('')} for the time"):
                    self._glance()
            except BenchError:
                pass  # what needs the answer will fail by itself, and say why
        return self._web.offset.value

    def close(self) -> None:
        self._web.close()

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

    def read(self, name: str, *, largest: int = DOCUMENT_BYTES) -> Blob | None:
        with self._doing(f"read {self._url(name)}"):
            try:
                content = self._fetch(name, largest)
            except ReplyTooLarge as exc:
                raise too_large(self._url(name), largest) from exc
            except HttpRefused as exc:
                if exc.reply.status != 404:
                    raise
                self._confirm()
                return None
        self._seen = True
        return content

    def read_many(self, names: Sequence[str], *, largest: int = DATA_BYTES) -> Mapping[str, Blob]:
        def read(name: str) -> Blob | None:
            with suppress(DocumentUnreadable):
                return self.read(name, largest=largest)
            return None

        if not names:
            return {}
        with ThreadPoolExecutor(min(THREADS, len(names)), thread_name_prefix="bucket") as pool:
            blobs = pool.map(read, names)
            return {name: blob for name, blob in zip(names, blobs, strict=True) if blob is not None}

    def list(
        self, prefix: str, *, after: str = "", matching: str = "", most: int | None = None
    ) -> tuple[ObjectEntry, ...]:
        with self._doing(f"list {self._url(prefix)}"), understood():
            pattern = re.compile("[^/]*".join(map(re.escape, matching.split("*"))))  # emulators may not know matchGlob
            entries = (_entry(item) for item in self._items(prefix, after, matching))
            wanted = (one for one in entries if one.name > after and (not matching or pattern.fullmatch(one.name)))
            listed = tuple(islice(wanted, most))
        self._seen = True
        return listed

    def download(self, entry: ObjectEntry, to: Path) -> None:
        what = self._url(entry.name)
        with told(f"download {what}", missing="it was deleted after it was listed: run the same command again"):
            data = self._fetch(entry.name, max(entry.size, LARGEST)).data
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
            file = LocalFile(source)
            # To ask first is cheaper than to send it all for nothing; small files are sent with the condition.
            if file.size > LARGE and any(entry.name == name for entry in self.list(name)):
                return False
            return self._upload(name, file, content_type, generation=0) is not None
        except OSError as exc:
            raise LocalError(f"cannot read {source}: {exc.strerror or exc}", hint="check that the file exists") from exc

    def compose(self, name: str, sources: Sequence[str]) -> None:
        with told(f"compose {self._url(name)}", missing="one of its parts was deleted: run the same command again"):
            body = {"sourceObjects": [{"name": source} for source in sources], "destination": {}}
            self._send(
                "POST",
                f"{self._objects}/{quote(name, safe='')}/compose",
                body=json.dumps(body).encode(),
                headers={"Content-Type": JSON},
            )
        self._seen = True

    # --- below the port ---

    def _items(self, prefix: str, after: str, matching: str) -> Iterator[Mapping[str, Any]]:
        """What is listed, as the service says it."""
        asked = {"prefix": prefix, "fields": FIELDS, "maxResults": PAGE, "projection": "noAcl", "prettyPrint": "false"}
        if after:
            asked["startOffset"] = after  # inclusive
        if matching:
            asked["matchGlob"] = matching
        seen: set[str] = set()
        page = self._send("GET", self._objects, asked, judged=stated).document
        yield from page.get("items", ())
        while "nextPageToken" in page:
            token = unread(str(page["nextPageToken"]), seen)
            page = self._send("GET", self._objects, {**asked, "pageToken": token}, judged=stated).document
            yield from page.get("items", ())

    def _send(
        self,
        method: str,
        url: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        judged: Callable[[WebReply], WebReply] = good,
        largest: int = LARGEST,
    ) -> WebReply:
        """The answer to a request, sent again while that may help. Raises `asking.TROUBLE`."""

        def once() -> WebReply:
            reply = self._web.ask(
                method, url, query, body=body, headers=headers, timeout_s=self._answer_s, largest=largest
            )
            return judged(reply)

        return insisted(once, self._patience_s)

    def _url(self, name: str) -> str:
        return f"gs://{self._name}/{name}"

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Ours for theirs; a 404 here is the bucket's, since a missing object is an answer and not an error."""
        try:
            with told(what):
                yield
        except NotFound as exc:
            raise NotFound(
                f"cannot {what}: there is no bucket gs://{self._name}",
                hint=f"`bench init` creates it, or `gcloud storage buckets create gs://{self._name}`;"
                " BENCH_BUCKET names another",
            ) from exc

    def _upload(
        self,
        name: str,
        data: bytes | LocalFile,
        content_type: str,
        *,
        generation: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> int | None:
        source = Bytes(data) if isinstance(data, bytes) else data
        about: dict[str, Any] = {"name": name, "contentType": content_type, "crc32c": source.crc32c}
        if metadata:
            about["metadata"] = dict(metadata)
        query: dict[str, Any] = {"uploadType": "multipart"}
        if generation is not None:
            query["ifGenerationMatch"] = generation
        edge = secrets.token_hex(16)
        before = (
            f"--{edge}\r\nContent-Type: {JSON}; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
            f"--{edge}\r\nContent-Type: {content_type}\r\n\r\n"
        ).encode()
        after = f"\r\n--{edge}--".encode()

        def parts() -> Iterable[bytes]:
            yield before
            yield from source.pieces()
            yield after

        length = len(before) + source.size + len(after)
        headers = {"Content-Type": f"multipart/related; boundary={edge}", "Content-Length": str(length)}
        body: Body = b"".join(parts()) if isinstance(source, Bytes) else parts
        with self._doing(f"store {self._url(name)}"):
            try:
                reply = self._send("POST", self._uploads, query, body=body, headers=headers, judged=stated)
            except HttpRefused as exc:
                if exc.reply.status == 412:
                    return None
                raise
            with understood():
                generation = int(reply.document["generation"])
        self._seen = True
        return generation

    def _fetch(self, name: str, largest: int = LARGEST) -> Blob:
        """The object, checked against the checksum that the server sent with it; asked for again if wrong."""
        for _ in range(DAMAGED - 1):
            try:
                return self._fetch_once(name, largest)
            except Damaged:
                continue
        return self._fetch_once(name, largest)

    def _fetch_once(self, name: str, largest: int) -> Blob:
        url = f"{self._downloads}/{quote(name, safe='')}"
        reply = self._send("GET", url, {"alt": "media"}, judged=whole, largest=largest)
        sums = (part.strip().partition("=") for part in reply.headers.get("x-goog-hash", "").split(","))
        sent = next((value for kind, _, value in sums if kind == "crc32c"), "")
        if sent and sent != (arrived := crc32c(reply.data)):
            raise Damaged(f"what arrived has the checksum {arrived}, not {sent}")
        with understood():
            return Blob(reply.data, int(reply.headers.get("x-goog-generation") or 0))

    def _glance(self) -> None:
        self._send("GET", self._objects, {"maxResults": 1, "fields": FIELDS, "projection": "noAcl"})

    def _confirm(self) -> None:
        """Raises if it is the bucket that is missing: a 404 does not say, and to get a bucket takes one more right."""
        if not self._seen:
            self._glance()
            self._seen = True


class Bytes:
    """What is sent, from memory."""

    def __init__(self, data: bytes) -> None:
        self.size, self.crc32c = len(data), crc32c(data)
        self._data = data

    def pieces(self) -> Iterable[bytes]:
        return (self._data,)


class LocalFile:
    """What is sent, from a file, read once for its checksum and once for each try. Raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        checksum: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        self.size = 0
        for piece in self.pieces():
            checksum.update(piece)
            self.size += len(piece)
        self.crc32c = base64.b64encode(checksum.digest()).decode()

    def pieces(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece


def crc32c(data: bytes) -> str:
    """The checksum in the notation of object metadata: base64 of the big-endian crc32c."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


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
