"""Reads KernelBench problems from their text. A folder with one problem has one case without axes; a folder with
several has one case for each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.reading import NotPython, bound_names, parse_python
from orchestrator.core.text import count

AXIS: Final = "problem"
"""The axis of a folder with several problems."""


GENERATED: Final = re.compile(r"level_\d+_problem_(\d+)_sample_(\d+)_kernel")
"""The names of files that KernelBench's own generator writes."""
HINT: Final = "`bench docs forms/kernelbench` says which files a pair and a suite consist of"


@dataclass(frozen=True, slots=True)
class Suite:
    """The problems of a folder, and what of its files is not measured."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def cases(self) -> tuple[dict[str, Any], ...]:
        """The cases: one without axes, or one for each of several problems."""
        return tuple({AXIS: name} for name in self.problems) if len(self.problems) > 1 else ({},)


def is_of_form(source: bytes) -> bool:
    """Whether a Python file looks like a problem or a candidate. Only words in the source are checked."""
    return b"class ModelNew" in source or (b"class Model" in source and b"def get_inputs" in source)


def suite(sources: Mapping[str, str]) -> Suite:
    """Return the suite in a folder. `sources` has the text of each Python file by its path in the folder. Raises
    `ConfigError` for a file that is not valid Python, and for a candidate whose problem is not clear."""
    classes = {path: _names(path, text) for path, text in sources.items()}
    candidates = [PurePosixPath(path) for path, names in classes.items() if "ModelNew" in names]
    problems = sorted(
        (
            PurePosixPath(path).stem
            for path, names in classes.items()
            if "Model" in names and "ModelNew" not in names and "/" not in path
        ),
        key=in_order,
    )
    if not problems:
        raise ConfigError("no file of the folder has a class Model without a ModelNew", hint=HINT)
    for name in problems:
        if missing := [needed for needed in NEEDED if needed not in classes[f"{name}.py"]]:
            raise ConfigError(f"{name}.py:1: it has a class Model, and there is no {missing[0]}()", hint=HINT)
    deepest = 1 if len(problems) == 1 else 2
    files: dict[tuple[str, str, str], PurePosixPath] = {}
    for path in candidates:
        if len(problems) > 1 and len(path.parts) == 1:
            raise ConfigError(
                f"{path}: there are {count(len(problems), 'problem')}, and it is not clear which one this file solves",
                hint="put it into a folder of its own, under the name of that problem's file",
            )
        if len(problems) > 1 and len(path.parts) == deepest:
            solved = _solved(path.stem, problems)
            if solved is None:
                raise ConfigError(f"{path}: no problem of the suite has that name", hint=HINT)
            other = files.setdefault((path.parts[0], *solved), path)
            if other is not path:
                raise ConfigError(f"{path}: {other} is for the same problem, {solved[0]}", hint="keep one of them")
    deeper = [str(path) for path in candidates if len(path.parts) > deepest]
    notes = [f"not measured: {', '.join(deeper[:LISTED])}: ModelNew is looked for {WHERE[deepest]}"] if deeper else []
    return Suite(tuple(problems), tuple(notes))


NEEDED: Final = ("get_inputs", "get_init_inputs")
LISTED: Final = 8
WHERE: Final = {1: "beside the problem", 2: "in the folders of the suite, and not below these"}


def _solved(stem: str, problems: Sequence[str]) -> tuple[str, str] | None:
    """Return the problem that a candidate's file is for, and its sample; None if there is no such problem."""
    if stem in problems:
        return stem, "0"
    generated = GENERATED.fullmatch(stem)
    named = [name for name in problems if generated and name.split("_")[0] == generated[1]]
    return (named[0], generated[2]) if generated and named else None


def _names(path: str, text: str) -> set[str]:
    """Return the names that a file binds at its top level."""
    try:
        return {name for name, _ in bound_names(parse_python(text).body)}
    except NotPython as exc:
        raise ConfigError(f"{path}:{exc.line}: {exc}", hint=HINT) from exc


def in_order(name: str) -> tuple[int, str]:
    """The sort key of a name: first the number that it begins with, so that 2 comes before 10."""
    number = re.match(r"\d+", name)
    return int(number[0]) if number else 0, name
