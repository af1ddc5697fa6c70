"""What all entries for attention of others share: which cases a package takes, how it is imported, and its errors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from typing import Any

import torch

from kernels.attention import correctness
from kernels.attention.case import PASSES, VALUE_WIDTH, Case, refuse_features
from kernels.attention.interface import Unavailable
from kernels.attention.problem import Inputs
from kernels.harness.workload import Call, Site

LONGEST_REASON = 200
Chip = tuple[int, int]
"""The compute capability of a device, such as (9, 0)."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package with attention in it, and what it computes. `names` are those that it must have; `install` is the
    command that installs it. `aligns_top_left`: its causal mask can be aligned as that of a case."""

    name: str
    module: str
    distribution: str
    install: str
    names: tuple[str, ...]
    features: tuple[str, ...] = (VALUE_WIDTH,)
    passes: tuple[str, ...] = PASSES
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    oldest: Chip = (8, 0)
    newest: Chip | None = None
    aligns_top_left: bool = False

    def refuse(self, case: Case, chip: Chip | None) -> str | None:
        """Why this package cannot take a case on a device, None if it can. `chip` is None for a device without CUDA."""
        s = case.shape
        if chip is None:
            return f"{self.name} needs a CUDA device"
        if case.dtype not in self.dtypes:
            return f"{self.name} has no {case.dtype}"
        if case.direction not in self.passes:
            return f"{self.name} is called here forward only"
        lacking = refuse_features(case, self.name, self.features)
        if lacking is not None:
            return lacking
        if s.causal and s.seq_q != s.seq_k and not self.aligns_top_left:
            return f"{self.name} aligns a causal mask bottom-right, and this case's is aligned top-left"
        return self.refuse_chip(chip)

    def refuse_chip(self, chip: Chip) -> str | None:
        """Why it cannot run on a device of this compute capability, None if it can."""
        if self.oldest <= chip and (self.newest is None or chip <= self.newest):
            return None
        limits = f"{format_chip(self.oldest)} or newer"
        if self.newest is not None:
            limits = f"{format_chip(self.oldest)} to {format_chip(self.newest)}"
        return f"{self.name} needs compute capability {limits}, and this device has {format_chip(chip)}"

    def load(self) -> Any:
        """The module. Raises `Unavailable` if it is not installed, with the command that installs it, or is broken."""
        try:
            module = importlib.import_module(self.module)
        except Exception as exc:  # it may be a compiler in Python, whose import may raise anything
            absent = isinstance(exc, ModuleNotFoundError) and f"{self.module}.".startswith(f"{exc.name}.")
            if absent:
                raise Unavailable(f"{self.name} is not installed: {self.install}") from exc
            reason = f"{self.name} does not import: {type(exc).__name__}: {exc}"
            raise Unavailable(reason[:LONGEST_REASON]) from exc
        lacking = [name for name in self.names if not hasattr(module, name)]
        if lacking:
            raise Unavailable(f"the {self.module} that is installed has no {', '.join(lacking)}: {self.install}")
        return module

    @property
    def title(self) -> str:
        """Its name and the version that is installed, as far as that is known."""
        try:
            return f"{self.name} {metadata.version(self.distribution)}"
        except metadata.PackageNotFoundError:
            return self.name


class Rival:
    """An entry for a package. A subclass has the `package`, and `call` binds its attention to inputs."""

    package: Package

    def build(self, site: Site) -> None:
        """Does nothing: these packages compile themselves when they are first called."""

    def bind(self, case: Case, inputs: Inputs) -> Call:
        """A call on these inputs that has been tried once. Raises `Unavailable`, with the reason."""
        refusal = self.package.refuse(case, chip_of(inputs.q.device))
        if refusal is not None:
            raise Unavailable(refusal)
        module = self.package.load()
        with translate_errors(self.package.name):
            call = self.call(module, case, inputs)
            call.plan()
            torch.cuda.synchronize()
        poisoned = partial(correctness.poison_memory, inputs.q, through_torch=False)
        return replace(call, backend=f"{self.package.title}{call.backend}", poisoned=poisoned)

    def call(self, module: Any, case: Case, inputs: Inputs) -> Call:
        """The package's attention bound to inputs that it takes. `backend` is what is added to the package's title.
        May raise anything."""
        raise NotImplementedError


def chip_of(device: torch.device) -> Chip | None:
    """The compute capability of a device; None if it is not a CUDA device."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def format_chip(chip: Chip) -> str:
    """A compute capability as text: `9.0`."""
    return f"{chip[0]}.{chip[1]}"


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Raises `Unavailable` with the first line of any error of the block."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as exc:  # compilers in Python may raise anything
        error_text = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        raise Unavailable(f"{name}: {error_text}"[:LONGEST_REASON]) from exc
