"""Cloud Storage's XML API: objects by `/BUCKET/NAME`, listings, and uploads in parts.

It is a translation: each request becomes one of the JSON API, with its permissions and preconditions, and the answer is
written as XML."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final
from urllib.parse import quote, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from orchestrator.embedded.errors import ApiError
from orchestrator.embedded.listener import HttpRequest, Reply, read_region
from orchestrator.embedded.objects import Incoming, Objects
from orchestrator.embedded.routes import Route, make_routes
from orchestrator.embedded.uploads import promised_checksums, receive_body

PATHS: Final = r"(?!/(?:storage|download|upload|resumable|batch)/)/(?P<bucket>[^/]*)/?(?P<name>(?s:.*))"
LISTING: Final = "http://doc.s3.amazonaws.com/2006-03-01"
IN_PARTS: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
CONDITIONS: Final = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
}
CODES: Final = {
    304: "NotModified", 400: "InvalidArgument", 401: "AuthenticationRequired", 403: "AccessDenied",
    409: "BucketNotEmpty", 412: "PreconditionFailed", 429: "SlowDown", 501: "NotImplemented",
}  # fmt: skip
META: Final = "x-goog-meta-"
MOST_PARTS: Final = 10_000


@dataclass(slots=True)
class PartsUpload:
    """An upload in parts that is not complete: its object's description, and each part by its number."""

    bucket: str
    name: str
    headers: Mapping[str, str]
    parts: dict[int, Incoming] = field(default_factory=dict)


