"""Leads a conversation with answers of a test's own, without a network, and keeps what was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchestrator.core.rest import Answer, Conversation, Pause, Request

T = TypeVar("T")
Replies = Mapping[str, Answer | list[Answer]]


@dataclass
class Talk(Generic[T]):
    """What came of a conversation, what was asked, and for how long it paused."""

    result: T
    asked: list[Request] = field(default_factory=list)
    paused_s: list[float] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [f"{one.method} {one.path}" for one in self.asked]


def lead(conversation: Conversation[T], reply: Callable[[Request], Answer] | Replies) -> Talk[T]:
    """`reply` answers each request; or it maps pieces of `METHOD path` to an answer, or to several in turn (the last for
    ever). What nothing is said of is 404."""
    asked: list[Request] = []
    paused: list[float] = []
    given = (
        {key: list(value) if isinstance(value, list) else [value] for key, value in reply.items()}
        if isinstance(reply, Mapping)
        else {}
    )

    def answer(request: Request) -> Answer:
        if callable(reply):
            return reply(request)
        line = f"{request.method} {request.path}"
        for key, answers in given.items():
            if key in line:
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return refusal(404, "not found")

    try:
        said = next(conversation)
        while True:
            if isinstance(said, Pause):
                paused.append(said.seconds)
                said = conversation.send(Answer(0))
            else:
                asked.append(said)
                said = conversation.send(answer(said))
    except StopIteration as end:
        return Talk(end.value, asked, paused)


def good(**document: Any) -> Answer:
    return Answer(200, document)


def refusal(status: int, message: str = "no", reason: str = "") -> Answer:
    """An error as Google's APIs give it."""
    return Answer(status, {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}})


OFF = refusal(403, "the API has not been used", "accessNotConfigured")
SILENCE = Answer(0, trouble="no answer")
