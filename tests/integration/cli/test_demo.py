"""`bench demo`: what a newcomer runs first."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench


@pytest.mark.smoke
def test_the_demo_ends_with_verdicts_and_names_what_is_wrong(bench: Bench) -> None:
    out = bench("demo").out
    assert out.startswith("practice: nothing is rented, prices are simulated; measuring this machine's CPU: ")
    assert "careless is WRONG in 4 of 4 cases" in out
    rows = [line for line in out.splitlines() if "\ttorch\t" in line]
    assert len(rows) == 4
    assert sum(line.split("\t")[5] == "faster" for line in rows) >= 2, out
    assert "One of your own: bench new NAME" in out
    followed = bench("status", "last", "--watch", code=7, width=80)
    errors = followed.err.splitlines()
    assert errors[-1].endswith("is incorrect, as shown above"), "what was wrong is said once, by the answer"
    answer = followed.out.splitlines()
    first = next(place for place, line in enumerate(answer) if "softmax on" in line)
    assert len(answer[first:]) + len(errors) <= 20


@pytest.mark.usefixtures("cloud")
def test_the_demo_says_what_is_missing_before_it_begins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.adapters.hosts.local_shell.torch_version", str)
    refused = bench("demo", code=11)
    assert refused.err.splitlines() == [
        "error: this Python has no torch, which a run on this machine measures with",
        "hint:  pip install torch",
    ]
    assert "note: this Python has no torch" in bench("plan", "--gpu", "cpu").out


@pytest.mark.usefixtures("cloud")
def test_a_plan_of_the_bundled_kernel_says_that_a_compiler_is_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.adapters.hosts.local_shell.compiler", str)
    note = "note: no C++ compiler, with which the bundled kernel is built: sudo apt-get install g++"
    assert note in bench("plan", "--gpu", "cpu").out
    Path("own.py").write_text((Path(__file__).parents[3] / "configs" / "demo" / "softmax.py").read_text())
    assert "no C++ compiler" not in bench("plan", "own.py").out


def test_a_page_is_found_by_its_name_its_path_or_its_last_part(bench: Bench) -> None:
    page = bench("docs", "forms/gpu-mode").out
    assert page.startswith("# ")
    assert bench("docs", "gpu-mode").out == bench("docs", "docs/forms/gpu-mode.md").out == page
    assert bench("docs", "juge", code=10).err.startswith("error: page not found: juge; did you mean judge?")
    assert "judge\tWhat the judge refuses" in bench("docs").out


@pytest.mark.usefixtures("cloud")
def test_the_id_of_a_practice_run_names_what_it_measures(bench: Bench) -> None:
    wiring = wire()
    config, name = wiring.configured(LaunchOptions("l4", None, ()))
    plan = wiring.plan(config, name)
    assert (plan.label, plan.label_on("")) == ("l4", "cpu")
    for here, named in (("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-40GB", "a100"), ("NVIDIA GeForce RTX 4090", "gpu")):
        assert plan.label_on(here) == named


@pytest.mark.parametrize("gpu", ["h100", "l4"])
@pytest.mark.usefixtures("cloud")
def test_a_plan_for_a_gpu_without_an_account_begins_with_it_and_not_with_this_cpu(bench: Bench, gpu: str) -> None:
    lines = bench("plan", "--gpu", gpu).out.splitlines()
    assert lines[0] == f"plan {gpu}  nothing is requested or spent"
    heading = next(place for place, line in enumerate(lines) if line.startswith("shipped prices of 20"))
    assert lines[heading].endswith(", no project asked")
    assert lines[heading + 1].split("\t")[:3] == ["", "zone", "machine"]
    assert any(f"no {gpu.upper()} is measured" in line for line in lines[heading:]), "what a launch would do here"
