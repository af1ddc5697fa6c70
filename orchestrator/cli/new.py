"""`bench new`: a workload of one's own to begin with."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import ConfigError, LocalError
from orchestrator.core.forms.reading import is_module_name
from orchestrator.core.workload import template_text


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the workload: rmsnorm makes rmsnorm.py.")],
    json: Json = False,
) -> None:
    """Write an example kernel that runs, to start your own from.

    One file with no import of ours: axes, inputs, a reference, a baseline and kernels, of which Triton's needs a GPU.
    """
    stem = name.removesuffix(".py")
    if not stem.isidentifier() or keyword.iskeyword(stem):
        raise ConfigError(
            f"not a valid name for a Python file: {name!r}", hint="use letters, digits and _, beginning with a letter"
        )
    if is_module_name(stem) or importlib.util.find_spec(stem) is not None:
        raise ConfigError(
            f"{stem} is the name of a module: {stem}.py would be imported in its place", hint=f"bench new my_{stem}"
        )
    path = Path(f"{stem}.py")
    try:
        file = path.open("x", encoding="utf-8")
        try:
            with file:
                file.write(template_text(stem))
        except BaseException:
            path.unlink(missing_ok=True)  # half a file would be in the way of the next try
            raise
    except FileExistsError as exc:
        raise ConfigError(f"{path} exists already", hint="choose another name, or move it away") from exc
    except OSError as exc:
        hint = "check your permissions on this folder, and that the disk is not full"
        raise LocalError(f"cannot write {path}: {exc.strerror}", hint=hint) from exc
    message = f"wrote {path}; next: bench launch {path}    or: bench launch {path} --gpu l4"
    print_answer({"schema": 1, "path": str(path)}, message, json=json)
