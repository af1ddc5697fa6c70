"""`from spotbench import …`: a plan, a run and typed results, as a user's script has them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import operator
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spotbench
from orchestrator.embedded.client import stop_cloud
from spotbench.money import translate_hint

DOCS = Path(__file__).resolve().parents[3] / "docs"

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
    assert [spotbench.plan(workload, max_usd=usd) for usd in (0.10, Decimal("0.10"))] == [made, made]
    assert 0.5 - made.ceiling_usd == Decimal("0.5") - made.ceiling_usd > 0.4
    with pytest.raises(spotbench.BudgetExceeded) as refused:
        spotbench.plan(workload, max_usd="0.0001")
    assert "max_usd" in refused.value.hint
    assert "budget.per_run_usd" not in f"{refused.value} {refused.value.hint}"


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


@given(st.decimals(0, 10**6, places=6), st.floats(0.001, 1e6), st.sampled_from(["add", "sub", "mul", "truediv"]))
def test_dollars_and_floats_are_counted_together_and_stay_dollars(usd: Decimal, other: float, name: str) -> None:
    apply = getattr(operator, name)
    for found, exact in (
        (apply(spotbench.Dollars(usd), other), apply(usd, Decimal(repr(other)))),
        (sum([spotbench.Dollars(usd), other], 0.0), Decimal(repr(other)) + usd),
        (other - spotbench.Dollars(usd), Decimal(repr(other)) - usd),
        (2 * spotbench.Dollars(usd), 2 * usd),
    ):
        assert type(found) is spotbench.Dollars
        assert found == exact


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("raise budget.per_run_usd, or --set budget.per_run_usd=0.50", "raise max_usd, or max_usd=0.50"),
        (
            "--set machine.external_ip=false (`bench doctor`)",
            'settings={"machine.external_ip": "false"} (`bench doctor`)',
        ),
        ("choose one of them with --gpu; or --host user@box:22", 'choose one of them with gpu; or host="user@box:22"'),
        ("`bench launch --gpu l4` makes one", "`bench launch --gpu l4` makes one"),
    ],
)
def test_a_hint_says_what_to_do_in_the_words_of_the_library(hint: str, words: str) -> None:
    assert translate_hint(hint) == words


def test_the_notebook_of_the_documentation_runs(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells, one after the other, in one namespace and an empty folder, as Jupyter does it."""
    assert workload.is_file(), "its home is that of the other runs"
    notebook = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "outputs are not kept"
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for cell in code:
        exec("".join(cell["source"]), space)
    assert space["run"].over
    assert space["left"] < 0.5
    assert {one.verdict for one in space["results"].verdicts} <= {"faster", "slower", "same", "inconclusive"}
    assert space["results"].timings[0].axes["cols"] == 256


def test_what_is_exported_is_what_the_documentation_promises() -> None:
    assert sorted(spotbench.__all__) == [
        "BenchError", "BudgetExceeded", "ConfigError", "Dollars", "NoCapacity", "NotFound", "Plan", "Results", "Run", "RunFailed",
        "RunPreempted", "RunStopped", "Session", "Timing", "Verdict", "Version", "__version__", "find", "launch",
        "plan", "results", "results_in", "session",
    ]  # fmt: skip
    assert list(inspect.signature(spotbench.launch).parameters) == [
        "workload", "gpu", "max_usd", "host", "settings", "say",
    ]  # fmt: skip
    names = {one.name for one in dataclasses.fields(spotbench.Verdict)}
    assert {"case_id", "subject", "baseline", "verdict", "ratio", "low", "high"} <= names
    page = (DOCS / "library.md").read_text(encoding="utf-8")
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
