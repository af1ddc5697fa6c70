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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.reading import KEYS, NotPython, WorkloadNeeds, parse_needs, parse_python
from orchestrator.core.market.catalog import closest_word
from orchestrator.core.text import count

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
        elif name == "gpus" and isinstance(expression, ast.Constant) and expression.value != 1:
            what = "a case has one GPU; a program may use several (`bench docs forms/program`)"
            yield line, f"gpus = {expression.value!r}: {what}"
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
DEEPEST: Final = 50
"""How many names and calls deep the length of a list is looked for."""


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
    """Implementations that are no functions, and functions that nothing uses and whose names nearly say that they are
    implementations, with what to write."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.AsyncFunctionDef)) and node.name.startswith(KINDS):
            kind = "a class" if isinstance(node, ast.ClassDef) else "an async function"
            yield node.lineno, f"{node.name} is {kind}; write `def {node.name}(…)`, which returns the answer"
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

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{file}:{line}: {what}", hint=HINT)

    _check_case_count(_fewest_cases(expression, bound), wrong)
    try:
        value = _value(expression)
    except Unknown:
        return ()

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
        _check_case_count(math.prod(map(len, value.values())), wrong)
        cases = [dict(zip(value, values, strict=True)) for values in itertools.product(*value.values())]
    _check_case_count(len(cases), wrong)
    if fault := of_cases(cases):
        raise wrong(fault)
    return tuple(cases)


def _fewest_cases(expression: ast.expr | None, bound: Found) -> int:
    """The number of cases that axes or cases have at least, without making them: an axis whose length the text does
    not show counts as one."""
    if isinstance(expression, ast.Dict):
        return math.prod(max(1, _length(values, bound)) for values in expression.values)
    return _length(expression, bound)


def _length(node: ast.expr | None, bound: Found, depth: int = 0) -> int:
    """The length of a list in the text; 0 if it is known only when the file runs."""
    if depth > DEEPEST:
        return 0
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return len(elements) if not any(isinstance(one, ast.Starred) for one in elements) else 0
        case ast.Name(id=name) if name in bound:
            return _length(bound[name][1], bound, depth + 1)
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
            try:
                return _range_length(*map(_number, arguments))
            except (Unknown, TypeError, ValueError):
                return 0
        case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted"), args=[argument], keywords=[]):
            return _length(argument, bound, depth + 1)
        case ast.ListComp(generators=generators) if not any(one.ifs for one in generators):
            return math.prod(_length(one.iter, bound, depth + 1) for one in generators)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _length(left, bound, depth + 1) + _length(right, bound, depth + 1)
        case _:
            return 0


def _range_length(start: int, stop: int | None = None, step: int = 1) -> int:
    """The length of a `range`, which may be more than `len` can return."""
    first, last = (0, start) if stop is None else (start, stop)
    return max(0, -((first - last) // step)) if step else 0


def _check_case_count(cases: int, wrong: Callable[[str], ConfigError]) -> None:
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


# The workload that `bench new` writes. It runs unchanged, on a CPU and on a GPU.


TEMPLATE: Final = '''"""NAME: what it computes, in one line.

bench launch NAME.py              on this machine's processor, at no cost
bench launch NAME.py --gpu l4     on a rented L4, for at most the dollars that `bench plan NAME.py --gpu l4` says
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # on a machine without a GPU
    triton = None

axes = {"rows": [64, 512], "cols": [1024], "dtype": ["float32", "bfloat16"]}


def inputs(rows, cols, dtype, device, generator):
    x = torch.randn(rows, cols, device=device, dtype=dtype, generator=generator)
    return x, torch.randn(cols, device=device, dtype=dtype, generator=generator)


def reference(x, w):
    """The correct result; x and w are float64 here."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def bytes(rows, cols, dtype):
    """The fewest bytes that one call moves: for GB/s, and to find times that the memory's speed does not allow."""
    return 2 * rows * cols * dtype.itemsize


def baseline_torch(x, w):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)


if triton is not None:

    @triton.jit
    def rms_norm_row(x, w, out, cols, BLOCK: tl.constexpr):
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        inside = at < cols
        value = tl.load(x + row * cols + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value) / cols + 1e-6)
        weight = tl.load(w + at, mask=inside).to(tl.float32)
        tl.store(out + row * cols + at, value * scale * weight, mask=inside)


def kernel_triton(x, w):
    if triton is None or not x.is_cuda:
        raise NotImplementedError("Triton needs a GPU")
    out = torch.empty_like(x)
    rms_norm_row[(x.shape[0],)](x, w, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def kernel_by_hand(x, w):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
'''


def template_text(name: str) -> str:
    """The text of the file for a workload named `name`."""
    return TEMPLATE.replace("NAME", name)
