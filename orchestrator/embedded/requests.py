"""What the answers to Compute Engine's requests begin with: bodies, request ids, and the weather's own answers."""

from __future__ import annotations

import json
import uuid
from typing import Any

from orchestrator.embedded.errors import ApiError, Document, error_document, without_nulls
from orchestrator.embedded.listener import Request


def body_of(request: Request) -> Document:
    """The JSON body, an object, without its nulls; 400 when it is none."""
    try:
        body = without_nulls(json.loads(request.body or b"{}"))
    except ValueError as exc:
        raise ApiError(400, "Parse Error", "parseError") from exc
    if not isinstance(body, dict):
        raise ApiError(400, "Required field 'resource' not specified", "required")
    return body


def request_id(request: Request) -> str:
    """The `requestId`, which must be a UUID and not zero; empty when there is none."""
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
    """The status and body of an `http` fault."""
    status = int(params["status"])
    reason = {403: "forbidden", 409: "alreadyExists", 429: "rateLimitExceeded"}.get(status, "backendError")
    message = str(params.get("message", "The weather is bad."))
    return status, error_document(status, message, str(params.get("reason", reason)))
