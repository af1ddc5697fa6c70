"""The common definition that every form of a workload is loaded into: cases, inputs, the right answer, and
implementations by name."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    )
    if hasattr(torch, name)
}
"""The values that an axis called `dtype` may have."""

Value = str | int | float | bool
CaseValues = Mapping[str, Value]
Function = Callable[..., Any]


class BadWorkload(Exception):
    """A workload that cannot be measured. The message names the file, the line where it is known, and what is
    expected."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments with which an implementation is called."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    posed_by: str = ""
    """The problem that these belong to, if a workload has several."""

    @classmethod
    def of(cls, made: Any) -> Arguments:
        """The arguments from the result of `inputs`: a tensor, a tuple, or a mapping of keyword arguments."""
        if isinstance(made, Mapping):
            return cls((), dict(made))
        return cls(tuple(made) if isinstance(made, (tuple, list)) else (made,), {})

    def mapped(self, of: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        """The same arguments, with `of` applied to each tensor at any depth."""
        return Arguments(
            tuple(map_tensors(one, of) for one in self.args),
            {key: map_tensors(one, of) for key, one in self.kwargs.items()},
            self.posed_by,
        )

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor, in order."""
        tensors: list[torch.Tensor] = []

        def keep(one: torch.Tensor) -> torch.Tensor:
            tensors.append(one)
            return one

        self.mapped(keep)
        return tensors


@dataclass(frozen=True, slots=True)
class Definition:
    """A workload, loaded.

    `cases` hold plain values; `inputs(case, device, generator)` makes fresh inputs; `reference(arguments)` says what is
    right, and is given what is floating in float64 where it is `exact`.
    `implementations` are functions, or mappings that describe a CUDA entry;
    those in `baselines` are what the others are compared with, the first of them before all. `outputs(*inputs)`
    allocates what implementations write into. `check(arguments, output)`, where a form brings its own judge, returns
    what is wrong, or nothing; it alone decides then. `writable(arguments)`, where inputs have room for answers among
    them, runs the reference on these very arguments and returns the places, among all tensors, that may be written to.
    `tests` are cases that are judged and not timed. `tolerance` is `{"rtol": …, "atol": …}`, a function of the
    case that returns that, or None for the criterion of ours; where it has `baselines`, so many times the first
    baseline's own error passes too.
    """

    name: str
    file: Path
    axes: tuple[str, ...]
    cases: tuple[CaseValues, ...]
    inputs: Callable[[CaseValues, torch.device, torch.Generator], Arguments]
    reference: Callable[[Arguments], Any]
    implementations: Mapping[str, Any]
    baselines: tuple[str, ...]
    outputs: Function | None = None
    check: Callable[[Arguments, Any], str] | None = None
    writable: Callable[[Arguments], list[int]] | None = None
    tests: tuple[CaseValues, ...] = ()
    flops: Callable[[CaseValues], float] | None = None
    bytes: Callable[[CaseValues], float] | None = None
    skip: Callable[[CaseValues, torch.device], str] | None = None
    tolerance: Mapping[str, float] | Callable[[CaseValues], Mapping[str, float]] | None = None
    exact: bool = True
    requirements: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """The names of the inputs in order, where they have names."""
    inplace: tuple[str, ...] = ()
    """The names of inputs that a call may update. An implementation that returns nothing answers with these."""

    ranking: str = ""
    """How the times of the cases make a score: `last`, `mean` or `geom`; empty for no score."""

    def updated(self, arguments: Arguments) -> Any:
        """The answer of a call that returned nothing: the inputs that it updates."""
        return updated_inputs(arguments, self.names, self.inplace)

    def update_places(self, arguments: Arguments) -> tuple[int, ...]:
        """The indices, among all tensors of the inputs, of those that a call may update."""
        if not self.inplace:
            return ()
        ids = {id(one) for one in Arguments.of(self.updated(arguments)).tensors()}
        return tuple(place for place, one in enumerate(arguments.tensors()) if id(one) in ids)


def updated_inputs(arguments: Arguments, names: Sequence[str], inplace: Sequence[str]) -> Any:
    """The inputs named in `inplace`: one value, or a tuple. `names` are those of the positional arguments in order."""
    named = dict(zip(names, arguments.args, strict=False)) | dict(arguments.kwargs)
    values = tuple(named[name] for name in inplace)
    return values[0] if len(values) == 1 else values


def place(exc: BaseException, file: Path) -> str:
    """`mine.py:12 in kernel_mine`: the innermost line, and its function, in the folder of the workload's `file` that an
    exception came through; the name of the file alone if there is none."""
    folder = file.resolve().parent
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        path = Path(frame.filename)
        if is_own(path, folder):
            return f"{path.name}:{frame.lineno}" + (f" in {frame.name}" if frame.name.isidentifier() else "")
    return file.name


def is_own(path: Path, folder: Path) -> bool:
    """Whether a source file belongs to the workload in `folder`, and to no package that is installed below it."""
    is_inside = path.resolve().is_relative_to(folder)
    return is_inside and not {"site-packages", "dist-packages"} & {*path.parts}


def map_tensors(value: Any, of: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with `of` applied to each tensor in it. It is a tensor, or a list, tuple or mapping of tensors; anything
    else is returned unchanged."""
    if isinstance(value, torch.Tensor):
        return of(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(one, of) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map_tensors(one, of) for one in value)
    return value


def with_dtype(case: CaseValues) -> dict[str, Any]:
    """The keyword arguments of a case: an axis called `dtype` arrives as a torch dtype."""
    return {key: DTYPES[str(value)] if key == "dtype" else value for key, value in case.items()}


def in_double(one: torch.Tensor) -> torch.Tensor:
    """A floating-point tensor in float64; any other tensor unchanged."""
    if one.is_complex():
        return one.to(torch.complex128)
    return one.double() if one.is_floating_point() else one
