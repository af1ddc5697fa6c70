"""Cloud Storage's JSON API over the object store: the routes for objects.

There are uploads (media, multipart, resumable), downloads with ranges, listings with pages, prefixes and offsets,
patches, deletions, compose, rewrite and copy, and batches of requests except uploads. All of them check preconditions.
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote

from orchestrator.embedded import uploads
from orchestrator.embedded.asking import (
    Ask,
    Download,
    after_all,
    batch_reply,
    decode_path_part,
    glob_pattern,
    make_page_token,
    parse_page_size,
    parse_range,
    read_page_token,
)
from orchestrator.embedded.buckets import Buckets
from orchestrator.embedded.errors import ApiError, Document, no_room
from orchestrator.embedded.listener import Reply, json_reply
from orchestrator.embedded.objects import KEPT, Objects, Preconditions, StoredObject
from orchestrator.embedded.uploads import Sessions, UploadProgress
from orchestrator.embedded.xml_api import XmlApi

B = r"/storage/v1/b/(?P<bucket>[^/]+)"
O = B + r"/o/(?P<name>[^/]+)"  # noqa: E741 - as in the API's own paths
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

    def __init__(self, store: Objects, buckets: Buckets, witness: Witness, url: Callable[[], str]) -> None:
        self.store = store
        self.buckets = buckets
        self.sessions = Sessions(store)
        self.witness = witness
        self.url = url
        self.xml = XmlApi(self.answer, store)
        self.routes = [(method, re.compile(pattern), answer) for method, pattern, answer in self._routes()]

    def create_bucket(self, name: str) -> None:
        """Creates a bucket, unless it exists."""
        self.store.make_bucket(name)

    def close(self) -> None:
        self.sessions.close()
        self.xml.close()
        self.store.close()

    def _routes(self) -> list[tuple[str, str, Callable[..., Reply | Download]]]:
        return [
            ("GET", B + "/o", self.list_objects),
            ("GET", O, self.get),
            ("GET", "/download" + O, self.download),
            ("HEAD", O, self.get),
            ("HEAD", "/download" + O, self.download),
            ("PATCH", O, self.patch),
            ("PUT", O, self.update),
            ("DELETE", O, self.delete),
            ("POST", O + "/compose", self.compose),
            ("POST", O + "/(?:rewriteTo|copyTo)/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+)", self.rewrite),
            ("POST", "/(?:upload|resumable/upload)" + B + "/o", self.upload),
            ("PUT", "/(?:upload|resumable/upload)" + B + "/o", self.upload),
            ("DELETE", "/(?:upload|resumable/upload)" + B + "/o", self.cancel),
            ("POST", "/batch/storage/v1", self.batch),
        ]

    def answer(self, ask: Ask) -> Reply | Download:
        """The answer to one request. Raises `OSError` if the client closes the connection."""
        if self.xml.serves(ask.path):
            return self.xml.answer(ask)
        refusal = self.buckets.refusal(ask.method, ask.target, ask.client)
        if refusal is not None:
            return refusal
        try:
            if self.buckets.serves(ask.method, ask.target):
                return self.buckets.answer(ask.method, ask.target, ask.read())
            path_exists = False
            for method, pattern, answer in self.routes:
                match = pattern.fullmatch(ask.path)
                if match and method == ask.method:
                    return answer(ask, **{key: decode_path_part(value) for key, value in match.groupdict().items()})
                path_exists = path_exists or match is not None
            raise ApiError(501 if path_exists else 404, f"{ask.method} {ask.path} is not something this cloud can do.")
        except ApiError as error:
            return Reply(304) if error.status == 304 else json_reply(error.status, error.document())
        except (OSError, sqlite3.Error) as error:
            full = no_room(error)
            if full is None:
                raise
            return json_reply(full.status, full.document())

    # Uploads

    def upload(self, ask: Ask, bucket: str) -> Reply:
        kind, number = ask.query.get("uploadType", ""), ask.query.get("upload_id")
        if number:
            upload_reply = self.sessions.put(number, ask.headers, ask.length, ask.body)
            if isinstance(upload_reply, UploadProgress):
                return Reply(308, b"", {**upload_reply.headers, UPLOAD_ID: number})
            return self._stored(upload_reply)
        if ask.method != "POST":
            raise ApiError(400, "Required parameter: upload_id", "required")
        match kind:
            case "resumable":
                number = self.sessions.begin(bucket, ask.query, ask.headers, ask.document())
                where = f"{self.url()}/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={number}"
                return Reply(200, b"", {"Location": where, UPLOAD_ID: number})
            case "multipart":
                return self._stored(uploads.store_multipart(self.store, bucket, ask.query, ask.headers, ask.body))
            case "media":
                return self._stored(uploads.store_media(self.store, bucket, ask.query, ask.headers, ask.body))
        raise ApiError(400, f"Invalid upload type: '{kind}'", "invalid")

    def cancel(self, ask: Ask, bucket: str) -> Reply:  # noqa: ARG002 - the id says all
        self.sessions.cancel(ask.query.get("upload_id", ""))
        return json_reply(499, ApiError(499, "The upload was cancelled.", "clientClosedRequest").document())

    def _stored(self, stored: StoredObject) -> Reply:
        """The answer to an upload. If the object is an event, the cloud learns of it before the client gets the
        answer."""
        if EVENT.fullmatch(stored.name) and stored.size <= EVENT_BYTES:
            event = self._event(stored)
            if event is not None:
                self.witness(event["run_id"], event["writer"], event["kind"], event.get("data", {}))
        return json_reply(200, self.document(stored))

    def _event(self, stored: StoredObject) -> Document | None:
        try:
            with self.store.open(stored) as file:
                event = json.load(file)
            is_event = isinstance(event, dict) and {"run_id", "writer", "kind"} <= set(event)
            return event if is_event else None
        except (OSError, ValueError, RecursionError):
            return None

    def compose(self, ask: Ask, bucket: str, name: str) -> Reply:
        body = ask.document()
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
                    yield from uploads.read_region(file, 0, source_object.size)

        data = uploads.receive_body(self.store, pieces())
        destination = body.get("destination") or {}
        return json_reply(
            200,
            self.document(
                self.store.commit(bucket, name, destination, data, Preconditions.read(ask.query), parts=parts)
            ),
        )

    def rewrite(self, ask: Ask, bucket: str, name: str, to_bucket: str, to_name: str) -> Reply:
        changes = ask.document()
        of_source = Preconditions.read(ask.query, "ifSource")
        source, file = self.store.read(bucket, name, of_source, ask.query.get("sourceGeneration"))
        with file:
            data = uploads.receive_body(self.store, uploads.read_region(file, 0, source.size))
        kept = {"contentType": source.content_type, **source.fields}
        wanted = Preconditions.read(ask.query)
        stored = self.store.commit(to_bucket, to_name, {**kept, **changes}, data, wanted, parts=source.parts)
        if "/copyTo/" in ask.path:
            return json_reply(200, self.document(stored))
        size = str(stored.size)
        return json_reply(
            200,
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": size,
                "objectSize": size,
                "done": True,
                "resource": self.document(stored),
            },
        )

    # Listings and downloads

    def list_objects(self, ask: Ask, bucket: str) -> Reply:
        query = ask.query
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
                    token = make_page_token(found.name)
                    break
                cut = found.name.find(delimiter, len(prefix)) if delimiter else -1
                if cut >= 0:
                    groups.append(found.name[: cut + len(delimiter)])
                    start = after_all(groups[-1])
                    has_more = bool(start)
                    break
                items.append(self.document(found))
        answer: Document = {"kind": "storage#objects"}
        answer |= {"items": items} if items else {}
        answer |= {"prefixes": groups} if groups else {}
        answer |= {"nextPageToken": token} if token else {}
        return json_reply(200, answer)

    def get(self, ask: Ask, bucket: str, name: str) -> Reply | Download:
        if ask.query.get("alt") == "media":
            return self.download(ask, bucket, name)
        stored = self.store.get(bucket, name, Preconditions.read(ask.query), ask.query.get("generation"))
        return json_reply(200, self.document(stored))

    def download(self, ask: Ask, bucket: str, name: str) -> Reply | Download:
        stored, file = self.store.read(bucket, name, Preconditions.read(ask.query), ask.query.get("generation"))
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
        piece = parse_range(ask.headers.get("range", ""), stored.size)
        if piece is None:
            return Download(200, headers, file, 0, stored.size)
        start, length = piece
        if length <= 0:
            file.close()
            return Reply(416, b"", {"Content-Range": f"bytes */{stored.size}"})
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{stored.size}"
        return Download(206, headers, file, start, length)

    # Change and removal

    def patch(self, ask: Ask, bucket: str, name: str) -> Reply:
        return json_reply(
            200, self.document(self.store.patch(bucket, name, ask.document(), Preconditions.read(ask.query)))
        )

    def update(self, ask: Ask, bucket: str, name: str) -> Reply:
        """Replaces the fields of an object. A field that the request does not have is removed."""
        fields = dict.fromkeys(KEPT) | ask.document()
        stored = self.store.patch(bucket, name, fields, Preconditions.read(ask.query), merge=False)
        return json_reply(200, self.document(stored))

    def delete(self, ask: Ask, bucket: str, name: str) -> Reply:
        self.store.delete(bucket, name, Preconditions.read(ask.query), ask.query.get("generation"))
        return Reply(204)

    def batch(self, ask: Ask) -> Reply:
        """Answers up to a hundred requests in one body, each as if it had come alone."""
        match = re.search(r"""boundary=["']?([^"';,]+)["']?""", ask.headers.get("content-type", ""))
        if not match:
            raise ApiError(400, "The batch has no boundary.", "badContent")
        answers = []
        pieces = ask.read().split(b"--" + match[1].encode())[1:-1]
        if not 1 <= len(pieces) <= 100:
            raise ApiError(400, "A batch holds between 1 and 100 requests.", "badContent")
        for piece in pieces:
            outer = uploads.split_part(piece.lstrip(b"\r\n"))
            line, _, inner_part = (outer[1] if outer else b"").lstrip(b"\r\n").partition(b"\n")
            status_words, inner = line.split(), uploads.split_part(inner_part)
            if (
                outer is None
                or len(status_words) < 2
                or inner is None
                or status_words[1].startswith((b"/upload", b"/batch"))
            ):
                raise ApiError(400, "Failed to parse batch request.", "badContent")
            body = inner[1].rstrip(b"\r\n")
            method, target = status_words[0].decode("latin-1"), status_words[1].decode("latin-1")
            single = Ask(method, target, inner[0], iter([body]), len(body), ask.client)
            answers.append((outer[0].get("content-id", ""), self.answer(single)))
        return batch_reply(answers)

    def document(self, stored: StoredObject) -> Document:
        """The object's resource as the API shows it."""
        at = f"/storage/v1/b/{quote(stored.bucket)}/o/{quote(stored.name, safe='')}"
        return {
            "kind": "storage#object",
            "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
            "selfLink": self.url() + at,
            "mediaLink": f"{self.url()}/download{at}?generation={stored.generation}&alt=media",
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


def object_etag(stored: StoredObject) -> str:
    return base64.b64encode(f"{stored.generation}/{stored.metageneration}".encode()).decode()
