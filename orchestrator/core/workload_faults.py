"""Finds mistakes in the text of a workload's file that the harness would refuse, before a machine is requested.
Mistakes that the text does not show are found by the machine that runs it. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

DTYPES: Final = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
"""The values that an axis named `dtype` may have."""
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
CUDA_NEEDED: Final = ("cuda", "entry", "grid", "block", "args")
CUDA_KEYS: Final = ("cuda", "entry", "grid", "block", "smem", "args", "only", "constants", "macros")
OFFERED: Final[Mapping[str, tuple[str, ...]]] = {
    "inputs": ("device", "generator"),
    "skip": ("device",),
    "flops": (),
    "bytes": (),
}
"""The arguments with which each function of the axes is called in addition to the axes."""
KINDS: Final = ("baseline_", "kernel_")
Found = Mapping[str, tuple[int, ast.expr | None]]
"""(line, expression) of each name that a file binds; None for a function, a class or an import."""
Value = Callable[[ast.expr | None], Any]
"""Returns the value of an expression of constants; raises `Unknown`."""


class Unknown(Exception):
    """The value of an expression is known only when it runs."""


def of_cases(cases: Sequence[Mapping[Any, Any]]) -> str:
    """What is wrong with the cases in a workload's text; empty if nothing is."""
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
    keys = [tuple(sorted(case.items())) for case in cases]
    return "a case is given twice" if len(set(keys)) < len(keys) else ""


def of_names(bound: Found, tree: ast.Module, axes: Sequence[str] | None, value: Value) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) for each mistake in the names that a file binds. `axes` are its axes; None: not known."""
    for name, (line, expression) in bound.items():
        if name in ("reference", "outputs", *OFFERED):
            yield from ((line, words) for words in _no_function(name, expression, value))
        elif name.startswith(KINDS):
            yield from ((line, words) for words in _no_implementation(name, expression, value))
        elif name == "tolerance":
            yield from ((line, words) for words in _no_tolerance(expression, value))
    yield from _given_twice(tree)
    if "inplace" in bound:
        yield from _no_inplace(tree, *bound["inplace"], value)
    yield from _other_arity(tree)
    if axes is not None:
        yield from _unprovided_arguments(tree, axes)


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions at the top level whose arguments are those in the text: without decorators."""
    return {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef) and not one.decorator_list}


def _given_twice(tree: ast.Module) -> Iterator[tuple[int, str]]:
    lines: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("reference", "outputs", *OFFERED):
            if node.name in lines:
                yield node.lineno, f"two functions are called {node.name}: the other one is at line {lines[node.name]}"
            lines[node.name] = node.lineno


def _no_inplace(tree: ast.Module, line: int, expression: ast.expr | None, value: Value) -> Iterator[tuple[int, str]]:
    try:
        names = value(expression)
    except Unknown:
        return
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        yield line, 'inplace must be a list of names of inputs, as ["x"]'
    elif (function := _functions(tree).get("reference")) and not function.args.kwarg:
        parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        for name in names:
            if name not in parameters:
                yield line, f"inplace: reference has no argument {name}; it has {', '.join(parameters)}"


def _other_arity(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) for each function that takes another number of arguments than `inputs` and `outputs`
    return, or, where the text does not show that number, than `reference` takes."""
    functions = _functions(tree)
    given = _returned(functions.get("inputs"))
    outs = _returned(functions["outputs"]) if "outputs" in functions else 0
    reference = functions.get("reference")
    source = f"inputs returns {given}"
    if given is None and reference is not None and (limits := _arity(reference)) is not None:
        given = limits[0] if limits[0] == limits[1] else None
        source = f"reference takes {given}"
    for name, function in functions.items():
        taken = _arity(function)
        if given is None or taken is None or not (name == "reference" or name.startswith(KINDS)):
            continue
        extra = 0 if name == "reference" else outs
        if extra is not None and not taken[0] <= given + extra <= taken[1]:
            count = str(taken[0]) if taken[0] == taken[1] else f"{taken[0]} to {taken[1]}"
            extra_text = f" and outputs {extra}" if extra else ""
            yield (
                function.lineno,
                f"{name} takes {count} {'argument' if count == '1' else 'arguments'}; {source}{extra_text}",
            )


def _arity(function: ast.FunctionDef) -> tuple[int, int] | None:
    """The least and the most positional arguments of a function; None where it takes any, or some by name alone."""
    arguments = function.args
    if arguments.vararg or arguments.kwarg or None in arguments.kw_defaults:
        return None
    most = len(arguments.posonlyargs) + len(arguments.args)
    return most - len(arguments.defaults), most


MAKERS: Final = frozenset(
    {"rand", "randn", "randint", "empty", "zeros", "ones", "full", "arange", "empty_like", "zeros_like"}
)
"""Functions of torch that return one tensor."""


def _returned(function: ast.FunctionDef | None) -> int | None:
    """How many values a function returns; None where the text does not show it."""
    if function is None:
        return None
    counts: set[int | None] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.Yield, ast.YieldFrom)) and node is not function:
            return None
        match node:
            case ast.Return(value=ast.Tuple(elts=parts) | ast.List(elts=parts)):
                counts.add(None if any(isinstance(one, ast.Starred) for one in parts) else len(parts))
            case ast.Return(value=ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name))) if (
                name in MAKERS
            ):
                counts.add(1)
            case ast.Return():
                counts.add(None)
    return counts.pop() if len(counts) == 1 else None


def _no_function(name: str, expression: ast.expr | None, value: Value) -> Iterator[str]:
    try:
        constant = None if expression is None else value(expression)
    except Unknown:
        return
    if constant is not None:
        yield f"{name} must be a function, not {type(constant).__name__}"


def _no_implementation(name: str, expression: ast.expr | None, value: Value) -> Iterator[str]:
    if isinstance(expression, ast.Dict):
        keys = [one.value for one in expression.keys if isinstance(one, ast.Constant)]
        if len(keys) < len(expression.keys):
            return
        missing = ", ".join(key for key in CUDA_NEEDED if key not in keys)
        unknown = ", ".join(sorted(str(key) for key in keys if key not in CUDA_KEYS))
        mistakes = " and has ".join(
            filter(None, (f"lacks {missing}" if missing else "", unknown and f"{unknown}, unknown"))
        )
        if mistakes:
            mistakes = mistakes if missing else f"has {mistakes}"
            yield f"{name}, a CUDA implementation, {mistakes}; keys: {', '.join(CUDA_KEYS)}"
        return
    try:
        constant = None if expression is None else value(expression)
    except Unknown:
        return
    if expression is not None:
        yield f"{name} must be a function, or a mapping that names a CUDA entry, not {type(constant).__name__}"


def _no_tolerance(expression: ast.expr | None, value: Value) -> Iterator[str]:
    try:
        tolerance = value(expression)
    except Unknown:
        return
    number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool) and tolerance >= 0
    pair = isinstance(tolerance, dict) and tolerance and set(tolerance) <= {"rtol", "atol"}
    if not (tolerance is None or number or pair):
        yield 'tolerance must be a number >= 0, or {"rtol": …, "atol": …}'


def _unprovided_arguments(tree: ast.Module, axes: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) for each function with an argument that it is not called with."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name not in OFFERED:
            continue
        provided = (*axes, *OFFERED[node.name])
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        needed = positional[: len(positional) - len(arguments.defaults)]
        needed += [
            one for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
        ]
        for one in needed:
            if one.arg not in provided:
                yield (
                    node.lineno,
                    (
                        f"{node.name} has an argument {one.arg}, which nothing provides; "
                        f"provided: {', '.join(provided) or 'nothing'}"
                    ),
                )
