"""Reads a problem in GPU MODE's form: a folder with `task.yml`, `reference.py` and submissions. Pure.

The machine that measures has no YAML reader, so what it needs of `task.yml` is sent as JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.reading import Description, NotPython, bound_names, parse_python
from orchestrator.core.text import count
from orchestrator.core.workload import case_id

TASK_FILES: Final = ("task.yml", "task.yaml")
KEYS: Final = (
    "files", "lang", "description", "config", "templates", "tests", "benchmarks", "test_timeout", "benchmark_timeout",
    "ranked_timeout", "ranking_by", "multi_gpu", "libraries", "seed", "name", "gpus",
)  # fmt: skip
SUBMISSION: Final = "@SUBMISSION@"
REFERENCE: Final = "reference.py"
BASELINE: Final = "reference"
SEED: Final = "seed"
HINT: Final = "`bench docs forms/gpu-mode` says what is read of a GPU MODE problem"
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
RANKINGS: Final = ("none", "last", "mean", "geom")
UNUSED: Final = ("config", "test_timeout", "benchmark_timeout", "ranked_timeout", "gpus", "libraries")
USUAL_CONFIG: Final = {"main": "eval.py"}
NEEDED: Final = ("generate_input", "ref_kernel", "check_implementation")
FARTHEST: Final = 2
"""How many folders above the problem's folder a shared file may be."""

Case = Mapping[str, Any]
"""Arguments of `generate_input` by name: numbers, texts, lists of these, and None for an argument that is not
passed."""


