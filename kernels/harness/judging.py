"""Which implementations may be timed on a case: verdicts before and after timing, on the same inputs that are timed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from kernels.harness import axes
from kernels.harness.calls import THESE
from kernels.harness.contenders import Bound, Crew, bind_contender, build_contender, check_copies, check_output
from kernels.harness.facts import Facts, log_line
from kernels.harness.input_sets import (
    ASSUMED_CACHE_BYTES,
    MOST_SETS,
    Rotation,
    cache_bytes,
    copy_inputs,
    free_bytes,
    plan_rotation,
)
from kernels.harness.memory import peak_bytes
from kernels.harness.processes import Answered, Lost
from kernels.harness.spec import Spec, original_name
from kernels.harness.turns import Contender
from kernels.harness.workload import (
    BuildFailed,
    Call,
    Case,
    Check,
    Plan,
    Problem,
    Site,
    Unavailable,
    Yardstick,
    one_line,
)

FAULTS: Final[Mapping[str, str]] = {
    "untrusted": r"untrusted\b",
    "hung": r"hung\b",
    "crashed": r"(was killed|crashed|ended its process)\b",
    "memory": r"(.*: )?out of memory\b",
    "raised": r"(.*: )?raised \w",
}
"""For each kind of failure, how its reason begins."""


@dataclass(frozen=True, slots=True)
class Session:
    """One invocation of the harness: its spec, the folder for results, the receiver of facts, the device, and the part
    of the workload that needs torch."""

    spec: Spec
    out: Path
    cache: Path
    facts: Facts
    device: torch.device
    problem: Problem | None
    arena: Apart | None = None
    """Where the implementations of a user's own workload run; None for our workloads."""

    @property
    def site(self) -> Site:
        """The place where implementations are built and run."""
        return Site(self.device, self.spec.threads, self.out, self.cache)


