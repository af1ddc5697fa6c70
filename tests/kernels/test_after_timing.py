"""What was right when it was let in is judged again after it was timed: a kernel that turns wrong has no timings."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from kernels.harness.contenders import Bound
from kernels.harness.judging import Judged, Outcome, still_right
from kernels.harness.workload import Call, Check


@dataclass(frozen=True)
class ACase:
    id: str = "case-1"


@dataclass(frozen=True)
class Exactly:
    """A yardstick for numbers: 1 is right."""

    limit: float = 0.5

    def judge(self, output: Any) -> Check:
        return Check(output == 1, abs(output - 1), self.limit, "" if output == 1 else f"it gave {output}")


@dataclass
class Said:
    facts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def send(self, fact: str, **keys: Any) -> None:
        self.facts.append((fact, keys))


@dataclass
class ASession:
    facts: Said
    arena: None = None


def outcome(name: str, right_calls: int) -> Outcome:
    """One that gives the right answer so often, and then a wrong one."""
    calls = count(1)
    bound = Bound(name, Call(name, lambda: 1 if next(calls) <= right_calls else 7))
    assert Exactly().judge(bound.plan()).passed, "it was let in"
    return Outcome(name, bound, None, "", wrong=False)


@pytest.mark.parametrize("right_calls", [1, 2])
def test_a_kernel_that_is_wrong_after_it_was_timed_loses_its_timings_and_is_told_of(right_calls: int) -> None:
    said: Any = Said()
    session: Any = ASession(said)
    case: Any = ACase()
    judged = Judged(case, None, Exactly(), (outcome("honest", 9), outcome("turncoat", right_calls)))
    for one in judged.bound:
        for _ in range(right_calls):
            one.plan()
    after = still_right(session, judged)
    honest, turncoat = after.outcomes
    assert (honest.bound is not None, honest.wrong) == (True, False)
    assert (turncoat.bound, turncoat.wrong) == (None, True)
    assert turncoat.reason == "right before timing, wrong after: it gave 7"
    assert [one.implementation for one in after.bound] == ["honest"]
    ((fact, keys),) = said.facts
    assert (fact, keys["implementation"], keys["passed"]) == ("checked", "turncoat", False)
