"""The one JSON document that a command prints with `--json`: its result, or the error that prevented one."""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import Any

import typer

ANSWERED: ContextVar[bool] = ContextVar("answered", default=False)
"""Whether this command has printed its document."""


def emit_json(document: Any) -> None:
    """One JSON document on standard output, and nothing else there."""
    ANSWERED.set(True)
    typer.echo(json.dumps(document, indent=2, default=str))


def answer(document: Any, *lines: str, json: bool) -> None:
    """Prints the document if JSON was asked for, otherwise the lines."""
    if json:
        emit_json(document)
        return
    for line in lines:
        typer.echo(line)


def error_document(kind: str, message: str, hint: str, exit_code: int) -> dict[str, Any]:
    """An error as a document; `kind` is its class, which determines the exit code."""
    return {"schema": 1, "error": {"kind": kind, "message": message, "hint": hint or None, "exit_code": exit_code}}


def answer_with(kind: str, message: str, hint: str, exit_code: int) -> None:
    """Prints the error as the document, unless the command has already printed one."""
    if not ANSWERED.get():
        emit_json(error_document(kind, message, hint, exit_code))