class Apart(Protocol):
    """Implementations in processes of their own, judged in another."""

    roof: dict[str, float]
    """The most `bytes` and `flops` per second that the device reached; empty until a workload's amounts need it."""

    failed_tests: Mapping[str, tuple[str, bool]]
    """By name, why an implementation failed a test of the workload, and whether it answered. It is not timed."""

    @property
    def quiet(self) -> Callable[[], AbstractContextManager[object]]:
        """The context in which times are measured."""

    def judge_case(self, session: Session, case: Any, implementations: Sequence[str]) -> Judged: ...

    def spread_case(self, judged: Judged) -> tuple[Judged, Rotation]: ...

    def still_right(self, judged: Judged, *, has_lost: bool = False) -> Judged: ...

    def timer(self, regime: str) -> Callable[[Contender], Any]: ...

    def load(self, implementations: Sequence[str]) -> Crew: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one implementation on one case: bound and passed, or a reason. `wrong` makes the run end as
    wrong."""

    implementation: str
    bound: Bound | None
    check: Check | None
    reason: str
    wrong: bool

    @property
    def fault(self) -> str:
        """The kind of the failure: `wrong` for a wrong answer, a word of `FAULTS`, `unavailable` for what cannot run
        here, or `failed` for any other error. It is empty if the implementation may be timed."""
        kind = next((kind for kind, starts in FAULTS.items() if re.match(starts, self.reason)), "")
        if self.bound is not None or not self.reason:
            return ""
        if kind or not self.wrong:
            return kind or "unavailable"
        return "failed" if self.check is None else "wrong"


@dataclass(frozen=True, slots=True)
class Judged:
    """A case, its inputs, the exact answer, and the outcome of every implementation in the order of the spec."""

    case: Case
    inputs: Any
    by: Yardstick | None
    outcomes: tuple[Outcome, ...]

    @property
    def bound(self) -> list[Bound]:
        """The implementations that passed."""
        return [outcome.bound for outcome in self.outcomes if outcome.bound is not None]

    @property
    def contenders(self) -> list[Contender]:
        """The implementations that may be timed."""
        return [
            Contender(one.implementation, (one.plan, *(call.plan for call in one.copies)), one.scope)
            for one in self.bound
        ]


def build_all(session: Session) -> Crew:
    """Loads every implementation of the spec; for one that fails, the reason. A failure does not stop the others."""
    spec = session.spec
    if session.arena is not None:
        crew = session.arena.load(spec.implementations)
    else:
        names = dict.fromkeys(map(original_name, spec.implementations))
        crew = {name: build_contender(spec.workload, name, session.site) for name in names}
    for name, one in crew.items():
        if isinstance(one, BuildFailed):
            log_line(f"{name}: {one.cause}: {one} ({one.remedy})")
    return crew


def judge_case(session: Session, crew: Crew, case: Case, implementations: tuple[str, ...]) -> Judged:
    """Makes new inputs, and judges each implementation on exactly these. Sends a `checked` fact for each."""
    if session.arena is not None:
        return session.arena.judge_case(session, case, implementations)
    problem = session.problem
    assert problem is not None, "a workload of ours has tensors here"
    inputs = problem.inputs(case, axes.case_generator(case, session.device, session.spec.seed))
    by = problem.yardstick(case, inputs, session.spec.max_abs_error)
    outcomes = []
    for implementation in implementations:
        outcome = judge_one(implementation, crew, case, inputs, by)
        send_outcome(session.facts, case, outcome)
        outcomes.append(outcome)
    return Judged(case, inputs, by, tuple(outcomes))


def spread_inputs(session: Session, crew: Crew, judged: Judged) -> tuple[Judged, Rotation]:
    """Binds the implementations that passed to as many copies of the inputs as cold caches need, and judges each copy.

    Where memory runs out before that, all implementations use the copies that there are.
    """
    if session.arena is not None:
        made, turns = session.arena.spread_case(judged)
        return say_spoilt(session.facts, judged, made), turns
    case, device, problem, by = judged.case, session.device, session.problem, judged.by
    assert problem is not None, "a workload of ours has tensors here"
    assert by is not None, "and a yardstick"
    size = problem.set_bytes(case, judged.inputs)
    cache = cache_bytes(device) or ASSUMED_CACHE_BYTES
    planned = plan_rotation(session.spec.cache, size, cache, free_bytes(device), MOST_SETS[device.type])
    sets = copy_inputs(judged.inputs, planned.sets, problem.copied)
    calls: dict[str, list[Call]] = {}
    peaks: dict[str, int | None] = {}
    for one in judged.bound:
        name = one.implementation

        def prepare(name: str = name) -> tuple[Plan, Callable[[], AbstractContextManager[object]]]:
            made = bind_contender(name, crew, case, judged.inputs)
            return made.plan, made.scope

        peaks[name] = peak_bytes(device, prepare)
        calls[name] = []
        for inputs in sets[1:]:
            try:
                calls[name].append(bind_contender(name, crew, case, inputs).call)
            except (Unavailable, RuntimeError, MemoryError) as exc:
                log_line(f"{case.id}: {name}: {len(calls[name]) + 1} of {len(sets)} input sets: {one_line(str(exc))}")
                break
    count = 1 + min((len(made) for made in calls.values()), default=0)

    def ready(outcome: Outcome) -> Outcome:
        name = outcome.implementation
        if outcome.bound is None:
            return outcome
        bound = replace(outcome.bound, copies=tuple(calls[name][: count - 1]), peak_bytes=peaks[name])
        fault = partial(check_copies, by=by)
        return spoil_outcome(session.facts, judged, replace(outcome, bound=bound), fault)

    turns = planned if count == planned.sets else plan_rotation(session.spec.cache, size, cache, count * size)
    return replace(judged, outcomes=tuple(ready(outcome) for outcome in judged.outcomes)), turns


def still_right(session: Session, judged: Judged, *, has_lost: bool = False) -> Judged:
    """The verdicts after timing. An implementation that was right at first and is wrong now loses its timings, and a
    fact says so."""

    if session.arena is not None:
        return say_spoilt(session.facts, judged, session.arena.still_right(judged, has_lost=has_lost))
    by = judged.by
    assert by is not None, "a workload of ours has a yardstick"

    def again(one: Bound) -> Check | None:
        verdict = check_output(one, by)
        return (
            None if verdict.passed else replace(verdict, reason=f"right before timing, wrong after: {verdict.reason}")
        )

    return replace(judged, outcomes=tuple(spoil_outcome(session.facts, judged, one, again) for one in judged.outcomes))


def spoil_outcome(facts: Facts, judged: Judged, outcome: Outcome, fault: Callable[[Bound], Check | None]) -> Outcome:
    """The outcome, or a failed one where `fault` finds a fault, which is sent as a fact. Running out of memory is no
    fault."""
    if outcome.bound is None:
        return outcome
    name = outcome.implementation
    try:
        fault_found = fault(outcome.bound)
    except Unavailable as exc:
        return Outcome(name, None, None, str(exc), wrong=False)
    except (torch.OutOfMemoryError, MemoryError):
        return Outcome(name, None, None, f"{outcome.bound.backend}: out of memory", wrong=False)
    except RuntimeError as exc:
        reason = f"raised {type(exc).__name__}: {one_line(str(exc))}"
        fault_found = Check(False, math.nan, math.nan if judged.by is None else judged.by.limit, reason)
    if fault_found is None:
        return outcome
    wrong = Outcome(name, None, fault_found, fault_found.reason, wrong=True)
    send_outcome(facts, judged.case, wrong)
    return wrong


def say_spoilt(facts: Facts, before: Judged, after: Judged) -> Judged:
    """Returns `after`, and sends a fact for each implementation that was right in `before` and is wrong now."""
    for old, new in zip(before.outcomes, after.outcomes, strict=True):
        if new.wrong and not old.wrong:
            send_outcome(facts, after.case, new)
    return after


def send_outcome(facts: Facts, case: Case, outcome: Outcome) -> None:
    """Sends the `checked` fact of an outcome: of a check, or of a failure before the check."""
    if outcome.check is None and not outcome.wrong:
        return
    check_result = outcome.check or Check(False, math.nan, math.nan, outcome.reason)
    facts.send(
        "checked",
        implementation=outcome.implementation,
        case_id=case.id,
        passed=check_result.passed,
        max_abs_error=None if math.isnan(check_result.max_abs_error) else check_result.max_abs_error,
        limit=None if math.isnan(check_result.limit) else check_result.limit,
        reason=check_result.reason,
    )


def judge_one(implementation: str, crew: Crew, case: Case, inputs: Any, by: Yardstick) -> Outcome:
    """The outcome of one implementation."""
    if (failed := THESE.before(original_name(implementation), case.id)) is not None:
        verdict = Check(False, math.nan, by.limit, failed[0]) if failed[1] else None
        return Outcome(implementation, None, verdict, failed[0], wrong=failed[1])
    try:
        bound = bind_contender(implementation, crew, case, inputs)
        verdict = check_output(bound, by)
    except Unavailable as exc:
        return Outcome(implementation, None, None, str(exc), wrong=False)
    except BuildFailed as exc:
        return Outcome(implementation, None, None, f"{exc.cause}: {one_line(str(exc))}", wrong=True)
    except Exception as exc:  # compilers in Python raise anything
        reason = f"raised {type(exc).__name__}: {one_line(str(exc))}"
        return Outcome(implementation, None, Check(False, math.nan, by.limit, reason), reason, wrong=True)
    if not verdict.passed:
        return Outcome(implementation, None, verdict, verdict.reason, wrong=True)
    return Outcome(implementation, bound, verdict, "", wrong=False)


def suspecting_reference(found: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """The outcomes. If each of several implementations gives a wrong answer, their reasons suspect the reference."""
    judged = {original_name(name): one for name, one in found.items() if one.check is not None}
    if len(judged) < 2 or any(one.check is not None and one.check.passed for one in found.values()):
        return dict(found)
    remark = f"; all {len(judged)} implementations differ from reference: look at that first"

    def suspected(one: Outcome) -> Outcome:
        return one if one.check is None else replace(one, reason=one.reason + remark)

    return {name: suspected(one) for name, one in found.items()}


def failure_outcome(name: str, exc: Lost | Answered | Unavailable, when: str) -> Outcome:
    """The outcome of a failure. An implementation that cannot run here or has no memory is not counted as wrong."""
    if isinstance(exc, Unavailable):
        return Outcome(name, None, None, str(exc), wrong=False)
    wrong = isinstance(exc, Lost) or exc.kind not in ("unavailable", "memory")
    return Outcome(name, None, None, exc.reason(when)[:400], wrong=wrong)


def check_of(reply: Mapping[str, Any]) -> Check:
    """The verdict in the judge's reply."""
    error, limit = (float("nan") if reply[key] is None else float(reply[key]) for key in ("max_abs_error", "limit"))
    return Check(bool(reply["passed"]), error, limit, str(reply["reason"])[:300])
