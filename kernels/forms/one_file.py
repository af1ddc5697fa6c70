"""A workload in one file with no import of ours: `axes`, `inputs`, `reference`, `baseline_*`, `kernel_*`, and more."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernels.forms.definition import (
    DTYPES,
    Arguments,
    BadWorkload,
    CaseValues,
    Definition,
    Function,
    place,
    updated_inputs,
    with_dtype,
)

KINDS = ("baseline_", "kernel_")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
MOST_CASES = 10_000
LEFT_OUT = "valid(…) leaves out these values of its parameters"
CUDA_KEYS = ("cuda", "entry", "grid", "block", "smem", "args", "only", "constants", "macros")


def load(path: Path) -> Definition:
    """The workload in a file, or in a folder that has a file of its own name. Raises `BadWorkload`."""
    file = path / f"{path.name}.py" if path.is_dir() else path
    lines = top_level(file)
    module = import_file(file)
    defined = vars(module)

    def wrong(words: str, name: str = "") -> BadWorkload:
        return BadWorkload(f"{file.name}:{lines.get(name, 1)}: {words}")

    def function(name: str, *, needed: bool = False) -> Any:
        function = defined.get(name)
        if function is None and needed:
            raise wrong(f"there is no function {name}(…)")
        if function is not None and not callable(function):
            raise wrong(f"{name} must be a function, not {type(function).__name__}", name)
        return function

    cases, axes = cases_of(defined, wrong)
    make, reference = function("inputs", needed=True), function("reference", needed=True)
    implementations, baselines = implementations_of(defined, file, wrong)
    skip, flops, traffic = function("skip"), function("flops"), function("bytes") if "bytes" in defined else None

    def inputs(case: CaseValues, device: torch.device, generator: torch.Generator) -> Arguments:
        offered = {**with_dtype(case), "device": device, "generator": generator}
        return Arguments.of(make(**fitting_arguments(make, offered)))

    def skipped(case: CaseValues, device: torch.device) -> str:
        return str(skip(**fitting_arguments(skip, {**with_dtype(case), "device": device})) or "")

    names = tuple(inspect.signature(reference).parameters)
    inplace = inplace_of(defined.get("inplace", ()), names, wrong)
    return Definition(
        name=file.stem,
        file=file,
        axes=axes,
        cases=cases,
        inputs=inputs,
        reference=pure(reference, names, inplace),
        implementations=with_parameters(implementations, defined, wrong),
        baselines=baselines,
        outputs=function("outputs"),
        flops=(lambda case: float(flops(**fitting_arguments(flops, with_dtype(case))))) if flops else None,
        bytes=(lambda case: float(traffic(**fitting_arguments(traffic, with_dtype(case))))) if traffic else None,
        skip=skipped if skip else None,
        tolerance=tolerance_of(defined.get("tolerance"), wrong),
        names=names,
        inplace=inplace,
        requirements=requirements_of(defined.get("requirements", ()), wrong),
    )


Wrong = Callable[..., BadWorkload]


def top_level(file: Path) -> dict[str, int]:
    """The line of each name that a file binds at its top level. Raises `BadWorkload` for a file that is no Python, and
    for an implementation that is there twice."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8-sig"), str(file))
    except SyntaxError as exc:
        raise BadWorkload(f"{file.name}:{exc.lineno}: syntax error: {exc.msg}") from exc
    except (OSError, ValueError, RecursionError, MemoryError) as exc:
        raise BadWorkload(f"{file.name}: cannot be read: {exc or 'it is nested too deeply'}") from exc
    lines: dict[str, int] = {}
    for name, line in bound_names(tree):
        kind = next((kind for kind in KINDS if name.startswith(kind)), None)
        names_of_kind = {
            other: at for other, at in lines.items() if kind and other.split("_", 1)[-1] == name.split("_", 1)[-1]
        }
        for other, at in names_of_kind.items():
            if other.startswith(KINDS):
                called = name.split("_", 1)[-1]
                raise BadWorkload(
                    f"{file.name}:{line}: two implementations are called {called}: {other} is at line {at}"
                )
        lines[name] = line
    if "axes" in lines and "cases" in lines:
        raise BadWorkload(f"{file.name}:{lines['axes']}: there are both axes and cases: remove one of them")
    return lines


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names bound by the statements of a module, with their lines."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((one.id, node.lineno) for one in targets if isinstance(one, ast.Name))


