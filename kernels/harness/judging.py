"""Which implementations may be timed on a case: the verdicts, before and after, on the very inputs that are timed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kernels.attention import correctness
from kernels.attention.case import Case
from kernels.attention.correctness import Check, Yardstick
from kernels.attention.interface import BuildFailed, Unavailable
from kernels.harness import axes
from kernels.harness.contenders import Bound, Built, bind, build, check, one_line
from kernels.harness.facts import Facts, log
from kernels.harness.spec import Spec
from kernels.harness.timing import Contender


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
    def contenders(self) -> list[Contender]:
        """What may be timed."""
        bound = [outcome.bound for outcome in self.outcomes if outcome.bound is not None]
        return [Contender(one.implementation, one.plan, one.scope) for one in bound]


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


def still_right(session: Session, judged: Judged) -> Judged:
    """The verdicts after timing: what was right at first and is wrong now loses its timings, and the fact is said."""
    outcomes = []
    for outcome in judged.outcomes:
        if outcome.bound is not None:
            again = check(outcome.bound, judged.by, judged.inputs)
            if not again.passed:
                reason = f"right before timing, wrong after: {again.reason}"
                again = replace(again, reason=reason)
                spoilt = Outcome(outcome.implementation, None, again, reason, wrong=True)
                say(session.facts, judged.case, spoilt)
                outcomes.append(spoilt)
                continue
        outcomes.append(outcome)
    return replace(judged, outcomes=tuple(outcomes))


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
