"""Which implementations may be timed on a case: the verdicts, before and after, on the very inputs that are timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from kernels.attention import correctness
from kernels.attention.case import Case
from kernels.attention.correctness import Check, Yardstick
from kernels.attention.interface import BuildFailed, Plan, Unavailable
from kernels.harness import axes
from kernels.harness.contenders import Bound, Built, bind, build, check, check_copies, one_line
from kernels.harness.facts import Facts, log
from kernels.harness.input_sets import (
    ASSUMED_CACHE_BYTES,
    MOST_SETS,
    Rotation,
    cache_bytes,
    copies,
    free_bytes,
    rotation,
    set_bytes,
)
from kernels.harness.memory import peak_bytes
from kernels.harness.spec import Spec
from kernels.harness.turns import Contender


@dataclass(frozen=True, slots=True)
class Session:
    """One invocation: what is asked, where results go, who listens, and the device that really runs."""

    spec: Spec
    out: Path
    cache: Path
    facts: Facts
    device: torch.device


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one implementation on one case: bound and passed, or a reason. `wrong` spoils the run."""

    implementation: str
    bound: Bound | None
    check: Check | None
    reason: str
    wrong: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """A case, its inputs, the exact answer, and the outcome of every implementation in the order of the spec."""

    case: Case
    inputs: axes.Inputs
    by: Yardstick
    outcomes: tuple[Outcome, ...]

    @property
    def bound(self) -> list[Bound]:
        """What passed."""
        return [outcome.bound for outcome in self.outcomes if outcome.bound is not None]

    @property
    def contenders(self) -> list[Contender]:
        """What may be timed."""
        return [Contender(one.implementation, (one.plan, *one.copies), one.scope) for one in self.bound]


def attempt_build(session: Session) -> Built | BuildFailed | None:
    """The bundled kernel, or why there is none; None when it is not asked for. A failed build stops no other."""
    if "bench" not in session.spec.implementations:
        return None
    try:
        return build(session.device, session.spec.threads, session.out, session.cache)
    except BuildFailed as exc:
        log(f"{exc.cause}: {exc} ({exc.remedy})")
        return exc


def judge_case(
    session: Session, bench: Built | BuildFailed | None, case: Case, implementations: tuple[str, ...]
) -> Judged:
    """Fresh inputs, and the verdict on each implementation on exactly these; says a `checked` fact for each check."""
    inputs = axes.inputs(case, session.device, session.spec.seed)
    by = correctness.yardstick(
        inputs.q, inputs.k, inputs.v, causal=case.shape.causal, max_abs_error=session.spec.max_abs_error
    )
    outcomes = []
    for implementation in implementations:
        outcome = judge_one(implementation, bench, case, inputs, by)
        say(session.facts, case, outcome)
        outcomes.append(outcome)
    return Judged(case, inputs, by, tuple(outcomes))


def spread(session: Session, bench: Built | BuildFailed | None, judged: Judged) -> tuple[Judged, Rotation]:
    """What passed, bound to as many copies of the inputs as it takes to find the caches cold, and judged on each.

    Where memory ends before that, all implementations do with the copies that there are.
    """
    case, device = judged.case, session.device
    size = set_bytes(case)
    cache = cache_bytes(device) or ASSUMED_CACHE_BYTES
    asked = rotation(session.spec.cache, size, cache, free_bytes(device), MOST_SETS[device.type])
    sets = copies(judged.inputs, asked.sets)
    plans: dict[str, list[Plan]] = {}
    peaks: dict[str, int | None] = {}
    for one in judged.bound:
        name = one.implementation

        def prepare(name: str = name) -> tuple[Plan, Callable[[], AbstractContextManager[object]]]:
            made = bind(name, bench, case, judged.inputs)
            return made.plan, made.scope

        peaks[name] = peak_bytes(device, prepare)
        plans[name] = []
        for inputs in sets[1:]:
            try:
                plans[name].append(bind(name, bench, case, inputs).plan)
            except (Unavailable, RuntimeError, MemoryError) as exc:
                log(f"{case.id}: {name}: {len(plans[name]) + 1} of {len(sets)} input sets: {one_line(str(exc))}")
                break
    count = 1 + min((len(made) for made in plans.values()), default=0)

    def ready(outcome: Outcome) -> Outcome:
        name = outcome.implementation
        if outcome.bound is None:
            return outcome
        bound = replace(outcome.bound, copies=tuple(plans[name][: count - 1]), peak_bytes=peaks[name])
        fault = partial(check_copies, by=judged.by, inputs=judged.inputs)
        return spoilt(session.facts, judged, replace(outcome, bound=bound), fault)

    had = asked if count == asked.sets else rotation(session.spec.cache, size, cache, count * size)
    return replace(judged, outcomes=tuple(ready(outcome) for outcome in judged.outcomes)), had


def still_right(session: Session, judged: Judged) -> Judged:
    """The verdicts after timing: what was right at first and is wrong now loses its timings, and the fact is said."""

    def again(one: Bound) -> Check | None:
        found = check(one, judged.by, judged.inputs)
        return None if found.passed else replace(found, reason=f"right before timing, wrong after: {found.reason}")

    return replace(judged, outcomes=tuple(spoilt(session.facts, judged, one, again) for one in judged.outcomes))


def spoilt(facts: Facts, judged: Judged, outcome: Outcome, fault: Callable[[Bound], Check | None]) -> Outcome:
    """The outcome, or what becomes of it where `fault` finds one, which is said. To run out of memory is no fault."""
    if outcome.bound is None:
        return outcome
    name = outcome.implementation
    try:
        found = fault(outcome.bound)
    except Unavailable as exc:
        return Outcome(name, None, None, str(exc), wrong=False)
    except (torch.OutOfMemoryError, MemoryError):
        return Outcome(name, None, None, f"{outcome.bound.backend}: out of memory", wrong=False)
    except RuntimeError as exc:
        reason = f"raised {type(exc).__name__}: {one_line(str(exc))}"
        found = Check(False, math.nan, judged.by.limit, reason)
    if found is None:
        return outcome
    wrong = Outcome(name, None, found, found.reason, wrong=True)
    say(facts, judged.case, wrong)
    return wrong


def say(facts: Facts, case: Case, outcome: Outcome) -> None:
    """The `checked` fact of an outcome, if there was a check."""
    if outcome.check is None:
        return
    error = outcome.check.max_abs_error
    facts.send(
        "checked",
        implementation=outcome.implementation,
        case_id=case.id,
        passed=outcome.check.passed,
        max_abs_error=None if math.isnan(error) else error,
        limit=outcome.check.limit,
        reason=outcome.check.reason,
    )


def judge_one(
    implementation: str,
    bench: Built | BuildFailed | None,
    case: Case,
    inputs: axes.Inputs,
    by: Yardstick,
) -> Outcome:
    """The verdict on one implementation."""
    try:
        bound = bind(implementation, bench, case, inputs)
        verdict = check(bound, by, inputs)
    except Unavailable as exc:
        return Outcome(implementation, None, None, str(exc), wrong=False)
    except BuildFailed as exc:
        return Outcome(implementation, None, None, f"{exc.cause}: {one_line(str(exc))}", wrong=True)
    except RuntimeError as exc:
        reason = f"raised {type(exc).__name__}: {one_line(str(exc))}"
        return Outcome(implementation, None, Check(False, math.nan, by.limit, reason), reason, wrong=True)
    if not verdict.passed:
        return Outcome(implementation, None, verdict, verdict.reason, wrong=True)
    return Outcome(implementation, bound, verdict, "", wrong=False)
