"""One table of routes for each port: which function answers a request, which permission it needs, and what the weather
does to it."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.errors import ApiError, Document, error_document, no_room, without_nulls
from orchestrator.embedded.listener import HttpRequest, Reply, Reset, json_reply
from orchestrator.embedded.operations import Sender
from orchestrator.embedded.permissions import check_permission
from orchestrator.embedded.selection import parse_selection, select_fields
from orchestrator.embedded.weather import hits_request

Answer = Callable[..., "Document | Reply | None"]
"""Answers a request with the parts of its path as keywords. A document is an answer with status 200, None one with
status 204. Raises `ApiError`."""
Observer = Callable[[str, str, dict[str, str], Any, int, Any], None]
"""Called for every answered request, with method, path, query, request body, status and response body."""
RPC = ("/v1/", "/v3/")
"""The beginnings of the paths of newer APIs, whose errors have a status word."""


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `permission` is empty if none is needed, and None if neither it nor the path is checked,
    because the answer sends requests of its own."""

    service: str
    method: str
    pattern: re.Pattern[str]
    answer: Answer
    permission: str | None


def make_routes(
    service: str, prefix: str, *entries: tuple[str, str, Answer] | tuple[str, str, Answer, str | None]
) -> list[Route]:
    """Routes from (method, path below `prefix`, answer, permission). In a path `{name}` stands for a part without `/`
    and `:`, `{name*}` for one without `/`, and `{name:a|b}` for one of these words. A path of Compute Engine's has no
    method after a colon, so there a part may have one."""
    return [
        Route(service, method, path_pattern(prefix + path), answer, permission[0] if permission else "")
        for method, path, answer, *permission in entries
    ]


def path_pattern(template: str) -> re.Pattern[str]:
    any_name = template.startswith("/compute/")

    def part(match: re.Match[str]) -> str:
        return f"(?P<{match[1]}>{'[^/]+' if match[2] or (any_name and not match[3]) else match[3] or '[^/:]+'})"

    return re.compile(re.sub(r"\{(\w+)(\*?)(?::([^}]+))?\}", part, template))


def decode_path_part(text: str) -> str:
    """A percent-encoded part of a path as text. Raises `ApiError` (400) if it is not UTF-8."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as exc:
        raise ApiError(400, "The request's path is not valid UTF-8.") from exc


class Router(BodyPart):
    """Answers the requests of one port. Thread-safe.

    check: called with the decoded parts of a path before its answer; it may change them and raise `ApiError`.
    unknown: the error for a request without a route, given whether its path has a route for another method.
    observer: called for the requests that `observes`, before the client gets the answer.
    """

    def __init__(
        self,
        commons: Commons,
        routes: list[Route],
        *,
        check: Callable[[Route, dict[str, str], HttpRequest], None],
        unknown: Callable[[HttpRequest, bool], ApiError],
        observer: Observer | None = None,
        observes: Callable[[str], bool] = lambda _path: True,
    ) -> None:
        super().__init__(commons)
        self.routes = routes
        self.check = check
        self.unknown = unknown
        self.observer = observer
        self.observes = observes
        commons.permissions.update(route.permission for route in routes if route.permission)

    def serve(self, request: HttpRequest) -> Reply:
        """The answer to a request from the network, after what the weather does to it. Raises `Reset`."""
        fault = self.weather.take(
            request.target,
            lambda fault: hits_request(fault, self._service(request.path), request.method, request.target),
        )
        if fault is None:
            return self._observed(request, self.answer(request))
        if fault.kind == "stall":
            self.timeline.sleep(float(fault.params["seconds"]))
            if self.timeline.closed:  # what would answer is closed
                raise Reset
            return self._observed(request, self.answer(request))
        reply = self.answer(request) if fault.params.get("after", "request") == "response" else None
        if reply is not None:
            reply.close()
        if fault.kind == "http":
            return self._observed(request, json_reply(*fault_document(fault.params)))
        if reply is not None:
            self._observed(request, reply)
        raise Reset

    def answer(self, request: HttpRequest) -> Reply:
        """The answer to a request, whatever the weather. Raises `OSError` if the client closes the connection."""
        try:
            answer = self._dispatch(request)
            if isinstance(answer, dict) and (fields := request.query.get("fields")):
                answer = select_fields(answer, parse_selection(fields))
        except ApiError as error:
            if error.status == 304:
                return Reply(304)
            rpc = request.path.startswith(RPC)
            return json_reply(error.status, error.rpc_document() if rpc else error.document())
        except (OSError, sqlite3.Error) as error:
            if (full := no_room(error)) is None:
                raise
            return json_reply(full.status, full.document())
        if isinstance(answer, Reply):
            return answer
        return Reply(204) if answer is None else json_reply(200, answer)

    def _dispatch(self, request: HttpRequest) -> Document | Reply | None:
        for route in self.routes:
            if route.method == request.method and (match := route.pattern.fullmatch(request.path)):
                parts = {key: decode_path_part(value) for key, value in match.groupdict().items()}
                if route.permission is not None:
                    if request.vm is None:
                        victim, now = f"{request.method} {request.path}", self.timeline.now()
                        check_permission(self.weather, self.project, route.service, route.permission, victim, now)
                    self.check(route, parts, request)
                return route.answer(request, **parts)
        raise self.unknown(request, any(route.pattern.fullmatch(request.path) for route in self.routes))

    def _service(self, path: str) -> str:
        """The service of a path; that of the port if no route has it, or none for a newer API."""
        default = "" if path.startswith(RPC) else self.routes[0].service
        return next((route.service for route in self.routes if route.pattern.fullmatch(path)), default)

    def _observed(self, request: HttpRequest, reply: Reply) -> Reply:
        if self.observer is not None and self.observes(request.path):
            try:
                body = json.loads(request.body) if request.body else None
            except ValueError:
                body = None
            document = json.loads(reply.body) if reply.body else None
            self.observer(request.method, request.path, request.query, body, reply.status, document)
        return reply


# The common parts of requests
def body_of(request: HttpRequest) -> Document:
    """The JSON body without its nulls. Raises `ApiError` (400) if it is not an object."""
    rpc = request.path.startswith(RPC)
    try:
        body = without_nulls(json.loads(request.body or b"{}"))
    except ValueError as exc:
        raise ApiError(400, *(("Invalid JSON payload received.",) if rpc else ("Parse Error", "parseError"))) from exc
    if not isinstance(body, dict):
        message = "Invalid JSON payload received." if rpc else "Required field 'resource' not specified"
        raise ApiError(400, message, "" if rpc else "required")
    return body


def request_id(request: HttpRequest) -> str:
    """The `requestId`; empty if there is none. Raises `ApiError` (400) unless it is a UUID and not zero."""
    text = request.query.get("requestId", "")
    with suppress(ValueError):
        if not text or uuid.UUID(text).int:
            return text
    raise ApiError(400, f"Invalid value for field 'requestId': '{text}'. Must be a non-zero UUID")


def sender_of(request: HttpRequest, project: str) -> Sender:
    """Who sent a request, and its id. Raises the errors of `request_id`."""
    if request.vm is None:
        return Sender(f"user@{project}.example", request_id(request))
    return Sender(str(request.vm.admitted.service_account), request_id(request), "vm")


def fault_document(params: Mapping[str, Any]) -> tuple[int, Document]:
    """(status, body) of the answer of an `http` fault."""
    status = int(params["status"])
    reason = {403: "forbidden", 409: "alreadyExists", 429: "rateLimitExceeded"}.get(status, "backendError")
    message = str(params.get("message", "The weather is bad."))
    return status, error_document(status, message, str(params.get("reason", reason)))
