"""The common parts of Compute Engine's requests: bodies, request ids, and the answers of the weather's faults."""

from __future__ import annotations

import json
import uuid
from typing import Any

from orchestrator.embedded.errors import ApiError, Document, error_document, without_nulls
from orchestrator.embedded.listener import HttpRequest


def body_of(request: HttpRequest) -> Document:
    """The JSON body without its nulls. Raises `ApiError` (400) if it is not an object."""
    try:
        body = without_nulls(json.loads(request.body or b"{}"))
    except ValueError as exc:
        raise ApiError(400, "Parse Error", "parseError") from exc
    if not isinstance(body, dict):
        raise ApiError(400, "Required field 'resource' not specified", "required")
    return body


def request_id(request: HttpRequest) -> str:
    """The `requestId`; empty if there is none. Raises `ApiError` (400) unless it is a UUID and not zero."""
    text = request.query.get("requestId", "")
    if text:
        try:
            if uuid.UUID(text).int:
                return text
        except ValueError:
            pass
        raise ApiError(400, f"Invalid value for field 'requestId': '{text}'. Must be a non-zero UUID")
    return ""


def fault_document(params: Any) -> tuple[int, Document]:
    """(status, body) of the answer of an `http` fault."""
    status = int(params["status"])
    reason = {403: "forbidden", 409: "alreadyExists", 429: "rateLimitExceeded"}.get(status, "backendError")
    message = str(params.get("message", "The weather is bad."))
    return status, error_document(status, message, str(params.get("reason", reason)))
