"""The control API: status, bill, weather, preemptions and stopping. A real cloud has no such API."""

from __future__ import annotations

import json
from typing import Any, Protocol

from orchestrator.embedded.listener import Reply, Request, json_reply
from orchestrator.embedded.meter import Bill
from orchestrator.embedded.weather import BadWeather, Weather


class Controlled(Protocol):
    """The cloud, as the control API sees it."""

    @property
    def weather(self) -> Weather: ...
    def touch(self) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def bill(self) -> Bill: ...
    def preempt(self, name: str, notice_s: float | None) -> bool: ...
    def request_stop(self) -> None: ...


class Control:
    """Answers requests to the control API. Bodies are JSON; errors are `{"error": ...}`."""

    def __init__(self, cloud: Controlled) -> None:
        self.cloud = cloud

    def answer(self, request: Request) -> Reply:
        self.cloud.touch()
        try:
            document = json.loads(request.body) if request.body else {}
        except ValueError:
            return json_reply(400, {"error": "the body is not JSON"})
        match request.method, request.path:
            case "GET", "/control/status":
                return json_reply(200, self.cloud.status())
            case "GET", "/control/bill":
                return json_reply(200, self.cloud.bill().document())
            case "GET", "/control/weather":
                return json_reply(200, self.cloud.weather.document())
            case "POST", "/control/weather":
                return self._weather(document)
            case "POST", "/control/preempt":
                return self._preempt(document)
            case "POST", "/control/stop":
                self.cloud.request_stop()
                return json_reply(200, {"stopping": True})
            case _:
                return json_reply(404, {"error": f"no {request.method} {request.path} here"})

    def _weather(self, document: Any) -> Reply:
        try:
            self.cloud.weather.replace(document)
        except BadWeather as error:
            return json_reply(400, {"error": str(error)})
        return json_reply(200, self.cloud.weather.document())

    def _preempt(self, document: Any) -> Reply:
        name = document.get("name") if isinstance(document, dict) else None
        notice = document.get("notice_s") if isinstance(document, dict) else None
        if notice is not None and (not isinstance(notice, (int, float)) or notice < 0):
            return json_reply(400, {"error": f"notice_s must be a number of seconds, not {notice!r}"})
        if not self.cloud.preempt(str(name), notice):
            return json_reply(404, {"error": f"no running VM is named {name!r}"})
        return json_reply(200, {"name": name})
