"""A kernel that is wrong now and then: how many calls are judged, and what that shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch

from kernels.forms.load import load_workload
from kernels.harness.arena import COLLECTED, COLLECTED_ON_CPU_BYTES, REPEATED
from kernels.harness.bench import Bench
from kernels.harness.contenders import Bound
from kernels.harness.hands import FIRST_BATCH, Turn
from kernels.harness.judge import Judge
from kernels.harness.judging import Judged, Outcome, still_right
from kernels.harness.timers import CudaTimer, Timed
from kernels.harness.workload import Call, Check, Plan
from tests.kernels.simulated_stream import Op, SimulatedHost, SimulatedStream
from tests.kernels.test_second_chance import CASE, Played, arena

CPU = torch.device("cpu")
WORKLOAD = """
import torch

axes = {"n": [64]}
calls = [0]


def inputs(n, device, generator):
    return torch.randn(n, n, device=device, generator=generator)


def outputs(x):
    return torch.empty_like(x)


def reference(x):
    return x @ x


def baseline_torch(out, x):
    return torch.mm(x, x, out=out)


def kernel_honest(out, x):
    torch.mm(x, x, out=out)


def kernel_wrong_twice(out, x):
    # The timer makes five calls before the samples.
    calls[0] += 1
    torch.mm(x, x, out=out)
    if calls[0] in (34, 35):
        out[3, 5] += 1
"""


GRAPH = """
import torch

axes = {"n": [16]}
calls = [0]


def inputs(n, device, generator):
    return torch.randn(n, n, device=device, generator=generator)


def outputs(x):
    return torch.empty_like(x)


def reference(x):
    return x @ x


def baseline_torch(out, x):
    out.copy_(x @ x)
    return out


def kernel_mine(out, x):
    calls[0] += 1
    out.copy_(x @ x)
    if EVERY and calls[0] > 40 and calls[0] % EVERY == 0:
        out[3, 5] += 1
    return out
