"""KernelBench problems: files with `Model`, `get_inputs` and `get_init_inputs`, and files with `ModelNew` for them.

One problem with its candidates beside it is a workload of one case. Several problems in one folder are a suite: each is
a case, and the candidates lie in folders of their own, one folder a kernel.

Inputs are made on the device. `Model` in eager mode and compiled are the baselines, each `ModelNew` is a kernel. Each
is constructed under one seed, which gives them the same parameters if they create these by the same modules in the same
order. They are called as constructed, in training mode, as KernelBench's evaluator does; where `Model` drops out values
at random, all of them are in eval mode, because a call would not have one answer. The right answer is that of `Model`
in float64. The tolerance is that of KernelBench: 1e-4 in float32, 1e-2 in half types. Where three times the error of
`Model` itself on this device is more (its convolutions may multiply in TF32), that is the tolerance.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from kernels.forms.definition import Arguments, BadWorkload, CaseValues, Definition
from kernels.forms.one_file import import_file
from kernels.harness.criterion import TIMES_BASELINE

PARAMETERS_SEED = 42
USUAL_TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2
EAGER, COMPILED = "eager", "compiled"
AXIS = "problem"
"""The name of the axis of a suite."""
NEEDED = ("Model", "get_inputs", "get_init_inputs")
GENERATED = re.compile(r"level_\d+_problem_(\d+)_sample_(\d+)_kernel")
"""The names of files that KernelBench's own generator writes."""


@dataclass(frozen=True, slots=True)
class Found:
    """The problems of a folder, the candidates of each kernel by problem, and the file by which the workload is
    known."""

    problems: Mapping[str, Path]
    candidates: Mapping[str, Mapping[str, Path]]

    @property
    def suite(self) -> bool:
        """Whether there are several problems."""
        return len(self.problems) > 1


def load(path: Path) -> Definition:
    """The problem or the suite in a folder. Raises `BadWorkload`."""
    folder = path if path.is_dir() else path.parent
    files = find_models(folder)
    problems = {name: Problem(file) for name, file in files.problems.items()}
    only = next(iter(problems.values()))
    if not files.suite:
        only.module()

    def posed(case: CaseValues) -> Problem:
        return problems[str(case[AXIS])] if files.suite else only

    def inputs(case: CaseValues, device: torch.device, generator: torch.Generator) -> Arguments:
        return posed(case).inputs(device, generator)

    def right(arguments: Arguments) -> Any:
        return (problems[arguments.posed_by] if files.suite else only).right(arguments)

    implementations: dict[str, Any] = {
        EAGER: Entrant({name: one.model for name, one in problems.items()}, problems),
        COMPILED: Entrant({name: one.model for name, one in problems.items()}, problems, compiled=True),
    }
    for kernel, by_problem in files.candidates.items():
        name = kernel if kernel not in implementations else f"{kernel}_new"
        implementations[name] = Entrant({key: Later(file) for key, file in by_problem.items()}, problems)
    return Definition(
        name=folder.name if files.suite else only.file.stem,
        file=only.file,
        axes=(AXIS,) if files.suite else (),
        cases=tuple({AXIS: name} for name in problems) if files.suite else ({},),
        inputs=inputs,
        reference=right,
        implementations=implementations,
        baselines=(EAGER, COMPILED),
        tolerance=lambda case: posed(case).tolerance,
    )


def find_models(folder: Path) -> Found:
    """The files with `Model`, and those with `ModelNew`, by their text. Raises `BadWorkload`."""
    problems, beside = {}, []
    for file in sorted(folder.glob("*.py"), key=in_order):
        classes = classes_of(file)
        if "ModelNew" in classes:
            beside.append(file)
        elif "Model" in classes:
            problems[file.stem] = file
    if not problems:
        raise BadWorkload(f"{folder.name}: no file has a class Model")
    if len(problems) == 1:
        only = next(iter(problems))
        return Found(problems, {file.stem: {only: file} for file in beside})
    if beside:
        raise BadWorkload(
            f"{beside[0].name}: there are {len(problems)} problems, and it is not clear which one this "
            "file solves: put it into a folder of its own, under the name of that problem's file"
        )
    candidates: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.glob("*/*.py"), key=in_order):
        if "ModelNew" in classes_of(file):
            kernel, problem = solved_problem(file, problems)
            other = candidates.setdefault(kernel, {}).setdefault(problem, file)
            if other is not file:
                raise BadWorkload(f"{kernel}/{file.name}: {other.name} is for the same problem, {problem}")
    return Found(problems, candidates)


