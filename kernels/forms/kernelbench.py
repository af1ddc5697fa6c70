"""A KernelBench problem: a file with `Model`, `get_inputs` and `get_init_inputs`, and files with `ModelNew` beside it.

Inputs are made on the device. `Model` in eager mode and compiled are the baselines, each `ModelNew` is a kernel; all of
them have the same parameters, drawn under one seed. Right is what `Model` gives in float64, to within the tolerance
that KernelBench uses: 1e-4 in float32, 1e-2 in half types.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kernels.forms.definition import Arguments, BadWorkload, CaseValues, Definition
from kernels.forms.one_file import imported

PARAMETERS_SEED = 42
USUAL_TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2


def load(path: Path) -> Definition:
    """The problem in a folder. Raises `BadWorkload`."""
    folder = path if path.is_dir() else path.parent
    problem, candidates = found(folder)
    module = imported(problem)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not hasattr(module, name):
            raise BadWorkload(f"{problem.name}:1: there is no {name}")

    def inputs(_case: CaseValues, device: torch.device, generator: torch.Generator) -> Arguments:
        # get_inputs draws from the global generators; minutes would go into large draws on the host.
        torch.manual_seed(generator.initial_seed())
        with torch.device(device):
            made = module.get_inputs()
        return Arguments.of(tuple(made)).mapped(lambda one: one.to(device))

    exact = Models(module.Model, module.get_init_inputs)

    def right(arguments: Arguments) -> Any:
        first = next((one for one in arguments.tensors() if one.is_floating_point()), None)
        device = first.device if first is not None else torch.device("cpu")
        return exact.on(device, None if first is None else first.dtype)(*arguments.args)

    implementations: dict[str, Any] = {
        "eager": Entrant(module.Model, module.get_init_inputs),
        "compiled": Entrant(module.Model, module.get_init_inputs, compiled=True),
    }
    for file in candidates:
        name = file.stem if file.stem not in implementations else f"{file.stem}_new"
        implementations[name] = Entrant(Later(file), module.get_init_inputs)
    tolerance = HALF_TOLERANCE if says_half(problem) else USUAL_TOLERANCE
    return Definition(
        name=problem.stem,
        file=problem,
        axes=(),
        cases=({},),
        inputs=inputs,
        reference=right,
        implementations=implementations,
        baselines=("eager", "compiled"),
        tolerance={"rtol": tolerance, "atol": tolerance},
    )


def found(folder: Path) -> tuple[Path, list[Path]]:
    """The file with `Model`, and those with `ModelNew`, by their text. Raises `BadWorkload`."""
    problems, candidates = [], []
    for file in sorted(folder.glob("*.py")):
        try:
            body = ast.parse(file.read_text(encoding="utf-8")).body
        except SyntaxError as exc:
            raise BadWorkload(f"{file.name}:{exc.lineno}: syntax error: {exc.msg}") from exc
        classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
        if "ModelNew" in classes:
            candidates.append(file)
        elif "Model" in classes:
            problems.append(file)
    if len(problems) != 1:
        raise BadWorkload(f"{folder.name}: one file must have a class Model, and {len(problems)} have")
    return problems[0], candidates


def says_half(problem: Path) -> bool:
    """Whether a problem's text names a half type; float32 is what the others are in."""
    text = problem.read_text(encoding="utf-8")
    return "float16" in text or ".half()" in text


class Later:
    """`ModelNew` of a file, imported when it is first wanted: only in its own process."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, *args: Any) -> Any:
        made: Callable[..., Any] = imported(self.file).ModelNew
        return made(*args)


class Models:
    """A model with parameters drawn under one seed, on a device and in a type."""

    def __init__(self, make: Callable[..., Any], initial: Callable[[], Any]) -> None:
        self.make, self.initial = make, initial
        self.made: dict[tuple[torch.device, torch.dtype | None], Any] = {}

    def on(self, device: torch.device, dtype: torch.dtype | None) -> Any:
        """The model for eval mode. Its parameters are drawn on the host, and so the same wherever it goes."""
        if (device, dtype) not in self.made:
            torch.manual_seed(PARAMETERS_SEED)
            with torch.inference_mode(False):
                model = self.make(*self.initial()).eval().to(device)
                self.made[device, dtype] = model.to(dtype) if dtype is torch.float64 else model
        return self.made[device, dtype]


class Entrant:
    """An implementation: a module, made on the device when it is first bound."""

    def __init__(self, make: Callable[..., Any], initial: Callable[[], Any], *, compiled: bool = False) -> None:
        self.models, self.compiled = Models(make, initial), compiled
        self.module: Any = None

    def bound(self, _case: Mapping[str, Any], _outs: tuple[Any, ...], arguments: Arguments) -> Callable[[], Any]:
        """A call on these inputs."""
        if self.module is None:
            first = next(iter(arguments.tensors()), None)
            model = self.models.on(first.device if first is not None else torch.device("cpu"), None)
            self.module = torch.compile(model) if self.compiled else model
        module, args = self.module, arguments.args
        return lambda: module(*args)