def import_file(file: Path, also: Path | None = None) -> ModuleType:
    """The module, with its folder on the path, and `also` another. Raises `BadWorkload` for whatever it raises."""
    for folder in (*([] if also is None else [also]), file.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None, "a file that ends in .py"
    assert spec.loader is not None, "and so has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as exc:
        reason = f'needs the package {exc.name}, which is not installed: requirements = ["{exc.name}"] installs it'
        raise BadWorkload(f"{place(exc, file)}: {reason}") from exc
    except BaseException as exc:
        if isinstance(exc, KeyboardInterrupt):
            raise
        raise BadWorkload(f"{place(exc, file)}: it raises {type(exc).__name__} when it is imported: {exc}") from exc
    return module


def _check_case_count(cases: int, wrong: Wrong, name: str) -> None:
    if cases > MOST_CASES:
        raise wrong(f"{cases:,} cases are more than {MOST_CASES:,}", name)


def cases_of(defined: Mapping[str, Any], wrong: Wrong) -> tuple[tuple[CaseValues, ...], tuple[str, ...]]:
    """Every combination of the axes, or the cases as they are listed; and the names of the axes."""
    if "cases" in defined:
        listed = defined["cases"]
        if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(one, Mapping) for one in listed):
            raise wrong("cases must be a list of mappings, with at least one", "cases")
        if any(set(one) != set(listed[0]) for one in listed):
            raise wrong("every case must have the same axes", "cases")
        cases = [dict(one) for one in listed]
    else:
        axes = defined.get("axes", {})
        if not isinstance(axes, Mapping):
            raise wrong(f"axes must be a mapping of names to lists, not {type(axes).__name__}", "axes")
        for name, values in axes.items():
            if not isinstance(values, (list, tuple)) or not values:
                raise wrong(f"axis {name} must be a list with at least one value, not {values!r}", "axes")
        _check_case_count(math.prod(map(len, axes.values())), wrong, "axes")
        cases = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    given = "cases" if "cases" in defined else "axes"
    for case in cases:
        for name, value in case.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise wrong(f"{name!r} is not a valid name for an axis", given)
            if not isinstance(value, (str, int, float, bool)):
                raise wrong(f"axis {name}: {value!r} must be a number, a string, or true or false", given)
            if name == "dtype" and value not in DTYPES:
                raise wrong(f"axis dtype: {value!r} is not one of {', '.join(DTYPES)}", given)
    _check_case_count(len(cases), wrong, given)
    if any(case in cases[:at] for at, case in enumerate(cases)):
        raise wrong("a case is given twice", given)
    return tuple(cases), tuple(cases[0])


