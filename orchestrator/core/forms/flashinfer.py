"""Reads a trace set in FlashInfer-Bench's form: a folder with `definitions/`, `solutions/` and `workloads/`. Pure.

A definition says what is computed, a workload gives its variable axes values and says where inputs come from, and a
solution is the source of a kernel. Each workload is a case.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.reading import NotPython, imported_modules, parse_python
from orchestrator.core.text import count
from orchestrator.core.workload import case_id

FOLDERS: Final = {"definitions": ".json", "solutions": ".json", "workloads": ".jsonl"}
"""The folders of a trace set that are read, and how their files end."""
HINT: Final = "`bench docs forms/flashinfer-bench` says what is read of a trace set"
BASELINE: Final = "reference"
DTYPES: Final = frozenset(
    {"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "bool"}
)
LANGUAGES: Final = ("python", "triton", "tilelang")
"""The languages of solutions that are modules of Python."""
KEYS: Final = {
    "definition": {"name", "op_type", "axes", "inputs", "outputs", "reference", "tags", "description", "constraints"},
    "solution": {"name", "definition", "author", "spec", "sources", "description"},
    "spec": {"language", "target_hardware", "entry_point", "dependencies", "destination_passing_style", "binding"},
}
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
LISTED: Final = 4
BLOB: Final = "safetensors"
USUAL_SIZES: Final = (
    (r"(max_)?num_pages|.*cache_size|max_seq_len|num_kv.*|total_kv.*", 1024),
    (r"len_.*", 17),
    (r"total_.*", 512),
    (r"batch_size|num_seqs", 16),
    (r".*", 64),
)
"""The size of a variable axis of a definition without a workload, by its name."""


@dataclass(frozen=True, slots=True)
class TraceCase:
    """One workload of a definition. `values` are its axes as the harness knows them; `inputs` are the workload's own
    descriptors. `uuid` is empty if the sizes were chosen here."""

    definition: str
    uuid: str
    axes: Mapping[str, int]
    inputs: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def blobs(self) -> tuple[str, ...]:
        """The files that hold inputs, by their paths in the trace set."""
        paths = [str(one["path"]) for one in self.inputs.values() if one.get("type") == BLOB]
        return tuple(dict.fromkeys(str(PurePosixPath(path)) for path in paths))


@dataclass(frozen=True, slots=True)
class TraceSet:
    """What is measured of a trace set: cases, and the files of definitions and solutions by name. `notes` say what is
    not used."""

    cases: tuple[TraceCase, ...]
    definitions: Mapping[str, str]
    solutions: Mapping[str, str]
    solves: Mapping[str, str]
    """The definition of each solution."""
    notes: tuple[str, ...]


def trace_set(texts: Mapping[str, str], only: str = "") -> TraceSet:
    """Return the trace set whose files have these texts, by their paths in it; `only` is the file of the one definition
    that is measured. Raises `ConfigError` with the file, and the line where it is known."""
    definitions = _by_name(texts, "definitions", only)
    for path, definition in definitions.values():
        _check_definition(path, definition)
    if not definitions:
        raise ConfigError("there is no definition in definitions/", hint=HINT)
    notes = [*_unknown(definitions, "definition")]
    imported = {name for _, one in definitions.values() for name in imported_modules(one["reference"])}
    if packages := sorted(
        name for name in imported - {"torch", "triton", "numpy"} if name not in sys.stdlib_module_names
    ):
        notes.append(
            f"references need packages that are not installed: {_some(packages)} (a requirements.txt in the folder is)"
        )
    cases, notices = _workloads(texts, definitions)
    notes += notices
    without = [name for name in definitions if not any(case.definition == name for case in cases)]
    cases += [_usual_case(name, definitions[name][1]) for name in without]
    if without:
        notes.append(f"no workload, so sizes and indices are chosen by bench: {_some(without)}")
    solutions, odd = _solutions(texts, definitions, bool(only))
    return TraceSet(
        tuple(_with_values(cases, definitions)),
        {name: path for name, (path, _) in definitions.items()},
        {name: path for name, (path, _) in solutions.items()},
        {name: definition for name, (_, definition) in solutions.items()},
        (*notes, *odd),
    )


def as_json(traces: TraceSet, name: str, missing: Sequence[str]) -> dict[str, Any]:
    """Return the trace set as JSON data for the machine that measures. `missing` are files of inputs that are not
    there."""
    return {
        "schema": 1,
        "name": name,
        "definitions": dict(traces.definitions),
        "solutions": dict(traces.solutions),
        "solves": dict(traces.solves),
        "cases": [
            {
                "definition": case.definition,
                "uuid": case.uuid,
                "axes": dict(case.axes),
                "inputs": {key: dict(one) for key, one in case.inputs.items()},
                "values": dict(case.values),
                "skip": next(
                    (f"its inputs are in {path}, which is not there" for path in case.blobs if path in missing), ""
                ),
            }
            for case in traces.cases
        ],
    }


def _by_name(texts: Mapping[str, str], folder: str, only: str = "") -> dict[str, tuple[str, dict[str, Any]]]:
    documents: dict[str, tuple[str, dict[str, Any]]] = {}
    for path, text in texts.items():
        if not path.startswith(f"{folder}/") or (only and path != only):
            continue
        data = _parsed(path, text)
        name = data.get("name")
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{path}:1: name must be text, not {name!r}", hint=HINT)
        if name in documents:
            raise ConfigError(f"{path}:1: {documents[name][0]} has the same name, {name}", hint="rename one of them")
        documents[name] = path, data
    return documents


def _parsed(path: str, text: str, line: int = 1) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as exc:
        at = line + getattr(exc, "lineno", 1) - 1
        raise ConfigError(f"{path}:{at}: not JSON: {getattr(exc, 'msg', exc)}", hint=HINT) from exc
    except RecursionError:
        raise ConfigError(f"{path}:{line}: nested more deeply than can be read", hint=HINT) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:{line}: expected an object", hint=HINT)
    return data


def _check_definition(path: str, definition: Mapping[str, Any]) -> None:
    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{path}:1: {what}", hint=HINT)

    for key in ("axes", "inputs", "outputs"):
        if not isinstance(definition.get(key), dict) or not all(isinstance(v, dict) for v in definition[key].values()):
            raise wrong(f"{key} must be an object of objects")
    axes = definition["axes"]
    for name, axis in axes.items():
        if not NAME.fullmatch(name):
            raise wrong(f"{name!r} is not a valid name for an axis")
        if axis.get("type") != "var" and (axis.get("type") != "const" or type(axis.get("value")) is not int):
            raise wrong(f"axis {name} must have the type var, or const with an integer value")
    for name, tensor in (*definition["inputs"].items(), *definition["outputs"].items()):
        shape = tensor.get("shape", ())
        if shape is not None and (not isinstance(shape, list) or not all(axis in axes for axis in shape)):
            raise wrong(f"{name}: shape must be a list of axes, or null for a number, not {shape!r}")
        if tensor.get("dtype") not in DTYPES:
            raise wrong(f"{name}: dtype {tensor.get('dtype')!r} is not one of {', '.join(sorted(DTYPES))}")
    try:
        body = parse_python(str(definition.get("reference", ""))).body
    except NotPython as exc:
        raise wrong(f"reference, line {exc.line}: {exc}") from exc
    if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in body):
        raise wrong("reference: there is no function run(…)")


def _unknown(files: Mapping[str, tuple[str, Mapping[str, Any]]], kind: str) -> Iterator[str]:
    keys = sorted({key for _, data in files.values() for key in data if key not in KEYS[kind]})
    if keys:
        yield f"not used of a {kind}: {', '.join(keys[:LISTED])}"


def _workloads(
    texts: Mapping[str, str], definitions: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> tuple[list[TraceCase], list[str]]:
    cases: list[TraceCase] = []
    unknown_names: Counter[str] = Counter()
    evaluated = 0
    for path, text in texts.items():
        if not path.startswith("workloads/"):
            continue
        for line, row in enumerate(text.splitlines(), start=1):
            if not row.strip():
                continue
            trace = _parsed(path, row, line)
            name, workload = trace.get("definition"), trace.get("workload")
            if name not in definitions:
                unknown_names[str(name)] += 1
            elif trace.get("solution") is not None or trace.get("evaluation") is not None:
                evaluated += 1
            else:
                cases.append(_workload(f"{path}:{line}", str(name), workload, definitions[str(name)][1]))
    ids = Counter(case.uuid for case in cases)
    for uuid, times in ids.items():
        if times > 1:
            raise ConfigError(f"workloads/: {times} workloads have the uuid {uuid}", hint="give each one of its own")
    notes = []
    if evaluated:
        notes.append(f"not measured: {count(evaluated, 'trace')} in workloads/ with a solution or an evaluation")
    if unknown_names and len(definitions) > 1:
        notes.append(f"not measured: workloads of definitions that are not there: {_some(list(unknown_names))}")
    return cases, notes


def _workload(where: str, name: str, workload: object, definition: Mapping[str, Any]) -> TraceCase:
    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{where}: {what}", hint=HINT)

    if not isinstance(workload, dict) or not isinstance(workload.get("uuid"), str):
        raise wrong("there is no workload with a uuid")
    axes, inputs = workload.get("axes"), workload.get("inputs")
    variable = [axis for axis, kind in definition["axes"].items() if kind["type"] == "var"]
    if not isinstance(axes, dict) or set(axes) != set(variable):
        raise wrong(f"axes must give a size to each of {', '.join(variable) or 'no axis'}, and to no other axis")
    if not all(type(size) is int and size >= 0 for size in axes.values()):
        raise wrong("axes: each size must be an integer")
    sizes = {key: one.get("value") for key, one in definition["axes"].items() if one["type"] == "const"} | axes
    for constraint in definition.get("constraints") or ():
        left, _, right = str(constraint).partition("==")
        a, b = _size(left, sizes), _size(right, sizes)
        if a is not None and b is not None and a != b:
            raise wrong(f"axes: {constraint} does not hold: {a} and {b}")
    if not isinstance(inputs, dict) or not all(isinstance(one, dict) for one in inputs.values()):
        raise wrong("inputs must be an object of descriptors")
    for key, one in inputs.items():
        if key not in definition["inputs"]:
            raise wrong(f"inputs: {name} has no input {key}")
        if one.get("type") not in ("random", "scalar", BLOB):
            raise wrong(f"inputs: {key} has the type {one.get('type')!r}, none of random, scalar, {BLOB}")
        path = PurePosixPath(str(one.get("path", "")))
        if one["type"] == BLOB and (
            path.is_absolute() or ".." in path.parts or not isinstance(one.get("tensor_key"), str)
        ):
            raise wrong(f"inputs: {key} must have a path below the trace set and a tensor_key")
        if one["type"] == "scalar" and not isinstance(one.get("value"), (int, float)):
            raise wrong(f"inputs: {key} must have a value that is a number")
    return TraceCase(name, workload["uuid"], axes, inputs)


def _usual_case(name: str, definition: Mapping[str, Any]) -> TraceCase:
    """The case of a definition without workloads: usual sizes that obey those constraints that fix an axis."""
    axes = {
        axis: next(size for pattern, size in USUAL_SIZES if re.fullmatch(pattern, axis))
        for axis, kind in definition["axes"].items()
        if kind["type"] == "var"
    }
    constants = {axis: kind["value"] for axis, kind in definition["axes"].items() if kind["type"] == "const"}
    for constraint in definition.get("constraints") or ():
        axis, _, expression = str(constraint).partition("==")
        if axis.strip() in axes and (size := _size(expression, {**constants, **axes})) is not None:
            axes[axis.strip()] = size
    return TraceCase(name, "", axes, {})


SIZES: Final[Mapping[type[ast.operator], Any]] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def _size(expression: str, axes: Mapping[str, int]) -> int | None:
    """Return the value of a sum or product of axes and integers; None for any other expression."""

    def value(node: ast.expr) -> int | None:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return axes.get(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SIZES:
                a, b = value(left), value(right)
                return None if a is None or b is None else int(SIZES[type(op)](a, b))
        return None

    try:
        return value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _with_values(cases: Sequence[TraceCase], definitions: Mapping[str, object]) -> Iterator[TraceCase]:
    """Yield the cases with their values: the definition if there are several, the variable axes, and the workload's
    uuid if the sizes do not tell all cases apart."""
    axes = dict.fromkeys(axis for case in cases for axis in case.axes)
    sizes = Counter((case.definition, *(case.axes.get(axis) for axis in axes)) for case in cases)
    alike = any(times > 1 for times in sizes.values())
    short = {case.uuid[:8] for case in cases}
    for case in cases:
        values: dict[str, Any] = {"definition": case.definition} if len(definitions) > 1 else {}
        values |= {axis: case.axes.get(axis) for axis in axes}
        if alike:
            values["workload"] = (case.uuid[:8] if len(short) == len(cases) else case.uuid) or None
        yield TraceCase(case.definition, case.uuid, case.axes, case.inputs, values)


def _solutions(
    texts: Mapping[str, str], definitions: Mapping[str, tuple[str, Mapping[str, Any]]], one: bool
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    solutions = _by_name(texts, "solutions")
    notes, other_languages, compiled = [*_unknown(solutions, "solution")], [], []
    measured: dict[str, tuple[str, str]] = {}
    dependencies: set[str] = set()
    for name, (path, solution) in solutions.items():
        if solution.get("definition") not in definitions:
            other_languages.append(name)
            continue
        spec = _check_solution(path, solution)
        if str(spec.get("language")) not in LANGUAGES:
            compiled.append(name)
        elif name == BASELINE:
            raise ConfigError(f"{path}:1: a solution cannot be called {BASELINE}, as the baseline is", hint=HINT)
        else:
            measured[name] = path, str(solution["definition"])
            dependencies |= {str(package) for package in spec.get("dependencies") or ()} - {"torch", "triton"}
    if other_languages and not one:
        notes.append(f"not measured: solutions of definitions that are not there: {_some(other_languages)}")
    if compiled:
        notes.append(
            f"not measured, because only FlashInfer-Bench's own builders compile C++ and CUDA: {_some(compiled)}"
        )
    if dependencies:
        listed = _some(sorted(dependencies))
        notes.append(f"dependencies of solutions are not installed ({listed}): a requirements.txt in the folder is")
    if not measured:
        notes.append("no solution: only the reference is measured")
    return measured, notes


def _check_solution(path: str, solution: Mapping[str, Any]) -> Mapping[str, Any]:
    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{path}:1: {what}", hint=HINT)

    spec, sources = solution.get("spec"), solution.get("sources")
    if not isinstance(spec, dict) or str(spec.get("entry_point", "")).count("::") != 1:
        raise wrong("spec must have an entry_point, FILE::FUNCTION")
    if unknown := sorted(set(spec) - KEYS["spec"]):
        raise wrong(f"spec: unknown key {unknown[0]}; there are {', '.join(sorted(KEYS['spec']))}")
    if not isinstance(sources, list) or not all(
        isinstance(one, dict) and isinstance(one.get("path"), str) and isinstance(one.get("content"), str)
        for one in sources
    ):
        raise wrong("sources must be a list of files, each with a path and its content")
    for one in sources:
        source = PurePosixPath(one["path"])
        if source.is_absolute() or ".." in source.parts:
            raise wrong(f"sources: {source} must be a path below the solution")
    main = str(spec["entry_point"]).split("::")[0]
    if main not in {one["path"] for one in sources}:
        raise wrong(f"spec: entry_point: there is no source {main}")
    for one in sources:
        if one["path"].endswith(".py"):
            try:
                parse_python(one["content"])
            except NotPython as exc:
                raise wrong(f"sources: {one['path']}:{exc.line}: {exc}") from exc
    return spec


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def case_ids(traces: TraceSet) -> tuple[str, ...]:
    """The ids that the harness gives the cases. Raises `ConfigError` if two are equal."""
    ids = tuple(case_id(case.values) for case in traces.cases)
    if twice := [identity for identity, times in Counter(ids).items() if times > 1]:
        raise ConfigError(f"two cases would both be called {twice[0]}", hint=HINT)
    return ids
