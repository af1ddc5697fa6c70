"""Cloud Storage's JSON API over the object store: the routes for objects.

There are uploads (media, multipart, resumable), downloads with ranges, listings with pages, prefixes and offsets,
patches, deletions, compose, rewrite and copy, and batches of requests except uploads. All of them check preconditions.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from orchestrator.embedded.buckets import Buckets
from orchestrator.embedded.commons import Commons
from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.listener import HttpRequest, Reply, json_reply, read_region
from orchestrator.embedded.objects import KEPT, Objects, Preconditions, StoredObject
from orchestrator.embedded.routes import Observer, Route, Router, make_routes
from orchestrator.embedded.uploads import (
    Sessions,
    UploadProgress,
    boundary_of,
    receive_body,
    split_part,
    store_media,
    store_multipart,
)
from orchestrator.embedded.xml_api import XmlApi

BUCKET_PATH = re.compile(r"/storage/v1/b(?:/[^/]+(?:/iam|/iam/testPermissions|/storageLayout)?)?")
MOST_LISTED = 1000
MOST_COMPOSED = 32
EVENT = re.compile(r"runs/[^/]+/events/[^/]+\.json")
EVENT_BYTES = 1 << 20
UPLOAD_ID = "X-GUploader-UploadID"

SHOWN = {
    "contentEncoding": "Content-Encoding",
    "cacheControl": "Cache-Control",
    "contentDisposition": "Content-Disposition",
    "contentLanguage": "Content-Language",
}

Witness = Callable[[str, str, str, dict[str, Any]], None]
"""Called with run id, writer, kind and data of every event that is stored."""


class Storage:
    """Answers requests. Thread-safe. `url` returns its address."""

    def __init__(
        self, commons: Commons, store: Objects, buckets: Buckets, witness: Witness, observer: Observer | None
    ) -> None:
        self.store = store
        self.sessions = Sessions(store)
        self.witness = witness
        self.url = ""
        self.router = Router(
            commons,
            [*self._routes(), *buckets.routes()],
            check=buckets.check_bucket,
            unknown=unknown_request,
            observer=observer,
            observes=lambda path: BUCKET_PATH.fullmatch(path) is not None,
        )
        self.xml = XmlApi(self.router.answer, store)
        self.router.routes += self.xml.routes()

    def close(self) -> None:
        self.sessions.close()
        self.xml.close()
        self.store.close()

    def _routes(self) -> list[Route]:
        objects, name = "/storage/v1/b/{bucket*}/o", "/storage/v1/b/{bucket*}/o/{name*}"
        upload = "/(?:upload|resumable/upload)" + objects
        return [
            *make_routes(
                "storage",
                "",
                ("GET", objects, self.list_objects, "storage.objects.list"),
                ("GET", name, self.get, "storage.objects.get"),
                ("GET", "/download" + name, self.download),
                ("HEAD", name, self.get),
                ("HEAD", "/download" + name, self.download),
                ("PATCH", name, self.patch),
                ("PUT", name, self.update),
                ("DELETE", name, self.delete, "storage.objects.delete"),
                ("POST", name + "/compose", self.compose),
                ("POST", name + "/(?:rewriteTo|copyTo)/b/{to_bucket*}/o/{to_name*}", self.rewrite),
                ("POST", upload, self.upload, "storage.objects.create"),
                ("PUT", upload, self.upload),
                ("DELETE", upload, self.cancel),
                ("POST", "/batch/storage/v1", self.batch, None),
            ),
        ]

    # Uploads

    def upload(self, request: HttpRequest, bucket: str) -> Reply | Document:
        kind, number = request.query.get("uploadType", ""), request.query.get("upload_id")
        if number:
            upload_reply = self.sessions.put(number, request)
            if isinstance(upload_reply, UploadProgress):
                return Reply(308, b"", {**upload_reply.headers, UPLOAD_ID: number})
            return self._upload_reply(upload_reply)
        if request.method != "POST":
            raise ApiError(400, "Required parameter: upload_id", "required")
        match kind:
            case "resumable":
                number = self.sessions.begin(bucket, request)
                where = f"{self.url}/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={number}"
                return Reply(200, b"", {"Location": where, UPLOAD_ID: number})
            case "multipart":
                return self._upload_reply(store_multipart(self.store, bucket, request))
            case "media":
                return self._upload_reply(store_media(self.store, bucket, request))
        raise ApiError(400, f"Invalid upload type: '{kind}'", "invalid")

    def cancel(self, request: HttpRequest, bucket: str) -> Reply:  # noqa: ARG002 - the id says all
        self.sessions.cancel(request.query.get("upload_id", ""))
        return json_reply(499, ApiError(499, "The upload was cancelled.", "clientClosedRequest").document())

    def _upload_reply(self, stored: StoredObject) -> Document:
        """The answer to an upload. If the object is an event, the cloud learns of it before the client gets the
        answer."""
        if EVENT.fullmatch(stored.name) and stored.size <= EVENT_BYTES:
            event = self._event(stored)
            if event is not None:
                self.witness(event["run_id"], event["writer"], event["kind"], event.get("data", {}))
        return object_document(self.url, stored)

    def _event(self, stored: StoredObject) -> Document | None:
        try:
            with self.store.open(stored) as file:
                event = json.load(file)
            is_event = isinstance(event, dict) and {"run_id", "writer", "kind"} <= set(event)
            return event if is_event else None
        except (OSError, ValueError, RecursionError):
            return None

    def compose(self, request: HttpRequest, bucket: str, name: str) -> Document:
        body = request.document()
        sources = body.get("sourceObjects")
        if not isinstance(sources, list) or not 1 <= len(sources) <= MOST_COMPOSED:
            raise ApiError(400, f"The number of source components must be between 1 and {MOST_COMPOSED}.", "required")
        parts = 0

        def pieces() -> Iterator[bytes]:
            nonlocal parts
            for source in sources:
                wanted = Preconditions.read(source.get("objectPreconditions") or {})
                generation = source.get("generation")
                source_object, file = self.store.read(
                    bucket, str(source.get("name")), wanted, generation and str(generation)
                )
                parts += source_object.parts or 1
                with file:
                    yield from read_region(file, 0, source_object.size)

        data = receive_body(self.store, pieces())
        destination = body.get("destination") or {}
        wanted = Preconditions.read(request.query)
        return object_document(self.url, self.store.commit(bucket, name, destination, data, wanted, parts=parts))

    def rewrite(self, request: HttpRequest, bucket: str, name: str, to_bucket: str, to_name: str) -> Document:
        changes = request.document()
        of_source = Preconditions.read(request.query, "ifSource")
        source, file = self.store.read(bucket, name, of_source, request.query.get("sourceGeneration"))
        with file:
            data = receive_body(self.store, read_region(file, 0, source.size))
        kept = {"contentType": source.content_type, **source.fields}
        wanted = Preconditions.read(request.query)
        stored = self.store.commit(to_bucket, to_name, {**kept, **changes}, data, wanted, parts=source.parts)
        if "/copyTo/" in request.path:
            return object_document(self.url, stored)
        return {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(stored.size),
            "objectSize": str(stored.size),
            "done": True,
            "resource": object_document(self.url, stored),
        }

    # Listings and downloads

    def list_objects(self, request: HttpRequest, bucket: str) -> Document:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        end, most = query.get("endOffset", ""), parse_page_size(query.get("maxResults"))
        start = max(prefix, query.get("startOffset", ""), read_page_token(query.get("pageToken", "")), key=str.encode)
        glob = glob_pattern(query.get("matchGlob", ""))
        items: list[Document] = []
        groups: list[str] = []
        token = ""
        has_more = True
        while has_more:
            has_more = False
            for found in self.store.names_from(bucket, start):
                if not found.name.startswith(prefix) or (end and found.name.encode() >= end.encode()):
                    break
                if glob is not None and glob.fullmatch(found.name) is None:
                    continue
                if len(items) + len(groups) == most:
                    token = base64.urlsafe_b64encode(found.name.encode()).decode()
                    break
                cut = found.name.find(delimiter, len(prefix)) if delimiter else -1
                if cut >= 0:
                    groups.append(found.name[: cut + len(delimiter)])
                    start = after_all(groups[-1])
                    has_more = bool(start)
                    break
                items.append(object_document(self.url, found))
        answer: Document = {"kind": "storage#objects"}
        answer |= {"items": items} if items else {}
        answer |= {"prefixes": groups} if groups else {}
        answer |= {"nextPageToken": token} if token else {}
        return answer

    def get(self, request: HttpRequest, bucket: str, name: str) -> Reply | Document:
        if request.query.get("alt") == "media":
            return self.download(request, bucket, name)
        stored = self.store.get(bucket, name, Preconditions.read(request.query), request.query.get("generation"))
        return object_document(self.url, stored)

    def download(self, request: HttpRequest, bucket: str, name: str) -> Reply:
        stored, file = self.store.read(bucket, name, Preconditions.read(request.query), request.query.get("generation"))
        headers = {
            "Content-Type": stored.content_type,
            "ETag": object_etag(stored),
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Hash": f"crc32c={stored.crc32c}" + (f",md5={stored.md5}" if stored.md5 else ""),
            "X-Goog-Stored-Content-Encoding": str(stored.fields.get("contentEncoding", "identity")),
            "X-Goog-Stored-Content-Length": str(stored.size),
            "X-Goog-Storage-Class": "STANDARD",
            "Accept-Ranges": "bytes",
            "Last-Modified": format_datetime(datetime.fromisoformat(stored.updated).astimezone(UTC), usegmt=True),
        }
        for key, header in SHOWN.items():
            if key in stored.fields:
                headers[header] = str(stored.fields[key]).replace("\r", " ").replace("\n", " ")
        piece = parse_range(request.headers.get("range", ""), stored.size)
        if piece is None:
            return Reply(200, b"", headers, file, 0, stored.size)
        start, length = piece
        if length <= 0:
            file.close()
            return Reply(416, b"", {"Content-Range": f"bytes */{stored.size}"})
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{stored.size}"
        return Reply(206, b"", headers, file, start, length)

    # Change and removal

    def patch(self, request: HttpRequest, bucket: str, name: str) -> Document:
        wanted = Preconditions.read(request.query)
        return object_document(self.url, self.store.patch(bucket, name, request.document(), wanted))

    def update(self, request: HttpRequest, bucket: str, name: str) -> Document:
        """Replaces the fields of an object. A field that the request does not have is removed."""
        fields = dict.fromkeys(KEPT) | request.document()
        stored = self.store.patch(bucket, name, fields, Preconditions.read(request.query), merge=False)
        return object_document(self.url, stored)

    def delete(self, request: HttpRequest, bucket: str, name: str) -> None:
        self.store.delete(bucket, name, Preconditions.read(request.query), request.query.get("generation"))

    def batch(self, request: HttpRequest) -> Reply:
        """Answers up to a hundred requests in one body, each as if it had come alone."""
        answers = []
        pieces = request.body.split(b"--" + boundary_of(request))[1:-1]
        if not 1 <= len(pieces) <= 100:
            raise ApiError(400, "A batch holds between 1 and 100 requests.", "badContent")
        for piece in pieces:
            outer = split_part(piece.lstrip(b"\r\n"))
            line, _, inner_part = (outer[1] if outer else b"").lstrip(b"\r\n").partition(b"\n")
            status_words, inner = line.split(), split_part(inner_part)
            if (
                outer is None
                or len(status_words) < 2
                or inner is None
                or status_words[1].startswith((b"/upload", b"/batch"))
            ):
                raise ApiError(400, "Failed to parse batch request.", "badContent")
            body = inner[1].rstrip(b"\r\n")
            method, target = status_words[0].decode("latin-1"), status_words[1].decode("latin-1")
            single = HttpRequest(method, target, inner[0], iter([body]), len(body), request.vm)
            answers.append((outer[0].get("content-id", ""), self.router.answer(single)))
        return batch_reply(answers)


@lru_cache(8192)
def object_document(url: str, stored: StoredObject) -> Document:
    """The object's resource as the API shows it, which nobody changes: a growing log is listed again and again."""
    at = f"/storage/v1/b/{quote(stored.bucket)}/o/{quote_name(stored.name)}"
    return {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "selfLink": url + at,
        "mediaLink": f"{url}/download{at}?generation={stored.generation}&alt=media",
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "contentType": stored.content_type,
        "storageClass": "STANDARD",
        "size": str(stored.size),
        "crc32c": stored.crc32c,
        **({"md5Hash": stored.md5} if stored.md5 else {}),
        **({"componentCount": stored.parts} if stored.parts else {}),
        "etag": object_etag(stored),
        "timeCreated": stored.created,
        "updated": stored.updated,
        "timeStorageClassUpdated": stored.created,
        **stored.fields,
    }


