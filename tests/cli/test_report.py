"""Reports, comparisons and histories as a person or a script asks for them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.core.naming import artifacts_prefix, cases_prefix
from orchestrator.wiring import wire
from tests.cli.conftest import Bench
from tests.report.written import ENVIRONMENT, csv_text, folder, records

RUNS = [f"20261121-04050{n}-l4-000{n}" for n in range(6)]


def measured(speed: float, seed: int, **more: str) -> str:
    speeds = {"bench": 1.5 * speed, "sdpa:default": 1.0, "bench:aa": 1.5 * speed}
    return csv_text(records(speeds=speeds, seed=seed, **more))


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, str]:
    return {
        "before": str(folder(tmp_path / "before", measured(1.0, 1))),
        "same": str(folder(tmp_path / "same", measured(1.0, 2), driver="570")),
        "slower": str(folder(tmp_path / "slower", measured(0.9, 3))),
        "t4": str(folder(tmp_path / "t4", measured(0.3, 4, device="Tesla T4"), device="Tesla T4")),
        "sustained": str(folder(tmp_path / "sustained", measured(1.0, 5, regime="sustained"))),
    }


def test_a_report_is_written_beside_the_results_and_said_in_words(bench: Bench, runs: dict[str, str]) -> None:
    ran = bench("report", runs["before"])
    assert "faster in 2 of 2 cases" in ran.out
    written = {path.name for path in Path(runs["before"]).iterdir()}
    assert {"report.html", "report.md", "report.json", "verdicts.csv"} <= written
    document = bench("report", runs["before"], "--out", "elsewhere", "--json").document
    assert [case["contrasts"][0]["verdict"] for case in document["cases"]] == ["faster", "faster"]
    assert Path("elsewhere/report.html").read_text() == (Path(runs["before"]) / "report.html").read_text()


def test_a_table_goes_between_the_marks_of_a_readme_and_figures_into_files(
    bench: Bench, runs: dict[str, str], tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# mine\n<!-- bench:begin -->\n<!-- bench:end -->\nrest\n")
    bench("report", runs["before"], "--into", str(readme), "--figures", str(tmp_path / "figures"))
    assert re.search(r"(?s)^# mine\n.*\| faster \|.*\nrest\n$", readme.read_text())
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "speedup.svg", "latency.svg", "roofline.svg", "over-time.svg", "error.svg",
    }  # fmt: skip
    readme.write_text("no marks")
    assert "<!-- bench:begin -->" in bench("report", runs["before"], "--into", str(readme), code=11).err
    assert "cannot read" in bench("report", runs["before"], "--into", "missing.md", code=11).err
    assert "svg, png or pdf" in bench("report", runs["before"], "--figures", "f", "--format", "gif", code=2).err


def test_a_broken_run_is_reported_as_far_as_it_goes(bench: Bench, tmp_path: Path) -> None:
    torn = folder(tmp_path / "torn", measured(1.0, 1)[:-50])
    (torn / "manifest.json").write_text("{")
    out = bench("report", str(torn)).out
    assert "torn" in out
    assert "manifest.json cannot be read" in out
    (tmp_path / "nothing").mkdir()
    assert "holds no measurements.csv" in bench("report", str(tmp_path / "nothing"), code=10).err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "no column case_id" in bench("report", str(tmp_path / "other.csv"), code=1).err


def test_a_folder_of_cases_alone_is_enough(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "run" / "cases").mkdir(parents=True)
    (tmp_path / "run" / "cases" / "one.csv").write_text(measured(1.0, 1))
    (tmp_path / "run" / "environment.json").write_text("[]")
    out = bench("report", str(tmp_path / "run")).out
    assert "Attention on NVIDIA L4" in out
    assert "environment.json is no JSON object" in out


def test_a_regression_has_an_exit_code_of_its_own(bench: Bench, runs: dict[str, str]) -> None:
    ran = bench("compare", runs["before"], runs["slower"], code=12)
    assert "2 slower" in ran.err
    assert "a ratio over 1 is faster in the second run" in ran.out
    same = bench("compare", runs["before"], runs["same"])
    assert "driver differs: 580.1 and 570" in same.out
    assert "slower" not in same.out
    bench("compare", runs["before"], runs["slower"], "--tolerance", "20")
    both = bench("compare", runs["before"], runs["same"], runs["slower"], "--absolute", "--json", code=12).document
    assert [one["comparability"] for one in both["comparisons"]] == ["comparable with a caveat", "comparable"]
    words = [{change["verdict"] for change in one["changes"]} for one in both["comparisons"]]
    assert "slower" not in words[0]
    assert words[1] == {"slower"}
    assert both["comparisons"][1]["changes"][0]["relative_to"] is None


def test_what_must_not_be_compared_is_refused_with_the_reason(bench: Bench, runs: dict[str, str]) -> None:
    refused = bench("compare", runs["before"], runs["t4"], "--json", code=13)
    assert refused.document["comparisons"][0]["comparability"] == "refused"
    assert "device differs: NVIDIA L4 and Tesla T4" in refused.err
    bench("compare", runs["before"], runs["t4"], "--across-devices", "--json", code=12)
    assert "no regime is in both" in bench("compare", runs["before"], runs["sustained"], "--across-devices", code=13).err
    assert "two runs at least" in bench("compare", runs["before"], code=2).err
    both = ("--absolute", "--relative-to", "sdpa:default")
    assert "either" in bench("compare", runs["before"], runs["same"], *both, code=2).err
    nothing = bench("compare", runs["before"], runs["same"], "--implementation", "sdpa:flash", code=13)
    assert "nothing" not in nothing.out
    assert "in common" in nothing.err


def test_several_implementations_are_named_in_the_table(bench: Bench, runs: dict[str, str]) -> None:
    wanted = ("--implementation", "bench", "--implementation", "sdpa:default", "--absolute")
    out = bench("compare", runs["before"], runs["same"], *wanted).out
    assert "sdpa:default" in out
    assert "µs a call" in out


@pytest.mark.slow
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
    assert "1 runs on other devices" in shown
    assert [
        p["git_commit"] for p in bench("history", "--case", case, "--device", "T4", "--json").document["points"]
    ] == ["c4"]
    assert (
        "no run in this bucket measured sdpa:cudnn"
        in bench("history", "--case", case, "--implementation", "sdpa:cudnn", code=10).err
    )
