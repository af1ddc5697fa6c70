"""Comparisons of runs: what is a regression, what is none, and what is not compared."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tests.integration.cli.conftest import Bench
from tests.integration.cli.measured_runs import measured
from tests.unit.report.written import both, csv_text, folder, skip


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


def test_a_busy_host_is_no_regression_but_no_answer_either(bench: Bench, runs: dict[str, str], tmp_path: Path) -> None:
    busy = str(folder(tmp_path / "busy", measured(0.7, 3, load_1m="9.5")))
    told = bench("compare", runs["before"], busy, code=14)
    assert "the host of the second run was busy" in told.err
    assert "inconclusive: the host of the second run was busy" in told.out
    bench("compare", runs["before"], busy, "--fail-on", "never")
    document = bench("compare", runs["before"], busy, "--json", code=14).document
    assert {one["verdict"] for one in document["comparisons"][0]["changes"]} == {"inconclusive"}


def test_what_differs_in_the_code_is_named(bench: Bench, tmp_path: Path) -> None:
    one = str(folder(tmp_path / "one", measured(1.0, 1), payload_sha256="a" * 64))
    other = str(folder(tmp_path / "other", measured(1.0, 2, backend="mine-c"), payload_sha256="b" * 64))
    out = bench("compare", one, other).out
    assert "payload aaaaaaaaaaaa → bbbbbbbbbbbb" in out
    assert "kernel fa2 → mine-c (2 timings)" in out


def test_what_must_not_be_compared_is_refused_with_the_reason(bench: Bench, runs: dict[str, str]) -> None:
    refused = bench("compare", runs["before"], runs["t4"], "--json", code=13)
    assert refused.document["comparisons"][0]["comparability"] == "refused"
    assert "device differs: NVIDIA L4 and Tesla T4" in refused.err
    bench("compare", runs["before"], runs["t4"], "--across-devices", "--json", code=12)
    apart = bench("compare", runs["before"], runs["sustained"], "--across-devices", code=13)
    assert "no regime is in both" in apart.err
    assert "at least two runs" in bench("compare", runs["before"], code=2).err
    both = ("--absolute", "--relative-to", "sdpa:default")
    assert "give only one" in bench("compare", runs["before"], runs["same"], *both, code=2).err
    nothing = bench("compare", runs["before"], runs["same"], "--implementation", "sdpa:flash", code=13)
    assert "nothing" not in nothing.out
    assert "the runs share no case" in nothing.err


def test_runs_that_measured_nothing_are_called_as_they_were_named(
    bench: Bench, runs: dict[str, str], tmp_path: Path
) -> None:
    head = measured(1.0, 1).splitlines()[0] + "\n"
    first, second = (str(folder(tmp_path / name, head)) for name in ("empty", "also empty"))
    refused = bench("compare", first, second, code=13)
    assert f"{first} and {second}: the first run measured nothing" in refused.err
    assert f"`bench report {first}` shows what the run contains" in refused.err
    refused = bench("compare", runs["before"], second, "--json", code=13)
    assert f"l4-7f3a and {second}: the second run measured nothing" in refused.err
    assert f"`bench report '{second}'` shows" in refused.err
    assert refused.document["comparisons"][0]["comparability"] == "refused"


def test_a_regression_in_one_regime_of_two_is_a_regression(bench: Bench, tmp_path: Path) -> None:
    rows = list(both())
    slow = [
        row | {"latency_us": f"{float(row['latency_us']) * 1.1:.3f}"}
        if row["regime"] == "sustained" and row["implementation"].startswith("bench")
        else row
        for row in rows
    ]
    before, after = folder(tmp_path / "a", csv_text(rows)), folder(tmp_path / "b", csv_text(slow))
    ran = bench("compare", str(before), str(after), "--html", "c.html", "--markdown", "c.md", code=12)
    assert "(sustained, cold)" in ran.err
    assert "2 slower, 2 same" in ran.out
    for text in (Path("c.html").read_text(), Path("c.md").read_text()):
        assert "burst, cold" in text.lower()
        assert "sustained, cold" in text.lower()
    document = bench("compare", str(before), str(after), "--json", code=12).document
    found = {(one["regime"], one["verdict"]) for one in document["comparisons"][0]["changes"]}
    assert found == {("burst", "same"), ("sustained", "slower")}


def test_a_kernel_no_longer_timed_is_a_regression_and_unmatched_cases_are_listed(bench: Bench, tmp_path: Path) -> None:
    before = folder(tmp_path / "a", measured(1.0, 1))
    kept = [row for row in csv.DictReader(io.StringIO(measured(1.0, 2))) if "q1024" in row["case_id"]]
    wrong = skip("bench", "wrong: largest error 0.5")
    rivals = [row for row in csv.DictReader(io.StringIO(measured(1.0, 2))) if "q128" in row["case_id"]]
    after = folder(
        tmp_path / "b", csv_text([*kept, wrong, *(row for row in rivals if row["implementation"] != "bench")])
    )
    ran = bench("compare", str(before), str(after), "--html", "c.html", "--markdown", "c.md", code=12)
    assert "1 no longer timed; bench on b2-h8-kv8-q128" in ran.err
    said = "1 timing lost: bench (1): wrong: largest error 0.5."
    assert said in " ".join(ran.out.split())
    assert said in Path("c.html").read_text()
    assert said in Path("c.md").read_text()
    bench("compare", str(before), str(after), "--fail-on", "never")
    fewer = folder(tmp_path / "c", csv_text(kept))
    assert "1 of 2 cases of the first run are not in the second" in bench("compare", str(before), str(fewer)).out
    graph = folder(tmp_path / "d", csv_text([row | {"regime": "graph"} for row in rivals] + kept))
    assert "1 case timed in other regimes" in bench("compare", str(before), str(graph)).out
    nothing = folder(tmp_path / "e", csv_text([wrong]))
    assert "1 no longer timed" in bench("compare", str(before), str(nothing), code=12).err


def test_what_a_comparison_fails_on_is_chosen(bench: Bench, runs: dict[str, str], tmp_path: Path) -> None:
    noisy = [str(folder(tmp_path / f"n{n}", measured(1.0, n, noise=0.2, lengths=(128,)))) for n in (1, 2)]  # type: ignore[arg-type]
    bench("compare", *noisy)
    assert "came to no conclusion" in bench("compare", *noisy, "--fail-on", "inconclusive", code=14).err
    bench("compare", runs["before"], runs["slower"], "--fail-on", "never")
    bench("compare", runs["before"], runs["slower"], "--fail-on", "inconclusive", code=12)
    assert "'--fail-on': 'often' is not one of" in bench("compare", *noisy, "--fail-on", "often", code=2).err
    assert "standard output" in bench("compare", *noisy, "--json", "--markdown", "-", code=2).err


def test_the_markdown_of_a_comparison_is_the_same_every_time(bench: Bench, runs: dict[str, str]) -> None:
    once = bench("compare", runs["before"], runs["slower"], "--markdown", "-", code=12)
    again = bench("compare", runs["before"], runs["slower"], "--markdown", "c.md", code=12)
    assert Path("c.md").read_text() == once.out
    assert "wrote c.md" in again.out
    assert "| **slower** |" in once.out
    assert "changes within 2.0 % do not count" in once.out
    refused = bench("compare", runs["before"], runs["t4"], "--markdown", "-", code=13).out
    assert "Not comparable: device differs: NVIDIA L4 and Tesla T4." in refused
