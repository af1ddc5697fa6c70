"""How the agent ends a run whose step fails, hangs, dies or breaks its contract."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from startup.agent.__main__ import Conductor
from tests.support.patience import PATIENCE_S, await_truth, living
from tests.unit.startup.conducted import Conducted, WindUp, cause, cloud_for, ended
from tests.unit.startup.machine import CASES
from tests.unit.startup.played_harness import fact

BUILD_FAILED = {
    "build": [
        {"say": {"fact": "gate", "name": "kernel_loads", "passed": False, "detail": "cc: error"}},
        {"say": {"fact": "problem", "cause": "no_compiler", "detail": "no NVRTC and no nvcc"}},
        {"exit": 20},
    ]
}


def test_a_kernel_that_does_not_build_leaves_the_others_to_be_measured(tmp_path: Path) -> None:
    script = {**BUILD_FAILED, "correctness": [{"healthy": 1}, {"exit": 10}], "measure": [{"healthy": 1}, {"exit": 20}]}
    with cloud_for(script) as cloud:
        assert Conducted(cloud, tmp_path).code == 10
        assert cause(cloud) == "no_compiler"
        assert ended(cloud)["outcome"] == "incorrect"
        assert len(cloud.said("case_measured")) == 2
        codes = {data["phase"]: data["exit_code"] for data in cloud.said("phase_finished")}
        assert codes == {"preflight": 0, "environment": 0, "build": 10, "correctness": 10, "measure": 10, "finish": 0}


def test_a_kernel_that_does_not_build_is_the_end_when_nothing_else_is_asked_for(tmp_path: Path) -> None:
    with cloud_for(BUILD_FAILED, implementations=["bench"]) as cloud:
        assert Conducted(cloud, tmp_path).code == 20
        assert cause(cloud) == "no_compiler"
        assert ended(cloud)["outcome"] == "failed"
        assert ended(cloud)["phase"] == "build"
        assert cloud.said("case_measured") == []


def test_a_wrong_kernel_makes_the_run_incorrect_and_is_diagnosed_once(tmp_path: Path) -> None:
    checked = {"fact": "checked", "implementation": "bench", "case_id": CASES[0], "passed": False}
    checked |= {"max_abs_error": 0.5, "limit": 0.01, "reason": "too far off"}
    right = {**checked, "passed": True, "implementation": "sdpa:default"}
    wrong = [{"say": checked}, {"say": right}, {"healthy": 1}, {"exit": 10}]
    with cloud_for({"correctness": wrong, "measure": wrong}) as cloud:
        assert Conducted(cloud, tmp_path).code == 10
        assert cause(cloud) == "kernel_wrong"
        assert ended(cloud)["outcome"] == "incorrect"
        assert [data["implementation"] for data in cloud.said("case_checked")] == ["bench", "bench"]


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([{"exit": 21}], "gate_failed"),
        ([fact("gate", name="cuda_answers", passed=False, detail="no device"), {"exit": 21}], "no_cuda"),
        ([fact("gate", name="brand_new", passed=False, detail="?"), {"exit": 21}], "gate_failed"),
        ([fact("gate", name="numpy_matches", passed=False, detail="ABI")], "numpy_mismatch"),
        (
            [
                fact("gate", name="cuda_answers", passed=False, detail="no device"),
                fact("problem", cause="torch_without_cuda", detail="torch 2.13.0+cpu"),
                {"exit": 21},
            ],
            "torch_without_cuda",
        ),
        ([{"exit": 22}], "spec_refused"),
        ([{"exit": 20}], "build_failed"),
        ([{"log": "Segmentation fault"}, {"exit": 1}], "harness_crashed"),
        ([{"log": "OSError: [Errno 28] No space left on device: 'out/rows.csv'"}, {"exit": 1}], "disk_full"),
        ([{"log": "OSError: [Errno 28] No space left on device: '/dev/shm/x'"}, {"exit": 1}], "harness_crashed"),
    ],
)
def test_a_step_that_fails_ends_the_run_with_the_most_exact_cause(
    tmp_path: Path, acts: list[dict[str, Any]], expected: str
) -> None:
    with cloud_for({"environment": acts}, implementations=["bench"]) as cloud:
        assert Conducted(cloud, tmp_path).code != 0
        assert cause(cloud) == expected
        assert (ended(cloud)["outcome"], ended(cloud)["phase"]) == ("failed", "environment")


def test_a_killed_harness_is_diagnosed_with_its_signal_and_the_end_of_its_log(tmp_path: Path) -> None:
    lines = [{"log": f"line {number}"} for number in range(30)]
    with cloud_for({"measure": [*lines, {"signal": signal.SIGKILL}]}) as cloud:
        assert Conducted(cloud, tmp_path).code == 128 + signal.SIGKILL
        assert cause(cloud) == "harness_crashed"
        detail = cloud.said("diagnosed")[0]["detail"]
        assert "SIGKILL" in detail
        assert detail.splitlines()[1:] == [f"line {number}" for number in range(10, 30)]


@pytest.mark.parametrize("how", [[{"hang": 1}], [{"deaf": 1}, {"hang": 1}], [{"signal": signal.SIGSTOP}]])
def test_a_step_that_hangs_is_ended_at_its_phases_limit(tmp_path: Path, how: list[dict[str, Any]]) -> None:
    child, clock = tmp_path / "vm" / "out" / "child", WindUp()

    def time_is_up(_: Conductor) -> None:
        await_truth(lambda: child.exists() and child.read_text(), "what the harness starts")
        clock.ahead_s = 7201

    with cloud_for({"correctness": [{"child": 1}, *how]}, limits={"correctness": 7200}) as cloud:
        run = Conducted(cloud, tmp_path, time_is_up, clock)
        assert run.code == 124
        assert cause(cloud) == "phase_timeout"
        assert ended(cloud)["outcome"] == "timed_out"
        assert run.seconds < PATIENCE_S
        await_truth(lambda: not living(int(child.read_text())), "the end of what the harness started")


def test_what_a_killed_harness_kept_in_memory_is_removed(tmp_path: Path) -> None:
    """It would stay there on a machine that is not deleted."""
    left = tmp_path / "temporary" / "bench-answers-1a2b"
    left.mkdir(parents=True)
    (left / "0.bin").write_bytes(b"an answer")
    with cloud_for({"measure": [{"signal": signal.SIGKILL}]}) as cloud:
        assert Conducted(cloud, tmp_path).code == 128 + signal.SIGKILL
    assert list(left.parent.iterdir()) == []


def test_what_a_step_leaves_running_ends_with_it(tmp_path: Path) -> None:
    with cloud_for({"correctness": [{"child": 1}, {"healthy": 1}]}) as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        child = int((run.vm / "out" / "child").read_text())
        await_truth(lambda: not living(child), "the end of what the step started")


def test_what_a_library_prints_is_not_taken_for_a_fact(tmp_path: Path) -> None:
    chatter = [{"print": "Downloading weights"}, {"print": "[1, 2]"}, {"print": '{"not": "a fact"}'}, {"healthy": 1}]
    with cloud_for({"build": [*chatter, fact("novelty", x=1)]}) as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert "(not a fact) Downloading weights" in run.console.getvalue()


def unwritten(path: str) -> dict[str, Any]:
    """A fact that names a file which the harness has not written."""
    return {**fact("built", path=path, seconds=1, compiler="cc", cached=False), "unwritten": True}


@pytest.mark.parametrize(
    "act",
    [
        unwritten("../../etc/passwd"), unwritten("/etc/passwd"), unwritten("nothing.json"),
        fact("built", path="build.json"), fact("planned", cases=3),
    ],
)  # fmt: skip
def test_a_fact_that_breaks_the_contract_ends_the_run(tmp_path: Path, act: dict[str, Any]) -> None:
    with cloud_for({"build": [act]}) as cloud:
        assert Conducted(cloud, tmp_path).code == 1
        assert cause(cloud) == "harness_crashed"
        assert not any("passwd" in name for name in cloud.objects)
