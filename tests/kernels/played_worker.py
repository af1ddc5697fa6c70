"""Workers of the harness that are played: a test says what `ask` answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PlayedWorker:
    """A worker that takes a request when it is sent and answers it when it is asked for."""

    sent: Mapping[str, Any]

    def ask(self, op: str, limit_s: float, /, **given: Any) -> Mapping[str, Any]:
        """The answer to a request."""
        raise NotImplementedError

    def send(self, _op: str, /, **given: Any) -> None:
        """Takes a request."""
        self.sent = given

    def receive(self, op: str, limit_s: float) -> Mapping[str, Any]:
        """The answer to the request that was taken last."""
        return self.ask(op, limit_s, **self.sent)
