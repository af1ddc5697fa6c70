"""Requests to Cloud Storage, and the encoding of their parameters and answers."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.listener import MOST_BYTES, Reply
from orchestrator.embedded.uploads import read_region

MOST_LISTED = 1000


@dataclass(slots=True)
class Ask:
    """One request. Header names are in lower case. The body can be read only once. `length` is its bytes; None if it
    comes in chunks. `client` says whether a client sent it, and not a VM."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Iterator[bytes]
    length: int | None
    client: bool
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        split = urlsplit(self.target)
        self.path = split.path
        self.query = dict(parse_qsl(split.query, keep_blank_values=True))

    def read(self) -> bytes:
        """The whole body. Raises `ApiError` (413) if it is too large."""
        pieces, size = [], 0
        for piece in self.body:
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise ApiError(413, "The request body is too large.", "uploadTooLarge")
        return b"".join(pieces)

    def document(self) -> Document:
        """The body as a JSON object. Raises `ApiError` (400) if it is not one."""
        try:
            document = json.loads(self.read() or b"{}")
        except ValueError as exc:
            raise ApiError(400, "Parse Error", "parseError") from exc
        if not isinstance(document, dict):
            raise ApiError(400, "Parse Error", "parseError")
        return document


@dataclass(frozen=True, slots=True)
class Download:
    """An answer whose body is a part of a file, from byte `start`. The sender of the answer closes the file."""

    status: int
    headers: Mapping[str, str]
    file: IO[bytes]
    start: int
    length: int

    def pieces(self) -> Iterator[bytes]:
        return read_region(self.file, self.start, self.start + self.length)


def decode_path_part(text: str) -> str:
    """A percent-encoded part of a path as text. Raises `ApiError` (400) if it is not UTF-8."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as exc:
        raise ApiError(400, "The request's path is not valid UTF-8.") from exc


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


def make_page_token(name: str) -> str:
    """The page token of the page that begins with `name`."""
    return base64.urlsafe_b64encode(name.encode()).decode()


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


def batch_reply(answers: list[tuple[str, Reply | Download]]) -> Reply:
    """The answer to a batch, from (content id, answer) of each of its requests."""
    parts = []
    for number, reply in answers:
        if isinstance(reply, Download):
            with reply.file:
                body = b"".join(reply.pieces())
        else:
            body = reply.body
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
