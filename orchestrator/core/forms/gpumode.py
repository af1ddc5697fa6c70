"""A problem in GPU MODE's form: a folder with `task.yml`, `reference.py` and submissions. Pure.

The machine that measures has no YAML reader, so what it needs of `task.yml` goes there as JSON.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.python import NotPython, parsed
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
"""So many folders up a shared file may lie."""

Case = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Task:
    """What `task.yml` says. `cases` are measured and `tests` only judged, both without their public seeds; `files` are
    paths relative to the problem's folder, by the names that its modules import them by."""

    cases: tuple[Case, ...]
    tests: tuple[Case, ...]
    files: Mapping[str, str]
    templates: frozenset[str]
    limit_s: float

    @property
    def case_ids(self) -> tuple[str, ...]:
        """What the harness will call the cases."""
        return tuple(case_id(case) for case in self.cases)


def task(text: str, file: str) -> Task:
    """The task in `text`. Raises `ConfigError` with file and line."""
    told = Description.read(text, file, HINT, KEYS)
    lang = told.text("lang", "py")
    if lang != "py":
        what = f"lang {lang!r} is built by GPU MODE's own evaluator; only py can be measured here"
        raise told.wrong(what, "lang")
    if told.data.get("multi_gpu"):
        raise told.wrong("multi_gpu: only problems for one GPU can be measured here", "multi_gpu")
    cases = _cases(told, "benchmarks")
    if not cases:
        raise told.wrong("there are no benchmarks: a list of the arguments of generate_input", "benchmarks")
    if any(set(case) != set(cases[0]) for case in cases):
        raise told.wrong("every benchmark must have the same arguments", "benchmarks")
    tests = tuple(case for case in _cases(told, "tests") if set(case) == set(cases[0]) and case not in cases)
    return Task(cases, tests, _files(told), _templates(told), told.positive("ranked_timeout", 180.0))


def _cases(told: Description, key: str) -> tuple[Case, ...]:
    found: list[Case] = []
    for at, one in enumerate(told.listed(key)):
        if not isinstance(one, dict):
            raise told.wrong(f"{key}[{at}] must be a mapping of arguments, not {one!r}", key, at)
        for name, value in one.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise told.wrong(f"{key}[{at}]: {name!r} is no name of an argument", key, at)
            if not isinstance(value, (str, int, float, bool)):
                raise told.wrong(f"{key}[{at}]: {name} must be a number or text, not {value!r}", key, at)
        case = {name: value for name, value in one.items() if name != SEED}
        if case not in found:
            found.append(case)
    return tuple(found)


def _files(told: Description) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, one in enumerate(told.listed("files")):
        if (
            not isinstance(one, dict)
            or set(one) != {"name", "source"}
            or not all(isinstance(v, str) for v in one.values())
        ):
            raise told.wrong(f"files[{at}] must have a name and a source", "files", at)
        if one["source"] == SUBMISSION:
            continue
        source, name = PurePosixPath(one["source"]), PurePosixPath(one["name"])
        ups = [part == ".." for part in source.parts]
        if source.is_absolute() or sum(ups) > FARTHEST or ups != sorted(ups, reverse=True):
            raise told.wrong(f"files[{at}]: {source} is outside of the folders that may be read", "files", at)
        if name.is_absolute() or ".." in name.parts:
            raise told.wrong(f"files[{at}]: {name} must be a name below the problem's folder", "files", at)
        found[str(name)] = str(source)
    return found


def _templates(told: Description) -> frozenset[str]:
    templates = told.data.get("templates", {})
    if not isinstance(templates, dict):
        raise told.wrong("templates must be a mapping of languages to files", "templates")
    return frozenset(str(one) for one in templates.values())


def submissions(sources: Mapping[str, str], read: Task) -> tuple[str, ...]:
    """Of Python sources, by their paths in the folder, those that define `custom_kernel` and are neither a template nor
    one of the problem's own files. Raises `ConfigError` where there is none, or a source is no Python."""
    own = {REFERENCE, *read.files.values(), *read.templates}
    found = []
    for path, text in sources.items():
        try:
            tree = parsed(text)
        except NotPython as exc:
            raise ConfigError(f"{path}:{exc.line}: {exc}", hint=HINT) from exc
        if path not in own and "custom_kernel" in set(_bound(tree)):
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


def as_json(read: Task, found: tuple[str, ...], name: str) -> dict[str, Any]:
    """What the machine that measures is told of the problem. A submission is called by its file's name, with its
    folder's before it where two have the same."""
    stems = [PurePosixPath(path).stem for path in found]
    names = {
        (stem if stems.count(stem) == 1 else re.sub(r"\W", "_", str(PurePosixPath(path).with_suffix("")))): path
        for stem, path in zip(stems, found, strict=True)
    }
    return {
        "schema": 1,
        "name": name,
        "cases": [dict(case) for case in read.cases],
        "tests": [dict(case) for case in read.tests],
        "submissions": names,
    }
