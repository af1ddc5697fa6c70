"""Every connect of this process, whichever library asks, seen before it happens."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from typing import Any


def on_connect(see: Callable[[Any], None]) -> None:
    """Calls `see` with each address from now on; what it raises, the connect raises.

    No audit hook: one in Python lets threads take turns in the middle of `sys.settrace`, and CPython 3.11 then ends a
    thread that coverage is to trace before it has begun.
    """
    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, _seen(getattr(socket.socket, name), see))


def _seen(connect: Callable[..., Any], see: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(connect)
    def seen(self: socket.socket, address: Any, /) -> Any:
        see(address)
        return connect(self, address)

    return seen
