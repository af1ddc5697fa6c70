"""What one implementation breaks is its own: it is a row with the reason, and all the others are measured."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from kernels.harness.steps import NOTHING_TO_BUILD
from tests.kernels.harness_process import HarnessProcess, named
from tests.kernels.test_cheats import OWN, own
from tests.support.patience import await_truth

REASONS = {
    "wrong": "max abs error",
    "aborts": "crashed (SIGABRT) while it was checked",
    "segfaults": "crashed (SIGSEGV) while it was checked",
    "exits": "faults.py:43 in kernel_exits: raised SystemExit",
    "hangs": "hung: no answer within {limit_s} s in kernel_hangs (faults.py:47) while it was checked",
    "raises": "faults.py:51 in kernel_raises: raised ValueError: no kernel for such sizes",
    "out_of_memory": "out of memory while it was checked",
    "not_for_this": "needs a multiple of 4096",
    "dies_while_timed": "crashed (SIGABRT) while it was timed",
}


def test_each_fault_costs_its_own_row_and_nothing_else(tmp_path: Path) -> None:
    for limit_s in (5, 30, 180):
        folder = tmp_path / str(limit_s)
        folder.mkdir()
        with HarnessProcess("measure", own(OWN / "faults.py", repeats=8, answer_limit_s=limit_s), folder) as harness:
            code, facts = harness.finish()
        assert code == 10, harness.log()
        first, second = named(facts, "case_finished")
        if {name for one in (first, second) for name, why in one["skipped"].items() if "hung" in why} == {"hangs"}:
            break  # else the machine stood still, and others have hung with it
    for case in (first, second):
        assert set(case["median_us"]) == {"torch", "honest", "torch:aa"}, case["skipped"]
        table = harness.rows(case["case_id"])
        assert {row["implementation"] for row in table if row["skipped"]} == set(REASONS)
        assert len([row for row in table if row["implementation"] == "honest"]) == 8
    reasons = {name: reason.format(limit_s=limit_s) for name, reason in REASONS.items()}
    assert {name: reason for name, reason in reasons.items() if reason not in first["skipped"][name]} == {}
    assert second["skipped"]["hangs"] == "not tried again: it hung in a case before"
    assert second["skipped"]["aborts"] == first["skipped"]["aborts"], "a crash is tried again, in a new process"
    assert {row["axis:n"] for row in harness.rows("n4096")} == {"4096"}
    said = {
        (one["implementation"], one["case_id"]): one["reason"] for one in named(facts, "checked") if not one["passed"]
    }
    broken = set(REASONS) - {"out_of_memory", "not_for_this"}
    assert {name for name, case in said if case == first["case_id"]} == broken, "what breaks is said by name"
    assert {name: why for name in broken if (why := said[name, first["case_id"]]) != first["skipped"][name]} == {}


def test_nothing_is_left_running_when_the_agent_hangs_up(tmp_path: Path) -> None:
    asked = own(OWN / "faults.py", implementations=["hangs"], answer_limit_s=600)
    with HarnessProcess("measure", asked, tmp_path) as harness:
        observed = harness.until("case_observed")
        assert observed["place"] == "kernel_hangs (faults.py:47)", "whoever waits is told what runs"
        assert observed["case_id"] == "n1024"
        await_truth(lambda: len(children(harness.process.pid)) >= 3, "the start of its workers", 0.2)
        below = children(harness.process.pid)
        harness.hang_up()
        assert harness.process.wait(600) == 1
        await_truth(lambda: not [pid for pid in below if alive(pid)], "the end of its workers", 0.2)


def children(root: int) -> list[int]:
    from kernels.harness.processes import list_descendants

    return list_descendants(root)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


CUDA_BESIDE_PYTHON = """
axes = {"n": [16]}
def inputs(n, device, generator):
    import torch
    return torch.rand(n, device=device, generator=generator)
def outputs(x):
    import torch
    return torch.empty_like(x)
def reference(x):
    return x * 2
def kernel_python(out, x):
    out.copy_(x * 2)
kernel_cuda = {"cuda": "double.cu", "entry": "double_it", "grid": "1", "block": 16, "args": ["out", "x"]}
"""


def test_a_cuda_kernel_without_a_gpu_is_a_skipped_row_and_fails_no_gate(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(CUDA_BESIDE_PYTHON)
    (tmp_path / "double.cu").write_text('extern "C" __global__ void double_it(float *out, const float *x) {}\n')
    with HarnessProcess("build", own(tmp_path / "mixed.py", implementations=["*"]), tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    assert [gate["passed"] for gate in named(facts, "gate") if gate["name"] == "kernel_loads"] == [True]
    assert named(facts, "problem") == []


def test_only_what_has_something_to_build_is_loaded_to_be_built(tmp_path: Path) -> None:
    text = CUDA_BESIDE_PYTHON.replace("kernel_cuda =", "unused =") + 'print("imported")\n'
    (tmp_path / "plain.py").write_text(text)
    with HarnessProcess("build", own(tmp_path / "plain.py", implementations=["*"]), tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    assert [gate["detail"] for gate in named(facts, "gate") if gate["name"] == "kernel_loads"] == [NOTHING_TO_BUILD]
    assert harness.log().count("imported") == 1, "by the process that reads it"


def test_a_regime_that_refuses_a_kernel_leaves_it_to_the_others() -> None:
    from kernels.harness.arena import Arena
    from kernels.harness.hands import AnswerLimits, Hand, Place
    from kernels.harness.processes import Answered
    from kernels.harness.turns import Contender
    from kernels.harness.workload import Unavailable

    class NoGraphs:
        def ask(self, op: str, _limit_s: float, /, **arguments: object) -> dict[str, object]:
            if arguments.get("regime") == "graph":
                raise Answered("unavailable", "its calls cannot be captured in a graph")
            return {"calls_made": 1, "overhead_us": 0.1, "answers": 1} if op == "timer" else {}

    hand = Hand("replays", lambda: pytest.fail("it is running"), AnswerLimits(10))
    hand.worker = cast(Any, NoGraphs())
    arena = Arena(torch.device("cuda"), 1, "warm", 4, hand.limits, lambda: pytest.fail("it is running"), hand, ())
    contender = Contender("replays", (Place(hand, 0),), nullcontext)
    with pytest.raises(Unavailable, match="cannot be captured"):
        arena.timer("graph")(contender)
    assert arena.timer("burst")(contender).calls_made == 1


ALL_WRONG = """
axes = {"n": [16]}
def inputs(n, device, generator):
    import torch
    return torch.randn(n, generator=generator)
def reference(x):
    return x + 2
def baseline_torch(x):
    return x + 1
def kernel_mine(x):
    return 1 + x
"""


def test_where_all_differ_the_reference_is_the_suspect(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ALL_WRONG)
    with HarnessProcess("measure", own(tmp_path / "mine.py", repeats=2), tmp_path) as harness:
        _, facts = harness.finish()
    (case,) = named(facts, "case_finished")
    suspect = "all 2 implementations differ from reference: look at that first"
    assert {name for name, why in case["skipped"].items() if suspect in why} == {"torch", "mine", "torch:aa"}
