"""Reports what could not be read, after everything else was done or shown: on standard error and by the exit code."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from orchestrator.cli.terminal import hanging
from orchestrator.core.errors import BenchError, DocumentUnreadable
from orchestrator.core.text import count, log_text


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