def in_order(file: Path) -> tuple[str, int, str]:
    """A key to sort by the number at the beginning of a name: 2 comes before 10."""
    number = re.match(r"\d+", file.name)
    return file.parent.name, int(number[0]) if number else 0, file.name


def classes_of(file: Path) -> set[str]:
    """The classes at the top of a file. Raises `BadWorkload` for one that is no Python."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except SyntaxError as exc:
        raise BadWorkload(f"{file.name}:{exc.lineno}: syntax error: {exc.msg}") from exc
    except (OSError, ValueError, RecursionError, MemoryError) as exc:
        raise BadWorkload(f"{file.name}: cannot be read: {exc or 'it is nested too deeply'}") from exc
    return {node.name for node in body if isinstance(node, ast.ClassDef)}


def solved_problem(file: Path, problems: Mapping[str, Path]) -> tuple[str, str]:
    """The kernel's name and the problem that one of its files is for. Raises `BadWorkload`."""
    kernel = file.parent.name
    if file.stem in problems:
        return kernel, file.stem
    generated = GENERATED.fullmatch(file.stem)
    if generated:
        number, sample = generated.groups()
        named = [name for name in problems if name.split("_")[0] == number]
        if named:
            return kernel if sample == "0" else f"{kernel}_sample{sample}", named[0]
    raise BadWorkload(f"{kernel}/{file.name}: no problem of the suite has that name")


class Problem:
    """One file with `Model`, imported when it is first wanted."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.exact = Models(self.model, self.initial, self.training)
        half = says_half(file)
        allowed = HALF_TOLERANCE if half else USUAL_TOLERANCE
        self.tolerance = {"rtol": allowed, "atol": allowed, "baselines": TIMES_BASELINE}
        self.known: ModuleType | None = None
        self.trains: bool | None = None

    def module(self) -> ModuleType:
        """The file, imported. Raises `BadWorkload`."""
        if self.known is None:
            made = import_file(self.file)
            for name in NEEDED:
                if not hasattr(made, name):
                    raise BadWorkload(f"{self.file.name}:1: there is no {name}")
            self.known = made
        return self.known

    def model(self, *args: Any) -> Any:
        """A new `Model`."""
        return self.module().Model(*args)

    def initial(self) -> Any:
        """The arguments of every model."""
        return self.module().get_init_inputs()

    def training(self) -> bool:
        """Whether the models are called in training mode: not if `Model` drops out values at random."""
        if self.trains is None:
            try:
                with torch.device("meta"):
                    model = self.model(*self.initial())
            except Exception:  # a constructor that needs values
                model = self.model(*self.initial())
            self.trains = not any(drops_out(module) for module in model.modules())
        return self.trains

    def inputs(self, device: torch.device, generator: torch.Generator) -> Arguments:
        """What a model is called with."""
        # get_inputs draws from the global generators, and large draws on the host would take minutes.
        make = self.module().get_inputs
        torch.manual_seed(generator.initial_seed())
        with torch.device(device):
            made = make()
        return Arguments(tuple(made), {}, self.file.stem).mapped(lambda one: one.to(device))

    def right(self, arguments: Arguments) -> Any:
        """The answer of `Model`, computed in the type of these inputs."""
        first = next((one for one in arguments.tensors() if one.is_floating_point()), None)
        device = first.device if first is not None else torch.device("cpu")
        model = self.exact.on(device, None if first is None else first.dtype)
        if first is None or first.dtype is not torch.float64:
            return model(*arguments.args)
        with WidenNewTensors():
            return model(*arguments.args)


class WidenNewTensors(TorchFunctionMode):  # type: ignore[misc] # torch may be missing where types are checked
    """Widens to float64 what a model makes in its forward pass without naming a type: a first state, a mask. It is
    drawn in the usual type all the same, so that the numbers are those that the model itself would draw."""

    MAKERS: Final = (torch.rand, torch.randn, torch.zeros, torch.ones, torch.full, torch.empty, torch.eye, torch.tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        new = func in self.MAKERS and made.dtype is torch.get_default_dtype() and "dtype" not in (kwargs or {})
        return made.double() if new else made


def drops_out(module: torch.nn.Module) -> bool:
    """Whether a module drops out values at random in training mode."""
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return float(module.p) > 0
    rate = getattr(module, "dropout", 0)  # of recurrent and other layers of PyTorch
    return isinstance(rate, (int, float)) and rate > 0


def says_half(problem: Path) -> bool:
    """Whether a problem's text names a half type; all other problems are in float32."""
    text = problem.read_text(encoding="utf-8")
    return "float16" in text or ".half()" in text


