"""A kernel that is wrong now and then: how many calls are judged, and what that shows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from kernels.forms.load import load_workload
from kernels.harness.arena import COLLECTED, COLLECTED_ON_CPU_BYTES, REPEATED
from kernels.harness.bench import Bench
from kernels.harness.judge import Judge
from kernels.harness.workload import Check
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


def test_answers_are_collected_for_a_tenth_of_the_time_where_copies_are_harmless() -> None:
    field = arena()
    hand = field.hand("a")
    field.timing_began = time.perf_counter() - 100
    hand.answer_bytes, hand.collected = 1024, COLLECTED - 1
    for share, collects in ((0.0, True), (0.09, True), (0.2, False)):
        field.collecting_s = 100 * share
        assert field.collects(hand) is collects
    field.collecting_s, hand.collected = 0.0, COLLECTED
    assert not field.collects(hand)
    hand.collected, hand.answer_bytes = 0, COLLECTED_ON_CPU_BYTES + 1
    assert not field.collects(hand)


def test_a_wrong_answer_among_collected_ones_is_told_to_be_of_a_timed_call() -> None:
    class Judging(Played):
        def ask(self, op: str, limit_s: float, /, **given: Any) -> dict[str, Any]:
            if op == "judge_repeated":
                assert given["seeds"] == [77]
                return {"passed": False, "max_abs_error": 2.0, "limit": 1.0, "reason": "max abs error 2", "calls": 3}
            return {**super().ask(op, limit_s, **given), "fault": ""}

    field = arena()
    field.start = field.judge.start = lambda: cast(Any, Judging((), sticky=False))
    hand = field.hand("b")
    hand.collected, hand.seed = 5, 77
    field.judge_collected(hand, CASE)
    assert field.wrong["b"].reason == "in a timed call: max abs error 2"
    assert (hand.collected, field.judged_calls["b"]) == (0, 3)
