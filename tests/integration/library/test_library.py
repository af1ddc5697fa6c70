"""`from spotbench import …`: a plan, a run and typed results, as a user's script has them."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spotbench
from orchestrator.embedded.client import stop_cloud

WORKLOAD = """import torch

axes = {"n": [64]}


def inputs(n, device, generator):
    return torch.randn(n, device=device, generator=generator)


def reference(x):
    return x * 2


def baseline_torch(x):
    return x * 2


def kernel_sum(x):
    return x + x


def kernel_wrong(x):
    return x * 2.01
"""
QUICK = {"measure.repeats": 8, "measure.warmup": 1, "measure.cache": "warm"}


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("library")
    file = folder / "twice.py"
    file.write_text(WORKLOAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_HOME", str(folder / "home"))
        patch.chdir(folder)
        yield file
        stop_cloud(folder / "home" / "cloud")


@pytest.fixture(scope="module")
def measured(workload: Path) -> tuple[spotbench.Results, list[str]]:
    told: list[str] = []
    run = spotbench.launch(workload, max_usd="0.10", settings=QUICK)
    found = run.wait(watch=told.append)
    assert run.over
    assert run.cost_usd > 0
    return found, told


def test_a_plan_costs_nothing_and_says_the_most_that_a_launch_can(workload: Path) -> None:
    made = spotbench.plan(workload, max_usd="0.10")
    assert (made.workload, made.cases, made.simulated) == ("twice", ("n64",), True)
    assert Decimal(0) < made.ceiling_usd <= Decimal("0.10")
    with pytest.raises(spotbench.BudgetExceeded):
        spotbench.plan(workload, max_usd="0.0001")


def test_a_mistake_is_an_error_with_file_and_line(workload: Path) -> None:
    broken = workload.with_name("broken.py")
    broken.write_text(WORKLOAD.replace("def reference", "def refer"))
    with pytest.raises(spotbench.ConfigError, match=r"broken.py:1: there is no function reference"):
        spotbench.launch(broken)
    with pytest.raises(spotbench.ConfigError, match="there is no file"):
        spotbench.plan(workload.with_name("none.py"))


def test_a_run_ends_with_typed_results_also_where_an_implementation_is_wrong(
    measured: tuple[spotbench.Results, list[str]],
) -> None:
    found, told = measured
    assert found.status == "incorrect"
    assert told[-1] == "incorrect"
    timed = {one.implementation for one in found.timings if one.median_us > 0}
    assert {"torch", "sum"} <= timed
    assert "max abs error" in found.skipped("wrong")["n64"]
    (verdict,) = found.of("sum", "torch")
    assert verdict.low <= verdict.ratio <= verdict.high
    assert verdict.verdict in ("faster", "slower", "same", "inconclusive")
    assert (found.folder / "report.html").is_file()


def test_results_are_found_again_by_run_and_by_folder(measured: tuple[spotbench.Results, list[str]]) -> None:
    found, _ = measured
    assert spotbench.results(found.run_id).verdicts == found.verdicts
    assert repr(spotbench.results_in(found.folder).timings) == repr(found.timings)  # NaN equals nothing
    assert spotbench.find("last").id >= found.run_id  # another test may have run since
    with pytest.raises(spotbench.NotFound):
        spotbench.find("nothing-like-it")


def test_rows_become_a_frame_of_whatever_library_is_there(
    measured: tuple[spotbench.Results, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = measured
    assert {row["n"] for row in found.rows()} == {64}

    class Frames(ModuleType):
        @staticmethod
        def DataFrame(rows: list[Any], **_: Any) -> list[Any]:
            return rows

    for name, made in (("pandas", "to_pandas"), ("polars", "to_polars")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError):
            getattr(found, made)()
        monkeypatch.setitem(sys.modules, name, Frames(name))
        assert getattr(found, made)() == found.rows()


def test_what_is_exported_is_what_the_documentation_promises() -> None:
    assert sorted(spotbench.__all__) == [
        "BenchError", "BudgetExceeded", "ConfigError", "NoCapacity", "NotFound", "Plan", "Results", "Run", "RunFailed",
        "RunPreempted", "RunStopped", "Session", "Timing", "Verdict", "Version", "__version__", "find", "launch",
        "plan", "results", "results_in", "session",
    ]  # fmt: skip
    assert list(inspect.signature(spotbench.launch).parameters) == [
        "workload", "gpu", "max_usd", "host", "settings", "say",
    ]  # fmt: skip
    names = {one.name for one in dataclasses.fields(spotbench.Verdict)}
    assert {"case_id", "subject", "baseline", "verdict", "ratio", "low", "high"} <= names
    page = (Path(__file__).resolve().parents[3] / "docs" / "library.md").read_text(encoding="utf-8")
    assert not [name for name in spotbench.__all__ if f"`{name}" not in page]


def test_a_session_judges_text_after_text_and_gives_its_machine_back(workload: Path) -> None:
    alone = WORKLOAD.partition("def kernel_wrong")[0]
    with spotbench.session(workload, max_usd="0.10", settings={**QUICK, "measure.repeats": 20}) as warm:
        right = warm.measure(alone)
        assert (right.kernel, right.baseline) == ("sum", "torch")
        assert right.time_us is not None
        wrong = warm.measure(alone.replace("return x + x", "return x + 1"))
        assert wrong.verdict == "wrong"
        broken = warm.measure(alone + "def kernel_half(:")
        assert broken.verdict == "unreadable"
        assert "twice.py" in broken.reason
        assert [one.number for one in warm.versions] == [1, 2, 3]
        assert warm.best == right
        run = spotbench.find(warm.id)
    assert run.over
    assert run.status == "succeeded"
    assert 0 < run.cost_usd <= Decimal("0.10")
