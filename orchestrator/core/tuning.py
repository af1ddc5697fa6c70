"""Parameters to tune, as a workload's file declares them: `tune`, `best`, and the source text with other values."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.reading import NotPython, parse_python
from orchestrator.core.text import parse_document

Strategy = Literal["exhaustive", "random", "racing"]
HINT: Final = "`bench docs sessions` has an example"
MOST: Final = 10_000
"""The most combinations of a file."""
Scalar = str | int | float | bool
Values = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class TuneSpace:
    """The parameters of a file, each with the values that it declares, and the values in its `best`."""

    file: str
    values: Mapping[str, tuple[Scalar, ...]]
    best: Values

    def __len__(self) -> int:
        size = 1
        for values in self.values.values():
            size *= len(values)
        return size

    def combinations(self) -> Iterator[Values]:
        """Every combination, in the order of the file."""
        for values in itertools.product(*self.values.values()):
            yield dict(zip(self.values, values, strict=True))

    def ordered(self, strategy: Strategy, seed: int) -> list[Values]:
        """The combinations in the order in which a strategy tries them; that of `random` and `racing` is drawn from the
        seed. What is in `best` comes first."""
        listed = list(self.combinations())
        if strategy != "exhaustive":
            listed.sort(key=lambda one: hashlib.sha256(f"{seed} {sorted(one.items())}".encode()).digest())
        listed.sort(key=lambda one: dict(one) != dict(self.best))
        return listed

    def allows(self, values: Values) -> bool:
        """Whether values are a combination that the file declares."""
        return set(values) == set(self.values) and all(value in self.values[name] for name, value in values.items())

    @property
    def digest(self) -> str:
        """What tells the parameters of this file from those of others: its name, and what it declares."""
        declared = {name: list(values) for name, values in self.values.items()}
        return hashlib.sha256(json.dumps([self.file, declared], sort_keys=True).encode()).hexdigest()[:32]


def dump_winner(values: Values, session: str, ratio: float) -> bytes:
    """The object in the bucket: the best values, and the session and published ratio that they come from."""
    return json.dumps({"schema": 1, "values": dict(values), "session": session, "ratio": ratio}).encode()


def parse_winner(data: bytes, space: TuneSpace) -> Values:
    """The values in an object of the bucket. Raises `ConfigError` unless they are values that the file declares."""
    try:
        values = parse_document(data)["values"]
        allowed = isinstance(values, dict) and space.allows(values)
    except (ValueError, KeyError, TypeError):
        allowed = False
    if not allowed:
        raise ConfigError(
            f"the bucket has values for {space.file} that the file does not declare, so nothing is written",
            hint="`bench tune` without --remembered measures again",
        )
    return dict(values)


def read_space(source: str, file: str) -> TuneSpace:
    """The parameters that a file declares. Raises `ConfigError` with file and line."""
    tree = _parsed(source, file)
    node = _assigned(tree, "tune")
    if node is None:
        raise ConfigError(f'{file} declares no parameters: tune = {{"block": [64, 128]}} does', hint=HINT)
    declared, best = _literal(node.value, file), {}
    if (chosen := _assigned(tree, "best")) is not None:
        best = _literal(chosen.value, file)
    if not isinstance(declared, dict) or not declared:
        raise ConfigError(f"{file}:{node.lineno}: tune must be a mapping of names to lists", hint=HINT)
    for name, values in declared.items():
        scalars = isinstance(values, list | tuple) and all(isinstance(one, str | int | float | bool) for one in values)
        if not isinstance(name, str) or not scalars or not values:
            raise ConfigError(f"{file}:{node.lineno}: tune: {name!r} must have a list of values", hint=HINT)
    space = TuneSpace(file, {name: tuple(values) for name, values in declared.items()}, best)
    if len(space) > MOST:
        raise ConfigError(f"{file}:{node.lineno}: {len(space)} combinations are more than {MOST}", hint=HINT)
    return space


def with_values(source: str, space: TuneSpace, values: Values) -> str:
    """The source with these values as its `best`, which is added after `tune` if there is none; nothing else changes.
    Raises `ConfigError` for values that the file does not declare."""
    if not space.allows(values):
        raise ConfigError(f"{space.file} does not declare the values {dict(values)}", hint=HINT)
    tree = _parsed(source, space.file)
    text = "{" + ", ".join(f"{name!r}: {value!r}" for name, value in values.items()) + "}"
    lines = source.splitlines(keepends=True)
    node = _assigned(tree, "best")
    if node is not None:
        value = node.value
        assert value is not None, "it was read before"
        assert value.end_lineno is not None, "as CPython's own parser made it"
        head = lines[value.lineno - 1].encode()[: value.col_offset].decode()
        rest = lines[value.end_lineno - 1].encode()[value.end_col_offset :].decode()
        return "".join([*lines[: value.lineno - 1], head + text + rest, *lines[value.end_lineno :]])
    after = _assigned(tree, "tune")
    assert after is not None, "a space was read from it"
    assert after.end_lineno is not None, "as CPython's own parser made it"
    last = lines[after.end_lineno - 1]
    ending = last if last.endswith("\n") else last + "\n"
    return "".join([*lines[: after.end_lineno - 1], ending, f"best = {text}\n", *lines[after.end_lineno :]])


def _parsed(source: str, file: str) -> ast.Module:
    try:
        return parse_python(source)
    except NotPython as exc:
        raise ConfigError(f"{file}:{exc.line}: {exc}", hint=HINT) from exc


def _assigned(tree: ast.Module, name: str) -> ast.Assign | ast.AnnAssign | None:
    """The last statement at the top of a file that gives a name its value."""
    statement: ast.Assign | ast.AnnAssign | None = None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        is_value = isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value is not None)
        if is_value and any(isinstance(one, ast.Name) and one.id == name for one in targets):
            statement = node  # type: ignore[assignment]
    return statement


def _literal(node: ast.expr | None, file: str) -> dict[str, Any]:
    try:
        assert node is not None, "an assignment"
        value: dict[str, Any] = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
        line = getattr(node, "lineno", 1)
        raise ConfigError(f"{file}:{line}: tune and best must be written out as constants", hint=HINT) from exc
    return value