class Later:
    """`ModelNew` of a file, imported when it is first wanted: only in its own process."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, *args: Any) -> Any:
        made: Callable[..., Any] = import_file(self.file).ModelNew
        return made(*args)


class Models:
    """A model with parameters drawn under one seed, on a device and in a type."""

    def __init__(self, make: Callable[..., Any], initial: Callable[[], Any], training: Callable[[], bool]) -> None:
        self.make, self.initial, self.training = make, initial, training
        self.made: dict[tuple[torch.device, torch.dtype | None], Any] = {}

    def new(self) -> Any:
        """A new model on the host. Its parameters are drawn there, and so the same wherever it goes."""
        torch.manual_seed(PARAMETERS_SEED)
        with torch.inference_mode(False):
            return self.make(*self.initial())

    def on(self, device: torch.device, dtype: torch.dtype | None) -> Any:
        """The model as it is called."""
        if (device, dtype) not in self.made:
            with torch.inference_mode(False):
                model = self.new().to(device)
                model = model if self.training() else model.eval()
                self.made[device, dtype] = model.to(dtype) if dtype is torch.float64 else model
        return self.made[device, dtype]

    def parameters(self) -> list[tuple[int, float]]:
        """The size and the sum of each parameter of a new model, in the order of these."""
        return sorted((one.numel(), one.detach().double().sum().item()) for one in self.new().parameters())


class Entrant:
    """An implementation: for each problem that it solves a module, made on the device when it is first bound."""

    def __init__(
        self, makers: Mapping[str, Callable[..., Any]], problems: Mapping[str, Problem], *, compiled: bool = False
    ) -> None:
        self.makers, self.problems, self.compiled = makers, problems, compiled
        self.made: tuple[str, Any] | None = None

    def refusal(self, case: CaseValues) -> str:
        """Why the implementation cannot solve a problem; empty where it can."""
        name = str(case.get(AXIS, ""))
        return "" if not name or name in self.makers else f"it has no file for {name}"

    def bound(self, _case: Mapping[str, Any], _outs: tuple[Any, ...], arguments: Arguments) -> Callable[[], Any]:
        """A call on these inputs."""
        name = arguments.posed_by
        if self.made is None or self.made[0] != name:
            first = next(iter(arguments.tensors()), None)
            device = first.device if first is not None else torch.device("cpu")
            model = self.models(name).on(device, None)
            self.made = name, torch.compile(model) if self.compiled else model
        return partial(self.made[1], *arguments.args)

    def models(self, name: str) -> Models:
        """The models that solve a problem."""
        problem = self.problems[name]
        return Models(self.makers[name], problem.initial, problem.training)

    def remark(self) -> str:
        """What may be why the last answer was wrong: parameters other than those of `Model`."""
        if self.made is None:
            return ""
        problem = self.problems[self.made[0]]
        ours = self.models(self.made[0]).parameters()
        right = Models(problem.model, problem.initial, problem.training).parameters()
        if ours == right:
            return ""
        sizes = [size for size, _ in ours] == [size for size, _ in right]
        return (
            f"its parameters differ from Model's{'' if sizes else ' in number or size'}: they are the same only if "
            "both create them by the same modules in the same order"
        )

    def leave(self) -> None:
        """Drops everything of a problem."""
        self.made = None
        if self.compiled:
            torch.compiler.reset()
