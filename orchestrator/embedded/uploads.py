"""Uploads into the object store: media, multipart and resumable, as in Cloud Storage."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.listener import HttpRequest, read_region
from orchestrator.embedded.objects import Incoming, Objects, Preconditions, StoredObject, check_name, no_bucket

QUANTUM = 256 << 10
"""Until its end, a resumable upload keeps a multiple of this many bytes."""
HEAD_BYTES = 1 << 16
IN_MEMORY_BYTES = 1 << 20
BOUNDARY_LINE = re.compile(rb"(?:\A|\r?\n)--([^\r\n]*)(?=(\r?\n))")
RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
HASHES = {"crc32c": "crc32c", "md5": "md5Hash"}


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """The state of a resumable upload that is not finished: the number of bytes kept so far."""

    kept: int

    @property
    def headers(self) -> dict[str, str]:
        return {"Range": f"bytes=0-{self.kept - 1}"} if self.kept else {}


def store_media(store: Objects, bucket: str, request: HttpRequest) -> StoredObject:
    """Stores an upload whose body is the object. Raises `ApiError`."""
    description: Document = {"contentType": request.headers.get("content-type", "application/octet-stream")}
    if request.query.get("contentEncoding"):
        description["contentEncoding"] = request.query["contentEncoding"]
    description |= promised_checksums(request.headers)
    name, data = object_name(request.query, description), receive_body(store, request.pieces)
    return store.commit(bucket, name, description, data, Preconditions.read(request.query))


def store_multipart(store: Objects, bucket: str, request: HttpRequest) -> StoredObject:
    """Stores an upload with two parts: a description in JSON, and the object. Raises `ApiError`."""
    boundary = boundary_of(request)
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES, dir=str(store.blobs)) as spool:
        for piece in request.pieces:
            spool.write(piece)
        description, start, end = parts_of(spool, boundary)
        description = promised_checksums(request.headers) | description
        name = object_name(request.query, description)
        data = receive_body(store, read_region(spool, start, end))
        return store.commit(bucket, name, description, data, Preconditions.read(request.query))


def boundary_of(request: HttpRequest) -> bytes:
    """The boundary of a body with parts. Raises `ApiError` (400) if there is none."""
    match = re.search(r"""boundary=["']?([^"';,]+)["']?""", request.headers.get("content-type", ""))
    if not match:
        raise ApiError(400, "The body has parts and no boundary.", "badContent")
    return match[1].encode()


def parts_of(spool: IO[bytes], boundary: bytes) -> tuple[Document, int, int]:
    """(description, position of the object's first byte, position after its last byte) of a multipart body. Raises
    `ApiError` (400) if the body is malformed."""
    wrong = ApiError(400, "Malformed multipart body.", "badContent")
    size = spool.seek(0, 2)
    spool.seek(0)
    head = spool.read(HEAD_BYTES)
    mark = b"--" + boundary
    # Every client draws a boundary for each request: a pattern with it would be compiled each time.
    lines = (line for line in BOUNDARY_LINE.finditer(head) if line[1].rstrip(b" \t") == boundary)
    first, second = next(lines, None), next(lines, None)
    if first is None or second is None:
        raise wrong
    description, data_head = split_part(head[first.end(2) : second.start()]), split_part(head[second.end(2) :])
    if description is None or data_head is None:
        raise wrong
    try:
        fields = json.loads(description[1] or b"{}")
    except ValueError as exc:
        raise wrong from exc
    if not isinstance(fields, dict):
        raise wrong
    fields.setdefault("contentType", data_head[0].get("content-type", "application/octet-stream"))
    start = len(head) - len(data_head[1])
    tail_at = max(start, size - len(mark) - 64)
    spool.seek(tail_at)
    tail = spool.read()
    closing = tail.rfind(mark + b"--")
    if closing < 0:
        raise wrong
    end = tail_at + closing
    # The line break before the boundary belongs to the boundary.
    spool.seek(max(start, end - 2))
    before = spool.read(end - max(start, end - 2))
    end -= 2 if before.endswith(b"\r\n") else 1 if before.endswith(b"\n") else 0
    return fields, start, max(start, end)


def split_part(part: bytes) -> tuple[dict[str, str], bytes] | None:
    """(headers with names in lower case, the rest) of a part; None if it is malformed."""
    match = re.match(rb"((?:[^\r\n]+\r?\n)*)\r?\n", part)
    if match is None:
        return None
    lines = match[1].decode("latin-1").splitlines()
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return headers, part[match.end() :]


def receive_body(store: Objects, body: Iterator[bytes]) -> Incoming:
    """A body, written to a new file of the store. Raises the errors of reading it; then the file is deleted."""
    data = store.incoming()
    try:
        for piece in body:
            data.write(piece)
    except BaseException:
        data.drop()
        raise
    return data


def object_name(query: Mapping[str, str], description: Mapping[str, Any]) -> str:
    """The object's name, from the query or the description. Raises `ApiError` (400) if it is missing or invalid."""
    name = query.get("name") or description.get("name")
    if not isinstance(name, str) or not name:
        raise ApiError(400, "Required parameter: name", "required")
    check_name(name)
    return name


def promised_checksums(headers: Mapping[str, str]) -> Document:
    """The checksums in the header `X-Goog-Hash`."""
    checksums = re.findall(r"(crc32c|md5)=([A-Za-z0-9+/=]+)", headers.get("x-goog-hash", ""))
    return {HASHES[kind]: value for kind, value in checksums}


@dataclass(slots=True)
class UploadSession:
    """One resumable upload. Only whole quanta of bytes are kept between requests. `description` is that of the object,
    `wanted` its preconditions, and `announced` its size in bytes, if that was given."""

    bucket: str
    name: str
    description: Document
    wanted: Preconditions
    data: Incoming
    announced: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: StoredObject | None = None
    cancelled: bool = False


class Sessions:
    """The open resumable uploads. They are lost when the cloud ends; a client then begins again."""

    def __init__(self, store: Objects) -> None:
        self.store = store
        self.open: dict[str, UploadSession] = {}

    def begin(self, bucket: str, request: HttpRequest) -> str:
        """Begins an upload of the object that the body describes, and returns the upload's id. Raises `ApiError`."""
        description = request.document()
        if not self.store.has_bucket(bucket):
            raise no_bucket()
        description.setdefault("contentType", request.headers.get("x-upload-content-type", "application/octet-stream"))
        description = promised_checksums(request.headers) | description
        length = request.headers.get("x-upload-content-length", "")
        wanted = Preconditions.read(request.query)
        name = object_name(request.query, description)
        wanted.check(self.store.find(bucket, name))
        number = secrets.token_urlsafe(32)
        self.open[number] = UploadSession(
            bucket, name, description, wanted, self.store.incoming(), int(length) if length.isdigit() else None
        )
        return number

    def cancel(self, number: str) -> None:
        session = self._session(number)
        with session.lock:
            session.cancelled = True
            session.data.drop()

    def _session(self, number: str) -> UploadSession:
        session = self.open.get(number)
        if session is None or session.cancelled:
            raise ApiError(404 if session is None else 499, "No such upload.")
        return session

    def put(self, number: str, request: HttpRequest) -> StoredObject | UploadProgress:
        """Handles a request of an upload: a piece, the last piece, the whole object, or a question about its progress.
        Returns the object if the upload is finished, else the progress. Raises `ApiError`."""
        session = self._session(number)
        with session.lock:
            if session.done is not None:
                return session.done
            first, total = self._announced(session, request)
            if first is None:
                # A question does not end the upload, unless it says that all bytes are there.
                return self._end(session, request) if total == session.data.size else UploadProgress(session.data.size)
            kept = session.data.size
            if first > kept:
                raise ApiError(400, f"Invalid request. The bytes from {kept} on are missing.", "badRequest")
            is_whole = "content-range" not in request.headers
            self._take(session, request.pieces, first, total, is_whole)
            if is_whole or session.data.size == total:
                return self._end(session, request)
            return UploadProgress(session.data.size)

    def _announced(self, session: UploadSession, request: HttpRequest) -> tuple[int | None, int | None]:
        """(position of the piece's first byte, total size in bytes). The first is None if there is no piece, and the
        second is None if it is not known. Raises `ApiError` (400) for an invalid header."""
        text, length = request.headers.get("content-range", ""), request.length
        if not text:
            return 0, length if length is not None else session.announced
        match = RANGE.fullmatch(text.strip())
        if not match:
            raise ApiError(400, f"Failed to parse Content-Range header: {text}", "badRequest")
        total = None if match[3] == "*" else int(match[3])
        if total is not None and session.announced not in (None, total):
            raise ApiError(400, f"Invalid request. {session.announced} bytes were announced.", "badRequest")
        if match[1] is None:
            return None, total
        first, last = int(match[1]), int(match[2])
        if last < first or (length is not None and last - first + 1 != length) or (total is not None and last >= total):
            raise ApiError(400, f"Invalid request. {text} does not fit {length} bytes.", "badRequest")
        return first, total

    def _take(
        self, session: UploadSession, body: Iterator[bytes], first: int, total: int | None, is_whole: bool
    ) -> None:
        """Keeps the new bytes of a piece. Of a piece that is not the last, or that breaks off, only whole quanta are
        kept. Raises `ApiError` (400) if the size is not the announced one."""
        data = session.data
        skip, pending = data.size - first, b""
        try:
            for piece in body:
                fresh = piece[skip:] if skip < len(piece) else b""
                skip = max(0, skip - len(piece))
                pending += fresh
                kept = len(pending) - len(pending) % QUANTUM
                data.write(pending[:kept])
                pending = pending[kept:]
        except OSError:
            pending = b""
            raise
        finally:
            if is_whole or data.size + len(pending) == total:
                data.write(pending)
            data.file.flush()
        if total is not None and (data.size > total or (is_whole and data.size < total)):
            raise ApiError(400, f"Invalid request. {data.size} bytes came, {total} were announced.", "badRequest")

    def _end(self, session: UploadSession, request: HttpRequest) -> StoredObject:
        description = session.description | promised_checksums(request.headers)
        try:
            session.done = self.store.commit(session.bucket, session.name, description, session.data, session.wanted)
        except ApiError:
            session.cancelled = True
            raise
        return session.done

    def close(self) -> None:
        for session in self.open.values():
            if session.done is None:
                session.data.drop()
