"""The implementations of a spec, built and bound to a case's inputs. From here on all are treated alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.harness.calls import BUILD, THESE
from kernels.harness.spec import original_name
from kernels.harness.workload import (
    BuildFailed,
    BuildRecord,
    Call,
    Case,
    Check,
    Implementation,
    Plan,
    Site,
    Unavailable,
    Workload,
    Yardstick,
    one_line,
)


@dataclass(frozen=True, slots=True)
class Bound:
    """An implementation ready to be called on one case's inputs; `copies` are the same call on copies of them."""

    implementation: str
    call: Call
    copies: tuple[Call, ...] = ()
    peak_bytes: int | None = None

    @property
    def backend(self) -> str:
        """The name of the code that really runs."""
        return self.call.backend

    @property
    def plan(self) -> Plan:
        """The call on the first inputs."""
        return self.call.plan

    @property
    def scope(self) -> Callable[[], AbstractContextManager[object]]:
        """The context in which calls are made."""
        return self.call.scope


@dataclass(frozen=True, slots=True)
class Built:
    """An implementation that is loaded; `record` is None where there was nothing to build."""

    implementation: Implementation
    record: BuildRecord | None


Crew = Mapping[str, Built | BuildFailed | Unavailable]
"""The result of building each implementation, by the name that controls share with their original."""


def build_contender(workload: Workload, name: str, site: Site) -> Built | BuildFailed | Unavailable:
    """The implementation of a name, compiled or from the cache; or why there is none."""
    if (failed := THESE.before(name, BUILD)) is not None and failed[1]:
        return BuildFailed(failed[0])
    try:
        with THESE.of(name, BUILD):
            implementation = workload.implementation(name, site)
            return Built(implementation, implementation.build(site))
    except (BuildFailed, Unavailable) as exc:
        return exc


def bind_contender(implementation: str, crew: Crew, case: Case, inputs: Any) -> Bound:
    """`implementation` on these inputs. Raises `Unavailable` if it cannot run, `BuildFailed` if it was not built."""
    built = crew.get(original_name(implementation))
    if built is None:
        raise Unavailable("the spec does not name it")
    if not isinstance(built, Built):
        raise built
    with THESE.of(original_name(implementation), case.id):
        call = built.implementation.bind(case, inputs)
        THESE.settle()  # what it has launched is its own, not the next one's
    return Bound(implementation, replace(call, scope=THESE.scope(call.scope, original_name(implementation), case.id)))


def check_output(bound: Bound, by: Yardstick) -> Check:
    """Judges one new output. An implementation that raises has not passed, but if memory runs out this raises
    `Unavailable`."""
    call = bound.call
    try:
        with call.scope(), call.poisoned():
            return by.judge(call.output(call.plan()))
    except (torch.OutOfMemoryError, MemoryError) as exc:
        raise Unavailable(f"{call.backend}: out of memory") from exc
    except Unavailable:
        raise
    except Exception as exc:  # compilers in Python raise anything
        return Check(False, float("nan"), by.limit, f"raised {type(exc).__name__}: {one_line(str(exc))}")


def check_copies(bound: Bound, by: Yardstick) -> Check | None:
    """The first verdict on a copy that has not passed; None where all have passed. Copies hold the same values, so an
    output that equals the first one in every bit is not judged again. Raises as `check` does."""
    with bound.scope():
        first = leaves_of(bound.call.output(bound.plan()), torch.clone)
    for call in bound.copies:
        with call.scope():
            same = outputs_equal(call.output(call.plan()), first)
        if not same:
            verdict = check_output(replace(bound, call=call), by)
            if not verdict.passed:
                return replace(verdict, reason=f"on a copy of its inputs: {verdict.reason}")
    return None


def leaves_of(output: Any, of: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """The result of `of` for each tensor of an output, in order. An output is a tensor, or a list, tuple or mapping of
    tensors."""
    if isinstance(output, torch.Tensor):
        return [of(output)]
    if isinstance(output, Mapping):
        return [leaf for key in output for leaf in leaves_of(output[key], of)]
    if isinstance(output, (list, tuple)):
        return [leaf for one in output for leaf in leaves_of(one, of)]
    return []


def outputs_equal(output: Any, before: list[torch.Tensor]) -> bool:
    """Whether the tensors of an output equal these in every bit."""
    now = leaves_of(output, lambda one: one)
    return len(now) == len(before) and all(torch.equal(a, b) for a, b in zip(now, before, strict=True))