"""


class Stacks(Played):
    """A process and a judge for which every answer is right, in as many calls as were collected."""

    def ask(self, op: str, limit_s: float, /, **given: Any) -> dict[str, Any]:
        if op == "judge_repeated":
            return {"passed": True, "max_abs_error": 0.0, "limit": 1.0, "reason": "", "calls": given["files"][0][2][0]}
        if op == "collected":
            return {"tree": 0, "files": [["0.bin", "float32", [Stacks.calls.pop(0)]]], "fault": ""}
        return super().ask(op, limit_s, **given)

    calls: ClassVar[list[int]] = [FIRST_BATCH, 4 * FIRST_BATCH, 16 * FIRST_BATCH, 1000, 1000]


@pytest.mark.parametrize(("chance", "least"), [(1 / 20, 999), (1 / 100, 980)])
def test_of_1000_simulated_runs_a_rare_fault_is_seen_in_as_many_as_promised(chance: float, least: int) -> None:
    assert REPEATED >= 600
    wrong = np.random.default_rng(11).random((1000, REPEATED)) < chance
    assert int(wrong.any(axis=1).sum()) >= least
    assert Check(True, 0.0, 0.0, "", REPEATED).rare_fault_seen >= 0.98


def test_a_fault_in_two_timed_calls_alone_is_found(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(WORKLOAD)
    definition, case = load_workload("file", file), {"n": 64}
    for name, passed in (("honest", True), ("wrong_twice", False)):
        bench, judge = Bench(definition, name, CPU), Judge(definition, CPU)
        bench.bind(case, 7)
        bench.timer("burst")
        for _ in range(40):
            bench.sample("burst", 0, keep=False, collect=True)
        answers = bench.collected(str(tmp_path), lend=False)
        verdict = judge.judge_repeated(case, "n64", [7], answers["tree"], answers["files"], baseline=False)
        assert (answers["fault"], verdict["passed"]) == ("", passed)
        assert verdict["calls"] == 40 if passed else "max abs error" in verdict["reason"]
        assert bench.timed_answers == []


class Replays(SimulatedStream):
    """A stream whose graphs repeat their calls on the host and leave the answers where the captured calls did."""

    def capture(self, plans: Sequence[Plan], calls: int) -> Callable[[], object]:
        captured = [plans[number % len(plans)] for number in range(calls)]
        places: list[tuple[Callable[[], Any], Any]] = []
        for plan in captured:
            plan()
            answer, by, outs = plan.kept.every[-1] if plan.kept.every else (None, plan, ())  # type: ignore[attr-defined]
            function, arguments = by.call, answer
            places.append((partial(self.again, plan, outs) if outs else function, arguments))

        def replay() -> None:
            self.put(Op("work", 50.0 * calls))
            for call, place in places:
                made = call()
                if made is not None and place is not None:
                    place.copy_(made)

        replay()
        return replay

    @staticmethod
    def again(plan: Any, outs: tuple[Any, ...]) -> Any:
        call, fresh = plan.make_fresh()
        returned = call()
        for old, new in zip(outs, fresh, strict=True):
            old.copy_(new)
        return returned


def replayed(file: Path, text: str, name: str = "mine") -> tuple[Bench, Judge]:
    """A kernel of the workload in that file, bound and timed in graphs by `Replays`, and its judge."""
    file.write_text(text)
    definition = load_workload("file", file)
    bench = Bench(definition, name, CPU)
    bench.make_timer = lambda *_, **__: lambda contender: CudaTimer("graph", contender, 0.0, Replays(SimulatedHost()))
    bench.bind({"n": 16}, 7)
    return bench, Judge(definition, CPU)


@pytest.mark.parametrize("form", ["writes", "returns"])
@pytest.mark.parametrize(("every", "passed"), [(0, True), (20, False), (100, False)])
def test_every_call_of_a_replayed_graph_is_judged(tmp_path: Path, form: str, every: int, passed: bool) -> None:
    text = GRAPH if form == "writes" else GRAPH.replace("def outputs(x):\n    return torch.empty_like(x)\n", "")
    text = text if form == "writes" else text.replace("(out, x)", "(x)").replace("out.copy_(x @ x)", "out = x @ x")
    bench, judge = replayed(tmp_path / "graph.py", text.replace("EVERY", str(every)))
    bench.spread(3)
    made = bench.timer("graph", slots=2048)
    assert made["answers"] == made["calls_made"] > 10
    calls = 0
    while calls < 200:
        bench.sample("graph", 0, keep=False, collect=made["answers"])
        calls += made["answers"]
    answers = bench.collected(str(tmp_path), lend=False)
    assert answers["fault"] == ""
    verdict = judge.judge_repeated({"n": 16}, "n16", [7], answers["tree"], answers["files"], baseline=False)
    assert verdict["passed"] is passed
    assert verdict["calls"] == calls if passed else 0 < verdict["calls"] <= 2 * every


def test_an_answer_that_is_judged_alone_is_there_when_the_others_were_collected(tmp_path: Path) -> None:
    """The outputs of collected answers are overwritten, so that the next replay has to write them: not the one that is
    judged alone, on new inputs, after the same sample."""
    bench, judge = replayed(tmp_path / "graph.py", GRAPH.replace("EVERY", "0"))
    made = bench.timer("graph", slots=2048)
    for seed in (8, 9):
        bench.renew(seed)
        bench.sample("graph", 0, keep=True, collect=made["answers"])
        answer = bench.answered(str(tmp_path))
        verdict = judge.judge({"n": 16}, "n16", seed, answer["tree"], answer["files"], baseline=False)
        assert (answer["fault"], verdict["passed"]) == ("", True)


def test_calls_of_a_graph_that_share_memory_count_as_one(tmp_path: Path) -> None:
    same = "\n\nkept = []\n\n\ndef kernel_same(out, x):\n    kept[:] = kept or [torch.empty_like(x)]\n"
    text = f"{GRAPH.replace('EVERY', '0')}{same}    return kept[0].copy_(x @ x)\n"
    bench, _ = replayed(tmp_path / "graph.py", text, "same")
    assert bench.timer("graph", slots=2048)["answers"] == 1
    assert bench.timer("graph", slots=1)["answers"] == 0


def test_answers_are_collected_for_a_tenth_of_the_time_where_copies_are_harmless() -> None:
    field, turn = arena(), Turn(answers=1)
    hand = field.hand("a")
    field.case_began = time.perf_counter() - 100
    hand.answer_bytes, hand.collected = 1024, hand.batch - 1
    for share, collects in ((0.0, 1), (0.09, 1), (0.2, 0)):
        field.collecting_s = 100 * share
        assert field.plan_collecting(hand, turn, CASE) == collects
    field.collecting_s, hand.answer_bytes = 0.0, COLLECTED_ON_CPU_BYTES + 1
    assert field.plan_collecting(hand, turn, CASE) == 0


class Clocked(Played):
    """A process whose samples take 20 µs."""

    def ask(self, op: str, limit_s: float, /, **given: Any) -> dict[str, Any]:
        timed = {"timed": asdict(Timed(latency_us=20.0)), "rest_s": 0.0, "collecting_s": 0.0}
        return timed if op == "sample" else super().ask(op, limit_s, **given)


@pytest.mark.parametrize(
    ("walls", "is_honest"),
    [([0.1] * 6, False), ([0.0, *[0.1] * 5], False), ([0.0, 0.0, *[0.1] * 4], True), ([0.1], True)],
)
def test_one_sample_of_which_too_much_is_taken_off_hides_no_slow_clock(walls: list[float], is_honest: bool) -> None:
    field = arena()
    field.start = lambda *_: cast(Any, Clocked((), sticky=False))
    field.hand("b").walls = [(wall, 1e-4, 1e-4) for wall in walls]
    assert (field.afterthoughts("b", CASE) == "") is is_honest


def test_of_a_trusted_baseline_no_timed_answer_is_collected_or_judged_alone() -> None:
    field, turn = arena(), Turn(answers=1)
    field.case_began, field.blocks = time.perf_counter() - 100, 1  # so that every sample of others is judged alone
    field.judge.start = field.start = lambda *_: cast(Any, Stacks((), sticky=False))
    hand = field.hand("a")
    for trusted, wanted in (({"a"}, False), (set[str](), True)):
        field.trusted, field.rounds, field.turns = trusted, [1], {"a": turn}
        with field.scope(hand, CASE)():
            assert turn.wanted is wanted
            assert (field.plan_collecting(hand, turn, CASE) > 0) is wanted


def test_what_is_collected_fits_the_batch_and_a_full_one_is_judged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.harness.arena.COLLECTED_S", 1e9)  # however long this machine takes to judge
    field, turn = arena(), Turn(answers=1000)
    field.judge.start = field.start = lambda *_: cast(Any, Stacks((), sticky=False))
    hand = field.hand("b")
    field.case_began = time.perf_counter() - 100
    hand.answer_bytes, hand.collected = 8, 0
    seen = []
    for _ in range(5):
        seen.append(field.plan_collecting(hand, turn, CASE))
        hand.collected += seen[-1]
    assert seen[:3] == [FIRST_BATCH, 4 * FIRST_BATCH, 16 * FIRST_BATCH]
    assert seen[3:] == [1000, 1000]
    assert (field.judged_calls["b"], hand.collected) == (sum(seen[:3]), 2000)
    field.cache = "warm"
    assert field.graph_slots(hand) == 1
    field.cache = "cold"
    assert field.graph_slots(hand) == COLLECTED


def test_a_wrong_answer_among_collected_ones_is_told_to_be_of_a_timed_call() -> None:
    class Judging(Played):
        def ask(self, op: str, limit_s: float, /, **given: Any) -> dict[str, Any]:
            if op == "judge_repeated":
                assert given["seeds"] == [77]
                return {"passed": False, "max_abs_error": 2.0, "limit": 1.0, "reason": "max abs error 2", "calls": 3}
            return {**super().ask(op, limit_s, **given), "fault": ""}

    field = arena()
    field.start = field.judge.start = lambda *_: cast(Any, Judging((), sticky=False))
    hand = field.hand("b")
    hand.collected, hand.seed = 5, 77
    field.judge_collected(hand, CASE)
    assert field.wrong["b"].reason == "in a timed call: max abs error 2"
    assert (hand.collected, field.judged_calls["b"]) == (0, 3)


def test_many_calls_of_a_kernel_are_judged_in_each_case_and_of_a_baseline_once() -> None:
    class Right(Clocked):
        def ask(self, op: str, limit_s: float, /, **given: Any) -> dict[str, Any]:
            if op == "judge_repeated":
                return {"passed": True, "max_abs_error": 0.0, "limit": 1.0, "reason": "", "calls": 2}
            return {**super().ask(op, limit_s, **given), "fault": ""}

    field = arena()
    field.start = field.judge.start = lambda *_: cast(Any, Right((), sticky=False))
    counts = []
    for _ in range(3):
        field.judged_calls.clear()
        assert all(field.once_more(name, CASE).passed for name in ("a", "b"))
        counts.append((field.judged_calls.get("a", 0) > 1, field.judged_calls.get("b", 0) > 1))
    assert counts == [(True, True), (False, True), (False, True)], "a is the baseline"


# What was right when it was let in is judged again after it was timed: a kernel that turns wrong has no timings.


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
