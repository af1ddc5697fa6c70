"""What the harness would refuse in a workload's file, as far as the text shows it: said before a machine is asked for.
What the text does not show is left to the machine that runs it. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

DTYPES: Final = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
"""What an axis called `dtype` may hold."""
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
CUDA_NEEDED: Final = ("cuda", "entry", "grid", "block", "args")
CUDA_KEYS: Final = ("cuda", "entry", "grid", "block", "smem", "args", "only", "constants")
OFFERED: Final[Mapping[str, tuple[str, ...]]] = {
    "inputs": ("device", "generator"),
    "skip": ("device",),
    "flops": (),
    "bytes": (),
}
"""What functions of the axes are called with besides."""
KINDS: Final = ("baseline_", "kernel_")
Found = Mapping[str, tuple[int, ast.expr | None]]
Value = Callable[[ast.expr | None], Any]
"""What an expression of constants comes to; raises `Unknown`."""


class Unknown(Exception):
    """An expression whose value is only known when it is run."""


def of_cases(cases: Sequence[Mapping[Any, Any]]) -> str:
    """What is wrong with the cases that a text tells; empty when nothing is."""
    if any(set(one) != set(cases[0]) for one in cases):
        return "every case must have the same axes"
    for case in cases:
        for name, value in case.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                return f"{name!r} is not a valid name for an axis"
            if not isinstance(value, (str, int, float, bool)):
                return f"axis {name}: {value!r} must be a number, a string, or true or false"
            if name == "dtype" and value not in DTYPES:
                return f"axis dtype: {value!r} is not one of {', '.join(DTYPES)}"
    told = [tuple(sorted(case.items())) for case in cases]
    return "a case is given twice" if len(set(told)) < len(told) else ""


def of_names(found: Found, tree: ast.Module, axes: Sequence[str] | None, value: Value) -> Iterator[tuple[int, str]]:
    """Lines and what is wrong there with what a file binds; `axes` are those that it tells, None where it does not."""
    for name, (line, expression) in found.items():
        if name in ("reference", "outputs", *OFFERED):
            yield from ((line, words) for words in _no_function(name, expression, value))
        elif name.startswith(KINDS):
            yield from ((line, words) for words in _no_implementation(name, expression, value))
        elif name == "tolerance":
            yield from ((line, words) for words in _no_tolerance(expression, value))
    if axes is not None:
        yield from _beyond(tree, axes)


def _no_function(name: str, expression: ast.expr | None, value: Value) -> Iterator[str]:
    try:
        told = None if expression is None else value(expression)
    except Unknown:
        return
    if told is not None:
        yield f"{name} must be a function, not {type(told).__name__}"


def _no_implementation(name: str, expression: ast.expr | None, value: Value) -> Iterator[str]:
    if isinstance(expression, ast.Dict):
        keys = [one.value for one in expression.keys if isinstance(one, ast.Constant)]
        if len(keys) < len(expression.keys):
            return
        missing = ", ".join(key for key in CUDA_NEEDED if key not in keys)
        unknown = ", ".join(sorted(str(key) for key in keys if key not in CUDA_KEYS))
        said = " and has ".join(
            filter(None, (f"lacks {missing}" if missing else "", unknown and f"{unknown}, unknown"))
        )
        if said:
            said = said if missing else f"has {said}"
            yield f"{name}, a CUDA implementation, {said}; keys: {', '.join(CUDA_KEYS)}"
        return
    try:
        told = None if expression is None else value(expression)
    except Unknown:
        return
    if expression is not None:
        yield f"{name} must be a function, or a mapping that names a CUDA entry, not {type(told).__name__}"


def _no_tolerance(expression: ast.expr | None, value: Value) -> Iterator[str]:
    try:
        told = value(expression)
    except Unknown:
        return
    number = isinstance(told, (int, float)) and not isinstance(told, bool) and told >= 0
    pair = isinstance(told, dict) and told and set(told) <= {"rtol", "atol"}
    if not (told is None or number or pair):
        yield 'tolerance must be a number >= 0, or {"rtol": …, "atol": …}'


def _beyond(tree: ast.Module, axes: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Functions that want what nobody gives them."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name not in OFFERED:
            continue
        there = (*axes, *OFFERED[node.name])
        given = node.args
        positional = [*given.posonlyargs, *given.args]
        needed = positional[: len(positional) - len(given.defaults)]
        needed += [one for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
        for one in needed:
            if one.arg not in there:
                yield (
                    node.lineno,
                    (
                        f"{node.name} has an argument {one.arg}, which nothing provides; "
                        f"provided: {', '.join(there) or 'nothing'}"
                    ),
                )
