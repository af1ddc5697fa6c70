"""The one JSON document of `--json`: what a command found, or else the error that stood in its way."""

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
    """The document where one was asked for; else the lines, for a person."""
    if json:
        emit_json(document)
        return
    for line in lines:
        typer.echo(line)


def error_document(kind: str, message: str, hint: str, exit_code: int) -> dict[str, Any]:
    """An error as a script reads it; `kind` is the class of it, and goes with the exit code."""
    return {"schema": 1, "error": {"kind": kind, "message": message, "hint": hint or None, "exit_code": exit_code}}


def answer_with(kind: str, message: str, hint: str, exit_code: int) -> None:
    """The error as the document, unless the command has printed one already: there is never a second."""
    if not ANSWERED.get():
        emit_json(error_document(kind, message, hint, exit_code))
