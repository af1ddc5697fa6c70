"""Errors in the form of Google's APIs."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Document = dict[str, Any]
"""One JSON object, as the APIs receive and send it."""

REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    501: "notImplemented",
    503: "backendError",
    507: "insufficientStorage",
}


UNWRITTEN = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE}
)
"""SQLite's error codes for a full disk, an exceeded quota, and a limit on the size of files."""
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ALREADY_EXISTS",
    501: "UNIMPLEMENTED",
}


class ApiError(Exception):
    """The HTTP error that a request gets at once, before there is an operation."""

    def __init__(
        self, status: int, message: str, reason: str = "", *, details: list[dict[str, Any]] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or REASONS.get(status, "backendError")
        self.details = details or []

    def document(self) -> dict[str, Any]:
        """The response body."""
        document = error_document(self.status, self.message, self.reason)
        if self.details:
            document["error"] |= {"status": STATUSES[self.status], "details": self.details}
        return document

    def rpc_document(self) -> dict[str, Any]:
        """The response body of a newer API, which has a status word and no list of errors."""
        error = {"code": self.status, "message": self.message, "status": STATUSES[self.status]}
        return {"error": error | ({"details": self.details} if self.details else {})}


def error_document(status: int, message: str, reason: str) -> dict[str, Any]:
    """The response body of an error: `{"error": {"code", "message", "errors": [...]}}`."""
    return {
        "error": {
            "code": status,
            "message": message,
            "errors": [{"message": message, "domain": "global", "reason": reason}],
        }
    }


def not_found(path: str) -> ApiError:
    """The 404 error for the resource at `path` (`projects/...`)."""
    return ApiError(404, f"The resource '{path}' was not found")


def invalid_field(field: str, value: object, why: str) -> ApiError:
    """The 400 error for a field of a request body."""
    return ApiError(400, f"Invalid value for field '{field}': '{value}'. {why}")


@contextmanager
def reading_body(what: str) -> Iterator[None]:
    """A context in which a request body is read. A value of a wrong type raises `ApiError` (400) there."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as exc:
        message = f"Invalid JSON payload received. {what}: {type(exc).__name__}: {exc}"
        raise ApiError(400, message, "badRequest") from exc


def without_nulls(value: Any) -> Any:
    """A JSON value without nulls at any depth: a null means that the field is absent."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value if inner is not None]
    return value


class OperationError(Exception):
    """The error of an operation, which is known only once the operation is done."""

    def __init__(
        self, code: str, message: str, *, http_status: int, http_message: str, details: list[dict[str, Any]]
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status
        self.http_message = http_message
        self.details = details


def stockout_error(
    project: str, zone: str, machine_type: str, attachment: str, zones_available: list[str] | None
) -> OperationError:
    """The error that no machine of this kind is left in the zone."""
    metadatas = {"vmType": machine_type, "attachment": attachment, "zone": zone}
    if zones_available is not None:
        metadatas["zonesAvailable"] = ",".join(zones_available)
    with_gpu = (
        f" with {attachment.partition(':')[2]} {attachment.partition(':')[0]} accelerator(s)" if attachment else ""
    )
    return OperationError(
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request. "
        f"'(resource type:compute)' (state:STOCKOUT).",
        http_status=503,
        http_message="SERVICE UNAVAILABLE",
        details=[
            {
                "help": {
                    "links": [
                        {
                            "description": "Troubleshooting documentation",
                            "url": "https://cloud.google.com/compute/docs/resource-error",
                        }
                    ]
                }
            },
            {
                "localizedMessage": {
                    "locale": "en-US",
                    "message": f"A {machine_type} VM instance{with_gpu} is currently unavailable in the {zone} zone.",
                }
            },
            {
                "errorInfo": {
                    "domain": "compute.googleapis.com",
                    "reason": "resource_availability",
                    "metadatas": metadatas,
                }
            },
        ],
    )


def quota_exceeded(metric: str, limit: float, region: str | None) -> OperationError:
    """The error that a quota is exceeded. `region` is None for a quota of the whole project."""
    where = f"in region {region}" if region else "globally"
    scope = "per-project-region" if region else "per-project"
    return OperationError(
        "QUOTA_EXCEEDED",
        f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}.",
        http_status=403,
        http_message="FORBIDDEN",
        details=[
            {
                "quotaInfo": {
                    "metricName": f"compute.googleapis.com/{metric.lower()}",
                    "limitName": f"{metric.replace('_', '-')}-{scope}",
                    "dimensions": {"region": region} if region else {},
                    "limit": float(limit),
                }
            }
        ],
    )


def no_room(error: BaseException) -> ApiError | None:
    """The answer if `error` means that this computer's disk is full; None for any other error."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or (isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in UNWRITTEN):
        return ApiError(507, "the disk that the embedded cloud keeps its objects on is full")
    return None
