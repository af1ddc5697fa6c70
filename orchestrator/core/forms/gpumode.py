"""Reads a problem in GPU MODE's form: a folder with `task.yml`, `reference.py` and submissions. Pure.

The machine that measures has no YAML reader, so what it needs of `task.yml` is sent as JSON.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.reading import NotPython, parse_python
from orchestrator.core.forms.reading import Description
from orchestrator.core.workload import case_id

TASK_FILES: Final = ("task.yml", "task.yaml")
KEYS: Final = (
    "files", "lang", "description", "config", "templates", "tests", "benchmarks", "test_timeout", "benchmark_timeout",
    "ranked_timeout", "ranking_by", "multi_gpu", "libraries", "seed", "name", "gpus",
)  # fmt: skip
SUBMISSION: Final = "@SUBMISSION@"
REFERENCE: Final = "reference.py"
SEED: Final = "seed"
HINT: Final = "docs/forms/gpu-mode.md says what is read of a GPU MODE problem"
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
FARTHEST: Final = 2
"""How many folders above the problem's folder a shared file may be."""

Case = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Task:
    """The contents of `task.yml`. `cases` are measured and `tests` are only checked, both without their public seeds.
    `files` are paths relative to the problem's folder, by the names under which its modules import them. `limit_s` is
    in seconds."""

    cases: tuple[Case, ...]
    tests: tuple[Case, ...]
    files: Mapping[str, str]
    templates: frozenset[str]
    limit_s: float

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The ids that the harness gives the cases."""
        return tuple(case_id(case) for case in self.cases)


def task(text: str, file: str) -> Task:
    """The task in `text`. Raises `ConfigError` with file and line."""
    description = Description.read(text, file, HINT, KEYS)
    lang = description.text("lang", "py")
    if lang != "py":
        what = f"lang {lang!r} is built by GPU MODE's own evaluator; only py can be measured here"
        raise description.wrong(what, "lang")
    if description.data.get("multi_gpu"):
        raise description.wrong("multi_gpu: only problems for one GPU can be measured here", "multi_gpu")
    cases = _cases(description, "benchmarks")
    if not cases:
        raise description.wrong("there are no benchmarks: a list of the arguments of generate_input", "benchmarks")
    if any(set(case) != set(cases[0]) for case in cases):
        raise description.wrong("every benchmark must have the same arguments", "benchmarks")
    tests = tuple(case for case in _cases(description, "tests") if set(case) == set(cases[0]) and case not in cases)
    return Task(
        cases, tests, _files(description), _templates(description), description.positive("ranked_timeout", 180.0)
    )


def _cases(description: Description, key: str) -> tuple[Case, ...]:
    found: list[Case] = []
    for index, arguments in enumerate(description.listed(key)):
        if not isinstance(arguments, dict):
            raise description.wrong(f"{key}[{index}] must be a mapping of arguments, not {arguments!r}", key, index)
        for name, value in arguments.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise description.wrong(f"{key}[{index}]: {name!r} is no name of an argument", key, index)
            if not isinstance(value, (str, int, float, bool)):
                raise description.wrong(f"{key}[{index}]: {name} must be a number or text, not {value!r}", key, index)
        case = {name: value for name, value in arguments.items() if name != SEED}
        if case not in found:
            found.append(case)
    return tuple(found)


def _files(description: Description) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, entry in enumerate(description.listed("files")):
        if (
            not isinstance(entry, dict)
            or set(entry) != {"name", "source"}
            or not all(isinstance(v, str) for v in entry.values())
        ):
            raise description.wrong(f"files[{index}] must have a name and a source", "files", index)
        if entry["source"] == SUBMISSION:
            continue
        source, name = PurePosixPath(entry["source"]), PurePosixPath(entry["name"])
        ups = [part == ".." for part in source.parts]
        if source.is_absolute() or sum(ups) > FARTHEST or ups != sorted(ups, reverse=True):
            raise description.wrong(
                f"files[{index}]: {source} is outside of the folders that may be read", "files", index
            )
        if name.is_absolute() or ".." in name.parts:
            raise description.wrong(f"files[{index}]: {name} must be a name below the problem's folder", "files", index)
        found[str(name)] = str(source)
    return found


def _templates(description: Description) -> frozenset[str]:
    templates = description.data.get("templates", {})
    if not isinstance(templates, dict):
        raise description.wrong("templates must be a mapping of languages to files", "templates")
    return frozenset(str(one) for one in templates.values())


def submissions(sources: Mapping[str, str], task: Task) -> tuple[str, ...]:
    """The paths of the submissions among `sources` (Python texts by their paths in the folder): files that define
    `custom_kernel` and are neither a template nor one of the problem's own files. Raises `ConfigError` if there is
    none, or if a source is not valid Python."""
    problem_files = {REFERENCE, *task.files.values(), *task.templates}
    found = []
    for path, text in sources.items():
        try:
            tree = parse_python(text)
        except NotPython as exc:
            raise ConfigError(f"{path}:{exc.line}: {exc}", hint=HINT) from exc
        if path not in problem_files and "custom_kernel" in set(_bound(tree)):
            found.append(path)
    if not found:
        raise ConfigError("no file defines custom_kernel(data): there is no submission", hint=HINT)
    return tuple(found)


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (one.id for one in node.targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (one.asname or one.name for one in node.names)


def as_json(task: Task, paths: tuple[str, ...], name: str) -> dict[str, Any]:
    """The problem as JSON data for the machine that measures. A submission has the name of its file; if two files have
    the same name, the names include their folders."""
    stems = [PurePosixPath(path).stem for path in paths]
    names = {
        (stem if stems.count(stem) == 1 else re.sub(r"\W", "_", str(PurePosixPath(path).with_suffix("")))): path
        for stem, path in zip(stems, paths, strict=True)
    }
    return {
        "schema": 1,
        "name": name,
        "cases": [dict(case) for case in task.cases],
        "tests": [dict(case) for case in task.tests],
        "submissions": names,
    }
