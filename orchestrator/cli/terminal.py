"""Standard output and error that ignore failed writes: if nobody reads them, or the disk is full, the command first
finishes its work (a machine is deleted, a hold released) and then reports the failure and sets the exit code."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import select
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import typer

from orchestrator.core.errors import BenchError, DocumentUnreadable
from orchestrator.core.text import count, fold_lines, log_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from orchestrator.cli import documents as documents
    from orchestrator.cli.shapes import ErrorDocument
else:

    class _Documents:
        """The models of `orchestrator.cli.documents`, which is loaded when the first of them is needed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("orchestrator.cli.documents"), name)

    documents = _Documents()


# Output for terminals and pipes whose locale lacks some of bench's characters, such as ISO-8859-1 or plain C.


HANDLER: Final = "spotbench"
INSTEAD: Final[Mapping[str, str]] = {
    "×": "x", "µ": "u", "…": "...", "→": "->", "·": "-", "±": "+-", "≤": "<=", "≥": ">=", "–": "-", "—": "-",
    "−": "-", "━": "-", "╸": "-", "╺": "-", "✓": "+", "✗": "x",
}  # fmt: skip
"""The replacements for characters that a locale may lack; any other such character becomes a question mark."""


def instead(error: UnicodeError) -> tuple[str, int]:
    """The replacement in ASCII for characters that could not be written, and the position at which to continue."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(INSTEAD.get(one, "?") for one in error.object[error.start : error.end]), error.end


def in_any_locale(*streams: object) -> None:
    """Makes the streams write characters that their encoding lacks in ASCII instead of raising."""
    codecs.register_error(HANDLER, instead)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


READER_LEFT: Final = 141
"""The exit code of a program that a shell sees ended by SIGPIPE."""


def columns(stream: Any) -> int | None:
    """The width of the terminal that a stream leads to; None where it leads elsewhere, and lines have no limit."""
    try:
        if stream is None or not stream.isatty():
            return None
        columns_text = os.environ.get("COLUMNS", "")
        return (
            int(columns_text)
            if columns_text.isdecimal() and int(columns_text)
            else os.get_terminal_size(stream.fileno()).columns or None
        )
    except (OSError, ValueError):
        return None


def hanging(text: str, *, err: bool = False, indent: int = 8) -> str:
    """Text for standard output, or error: in a terminal, the lines indented in which it goes on."""
    return fold_lines(text, columns(sys.stderr if err else sys.stdout), indent)


class Enduring(io.FileIO):
    """A stream that discards what is written once writing to it has failed."""

    lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            self.lost = self.lost or exc
            _lead_nowhere(self.fileno())
            return memoryview(data).nbytes


def _lead_nowhere(number: int) -> None:
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)


def endure() -> None:
    """Puts such streams in the place of this process's own. One that was closed leads nowhere: else its number would be
    that of the next file or connection, and what is printed would go there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _lead_nowhere(number)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, io.TextIOWrapper):
            continue  # somebody else's, who reads it
        made = io.TextIOWrapper(
            io.BufferedWriter(Enduring(number, "w", closefd=False)),
            encoding=stream.encoding if stream else "utf-8",
            errors=stream.errors if stream else "replace",
            line_buffering=number == 2 or stream is None or stream.line_buffering or stream.write_through,
        )
        if stream is not None:
            stream.flush()
        setattr(sys, name, made)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - for as long as this process lives


def output_error(stream: object) -> OSError | None:
    """The error because of which the stream discards its output; None as long as writing has not failed."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.lost if isinstance(raw, Enduring) else None


def is_stdout_closed() -> bool:
    """Whether nobody hears any more what goes to standard output. Of a pipe this is known before anything is written:
    what follows a run, and has nothing to say for minutes, need not wait for that."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, Enduring):
        return False
    if raw.lost is None:
        poll = select.poll()
        poll.register(raw.fileno(), 0)
        if any(happened & select.POLLERR for _, happened in poll.poll(0)):
            raw.lost = BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    return raw.lost is not None


class Unheard(threading.Event):
    """Becomes true at the latest when nobody reads standard output."""

    def is_set(self) -> bool:
        return super().is_set() or is_stdout_closed()


# The one JSON document that a command prints with `--json`: its result, or the error that prevented one.


ANSWERED: ContextVar[bool] = ContextVar("answered", default=False)
"""Whether this command has printed its document."""


def emit_json(document: Any) -> None:
    """One JSON document on standard output, and nothing else there: a model of `documents`, or plain values."""
    ANSWERED.set(True)
    typer.echo(json.dumps(document, indent=2, default=to_plain))


def to_plain(value: Any) -> Any:
    """A value as `json` takes it: the fields of a model that are set, the text of anything else."""
    return value.model_dump(by_alias=True, exclude_unset=True) if hasattr(value, "model_dump") else str(value)


def print_answer(document: Any, *parts: str | RenderableType, json: bool) -> None:
    """Prints the document if JSON was asked for, otherwise the parts: lines, and what a screen prints. A function makes
    its document only then."""
    if json:
        emit_json(document() if callable(document) else document)
        return
    for part in parts:
        if isinstance(part, str):
            typer.echo(part)
        else:
            import_module("orchestrator.cli.screen").screen().print(part)


def error_document(kind: str, message: str, hint: str, exit_code: int) -> ErrorDocument:
    """An error as a document; `kind` is its class, which determines the exit code."""
    return {"schema": 1, "error": {"kind": kind, "message": message, "hint": hint or None, "exit_code": exit_code}}


def answer_with(kind: str, message: str, hint: str, exit_code: int) -> None:
    """Prints the error as the document, unless the command has already printed one."""
    if not ANSWERED.get():
        emit_json(error_document(kind, message, hint, exit_code))


def note(text: str) -> None:
    typer.echo(hanging(f"note: {log_text(text)}", err=True, indent=6), err=True)


def raise_unread(left_out: Mapping[str, str], first: BenchError | None = None) -> None:
    """Names each object that was left out, and ends the command with the code for it; `first` goes before, where
    something worse has happened."""
    for text in left_out.values():
        note(text)
    if first is not None:
        raise first
    if left_out:
        objects = count(len(left_out), "object")
        raise DocumentUnreadable(
            (f"{objects} could not be read; everything else was done"), hint="the notes above name each"
        )
