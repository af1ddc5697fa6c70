"""What can be measured: a workload gives cases, inputs, the right answer and named implementations.

Everything here that is not called needs no torch: a spec is judged against a workload before torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

Plan = Callable[[], Any]
"""One call on fixed inputs, with all that can be decided beforehand decided; returns its output."""
Scope = Callable[[], AbstractContextManager[object]]


class BuildFailed(Exception):
    """An implementation could not be built or loaded.

    `cause` is `no_compiler` or `build_failed`; the message carries the compiler's own words; `remedy` says what to do.
    """

    def __init__(self, message: str, *, cause: str = "build_failed", remedy: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.remedy = remedy


class Unavailable(Exception):
    """An implementation cannot run here, or cannot run this case. The message is a reason fit for a result row."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What was built, by what, and whether it came from the cache; becomes build.json. `seconds` is wall time."""

    implementation: str
    compiler: str
    compiler_version: str
    flags: tuple[str, ...]
    seconds: float
    cached: bool
    source_sha256: str
    artifact_sha256: str
    details: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The record as the mapping that build.json holds."""
        return {"schema": 1, **asdict(self), "flags": list(self.flags), "details": dict(self.details)}


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict. `max_abs_error` is NaN when there was nothing to compare; `reason` is empty when it passed. `calls` is
    the number of calls whose answers were judged, where they were counted."""

    passed: bool
    max_abs_error: float
    limit: float
    reason: str
    calls: int = 0

    @property
    def rare_fault_seen(self) -> float:
        """The chance that these calls show a fault of one call in a hundred."""
        return 1 - 0.99**self.calls


@dataclass(frozen=True, slots=True)
class Site:
    """Where implementations are built and run: `threads` counts CPU threads, 0 for PyTorch's default; `cache` keeps
    what was built, logs go to `out`."""

    device: torch.device
    threads: int
    out: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class Call:
    """An implementation on one set of inputs.

    `backend` says what really runs; `scope` is entered around calls, outside what is timed; within `poisoned`, memory
    that the call allocates starts out as NaN; `output` makes of what the plan returns what is judged.
    """

    backend: str
    plan: Plan
    scope: Scope = nullcontext
    poisoned: Scope = nullcontext
    output: Callable[[Any], Any] = lambda answer: answer


class Case(Protocol):
    """One value of each axis."""

    @property
    def id(self) -> str:
        """Its name in file names and result files."""
        ...

    @property
    def axes(self) -> Mapping[str, str]:
        """The cells of its row, by the workload's columns."""
        ...


class Implementation(Protocol):
    """One named way to the answer."""

    def build(self, site: Site) -> BuildRecord | None:
        """Compile and load, once; None where there is nothing to build. Raises `BuildFailed`."""
        ...

    def bind(self, case: Any, inputs: Any) -> Call:
        """A call on these inputs. Raises `Unavailable`, with the reason, if it cannot run here."""
        ...


class Yardstick(Protocol):
    """What outputs of a case are judged by."""

    @property
    def limit(self) -> float:
        """The largest absolute error that passes."""
        ...

    def judge(self, output: Any) -> Check:
        """The verdict on one output."""
        ...


class Problem(Protocol):
    """The part of a workload that needs torch."""

    def smoke(self, device: torch.device) -> Any | None:
        """A small case that is tried before anything long is begun; None where there is none."""
        ...

    def inputs(self, case: Any, generator: torch.Generator) -> Any:
        """Fresh inputs on the generator's device; the same generator state always gives the same."""
        ...

    def copied(self, inputs: Any) -> Any:
        """The same values in memory of their own."""
        ...

    def set_bytes(self, case: Any, inputs: Any) -> int:
        """What one call reads and writes at least."""
        ...

    def yardstick(self, case: Any, inputs: Any, max_abs_error: float) -> Yardstick:
        """The right answer for these inputs, and how far from it an output may be."""
        ...


class Workload(Protocol):
    """The part that needs no torch. A module or an object; `kernels.harness.workloads` finds it by name."""

    @property
    def name(self) -> str: ...

    @property
    def grid_keys(self) -> tuple[str, ...]:
        """The keys of a grid in a spec."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the result files that say where on its axes a row belongs."""
        ...

    def cases(self, grid: Mapping[str, Any], where: str) -> tuple[Case, ...]:
        """The cases of a grid, in order. Raises `BadSpec`."""
        ...

    def is_case(self, case_id: str) -> bool:
        """Whether an id may be one of this workload's."""
        ...

    def shown(self) -> tuple[str, ...]:
        """The implementations' names, for messages; `*` stands for variants."""
        ...

    def knows(self, implementation: str) -> bool:
        """Whether a name gives an implementation."""
        ...

    def implementation(self, name: str, site: Site) -> Implementation:
        """The implementation of a known name, not yet built. Raises `Unavailable` where it cannot be had."""
        ...

    def problem(self) -> Problem: ...


def one_line(words: str) -> str:
    """The first line that is not empty, shortened to fit a result row."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")
    return telling[:200]
