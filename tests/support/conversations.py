"""Answers requests without a network, by a test's own rules, and keeps what was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchestrator.core.rest import RestAnswer, RestRequest

T = TypeVar("T")
Replies = Mapping[str, RestAnswer | list[RestAnswer]]


@dataclass
class Asked:
    """Implements `core.rest.Api`. What was asked, and for how long it was paused."""

    reply: Callable[[RestRequest], RestAnswer]
    asked: list[RestRequest] = field(default_factory=list)
    paused_s: list[float] = field(default_factory=list)

    def ask(self, request: RestRequest) -> RestAnswer:
        self.asked.append(request)
        return self.reply(request)

    def pause(self, seconds: float) -> None:
        self.paused_s.append(seconds)

    @property
    def lines(self) -> list[str]:
        return [f"{one.method} {one.path}" for one in self.asked]


@dataclass
class Talk(Asked, Generic[T]):
    """The same, and what came of it."""

    result: T = field(kw_only=True)


def lead(asking: Callable[..., T], *about: Any, reply: Callable[[RestRequest], RestAnswer] | Replies) -> Talk[T]:
    """Calls `asking` with an API and what it is `about`. `reply` answers each request; or it maps pieces of
    `METHOD path` to an answer, or to several in turn (the last for ever). What nothing is said of is 404."""
    given = (
        {key: list(value) if isinstance(value, list) else [value] for key, value in reply.items()}
        if isinstance(reply, Mapping)
        else {}
    )

    def answer(request: RestRequest) -> RestAnswer:
        line = f"{request.method} {request.path}"
        answers = next((one for key, one in given.items() if key in line), [refusal(404, "not found")])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    api = Asked(reply if callable(reply) else answer)
    result = asking(api, *about)
    return Talk(api.reply, api.asked, api.paused_s, result=result)


def good(**document: Any) -> RestAnswer:
    return RestAnswer(200, document)


def refusal(status: int, message: str = "no", reason: str = "") -> RestAnswer:
    """An error as Google's APIs give it."""
    return RestAnswer(status, {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}})


OFF = refusal(403, "the API has not been used", "accessNotConfigured")
SILENCE = RestAnswer(0, trouble="no answer")