def implementations_of(defined: Mapping[str, Any], file: Path, wrong: Wrong) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Functions by name, baselines first, and CUDA entries; and which are baselines."""
    functions: dict[str, Any] = {}
    baselines = []
    for kind in KINDS:
        for name, value in defined.items():
            if not name.startswith(kind):
                continue
            if isinstance(value, Mapping):
                check_cuda(value, file, partial(wrong, name=name))
            elif not callable(value):
                raise wrong(f"{name} must be a function, or a mapping that names a CUDA entry", name)
            functions[name.removeprefix(kind)] = value
            if kind == KINDS[0]:
                baselines.append(name.removeprefix(kind))
    if not functions:
        raise wrong("there is no implementation: write a function called baseline_NAME or kernel_NAME")
    return functions, tuple(baselines)


def with_parameters(functions: Mapping[str, Any], defined: Mapping[str, Any], wrong: Wrong) -> dict[str, Any]:
    """The implementations, of which those that take parameters to tune have their values: those of `best`, for others
    the first combination that `valid` allows."""
    declared = defined.get("tune")
    for name, function in functions.items():
        macros = function.get("macros", ()) if isinstance(function, Mapping) else ()
        unknown = sorted(set(macros) - set(declared or ()))
        if unknown or isinstance(macros, str):
            raise wrong(
                f"{name}: macros must list names that tune declares, not {', '.join(unknown) or macros}", "tune"
            )
    if declared is None:
        return dict(functions)
    listed = isinstance(declared, Mapping) and all(isinstance(one, (list, tuple)) and one for one in declared.values())
    if not listed or not declared:
        raise wrong('tune must be a mapping of names to lists, as {"block": [64, 128]}', "tune")
    best, valid = defined.get("best", {}), defined.get("valid")
    for name, value in best.items():
        if value not in declared.get(name, ()):
            raise wrong(f"best: {name} is {value!r}, which tune does not list", "best")
    choices = [[best[name]] if name in best else values for name, values in declared.items()]
    combinations = (dict(zip(declared, values, strict=True)) for values in itertools.product(*choices))
    allowed = next((one for one in combinations if valid is None or valid(**fitting_arguments(valid, one))), None)
    made = {}
    for name, function in functions.items():
        is_entry = isinstance(function, Mapping)
        named = function.get("macros", ()) if is_entry else inspect.signature(function).parameters
        values = {one: value for one, value in (allowed or {}).items() if one in named}
        made[name] = function
        if not set(declared) & set(named):
            continue
        if allowed is None:
            made[name] = partial(_never_called)
            made[name].refusal = lambda _case: LEFT_OUT
        else:
            made[name] = {**function, "defines": values} if is_entry else partial(function, **values)
    return made


def _never_called(*_: Any, **__: Any) -> None:
    """Stands for a kernel whose parameters have no values."""
    raise AssertionError(LEFT_OUT)


def check_cuda(described: Mapping[str, Any], file: Path, wrong: Callable[[str], BadWorkload]) -> None:
    """Checks a CUDA entry as far as that is possible without a compiler. Raises the error that `wrong` makes."""
    missing = [key for key in ("cuda", "entry", "grid", "block", "args") if key not in described]
    unknown = sorted(set(described) - set(CUDA_KEYS))
    if missing or unknown:
        extra = f"; unknown: {', '.join(unknown)}" if unknown else ""
        raise wrong(
            f"a CUDA implementation lacks {', '.join(missing) or 'nothing'}{extra}; keys: {', '.join(CUDA_KEYS)}"
        )
    source = file.parent / str(described["cuda"])
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise wrong(f"{described['cuda']} cannot be read: {exc}") from exc
    entry = str(described["entry"])
    if not re.search(rf"__global__[^;{{]*\b{re.escape(entry)}\s*\(", text):
        there = re.findall(r"__global__[^;{(]*?\b(\w+)\s*\(", text)
        raise wrong(f"{source.name} has no __global__ function {entry}; it has {', '.join(there) or 'none'}")
    if 'extern "C"' not in text:
        raise wrong(f'{source.name}: {entry} must be declared extern "C", or its name is mangled')


def tolerance_of(tolerance: Any, wrong: Wrong) -> Mapping[str, float] | None:
    """A number (relative and absolute alike), or `{"rtol": …, "atol": …}`."""
    if tolerance is None:
        return None
    if isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool) and tolerance >= 0:
        return {"rtol": float(tolerance), "atol": float(tolerance)}
    if isinstance(tolerance, Mapping) and tolerance and set(tolerance) <= {"rtol", "atol"}:
        return {"rtol": float(tolerance.get("rtol", 0)), "atol": float(tolerance.get("atol", 0))}
    raise wrong('tolerance must be a number >= 0, or {"rtol": …, "atol": …}', "tolerance")


def pure(reference: Function, names: tuple[str, ...], inplace: tuple[str, ...]) -> Callable[[Arguments], Any]:
    """The reference as a function of inputs, which it leaves as they are."""

    def right(arguments: Arguments) -> Any:
        given = arguments.mapped(torch.clone) if inplace else arguments
        answer = reference(*given.args, **given.kwargs)
        return updated_inputs(given, names, inplace) if answer is None and inplace else answer

    return right


def inplace_of(inplace: Any, names: tuple[str, ...], wrong: Wrong) -> tuple[str, ...]:
    """The names of the inputs that a call may update."""
    if not isinstance(inplace, (list, tuple)) or not all(isinstance(one, str) for one in inplace):
        raise wrong('inplace must be a list of names of inputs, as ["x"]', "inplace")
    for name in inplace:
        if name not in names:
            raise wrong(f"inplace: reference has no argument {name}; it has {', '.join(names)}", "inplace")
    return tuple(inplace)


def requirements_of(requirements: Any, wrong: Wrong) -> tuple[str, ...]:
    """Packages, as pip takes them."""
    if not isinstance(requirements, (list, tuple)) or not all(isinstance(one, str) for one in requirements):
        raise wrong('requirements must be a list of strings, as ["triton>=3"]', "requirements")
    return tuple(requirements)


def fitting_arguments(function: Any, offered: Mapping[str, Any]) -> dict[str, Any]:
    """The offered arguments that a function takes by name; all of them if it takes any name."""
    taken = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        return dict(offered)
    return {key: value for key, value in offered.items() if key in taken}
