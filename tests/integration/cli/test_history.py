"""The history of a case over the runs of a bucket."""

from __future__ import annotations

import json

import pytest

from orchestrator.core.naming import artifacts_prefix, cases_prefix
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.measured_runs import RUNS, measured
from tests.integration.cli.test_shapes import holds
from tests.unit.report.written import ENVIRONMENT, both, csv_text, records


@pytest.mark.usefixtures("cloud")
def test_a_history_follows_a_case_over_the_runs_of_a_bucket(bench: Bench) -> None:
    wiring = wire()
    case = "b2-h8-kv8-q128-k128-d64-full-float16"
    for n, (run, speed) in enumerate(zip(RUNS, (1.0, 1.0, 0.8, 0.8, 1.0, 1.0), strict=True)):
        device = "Tesla T4" if n == 4 else "NVIDIA L4"
        text = measured(speed, n, run_id=run, device=device, lengths=(128,))  # type: ignore[arg-type]
        wiring.bucket.create(f"{cases_prefix(run)}{case}.csv", text.encode() if n != 3 else b"a,b\n")
        environment = ENVIRONMENT | {"device": device, "git_commit": f"c{n}"}
        wiring.bucket.create(f"{artifacts_prefix(run)}environment.json", json.dumps(environment).encode())
        wiring.index.write(run, {"phase": "succeeded"})
    wiring.index.write("20261121-040509-l4-0009", {"phase": "failed"})
    found = bench("history", "--case", case, "--json").document
    assert [point["git_commit"] for point in found["points"]] == ["c0", "c1", "c2", "c5"]
    assert [point["change"] in ("faster", "slower") for point in found["points"]] == [False, False, True, True]
    assert found["left_out"] == 1
    shown = bench("history", "--case", case, "--relative-to", "sdpa:default").out
    assert shown.count("◆") == 2
    assert "left out: 1 run on other devices" in shown
    assert "burst" in shown
    newest = bench("history", "--case", case, "--last", "2", "--json").document
    assert ([point["git_commit"] for point in newest["points"]], newest["older"]) == (["c2", "c5"], True)
    page = bench("history", "--case", case, "--last", "2").out
    assert f"for older runs: --before {RUNS[2]}" in page
    rest = bench("history", "--case", case, "--last", "2", "--before", RUNS[2], "--json").document
    assert ([point["git_commit"] for point in rest["points"]], rest["older"]) == (["c0", "c1"], False)
    assert f"before {RUNS[0]}" in bench("history", "--case", case, "--before", RUNS[0], code=10).err
    assert "in graph" in bench("history", "--case", case, "--regime", "graph", code=10).err
    assert [
        p["git_commit"] for p in bench("history", "--case", case, "--device", "T4", "--json").document["points"]
    ] == ["c4"]
    refused = bench("history", "--case", case, "--implementation", "sdpa:cudnn", code=10).err
    assert "no run in this bucket measured sdpa:cudnn" in refused
    assert "--implementation NAME" in refused, "a workload of one's own has no implementation called bench"


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize(
    ("backend", "speeds", "followed", "points"),
    [
        ("kernel_mine", {"torch": 1.0, "mine": 1.5}, "mine", 2),
        ("baseline_torch", {"torch": 1.0}, "torch", 2),
        ("default", {"sdpa:default": 1.0, "sdpa:math": 0.5}, "", 0),
    ],
)
def test_a_history_is_of_the_kernel_that_the_newest_run_of_the_case_is_about(
    bench: Bench, backend: str, speeds: dict[str, float], followed: str, points: int
) -> None:
    wiring = wire()
    for run in RUNS[:2]:
        rows = [
            row | ({"backend": backend} if row["implementation"] == followed else {})
            for row in records(run_id=run, speeds=speeds, lengths=(128,), case_id="rows512")
        ]
        wiring.bucket.create(f"{cases_prefix(run)}rows512.csv", csv_text(rows).encode())
        wiring.index.write(run, {"phase": "succeeded"})
    if not points:
        assert "measured a kernel on rows512" in bench("history", "--case", "rows512", code=10).err
        return
    found = bench("history", "--case", "rows512", "--json").document
    assert (found["implementation"], len(found["points"])) == (followed, points)
    holds("history", found)
    assert followed in bench("history", "--case", "rows512").out


@pytest.mark.usefixtures("cloud")
def test_a_history_follows_one_regime_and_never_another(bench: Bench) -> None:
    wiring = wire()
    case = "b2-h8-kv8-q128-k128-d64-full-float16"
    for run in RUNS[:2]:
        text = csv_text(both(run_id=run, lengths=(128,)))
        wiring.bucket.create(f"{cases_prefix(run)}{case}.csv", text.encode())
        wiring.index.write(run, {"phase": "succeeded"})
    burst = bench("history", "--case", case, "--json").document
    sustained = bench("history", "--case", case, "--regime", "sustained", "--json").document
    assert (burst["regime"], sustained["regime"]) == ("burst", "sustained")
    for document in (burst, sustained):
        assert len(document["points"]) == 2
        assert document["relative_to"] == "sdpa:default"
        assert document["points"][1]["change"] in ("same", "inconclusive")
    assert burst["points"][0]["value"]["mid"] > 1.2 * sustained["points"][0]["value"]["mid"]