@lru_cache(8192)
def quote_name(name: str) -> str:
    return quote(name, safe="")


def object_etag(stored: StoredObject) -> str:
    return base64.b64encode(f"{stored.generation}/{stored.metageneration}".encode()).decode()


def parse_page_size(text: str | None) -> int:
    """The number of entries on a page, from `maxResults`. Raises `ApiError` (400) if that is not a valid number."""
    try:
        number = int(text) if text else MOST_LISTED
    except ValueError as exc:
        raise ApiError(400, f"Invalid value for maxResults: {text}", "invalid") from exc
    if number < 0:
        raise ApiError(400, f"Invalid value for maxResults: {text}", "invalid")
    return min(number or MOST_LISTED, MOST_LISTED)


def glob_pattern(glob: str) -> re.Pattern[str] | None:
    """The pattern of a `matchGlob` with `**`, `*`, `?` and `{a,b}`; None if there is none. Raises `ApiError` (400)."""
    if not glob:
        return None
    kinds = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    if glob.count("{") != glob.count("}") or "[" in glob:
        raise ApiError(400, f"Invalid value for matchGlob: {glob}", "invalid")
    parts = re.split(r"(\*\*|[*?{},])", glob)
    return re.compile("".join(kinds.get(part, re.escape(part)) for part in parts), re.DOTALL)


