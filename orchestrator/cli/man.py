"""`bench man`: the manual page, made of the same words as the help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from orchestrator import __version__
from orchestrator.cli.examples import EXAMPLES
from orchestrator.cli.lazy import describe_parameter, load
from orchestrator.cli.options import Json
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import exit_codes


def man(ctx: typer.Context, json: Json = False) -> None:
    """Print the manual page; to read it: bench man | man -l -"""
    text = page(ctx.find_root().command)
    print_answer({"schema": 1, "format": "roff", "text": text}, text.rstrip("\n"), json=json)


def page(program: Any) -> str:
    """bench(1) in roff: every command with its options and examples, files, environment and exit codes."""
    lines = [
        f'.TH BENCH 1 "" "bench {__version__}" "User Commands"',
        ".SH NAME",
        r"bench \- measure GPU kernels on rented machines, within a budget in dollars",
        ".SH SYNOPSIS",
        r".B bench\fR [\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]",
        ".SH DESCRIPTION",
        *_paragraphs(program.help or ""),
        ".SH OPTIONS",
        *_options(program),
        ".SH COMMANDS",
    ]
    for path, command in commands(program):
        lines += [f".SS bench {_plain(' '.join(path))}", *_paragraphs(command.help or ""), *_options(command)]
        for example, about in EXAMPLES.get(" ".join(path), ()):
            lines += [".PP", "Example:", ".PP", ".nf", f"    {_plain(example)}", ".fi", _plain(about)]
    lines += [".SH ENVIRONMENT"]
    for name, about in ENVIRONMENT.items():
        lines += [".TP", f".B {_plain(name)}", _plain(about)]
    lines += [".SH EXIT STATUS"]
    for code, about in exit_codes().items():
        lines += [".TP", f".B {code}", _plain(about)]
    return "\n".join(lines) + "\n"


ENVIRONMENT = {
    "BENCH_PROJECT, BENCH_BUCKET": "Google Cloud project and bucket; without a project, the embedded cloud.",
    "BENCH_HOME": "Where settings, caches and the embedded cloud are kept.",
    "BENCH_WEATHER": "Faults for the embedded cloud, as a YAML file.",
    "NO_COLOR": "If set, the output has no colours, no bold and no dim text.",
}


def commands(program: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be called, in the order of the help."""
    for name in program.commands:
        yield from _below(load(name), (name,))


def _below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from _below(one, (*path, name))


def _options(command: Any) -> Iterator[str]:
    with typer.Context(command) as ctx:
        for param in command.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                name, about = describe_parameter(record, argument=param.param_type_name == "argument")
                yield from (".TP", f".B {_plain(name)}", _plain(about))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.strip().split("\n\n"):
        yield ".PP"
        yield _plain(" ".join(paragraph.split()))


def _plain(text: str) -> str:
    """Text that roff takes as it is: backslashes, hyphens, and a point or quote at the start of a line."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped
