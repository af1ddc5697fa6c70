"""Reads a workload's file without running it: its axes, its implementations, and what it needs. Pure.

A user's file runs on the machine that measures, never here. Mistakes that its text shows are reported here, before
anything is paid for.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.needs import KEYS, WorkloadNeeds, parse_needs
from orchestrator.core.forms.reading import NotPython, parse_python
from orchestrator.core.market.catalog import closest_word
from orchestrator.core.text import count
from orchestrator.core.workload_faults import KINDS, Unknown, of_cases, of_names

LONGEST_ID: Final = 160
MOST_CASES: Final = 10_000
HINT: Final = "`bench docs your-own-kernel` says what a workload consists of; `bench new NAME` writes one that runs"
BINARY: Final[Mapping[type[ast.operator], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}
LARGEST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class SketchEntry:
    """A `__global__` function `name` in `file` beside the workload, and the line of the workload that names it."""

    line: int
    file: str
    name: str

    def fault(self, text: str) -> str:
        """The error if the source `text` does not define this function; empty if it does."""
        if re.search(rf"__global__[^;{{]*\b{re.escape(self.name)}\s*\(", text):
            return ""
        names = re.findall(r"__global__[^;{(]*?\b(\w+)\s*\(", text)
        return f"{self.file} has no __global__ function {self.name}; it has {', '.join(names) or 'none'}"


@dataclass(frozen=True, slots=True)
class Sketch:
    """What the text of a workload shows. `cases` are case ids; empty if they are known only when the file runs."""

    name: str
    cases: tuple[str, ...]
    grid: tuple[dict[str, Any], ...]
    """The same cases, as values by axis."""
    implementations: tuple[str, ...]
    baselines: tuple[str, ...]
    needs: WorkloadNeeds
    entries: tuple[SketchEntry, ...] = ()
    """The CUDA functions whose file and name the text shows."""


def sketch_workload(source: str, file: str) -> Sketch:
    """The workload in `source`. Raises `ConfigError` with file and line of a mistake."""
    try:
        return _sketch(parse_python(source), file)
    except NotPython as exc:
        raise ConfigError(f"{file}:{exc.line}: {exc}", hint=HINT) from exc
    except RecursionError:
        raise ConfigError(f"{file}:1: nested more deeply than can be read", hint=HINT) from None


def _sketch(tree: ast.Module, file: str) -> Sketch:
    bound = dict(_bound(tree))
    names = _implementations(tree, file)
    for line, words in _misspelt(tree):
        raise ConfigError(f"{file}:{line}: {words}", hint=HINT)
    for needed in ("inputs", "reference"):
        if needed not in bound:
            near = closest_word(needed, bound)
            suggestion = f"; line {bound[near][0]} has {near}" if near else ""
            raise ConfigError(f"{file}:1: there is no function {needed}(…){suggestion}", hint=HINT)
    grid = _cases(bound, file)
    axes = tuple(grid[0]) if grid else None
    for line, words in of_names(bound, tree, axes, _value):
        raise ConfigError(f"{file}:{line}: {words}", hint=HINT)
    return Sketch(
        name=file.removesuffix(".py"),
        cases=tuple(map(case_id, grid)),
        grid=grid,
        implementations=tuple(name.split("_", 1)[1] for name in names),
        baselines=tuple(name.removeprefix(KINDS[0]) for name in names if name.startswith(KINDS[0])),
        needs=_needs(bound, file),
        entries=tuple(_entries(bound)),
    )


def _misspelt(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Functions that nothing uses and whose names nearly say that they are implementations, with what to call them."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and "_" in node.name and not node.name.startswith(KINDS):
            kind, _, called = node.name.partition("_")
            near = difflib.get_close_matches(f"{kind}_", KINDS, n=1, cutoff=0.8)
            if near and node.name not in used:
                yield node.lineno, f"nothing uses {node.name}; did you mean {near[0]}{called}?"


def _entries(bound: Mapping[str, tuple[int, ast.expr | None]]) -> Iterator[SketchEntry]:
    for name, (line, expression) in bound.items():
        if not name.startswith(KINDS) or not isinstance(expression, ast.Dict):
            continue
        constants = {
            key.value: value.value
            for key, value in zip(expression.keys, expression.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant) and isinstance(value.value, str)
        }
        if "cuda" in constants and "entry" in constants:
            yield SketchEntry(line, constants["cuda"], constants["entry"])


def _needs(bound: Mapping[str, tuple[int, ast.expr | None]], file: str) -> WorkloadNeeds:
    values: dict[str, Any] = {}
    for key in KEYS:
        if key in bound and not (key == "build" and bound[key][1] is None):
            try:
                values[key] = _value(bound[key][1])
            except Unknown:
                values[key] = None
    return parse_needs(values, lambda words, key: ConfigError(f"{file}:{bound[key][0]}: {words}", hint=HINT))


def _bound(tree: ast.Module) -> Iterator[tuple[str, tuple[int, ast.expr | None]]]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, (node.lineno, None)
        elif isinstance(node, ast.Assign):
            yield from ((one.id, (node.lineno, node.value)) for one in node.targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, (node.lineno, node.value)
        elif isinstance(node, ast.ImportFrom):
            yield from ((one.asname or one.name, (node.lineno, None)) for one in node.names)


def _implementations(tree: ast.Module, file: str) -> list[str]:
    lines: dict[str, tuple[int, str]] = {}
    names = [(name, line) for name, (line, _) in _bound(tree) if name.startswith(KINDS)]
    for name, line in names:
        called = name.split("_", 1)[1]
        if called in lines:
            at, other = lines[called]
            raise ConfigError(
                f"{file}:{line}: two implementations are called {called}: {other} is at line {at}", hint=HINT
            )
        lines[called] = line, name
    if not names:
        what = "there is no implementation: write a function called baseline_NAME or kernel_NAME"
        raise ConfigError(f"{file}:1: {what}", hint=HINT)
    return sorted((name for name, _ in names), key=lambda name: not name.startswith(KINDS[0]))


def _cases(bound: Mapping[str, tuple[int, ast.expr | None]], file: str) -> tuple[dict[str, Any], ...]:
    given = "cases" if "cases" in bound else "axes"
    if "cases" in bound and "axes" in bound:
        raise ConfigError(f"{file}:{bound['axes'][0]}: there are both axes and cases: remove one of them", hint=HINT)
    if given not in bound:
        return ({},)
    line, expression = bound[given]
    try:
        value = _value(expression)
    except Unknown:
        return ()

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{file}:{line}: {what}", hint=HINT)

    if given == "cases":
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, dict) for one in value):
            raise wrong("cases must be a list of mappings, with at least one")
        cases = [dict(one) for one in value]
    else:
        if not isinstance(value, dict):
            raise wrong(f"axes must be a mapping of names to lists, not {type(value).__name__}")
        for name, values in value.items():
            if not isinstance(values, (list, tuple)) or not values:
                raise wrong(f"axis {name} must be a list with at least one value, not {values!r}")
        _few(math.prod(map(len, value.values())), wrong)
        cases = [dict(zip(value, values, strict=True)) for values in itertools.product(*value.values())]
    _few(len(cases), wrong)
    if fault := of_cases(cases):
        raise wrong(fault)
    return tuple(cases)


def _few(cases: int, wrong: Callable[[str], ConfigError]) -> None:
    if cases > MOST_CASES:
        raise wrong(f"{count(cases, 'case')} are more than {MOST_CASES:,}")


def _value(node: ast.expr | None) -> Any:
    """The value of an expression of constants. Raises `Unknown` if it is known only when the file runs."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(one) for one in elements]
        case ast.Dict(keys=keys, values=values):
            pairs = [(_value(key), _value(value)) for key, value in zip(keys, values, strict=True)]
            if any(isinstance(key, (list, dict)) for key, _ in pairs):
                raise Unknown
            return dict(pairs)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            a, b = _number(left), _number(right)
            if isinstance(op, (ast.LShift, ast.Pow)) and not 0 <= b <= 62:
                raise Unknown
            if isinstance(op, ast.FloorDiv) and b == 0:
                raise Unknown
            number: int = BINARY[type(op)](a, b)
            if abs(number) > LARGEST:
                raise Unknown
            return number
        case _:
            raise Unknown


def _number(node: ast.expr) -> int:
    value = _value(node)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST:
        raise Unknown
    return value


def case_id(values: Mapping[str, Any]) -> str:
    """The id that the harness gives a case, such as `rows64-cols256-float32`."""
    parts = [
        ("" if name == "dtype" else name) + axis_text(value) for name, value in values.items() if value is not None
    ]
    plain = "-".join(parts) or "all"
    safe = "-".join(re.sub(r"[^A-Za-z0-9._+]", "_", part) for part in parts) or "all"
    if safe != plain or not safe[0].isalnum() or len(safe) > LONGEST_ID:
        safe = f"case{safe[:LONGEST_ID]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
    return safe


def axis_text(value: object) -> str:
    """A value of an axis as text, as it is in the id of a case. Values are compared by this text; None is empty."""
    if isinstance(value, list):
        return "x".join(map(axis_text, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
