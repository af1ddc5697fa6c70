"""A program that measures itself: a description in YAML with a `command`. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.core import yamltext
from orchestrator.core.forms.needs import NOTHING, Needs, needs
from orchestrator.core.forms.reading import Description

FORMATS: Final = ("nvbench", "google-benchmark", "pytest-benchmark", "hyperfine", "csv")
KEYS: Final = ("command", "build", "build_limit_s", "format", "limit_s", "output", "requirements", "apt")
HINT: Final = "docs/forms/program.md says what such a description holds"


@dataclass(frozen=True, slots=True)
class Program:
    """`command` and `build` are lines for /bin/sh, run in the description's folder. `output` is the file that results
    are read from; empty: what the command prints."""

    command: str
    build: str
    format: str
    output: str
    build_limit_s: float
    limit_s: float
    needs: Needs = NOTHING
    """Packages only: it builds by itself, in a phase of its own."""


def is_program(text: str) -> bool:
    """Whether a YAML document describes a program, and is no configuration of a run."""
    data = yamltext.read(text).data
    return isinstance(data, dict) and "command" in data and "gpu" not in data


def program(text: str, file: str) -> Program:
    """The program that `text` describes. Raises `ConfigError` with file and line."""
    told = Description.read(text, file, HINT, KEYS)
    kind = told.text("format")
    if kind not in FORMATS:
        raise told.wrong(f"format {kind!r} is not one of {', '.join(FORMATS)}", "format")
    output = PurePosixPath(told.text("output")) if "output" in told.data else None
    if output is not None and (output.is_absolute() or ".." in output.parts):
        raise told.wrong(f"output: {output} must lie below the program's folder", "output")
    return Program(
        command=told.text("command"),
        build=told.text("build") if "build" in told.data else "",
        format=kind,
        output="" if output is None else str(output),
        build_limit_s=told.positive("build_limit_s", 300),
        limit_s=told.positive("limit_s", 600),
        needs=needs({key: told.data[key] for key in ("requirements", "apt") if key in told.data}, told.wrong),
    )


def as_json(read: Program, name: str) -> dict[str, Any]:
    """What the machine that measures is told."""
    told = {"schema": 1, "name": name, **asdict(read)}
    del told["needs"]
    return told