def read_page_token(token: str) -> str:
    """The name with which the page of a token begins. Raises `ApiError` (400) for an invalid token."""
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError as exc:
        raise ApiError(400, f"Invalid value for pageToken: {token}", "invalid") from exc


def after_all(prefix: str) -> str:
    """The first name that sorts after all names with this prefix; empty if there is none."""
    while prefix:
        number = ord(prefix[-1]) + 1
        if number <= 0x10FFFF:
            return prefix[:-1] + chr(0xE000 if 0xD800 <= number < 0xE000 else number)
        prefix = prefix[:-1]
    return ""


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """(start, number of bytes) of a `Range` header for an object of `size` bytes. The number is 0 or less if the range
    has no byte of it. None if the header means the whole object."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text.strip())
    if not match or match[0] == "bytes=-":
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        return size - length, length
    start, last = int(match[1]), min(int(match[2] or size - 1), size - 1)
    return start, last - start + 1


def batch_reply(answers: list[tuple[str, Reply]]) -> Reply:
    """The answer to a batch, from (content id, answer) of each of its requests."""
    parts = []
    for number, reply in answers:
        body = b"".join(reply.pieces())
        heads = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        name = f"Content-ID: <response-{number.strip('<>')}>\r\n" if number else ""
        parts.append(
            f"--batch_embedded\r\nContent-Type: application/http\r\n{name}\r\nHTTP/1.1 {reply.status} -\r\n{heads}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
            + b"\r\n"
        )
    kind = {"Content-Type": "multipart/mixed; boundary=batch_embedded"}
    return Reply(200, b"".join(parts) + b"--batch_embedded--\r\n", kind)


def unknown_request(request: HttpRequest, path_exists: bool) -> ApiError:
    """The error for a request that no route of this port answers."""
    message = f"{request.method} {request.path} is not something this cloud can do."
    return ApiError(501 if path_exists else 404, message)