class XmlApi:
    """Answers requests. `answer_json` answers one of the JSON API."""

    def __init__(self, answer_json: Callable[[HttpRequest], Reply], store: Objects) -> None:
        self._answer_json = answer_json
        self._store = store
        self._open: dict[str, PartsUpload] = {}

    def routes(self) -> list[Route]:
        """All requests for another path than those of the JSON API."""
        methods = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")
        return make_routes("storage", "", *((method, PATHS, self.answer, None) for method in methods))

    def close(self) -> None:
        """Delete the parts of uploads that were never completed."""
        for upload in self._open.values():
            drop_parts(upload)

    def answer(self, request: HttpRequest, bucket: str, name: str) -> Reply:
        try:
            if name:
                return self._about_object(request, bucket, name)
            if request.method == "HEAD" and bucket:
                self._json(request, "GET", f"/storage/v1/b/{quote(bucket)}")
                return Reply(200)
            if request.method == "GET":
                return self._list(request, bucket) if bucket else self._list_buckets(request)
            raise ApiError(501, f"{request.method} {request.path} is not something this cloud can do.")
        except ApiError as error:
            return error_reply(error.status, error.message)

    # Objects

    def _about_object(self, request: HttpRequest, bucket: str, name: str) -> Reply:
        match request.method, request.query:
            case "POST", {"uploads": _}:
                return self._begin(request, bucket, name)
            case "PUT", {"uploadId": number, "partNumber": part}:
                return self._take_part(request, self._upload(number), part)
            case "POST", {"uploadId": number}:
                return self._complete(request, number)
            case "DELETE", {"uploadId": number}:
                drop_parts(self._upload(number))
                del self._open[number]
                return Reply(204)
            case "PUT", _:
                return Reply(
                    200, b"", object_headers(self._store_object(request, bucket, name, request.headers, request.pieces))
                )
            case (("GET" | "HEAD" | "DELETE"), _):
                return self._pass_on(request, bucket, name)
        raise ApiError(501, f"{request.method} is not something this cloud can do with an object.")

    def _pass_on(self, request: HttpRequest, bucket: str, name: str) -> Reply:
        """A download, a look or a deletion: the JSON API answers it, and only errors are written in another way."""
        query = conditions(request.headers) | {
            key: request.query[key] for key in ("generation",) if key in request.query
        }
        base = "" if request.method == "DELETE" else "/download"
        path = f"{base}/storage/v1/b/{quote(bucket)}/o/{quote(name, safe='')}?{urlencode(query)}"
        answer = self._answer_json(replace_request(request, request.method, path, request.headers))
        if answer.file is not None:
            return replace(answer, headers={**answer.headers, "ETag": md5_etag(answer.headers["X-Goog-Hash"])})
        return xml_error(answer) if answer.status >= 300 else answer

    def _store_object(
        self, request: HttpRequest, bucket: str, name: str, headers: Mapping[str, str], body: Iterator[bytes]
    ) -> Mapping[str, Any]:
        """Stores an object, and returns its resource. Raises `ApiError`."""
        description = {
            "name": name,
            "contentType": headers.get("content-type", "application/octet-stream"),
            "contentEncoding": headers.get("content-encoding"),
            "cacheControl": headers.get("cache-control"),
            "md5Hash": headers.get("content-md5"),
            "metadata": {key.removeprefix(META): text for key, text in headers.items() if key.startswith(META)},
            **promised_checksums(headers),
        }
        boundary = secrets.token_hex(16)
        head = json.dumps({key: value for key, value in description.items() if value})
        pieces = chain(
            [f"--{boundary}\r\n\r\n{head}\r\n--{boundary}\r\n\r\n".encode()], body, [f"\r\n--{boundary}--".encode()]
        )
        query = {"uploadType": "multipart", **conditions(request.headers)}
        kind = {"content-type": f"multipart/related; boundary={boundary}"}
        return self._json(request, "POST", f"/upload/storage/v1/b/{quote(bucket)}/o?{urlencode(query)}", kind, pieces)

    # Uploads in parts

    def _begin(self, request: HttpRequest, bucket: str, name: str) -> Reply:
        self._json(request, "GET", f"/storage/v1/b/{quote(bucket)}/o?maxResults=1")  # whether there is such a bucket
        number = secrets.token_urlsafe(24)
        self._open[number] = PartsUpload(bucket, name, dict(request.headers))
        return xml_reply("InitiateMultipartUploadResult", IN_PARTS, Bucket=bucket, Key=name, UploadId=number)

    def _upload(self, number: str) -> PartsUpload:
        upload = self._open.get(number)
        if upload is None:
            raise ApiError(404, "The requested upload was not found.", "NoSuchUpload")
        return upload

    def _take_part(self, request: HttpRequest, upload: PartsUpload, part: str) -> Reply:
        if not part.isdecimal() or not 1 <= int(part) <= MOST_PARTS:
            raise ApiError(400, f"Part number must be an integer between 1 and {MOST_PARTS}.")
        data = receive_body(self._store, request.pieces)
        data.file.flush()
        try:
            data.check({"md5Hash": request.headers.get("content-md5", ""), **promised_checksums(request.headers)})
        except ApiError:
            data.drop()
            raise
        before = upload.parts.pop(int(part), None)
        if before is not None:
            before.drop()
        upload.parts[int(part)] = data
        return Reply(200, b"", {"ETag": f'"{data.md5.hexdigest()}"', "X-Goog-Hash": f"crc32c={data.crc32c}"})

    def _complete(self, request: HttpRequest, number: str) -> Reply:
        upload = self._upload(number)
        try:
            listed = [
                (int(part.findtext("{*}PartNumber") or 0), (part.findtext("{*}ETag") or "").strip('"'))
                for part in ElementTree.fromstring(request.body).iter()
                if part.tag.endswith("Part")
            ]
        except (ElementTree.ParseError, ValueError) as exc:
            raise ApiError(400, "The XML you provided was not well-formed.") from exc
        known = {place: data.md5.hexdigest() for place, data in upload.parts.items()}
        if not listed or listed != sorted(listed) or any(known.get(place) != etag for place, etag in listed):
            raise ApiError(400, "One or more of the specified parts could not be found.", "InvalidPart")

        def pieces() -> Iterator[bytes]:
            for place, _ in listed:
                with upload.parts[place].path.open("rb") as file:
                    yield from read_region(file, 0, upload.parts[place].size)

        stored = self._store_object(request, upload.bucket, upload.name, upload.headers, pieces())
        drop_parts(self._open.pop(number))
        etag = object_headers(stored)["ETag"]
        return xml_reply("CompleteMultipartUploadResult", IN_PARTS, Bucket=upload.bucket, Key=upload.name, ETag=etag)

    # Listings

    def _list(self, request: HttpRequest, bucket: str) -> Reply:
        asked = request.query
        marker = asked.get("continuation-token") or asked.get("start-after") or asked.get("marker") or ""
        query = {
            "prefix": asked.get("prefix", ""),
            "delimiter": asked.get("delimiter", ""),
            "maxResults": asked.get("max-keys", ""),
            "startOffset": marker and marker + "\0",  # which no name has: the first after the marker
        }
        wanted = urlencode({key: value for key, value in query.items() if value})
        page = self._json(request, "GET", f"/storage/v1/b/{quote(bucket)}/o?{wanted}")
        groups = [group for group in page.get("prefixes", ()) if group != marker]
        items = page.get("items", ())
        last = max([item["name"] for item in items] + groups, default="")
        more = "nextPageToken" in page
        contents = [
            element("Contents", Key=item["name"], Generation=item["generation"], LastModified=item["updated"],
                    ETag=object_headers(item)["ETag"], Size=item["size"], MetaGeneration=item["metageneration"])
            for item in items
        ] + [element("CommonPrefixes", Prefix=group) for group in groups]  # fmt: skip
        next_page = {"NextMarker": last, "NextContinuationToken": last} if more else {}
        about = {"Name": bucket, "Prefix": query["prefix"], "Marker": marker, "IsTruncated": str(more).lower()}
        return xml_reply("ListBucketResult", LISTING, *contents, **about, **next_page)

    def _list_buckets(self, request: HttpRequest) -> Reply:
        page = self._json(request, "GET", "/storage/v1/b?project=any")
        buckets = [element("Bucket", Name=one["name"], CreationDate=one["timeCreated"]) for one in page["items"]]
        return xml_reply("ListAllMyBucketsResult", LISTING, f"<Buckets>{''.join(buckets)}</Buckets>")

    def _json(
        self,
        request: HttpRequest,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: Iterator[bytes] | None = None,
    ) -> Mapping[str, Any]:
        """The document of a request of the JSON API. Raises `ApiError` for a refusal."""
        answer = self._answer_json(replace_request(request, method, target, headers or {}, body))
        document = json.loads(answer.body or b"{}")
        if answer.status >= 300:
            raise ApiError(answer.status, document.get("error", {}).get("message", ""))
        return document  # type: ignore[no-any-return]


