"""Converts Google's messages into bench's types."""

from __future__ import annotations

import re
from typing import Any, Final

import google.api_core.exceptions as api
from google.cloud import compute_v1

from orchestrator.adapters.google.compute_faults import ComputeFault
from orchestrator.adapters.google.compute_json import instance_from_json as from_json
from orchestrator.adapters.google.compute_json import parse_time
from orchestrator.core.market.machines import Instance, Operation

STATUS: Final = {
    int(compute_v1.Operation.Status.PENDING): "PENDING",
    int(compute_v1.Operation.Status.RUNNING): "RUNNING",
    int(compute_v1.Operation.Status.DONE): "DONE",
}

_REQUEST: Final = re.compile(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ")
"""The client puts the request before the server's words; a person needs the words."""


def to_instance(found: compute_v1.Instance) -> Instance:
    """A VM, from the client's message."""
    return from_json(compute_v1.Instance.to_dict(found, preserving_proto_field_name=False))


def to_operation(found: compute_v1.Operation) -> Operation:
    messages = [found.status_message, *(f"{error.code}: {error.message}" for error in found.error.errors)]
    return Operation(
        kind=found.operation_type,
        status=status_name(found),
        started_at=parse_time(found.start_time) or parse_time(found.insert_time),
        ended_at=parse_time(found.end_time),
        user=found.user,
        message="; ".join(part for part in messages if part),
    )


def status_name(found: compute_v1.Operation) -> str:
    """`PENDING`, `RUNNING` or `DONE`; a number when Google has a new word."""
    value = int(found.status)
    return STATUS.get(value, str(value))


def operation_faults(found: compute_v1.Operation) -> tuple[ComputeFault, ...]:
    """What a finished operation failed of; empty when it succeeded.

    Some failures carry only `error.errors`, some only the HTTP fields, so both are looked at.
    """
    status = int(found.http_error_status_code)
    listed = tuple(_fault(error, status) for error in found.error.errors)
    if listed or status < 400:
        return listed
    return (
        ComputeFault(
            code=found.http_error_message or f"HTTP {status}", message=found.http_error_message, http_status=status
        ),
    )


def _fault(error: compute_v1.Errors, status: int) -> ComputeFault:
    reason, metric, message = "", "", error.message
    metadata: dict[str, str] = {}
    dimensions: dict[str, str] = {}
    for detail in error.error_details:
        if detail.error_info.reason:
            reason, metadata = detail.error_info.reason, dict(detail.error_info.metadatas)
        if detail.quota_info.metric_name:
            metric, dimensions = detail.quota_info.metric_name, dict(detail.quota_info.dimensions)
        if detail.localized_message.message and detail.localized_message.message not in message:
            message = f"{message} {detail.localized_message.message}".strip()
    return ComputeFault(error.code, message, reason, metadata, metric, dimensions, status)


def fault_of(exc: api.GoogleAPICallError) -> ComputeFault:
    """The same of an HTTP error: of its first entry, with the `ErrorInfo` of its details."""
    entries: list[dict[str, Any]] = [error for error in exc.errors if isinstance(error, dict)]
    code = str(entries[0].get("reason", "")) if entries else ""
    return ComputeFault(
        code=code or exc.reason or f"HTTP {exc.code}",
        message=_REQUEST.sub("", exc.message or ""),
        reason=exc.reason or "",
        metadata={str(key): str(value) for key, value in (exc.metadata or {}).items()},
        http_status=int(exc.code or 0),
    )
