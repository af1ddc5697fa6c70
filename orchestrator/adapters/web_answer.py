"""An answer that arrives in time as a whole: each read of a socket has a limit of its own, and so a server that sends a
byte now and then, or one `100 Continue` after the other, would hold whoever asked for ever."""

from __future__ import annotations

import http.client
import io
import socket
import time
from functools import partial
from typing import Any, Final, cast

GRACE_S: Final = 60.0
"""What an answer of no length may take."""
BYTES_PER_S: Final = 10_000
"""What is received prolongs it at this rate: a slow line may fetch a long object."""
LONGEST_S: Final = 900.0
"""However much is received."""


class Unending(TimeoutError):
    """The server kept talking, too slowly or for too long."""


class Paced(io.RawIOBase):
    """The bytes of one answer. Raises `Unending` when its time is up, `TimeoutError` after a silence."""

    def __init__(self, sock: socket.socket, grace_s: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._silence_s = sock.gettimeout() or grace_s
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
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class Answer(http.client.HTTPResponse):
    """Read through `Paced`."""

    def __init__(self, sock: socket.socket, *arguments: Any, grace_s: float = GRACE_S, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(Paced(sock, grace_s))


def within(grace_s: float) -> type[http.client.HTTPResponse]:
    """What a connection makes its answers of (`HTTPConnection.response_class`)."""
    return cast("type[http.client.HTTPResponse]", partial(Answer, grace_s=grace_s))