def replace_request(
    request: HttpRequest, method: str, target: str, headers: Mapping[str, str], body: Iterator[bytes] | None = None
) -> HttpRequest:
    return HttpRequest(method, target, headers, body or iter(()), None, request.vm)


def drop_parts(upload: PartsUpload) -> None:
    for data in upload.parts.values():
        data.drop()


def conditions(headers: Mapping[str, str]) -> dict[str, str]:
    """The preconditions of a request's headers, as the JSON API names them."""
    return {name: headers[header] for header, name in CONDITIONS.items() if header in headers}


def md5_etag(hashes: str) -> str:
    """The entity tag by the value of `X-Goog-Hash`: the MD5 in hexadecimal, as long as the object has one."""
    match = re.search(r"(?:md5|crc32c)=([A-Za-z0-9+/=]+)$", hashes)
    return f'"{base64.b64decode(match[1]).hex()}"' if match else '""'


def object_headers(stored: Mapping[str, Any]) -> dict[str, str]:
    md5 = stored.get("md5Hash")
    hashes = f"crc32c={stored['crc32c']}" + (f",md5={md5}" if md5 else "")
    return {"ETag": md5_etag(hashes), "X-Goog-Hash": hashes, "X-Goog-Generation": str(stored["generation"])}


def element(name: str, *inner: str, **texts: str) -> str:
    fields = "".join(f"<{key}>{escape(text)}</{key}>" for key, text in texts.items())
    return f"<{name}>{fields}{''.join(inner)}</{name}>"


def xml_reply(name: str, namespace: str, *inner: str, **texts: str) -> Reply:
    body = element(name, *inner, **texts).replace(f"<{name}>", f"<{name} xmlns='{namespace}'>", 1)
    return Reply(
        200,
        f"<?xml version='1.0' encoding='UTF-8'?>{body}".encode(),
        {"Content-Type": "application/xml; charset=UTF-8"},
    )


def error_reply(status: int, message: str) -> Reply:
    missing = "NoSuchBucket" if "bucket" in message else "NoSuchUpload" if "upload" in message else "NoSuchKey"
    code = missing if status == 404 else CODES.get(status, "InternalError")
    body = f"<?xml version='1.0' encoding='UTF-8'?>{element('Error', Code=code, Message=message)}"
    return Reply(status, body.encode(), {"Content-Type": "application/xml; charset=UTF-8"})


def xml_error(answer: Reply) -> Reply:
    """The same refusal as XML."""
    try:
        message = str(json.loads(answer.body)["error"]["message"])
    except (ValueError, LookupError):
        message = ""
    return error_reply(answer.status, message)
