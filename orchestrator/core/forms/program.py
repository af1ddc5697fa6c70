"""Reads the description of a program that measures itself: YAML with a `command`. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.core import yamltext
from orchestrator.core.forms.reading import NOTHING, Description, WorkloadNeeds, parse_needs

FORMATS: Final = ("nvbench", "google-benchmark", "pytest-benchmark", "hyperfine", "csv")
KEYS: Final = (
    "command", "build", "build_limit_s", "format", "implementation", "limit_s", "output", "requirements", "apt",
    "gpus",
)  # fmt: skip
HINT: Final = "`bench docs forms/program` says what such a description holds"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that measures itself. `command` and `build` are lines for /bin/sh, run in the description's folder.
    `output` is the file from which results are read; empty: they are read from what the command prints.
    `implementation` is an axis, or a pattern with one group, that names implementations; empty: what the format calls
    one."""

    command: str
    build: str
    format: str
    output: str
    build_limit_s: float
    limit_s: float
    implementation: str = ""
    gpus: int = 0
    """How many GPUs it needs at once; 0: it does not say, and sees all."""
    needs: WorkloadNeeds = NOTHING
    """Packages only: the program is built by `build`, in a phase of its own."""


def is_program(text: str) -> bool:
    """Whether a YAML document describes a program and is not the configuration of a run."""
    data = yamltext.read_yaml(text).data
    return isinstance(data, dict) and "command" in data and "gpu" not in data


def parse_program(text: str, file: str) -> Program:
    """The program that `text` describes. Raises `ConfigError` with file and line."""
    description = Description.read(text, file, HINT, KEYS)
    kind = description.text("format")
    if kind not in FORMATS:
        raise description.wrong(f"format {kind!r} is not one of {', '.join(FORMATS)}", "format")
    output = PurePosixPath(description.text("output")) if "output" in description.data else None
    if output is not None and (output.is_absolute() or ".." in output.parts):
        raise description.wrong(f"output: {output} must lie below the program's folder", "output")
    return Program(
        command=description.text("command"),
        build=description.text("build") if "build" in description.data else "",
        format=kind,
        output="" if output is None else str(output),
        build_limit_s=description.positive("build_limit_s", 300),
        limit_s=description.positive("limit_s", 600),
        implementation=_implementation(description),
        gpus=_gpus(description),
        needs=parse_needs(
            {key: description.data[key] for key in ("requirements", "apt") if key in description.data},
            description.wrong,
        ),
    )


def _implementation(description: Description) -> str:
    if "implementation" not in description.data:
        return ""
    named = description.text("implementation")
    if "(" in named:
        try:
            groups = re.compile(named).groups
        except re.error as exc:
            raise description.wrong(f"implementation: {named!r} is not a pattern: {exc}", "implementation") from exc
        if groups != 1:
            what = f"implementation: {named!r} must have one group, the implementation's name, and has {groups}"
            raise description.wrong(what, "implementation")
    return named


def _gpus(description: Description) -> int:
    gpus = description.data.get("gpus", 0)
    if "gpus" in description.data and (isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= 16):
        raise description.wrong(f"gpus must be a whole number from 1 to 16, not {gpus!r}", "gpus")
    return int(gpus)


def as_json(program: Program, name: str) -> dict[str, Any]:
    """The program as JSON data for the machine that measures."""
    fields = {"schema": 1, "name": name, **asdict(program)}
    del fields["needs"]
    return fields
