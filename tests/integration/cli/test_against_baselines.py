"""Runs compared with the stored baseline of their device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.naming import cases_prefix
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.measured_runs import RUNS, measured
from tests.unit.report.written import MANIFEST, folder


@pytest.fixture
def stored(bench: Bench) -> Callable[..., str]:
    """Puts a run where `bench fetch` would have brought it, and a trace of it into the bucket."""
    assert bench.home

    def store(run: str, speed: float, *, device: str = "NVIDIA L4", complete: bool = True, **more: str) -> str:
        text = measured(speed, 1 + RUNS.index(run), run_id=run, device=device, **more)
        path = folder(Path("results/local") / run, text, device=device, git_commit=f"c{RUNS.index(run)}")
        (path / "manifest.json").write_text(json.dumps(MANIFEST | {"run_id": run, "complete": complete}))
        wire().bucket.create(f"{cases_prefix(run)}a.csv", text.encode())
        return run

    return store


@pytest.mark.usefixtures("cloud")
def test_a_run_is_held_against_the_baseline_of_its_own_device(bench: Bench, stored: Callable[..., str]) -> None:
    l4, t4, slower, same = (
        stored(RUNS[0], 1.0), stored(RUNS[1], 0.3, device="Tesla T4"), stored(RUNS[2], 0.9), stored(RUNS[3], 1.0),
    )  # fmt: skip
    assert "bench baseline set main RUN" in bench("baseline", "list").out
    missing = bench("compare", slower, "--against", "main", code=10)
    assert "there is no baseline called main for NVIDIA L4" in missing.err
    first = bench("compare", slower, "--against", "main", "--missing-ok", "--markdown", "-")
    assert first.out == "There is no baseline called main for NVIDIA L4.\n"
    assert f"main on NVIDIA L4 is {l4} (c0)" in bench("baseline", "set", "main", l4).out
    bench("baseline", "set", "main", t4)
    listed = bench("baseline", "list", "--json").document["baselines"]
    assert [(one["device"], one["run_id"], one["git_commit"]) for one in listed] == [
        ("NVIDIA L4", l4, "c0"), ("Tesla T4", t4, "c1"),
    ]  # fmt: skip
    table = bench("baseline", "list").out
    assert l4 in table
    assert t4 in table
    assert "2 slower" in bench("compare", slower, "--against", "main", code=12).err
    both_held = bench("compare", same, t4, "--against", "main", "--json").document
    assert [(one["before"], one["after"]) for one in both_held["comparisons"]] == [(l4, same), (t4, t4)]
    shown = bench("baseline", "show", "main", "--device", "L4").out
    assert f"main on NVIDIA L4: {l4} (c0), set" in shown
    assert "driver: 580.1" in shown
    bench("baseline", "rm", "main", "--device", "t4")
    assert "no baseline called main on T4" in bench("baseline", "show", "main", "--device", "T4", code=10).err
    assert bench("baseline", "show", "main", "--json").document["baselines"][0]["run_id"] == l4
    removed = bench("baseline", "rm", "main", "--json").document["removed"]
    assert [one["run_id"] for one in removed] == [l4]
    assert "no baseline called main" in bench("baseline", "rm", "main", code=10).err


@pytest.mark.usefixtures("cloud")
def test_what_cannot_be_a_baseline_is_refused_with_the_way_out(bench: Bench, stored: Callable[..., str]) -> None:
    older, newer = stored(RUNS[0], 1.0), stored(RUNS[1], 1.0)
    partial = stored(RUNS[2], 1.0, complete=False)
    bench("baseline", "set", "main", newer)
    assert f"is already {newer}, which is newer than {older}" in bench("baseline", "set", "main", older, code=2).err
    assert f"main on NVIDIA L4 is {older}" in bench("baseline", "set", "main", older, "--back").out
    assert "is not complete" in bench("baseline", "set", "main", partial, code=2).err
    bench("baseline", "set", "main", partial, "--partial", "--json")
    assert "not a valid name for a baseline" in bench("baseline", "set", "Main!", older, code=2).err
    assert "has no measured case in this bucket" in bench("baseline", "set", "main", RUNS[5], code=10).err
    wire().bucket.replace("baselines/main.json", b"{", generation=None)
    assert "--broken" in bench("baseline", "show", "main", code=16).err
    assert "main is now empty" in bench("baseline", "rm", "main", "--broken").out
