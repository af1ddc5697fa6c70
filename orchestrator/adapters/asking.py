"""Handles requests that fail: sends them again as long as that may help, then raises an error of bench's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from orchestrator.adapters.refusals import lost, no_token, not_accepted, passes, refusal
from orchestrator.adapters.web import HttpRefused, NoResponse, NotSigned, ReplyTooLarge, WebReply
from orchestrator.core import rest
from orchestrator.core.errors import BenchError

T = TypeVar("T")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


class Damaged(Exception):
    """What arrived has another checksum than what was sent."""


TROUBLE: Final = (NoResponse, NotSigned, HttpRefused, Damaged)
"""Every exception of a request that has its cause outside this process."""


@contextmanager
def told(doing: str, *, missing: str = "") -> Iterator[None]:
    """Raises ours for `TROUBLE`. `doing` completes "cannot …"; `missing` is the hint when it turns out not to exist."""
    try:
        yield
    except TROUBLE as exc:
        raise _ours(exc, doing, missing) from exc


def _ours(exc: Exception, doing: str, missing: str) -> BenchError:
    if isinstance(exc, HttpRefused):
        return refusal(doing, exc.reply.status, exc.reply.words, exc.reply.reasons, missing=missing)
    if isinstance(exc, NotSigned):
        return no_token(doing, str(exc)) if exc.passing else not_accepted(doing, str(exc))
    return lost(doing, str(exc))


def may_pass(exc: BaseException) -> bool:
    """Whether the same request may succeed if it is sent again."""
    if isinstance(exc, HttpRefused):
        return passes(exc.reply.status, exc.reply.reasons)
    if isinstance(exc, ReplyTooLarge):
        return False
    return isinstance(exc, NoResponse) or (isinstance(exc, NotSigned) and exc.passing)


def good(reply: WebReply) -> WebReply:
    """The answer, if it is a success. Raises `Refused`."""
    if reply.status >= 300:
        raise HttpRefused(reply)
    return reply


def stated(reply: WebReply) -> WebReply:
    """The answer, if it is a success and a JSON object. Anything else must not count as a page without entries. Raises
    `Refused`, `Lost`."""
    if not good(reply).is_document:
        raise NoResponse("the answer is not a JSON object, so it is not from the service")
    return reply


def whole(reply: WebReply) -> WebReply:
    """The answer, if it is a whole object. An answer with neither a length nor a checksum may have been cut off, so it
    does not count. Raises `Refused`, `Lost`."""
    if good(reply).status != 200:
        raise NoResponse(f"the answer is not a whole object: HTTP {reply.status}")
    framing = {"content-length", "transfer-encoding"} & reply.headers.keys() or "crc32c=" in reply.headers.get(
        "x-goog-hash", ""
    )
    if not framing:
        raise NoResponse("the answer does not say how long it is")
    return reply


WRONG_FORM: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading an answer of the wrong form raises."""


@contextmanager
def understood() -> Iterator[None]:
    """Raises `Lost` if an answer lacks what the service's answers have."""
    try:
        yield
    except WRONG_FORM as exc:
        raise NoResponse(f"the answer is not one that the service gives ({type(exc).__name__}: {exc})") from exc


def unread(token: str, seen: set[str]) -> str:
    """The token of the next page of a list, which is added to `seen`. Raises `Lost` if that page was read before, or if
    there are too many."""
    if not token or not rest.unread(token, seen):
        raise NoResponse("the list in the answer does not end: a page came twice, or there are too many")
    return token


def insisted(call: Callable[[], T], patience_s: float) -> T:
    """What `call` gives, sent again after growing pauses of random length until `patience_s` are over. Raises what the
    last try did."""
    end, pause = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return call()
        except TROUBLE as exc:
            wait = random.uniform(0.0, 2 * pause)
            if not may_pass(exc) or time.monotonic() + wait > end:
                raise
        time.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE_S)
