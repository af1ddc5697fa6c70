"""A problem in GPU MODE's form: `generate_input`, `ref_kernel` and `check_implementation` in `reference.py`, and
submissions with `custom_kernel`.

The content of `task.yml` is in a JSON file beside the folder. The problem's own check judges answers, on inputs with a
secret seed; the reference is timed as the baseline. A submission may write into the inputs into which the reference
writes, and into uninitialised ones, because this form passes memory for answers in that way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernels.forms.definition import Arguments, BadWorkload, CaseValues, Definition
from kernels.forms.one_file import import_file
from kernels.harness.answers import answers_equal
from kernels.harness.workload import Unavailable

BASELINE = "reference"
NEEDED = ("generate_input", "ref_kernel", "check_implementation")
MOST_SEED = (1 << 31) - 1


def load(path: Path) -> Definition:
    """The problem in a folder, described in the file `<folder>.json` beside it. Raises `BadWorkload`."""
    description, file = read_description(path), path / "reference.py"
    module = referred_to(file)

    def inputs(case: CaseValues, device: torch.device, generator: torch.Generator) -> Arguments:
        seed = generator.initial_seed() % MOST_SEED
        try:
            made = made_by(module, {**{name: value for name, value in case.items() if value is not None}, "seed": seed})
        except (RuntimeError, AssertionError) as exc:
            if device.type != "cuda" and any(word in str(exc) for word in ("CUDA", "cuda", "NVIDIA")):
                why = f"generate_input makes its inputs on a CUDA device, and this one is a {device.type}"
                raise Unavailable(why) from exc
            raise
        return Arguments((made,), {}).mapped(lambda one: one.to(device))

    def right(arguments: Arguments) -> Any:
        return module.ref_kernel(clone_arguments(arguments).args[0])

    def writable(arguments: Arguments) -> list[int]:
        before = clone_arguments(arguments).tensors()
        module.ref_kernel(arguments.args[0])
        pairs = enumerate(zip(arguments.tensors(), before, strict=True))
        return [at for at, (now, was) in pairs if not answers_equal(now, was) or is_unwritten(was)]

    def check(arguments: Arguments, output: Any) -> str:
        verdict = module.check_implementation(arguments.args[0], output)
        passed, reason = verdict if isinstance(verdict, tuple) else (not verdict, verdict)
        return "" if passed else str(reason or "check_implementation refused the output")

    return Definition(
        name=str(description["name"]),
        file=file,
        axes=tuple(description["cases"][0]),
        cases=tuple(description["cases"]),
        tests=tuple(description["tests"]),
        inputs=inputs,
        reference=right,
        implementations={
            BASELINE: OneArgument(lambda: module.ref_kernel),
            **{name: OneArgument(Submission(path, path / where)) for name, where in description["submissions"].items()},
        },
        baselines=(BASELINE,),
        check=check,
        writable=writable,
        exact=False,
        ranking=str(description.get("ranking", "")),
    )


def read_description(path: Path) -> dict[str, Any]:
    """The description of the problem in a folder. Raises `BadWorkload`."""
    file = path.with_name(f"{path.name}.json")
    try:
        description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise BadWorkload(f"{file.name}: cannot be read: {exc}") from exc
    return description


def referred_to(file: Path) -> ModuleType:
    """The reference, with all the functions that a problem needs. Raises `BadWorkload`."""
    if not file.is_file():
        raise BadWorkload(f"{file.parent.name}: there is no reference.py")
    module = import_file(file)
    for name in NEEDED:
        if not callable(getattr(module, name, None)):
            raise BadWorkload(f"reference.py:1: there is no function {name}(…)")
    return module


def made_by(module: ModuleType, arguments: Mapping[str, Any]) -> Any:
    """What `generate_input` returns; a function without a seed draws from the global generators."""
    torch.manual_seed(arguments["seed"])
    try:
        return module.generate_input(**arguments)
    except TypeError as exc:
        if "unexpected keyword argument 'seed'" not in str(exc):
            raise
        return module.generate_input(**{key: value for key, value in arguments.items() if key != "seed"})


def clone_arguments(arguments: Arguments) -> Arguments:
    """A copy of the arguments in new memory."""
    return arguments.mapped(lambda one: one.clone(memory_format=torch.preserve_format))


def is_unwritten(one: torch.Tensor) -> bool:
    """Whether a tensor holds only what uninitialised memory is filled with in deterministic mode."""
    if one.numel() == 0 or one.dtype is torch.bool:
        return False
    if one.is_floating_point() or one.is_complex():
        return bool(torch.isnan(one.float() if one.dtype.itemsize == 1 else one).all().item())
    return bool((one == torch.iinfo(one.dtype).max).all().item())


class Submission:
    """`custom_kernel` of a file, imported when it is first wanted: only in its own process."""

    def __init__(self, root: Path, file: Path) -> None:
        self.root, self.file = root, file

    def __call__(self) -> Callable[[Any], Any]:
        made = getattr(import_file(self.file, also=self.root), "custom_kernel", None)
        if not callable(made):
            raise BadWorkload(f"{self.file.name}:1: custom_kernel is not a function")
        function: Callable[[Any], Any] = made
        return function


class OneArgument:
    """An implementation that takes all of its inputs as one argument."""

    def __init__(self, find: Callable[[], Callable[[Any], Any]]) -> None:
        self.find = find
        self.function: Callable[[Any], Any] | None = None

    def ready(self) -> None:
        """Imports the submission, which also compiles it if it compiles at import."""
        self.function = self.function or self.find()

    def bound(self, _case: Mapping[str, Any], _outs: tuple[Any, ...], arguments: Arguments) -> Callable[[], Any]:
        """A call on these inputs."""
        self.ready()
        function, data = self.function, arguments.args[0]
        assert function is not None, "it is ready"
        return lambda: function(data)
