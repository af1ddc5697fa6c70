"""A machine with several GPUs: cases are dealt to them, and nothing is lost, doubled or measured beside what disturbs it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import regimes
from kernels.harness.several_gpus import LEAST_CASES, largest_difference, short_digest
from tests.kernels.harness_process import Served, named, spec
from tests.support.patience import await_truth

CASES = [f"case{number}" for number in range(8)]
TOGETHER = {"a": {"beside": "b"}, "b": {"beside": "a"}}


def played(tmp_path: Path, actions: dict[str, Any], cases: list[str] = CASES, **about: Any) -> Served:
    (tmp_path / "out").mkdir()
    return on_gpus(tmp_path, {}, {"cases": cases, "actions": actions, **about})


def on_gpus(tmp_path: Path, document: dict[str, Any], about: dict[str, Any]) -> Served:
    (tmp_path / "played.json").write_text(json.dumps({"gpus": ["a", "b"], **about}))
    return Served("serve", document, tmp_path, module="tests.kernels.played_gpus")


def measured(harness: Served) -> dict[str, str]:
    """The GPU of each case that is measured."""
    return {path.stem: path.read_text() for path in harness.out.glob("*.csv")}


def test_each_case_is_measured_once_by_one_of_the_gpus_at_once(tmp_path: Path) -> None:
    with played(tmp_path, TOGETHER) as harness:
        code, facts = harness.step("measure")
    assert code == 0, harness.log()
    assert Counter(fact["case_id"] for fact in named(facts, "case_finished")) == Counter(CASES)
    assert len(named(facts, "planned")) == 1
    assert set(measured(harness).values()) == {"a", "b"}
    assert {fact["fact"] for fact in facts} == {"planned", "case_started", "case_finished"}, "the agent sees one step"


@pytest.mark.parametrize(
    ("trials", "why"),
    [
        ({"b": {"trials": [{"burst": 10.2}]}}, "a slow second GPU"),
        ({"a": {"trials": [{"burst": 10.0}, {"burst": 9.8}]}}, "a first one that the other disturbs"),
        ({"a": {"trials": [{}] * LEAST_CASES}}, "nothing that can be timed"),
        ({"b": {"trials": [{"burst": 10.0, "graph": 1.0}]}}, "a GPU with other regimes"),
    ],
)
def test_where_gpus_differ_by_more_than_one_percent_one_measures(
    tmp_path: Path, trials: dict[str, Any], why: str
) -> None:
    with played(tmp_path, trials) as harness:
        code, facts = harness.step("measure")
    assert code == 0, harness.log()
    assert measured(harness) == dict.fromkeys(CASES, "a"), why
    kinds = [fact["fact"] for fact in facts]
    assert kinds == ["planned", *["case_started", "case_finished"] * len(CASES)]
    assert "one after the other" in harness.log()


def test_gpus_within_one_percent_share_the_cases_and_the_log_has_their_times(tmp_path: Path) -> None:
    nothing, alone, beside = {}, {"burst": 10.0, "graph": 5.0}, {"burst": 10.09, "graph": 4.96}
    both = {"a": {"trials": [nothing, alone, beside], **TOGETHER["a"]}, "b": {"trials": [beside], **TOGETHER["b"]}}
    with played(tmp_path, both) as harness:
        assert harness.step("measure")[0] == 0
    assert set(measured(harness).values()) == {"a", "b"}
    assert f"GPU 1 ({short_digest('b')}) beside the others, and the first alone: burst 10.09 us, 10 us" in harness.log()


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_lost_process_loses_only_its_case_and_the_step_says_which(tmp_path: Path, lost: str) -> None:
    killed = {**TOGETHER, lost: {**TOGETHER[lost], "killed_in": CASES["ab".index(lost)]}}
    with played(tmp_path, killed) as harness:
        code, facts = harness.step("measure")
    assert code == -signal.SIGKILL
    assert set(CASES) - set(measured(harness)) == {CASES["ab".index(lost)]}
    (problem,) = named(facts, "problem")
    assert problem["cause"] == "harness_crashed"
    assert problem["detail"].startswith(f"{CASES['ab'.index(lost)]}: its process on GPU {'ab'.index(lost)}")


@pytest.mark.parametrize(("trouble", "limit_s"), [({"fails": "bad chip"}, 180.0), ({"hangs": True}, 0.5)])
def test_a_gpu_that_cannot_begin_is_left_out(tmp_path: Path, trouble: dict[str, Any], limit_s: float) -> None:
    with played(tmp_path, {"b": trouble}, ready_limit_s=limit_s) as harness:
        code, facts = harness.step("measure")
    assert (code, named(facts, "problem")) == (0, [])
    assert measured(harness) == dict.fromkeys(CASES, "a")
    assert "bad chip" in harness.log() or "is left out" in harness.log()


def test_a_process_that_starts_again_gets_its_unfinished_case_again(tmp_path: Path) -> None:
    with played(tmp_path, {**TOGETHER, "b": {**TOGETHER["b"], "restarted_in": CASES[1]}}) as harness:
        code, facts = harness.step("measure")
    assert code == 0, harness.log()
    assert (harness.out / "restarted").exists()
    assert measured(harness)[CASES[1]] == "b"
    assert Counter(fact["case_id"] for fact in named(facts, "case_finished")) == Counter(CASES)


def test_a_wrong_implementation_on_any_gpu_makes_the_step_wrong(tmp_path: Path) -> None:
    with played(tmp_path, {**TOGETHER, "b": {**TOGETHER["b"], "code": 10}}) as harness:
        assert harness.step("measure")[0] == 10


def test_a_few_cases_are_measured_by_one_gpu_without_a_trial(tmp_path: Path) -> None:
    few = CASES[: LEAST_CASES - 1]
    with played(tmp_path, {}, few) as harness:
        assert harness.step("measure")[0] == 0
    assert measured(harness) == dict.fromkeys(few, "a")
    assert not (harness.out / "b.pid").exists()
    assert "trial" not in harness.log()


def test_all_processes_end_with_the_agent(tmp_path: Path) -> None:
    with played(tmp_path, {"a": {"beside": "never"}, "b": {"beside": "never"}}) as harness:
        harness.write('{"step": "measure"}')
        for _ in range(2):
            harness.until("case_started")
        pids = [int((harness.out / f"{gpu}.pid").read_text()) for gpu in "ab"]
        harness.hang_up()
        await_truth(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in pids))


@pytest.mark.parametrize(
    ("other", "difference"),
    [({"x": 10.0}, 0.0), ({"x": 9.5}, 0.05), ({}, float("inf")), ({"x": 10.0, "y": 1.0}, float("inf"))],
)
def test_a_difference_is_the_largest_of_all_regimes(other: dict[str, float], difference: float) -> None:
    assert largest_difference({"x": 10.0}, other) == pytest.approx(difference)
    assert largest_difference({}, other) == float("inf")


def test_only_long_calls_and_graphs_of_a_gpu_are_timed_beside_others() -> None:
    from kernels.harness.own import OwnCase

    short, long = OwnCase({}, "short"), OwnCase({}, "long", flops=regimes.HELD_BACK_FLOPS)
    bound = [
        (device, case.id, regime)
        for device in ("cpu", "cuda")
        for case in (short, long)
        for regime in ("burst", "graph", "sustained")
        if regimes.is_host_bound(regime, device, case)
    ]
    on_cpu = [("cpu", case, regime) for case in ("short", "long") for regime in ("burst", "graph", "sustained")]
    assert bound == [*on_cpu, ("cuda", "short", "burst"), ("cuda", "short", "sustained")]


OWN = """
import torch
axes = {"n": [8, 12, 16, 20, 24]}
def inputs(n, device, generator):
    return (torch.randn(n, n, device=device, generator=generator),)
def reference(x):
    return x + x
def baseline_torch(x):
    return x * 2
def kernel_mine(x):
    return x + x
"""


def test_real_steps_share_the_cases_that_are_left_and_name_their_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "mine.py").write_text(OWN)
    workload = {"form": "file", "path": str(folder / "mine.py")}
    own = {"implementations": ["*"], "measure": {}, "correctness": {}, "skip_cases": ["n24"], "workload": workload}
    with on_gpus(tmp_path, spec(**own), {"most_difference": 1e9}) as harness:
        harness.until("preloaded")
        code, facts = harness.step("measure")
    assert code == 0, harness.log()
    cases = [fact["case_id"] for fact in named(facts, "case_finished")]
    assert sorted(cases) == ["n12", "n16", "n20", "n8"]
    gpus_by_case = {case: {row["gpu"] for row in harness.rows(case)} for case in cases}
    assert all(len(gpus) == 1 for gpus in gpus_by_case.values()), "a case and its baselines share a GPU"
    assert set.union(*gpus_by_case.values()) == {short_digest(gpu) for gpu in "ab"}
    assert not list(harness.out.glob("tmp*")), "nothing of a trial is kept"