@dataclass(frozen=True, slots=True)
class GpuModeTask:
    """The contents of `task.yml`. `cases` are measured and `tests` are only checked, both without their public seeds.
    `files` are paths relative to the problem's folder, by the names under which its modules import them. `notes` say
    what is not used."""

    cases: tuple[Case, ...]
    tests: tuple[Case, ...]
    files: Mapping[str, str]
    templates: frozenset[str]
    notes: tuple[str, ...]
    ranking: str = ""
    """How the times of the cases make a score (`last`, `mean`, `geom`); empty for no score."""

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The ids that the harness gives the cases."""
        return tuple(case_id(case) for case in self.cases)


def parse_task(text: str, file: str) -> GpuModeTask:
    """The task in `text`. Raises `ConfigError` with file and line."""
    description = Description.read(text, file, HINT, KEYS)
    lang = description.text("lang", "py")
    if lang != "py":
        what = (
            f"lang {lang!r}: such a submission is compiled with GPU MODE's own C++ evaluator; only py is measured as a "
            "problem. A program that prints its times can be described in a YAML file (`bench docs forms/program`)"
        )
        raise description.wrong(what, "lang")
    if description.data.get("multi_gpu"):
        what = "multi_gpu: the problem's kernels run on several GPUs at once, and a case is measured on one GPU"
        raise description.wrong(what, "multi_gpu")
    ranking = description.text("ranking_by", "none")
    if ranking not in RANKINGS:
        raise description.wrong(f"ranking_by {ranking!r} is not one of {', '.join(RANKINGS)}", "ranking_by")
    listed = {key: _cases(description, key) for key in ("benchmarks", "tests")}
    if not listed["benchmarks"]:
        raise description.wrong("there are no benchmarks: a list of the arguments of generate_input", "benchmarks")
    names = dict.fromkeys(name for cases in listed.values() for case in cases for name in case)
    full = {key: [{name: case.get(name) for name in names} for case in cases] for key, cases in listed.items()}
    cases, repeated = _distinct(full["benchmarks"], [])
    tests, tested = _distinct(full["tests"], cases)
    _unique_ids(description, (*cases, *tests))
    return GpuModeTask(
        cases,
        tests,
        _files(description),
        _templates(description),
        tuple(_unused(description, {"benchmarks": repeated, "tests": tested})),
        "" if ranking == "none" else ranking,
    )


def _cases(description: Description, key: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = []
    for index, arguments in enumerate(description.listed(key)):
        if not isinstance(arguments, dict):
            raise description.wrong(f"{key}[{index}] must be a mapping of arguments, not {arguments!r}", key, index)
        for name, value in arguments.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise description.wrong(f"{key}[{index}]: {name!r} is no name of an argument", key, index)
            items = value if isinstance(value, list) and value else [value]
            if not all(isinstance(item, (str, int, float, bool)) for item in items):
                what = f"{key}[{index}]: {name} must be a number, text, or a list of these, not {value!r}"
                raise description.wrong(what, key, index)
        cases.append({name: value for name, value in arguments.items() if name != SEED})
    return cases


def _distinct(cases: Sequence[Case], before: Sequence[Case]) -> tuple[tuple[Case, ...], int]:
    """Return the cases without those that are among `before` or come earlier, and how many that leaves out."""
    kept: list[Case] = []
    for case in cases:
        if not any(_same(case, other) for other in (*before, *kept)):
            kept.append(case)
    return tuple(kept), len(cases) - len(kept)


def _same(a: Case, b: Case) -> bool:
    return json.dumps(a) == json.dumps(b)  # 1, 1.0 and true are different arguments


def _unique_ids(description: Description, cases: Sequence[Case]) -> None:
    ids = [case_id(case) for case in cases]
    for identity in ids:
        if ids.count(identity) > 1:
            raise description.wrong(f"two cases would both be called {identity}: change one's arguments", "benchmarks")


def _unused(description: Description, repeated: Mapping[str, int]) -> Iterator[str]:
    """Yield what the run does not use of the task."""
    for key, times in repeated.items():
        if times:
            kind = key.removesuffix("s")
            yield (
                f"{description.file}: {times} of {count(len(description.listed(key)), kind)} "
                f"{'repeats' if times == 1 else 'repeat'} a test or benchmark with another seed: judged once, with "
                "seeds of the judge's own"
            )
    unused = [key for key in UNUSED if description.data.get(key, USUAL_CONFIG) != USUAL_CONFIG]
    if unused:
        yield f"{description.file}: not used: {', '.join(unused)} (the run has its own limits and machine)"


def _files(description: Description) -> dict[str, str]:
    files: dict[str, str] = {}
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
        files[str(name)] = str(source)
    return files


def _templates(description: Description) -> frozenset[str]:
    templates = description.data.get("templates", {})
    if not isinstance(templates, dict):
        raise description.wrong("templates must be a mapping of languages to files", "templates")
    return frozenset(str(one) for one in templates.values())


@dataclass(frozen=True, slots=True)
class Submissions:
    """The paths of the submissions of a folder, and of the templates that are not measured."""

    paths: tuple[str, ...]
    templates: tuple[str, ...]


def find_submissions(sources: Mapping[str, str], task: GpuModeTask) -> Submissions:
    """Return the submissions among `sources` (Python texts by their paths in the folder): files that define
    `custom_kernel` and are none of the problem's own files. There may be none; then `ref_kernel` is measured alone.
    Raises `ConfigError` if a source is not valid Python, or if the reference is not of this form."""
    bound = {}
    for path, text in sources.items():
        try:
            bound[path] = dict(bound_names(parse_python(text).body))
        except NotPython as exc:
            raise ConfigError(f"{path}:{exc.line}: {exc}", hint=HINT) from exc
    if missing := [name for name in NEEDED if name not in bound.get(REFERENCE, dict.fromkeys(NEEDED))]:
        functions = [name for name, node in bound[REFERENCE].items() if isinstance(node, ast.FunctionDef)]
        raise ConfigError(
            f"{REFERENCE}:1: there is no function {missing[0]}(…); it has {', '.join(functions) or 'none'}. The "
            "problem is of another form, with an evaluator of its own",
            hint=f"a problem needs {', '.join(NEEDED)} in {REFERENCE}: {HINT}",
        )
    problem_files = {REFERENCE, *task.files, *task.files.values()}
    defining = [path for path, names in bound.items() if path not in problem_files and "custom_kernel" in names]
    stubs = {path for path in defining if path in task.templates and _is_stub(bound[path]["custom_kernel"])}
    named = {path for path in defining if path in task.templates and PurePosixPath(path).stem.startswith("template")}
    # What task.yml calls a template is also what GPU MODE's users edit: it is left out only if something else is there.
    templates = stubs | named if set(defining) - stubs - named else stubs
    return Submissions(
        tuple(path for path in defining if path not in templates), tuple(path for path in defining if path in templates)
    )


def _is_stub(node: ast.stmt) -> bool:
    """Return whether a function consists of nothing but a docstring, `pass`, `...` and a `raise`."""
    return isinstance(node, ast.FunctionDef) and all(
        isinstance(part, (ast.Pass, ast.Raise)) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in node.body
    )


def as_json(task: GpuModeTask, paths: Sequence[str], name: str) -> dict[str, Any]:
    """Return the problem as JSON data for the machine that measures. A submission has the name of its file; if two
    files have the same name, or one has the baseline's, the names include their folders. Raises `ConfigError` if two
    names are equal even so."""
    stems = [PurePosixPath(path).stem for path in paths]
    names: dict[str, str] = {}
    for stem, path in zip(stems, paths, strict=True):
        alone = stems.count(stem) == 1 and stem != BASELINE
        called = stem if alone else re.sub(r"\W", "_", str(PurePosixPath(path).with_suffix("")))
        if called in (*names, BASELINE):
            other = names.get(called, f"the baseline {BASELINE}")
            raise ConfigError(f"{path}: it would have the same name as {other}: {called}", hint="rename the file")
        names[called] = path
    return {
        "schema": 1,
        "name": name,
        "cases": [dict(case) for case in task.cases],
        "tests": [dict(case) for case in task.tests],
        "submissions": names,
        "ranking": task.ranking,
    }
