"""An answer that has an end, in time and in bytes: each read of a socket has a limit of its own, and so a server that
sends a byte now and then, or one `100 Continue` after the other, would hold whoever asked for ever; one that sends
without an end, or little that unpacks to much, would take all of its memory."""

from __future__ import annotations

import http.client
import io
import socket
import time
import zlib
from functools import partial
from typing import Any, Final, cast

GRACE_S: Final = 60.0
"""What an answer of no length may take."""
BYTES_PER_S: Final = 10_000
"""What is received prolongs it at this rate: a slow line may fetch a long object."""
LONGEST_S: Final = 900.0
"""However much is received."""
PIECE: Final = 1 << 16
LARGEST: Final = 256 << 20
"""Bytes of an answer whose size nobody knows before: twice what any object is that is read at once."""
AROUND: Final = 1 << 20
"""Bytes of headers, and of what parts an answer into chunks."""


class Unending(TimeoutError):
    """The server kept talking, too slowly or for too long."""


class Oversized(OSError):
    """An answer has more bytes than whoever asked has room for."""


def unpacked(data: bytes, largest: int = LARGEST) -> bytes:
    """What gzip has made smaller. Raises `zlib.error` for what is not whole, `Oversized`."""
    reader = zlib.decompressobj(wbits=31)
    unpacked_data = reader.decompress(data, largest + 1)
    if len(unpacked_data) > largest:
        raise Oversized(f"its answer unpacks to more than {largest} bytes")
    if not reader.eof:
        raise zlib.error("cut short")
    return unpacked_data


class Paced(io.RawIOBase):
    """The bytes of one answer. Raises `Unending` when its time is up, `TimeoutError` after a silence, `Oversized`
    after `largest` bytes."""

    def __init__(self, sock: socket.socket, grace_s: float, largest: int) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._silence_s = sock.gettimeout() or grace_s
        self._room, self._largest = largest + AROUND, largest
        self._until = time.monotonic() + grace_s
        self._end = self._until + LONGEST_S - GRACE_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = min(self._until, self._end) - time.monotonic()
        if left_s <= 0:
            raise Unending("its answer does not come to an end")
        self._sock.settimeout(min(self._silence_s, left_s))
        try:
            count = self._raw.readinto(buffer)
        except TimeoutError as exc:
            if left_s > self._silence_s:
                raise
            raise Unending("its answer does not come to an end") from exc
        self._until += (count or 0) / BYTES_PER_S
        self._room -= count or 0
        if self._room < 0:
            raise Oversized(f"its answer has more than {self._largest} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def all_of(answer: http.client.HTTPResponse) -> bytes:
    """All of an answer, by pieces: asked for as a whole, room would be made for whatever length a server claims. Raises
    `OSError`, `http.client.HTTPException`."""
    content = bytearray()
    try:
        while piece := answer.read(PIECE):
            content += piece
    except ValueError as exc:  # a chunk of fewer than no bytes
        raise http.client.HTTPException(f"its answer states an impossible length ({exc})") from exc
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return bytes(content)


class HttpAnswer(http.client.HTTPResponse):
    """Read through `Paced`."""

    def __init__(
        self, sock: socket.socket, *arguments: Any, grace_s: float = GRACE_S, largest: int = LARGEST, **options: Any
    ) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(Paced(sock, grace_s, largest))


def within(grace_s: float, largest: int = LARGEST) -> type[http.client.HTTPResponse]:
    """What a connection makes its answers of (`HTTPConnection.response_class`)."""
    return cast("type[http.client.HTTPResponse]", partial(HttpAnswer, grace_s=grace_s, largest=largest))
