"""Reports, comparisons and histories as a person or a script asks for them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.naming import artifacts_prefix, cases_prefix
from orchestrator.wiring import wire
from tests.cli.conftest import Bench
from tests.cli.test_shapes import holds
from tests.report.written import ENVIRONMENT, MANIFEST, both, csv_text, folder, records, skip

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
        "speedup.svg", "rate.svg", "latency.svg", "roofline.svg", "over-time.svg", "error.svg",
    }  # fmt: skip
    readme.write_text("no marks")
    assert "<!-- bench:begin -->" in bench("report", runs["before"], "--into", str(readme), code=11).err
    assert "cannot read" in bench("report", runs["before"], "--into", "missing.md", code=11).err
    assert "svg, png or pdf" in bench("report", runs["before"], "--figures", "f", "--format", "gif", code=2).err


def test_a_broken_run_is_reported_as_far_as_it_goes(bench: Bench, tmp_path: Path) -> None:
    torn = folder(tmp_path / "torn", measured(1.0, 1)[:-50])
    (torn / "manifest.json").write_text("{")
    out = bench("report", str(torn)).out
    assert "incomplete" in out
    assert "manifest.json cannot be read" in out
    (tmp_path / "nothing").mkdir()
    assert "has no measurements.csv" in bench("report", str(tmp_path / "nothing"), code=10).err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "no column case_id" in bench("report", str(tmp_path / "other.csv"), code=1).err


def test_one_file_that_is_none_of_ours_hides_no_other(bench: Bench, tmp_path: Path) -> None:
    cases = tmp_path / "run" / "cases"
    cases.mkdir(parents=True)
    (cases / "a.csv").write_text(measured(1.0, 1))
    (cases / "b.csv").write_text("something else\n1\n")
    out = bench("report", str(tmp_path / "run")).out
    assert "faster in 2 of 2 cases" in out
    assert "Left out: b.csv: not a result file" in out


def test_what_was_not_timed_is_said_with_its_reason(bench: Bench, tmp_path: Path) -> None:
    skipped = folder(tmp_path / "skipped", csv_text([skip("bench", "no compiler"), skip("sdpa:cudnn", "needs CUDA")]))
    out = bench("report", str(skipped)).out
    assert "not timed: bench in 1 case: no compiler" in out
    assert "not timed: sdpa:cudnn in 1 case: needs CUDA" in out
    empty = folder(tmp_path / "empty", csv_text([]))
    assert "the second run measured nothing" in bench("compare", str(skipped), str(empty), code=13).err


def test_a_folder_of_cases_alone_is_enough(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "run" / "cases").mkdir(parents=True)
    (tmp_path / "run" / "cases" / "one.csv").write_text(measured(1.0, 1))
    (tmp_path / "run" / "environment.json").write_text("[]")
    out = bench("report", str(tmp_path / "run")).out
    assert "Attention on NVIDIA L4" in out
    assert "environment.json cannot be read (it is not a JSON object)" in out


def test_a_packed_file_is_read_as_it_is_and_one_that_was_cut_off_as_far_as_it_goes(
    bench: Bench, tmp_path: Path
) -> None:
    text = measured(1.0, 1)
    whole, cut, other = (tmp_path / name for name in ("whole", "cut", "other"))
    packed = gzip.compress(text.encode())
    for path, data in ((whole, packed), (cut, packed[: len(packed) // 2]), (other, b"no gzip")):
        path.mkdir()
        (path / "measurements.csv.gz").write_bytes(data)
    plain = bench("report", str(folder(tmp_path / "plain", text)), "--json").document
    assert bench("report", str(whole), "--json").document["cases"] == plain["cases"]
    half = bench("report", str(cut)).out
    assert "incomplete" in half
    assert 0 < json.loads((cut / "report.json").read_text())["measurements"] < plain["measurements"]
    assert "cannot read" in bench("report", str(other), code=11).err


def test_a_row_a_baseline_goes_between_marks_that_carry_a_name(bench: Bench, tmp_path: Path) -> None:
    run = str(folder(tmp_path / "run", csv_text(both())))
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- bench:begin a -->\n<!-- bench:end a -->\n<!-- bench:begin b -->\nkept\n<!-- bench:end b -->\n"
    )
    bench("report", run, "--into", str(page), "--mark", "a", "--table", "baselines")
    text = page.read_text()
    assert "| against | burst, cold | faster / slower / same / inconclusive | sustained, cold |" in text
    assert re.search(
        r"\| default \| 1\.5\d× \[1\.\d\d, 1\.\d\d\] \(1\.\d\d to 1\.\d\d\) \| 2 / 0 / 0 / 0 \| 1\.1\d× ", text
    )
    assert re.search(r"\| bench itself \(A/A\) \| \d\.\d\d\d to 1\.00\d \| 0 / 0 / 2 / 0 \|", text)
    assert "<!-- bench:begin b -->\nkept\n<!-- bench:end b -->" in text
    bench("report", run, "--into", str(page), "--mark", "a", "--table", "baselines", "--regime", "sustained")
    assert "| against | sustained, cold | faster / slower / same / inconclusive |\n" in page.read_text()
    assert "<!-- bench:begin c -->" in bench("report", run, "--into", str(page), "--mark", "c", code=11).err
    assert "no name for a mark" in bench("report", run, "--into", str(page), "--mark", "-->", code=2).err
    assert "cases or baselines" in bench("report", run, "--into", str(page), "--table", "all", code=2).err
    alone = csv_text(records(speeds={"bench": 1.0}))
    page.write_text("<!-- bench:begin -->\n<!-- bench:end -->\n")
    bench("report", str(folder(tmp_path / "alone", alone)), "--into", str(page), "--table", "baselines")
    assert "Nothing was compared." in page.read_text()


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
    assert (
        "no regime is in both" in bench("compare", runs["before"], runs["sustained"], "--across-devices", code=13).err
    )
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


def test_several_implementations_are_named_in_the_table(bench: Bench, runs: dict[str, str]) -> None:
    wanted = ("--implementation", "bench", "--implementation", "sdpa:default", "--absolute")
    out = bench("compare", runs["before"], runs["same"], *wanted).out
    assert "sdpa:default" in out
    assert "µs a call" in out


# --- several regimes ------------------------------------------------------------------------------------------------


def test_the_markdown_of_a_run_in_two_regimes_has_the_table_that_was_asked_for(bench: Bench, tmp_path: Path) -> None:
    run = str(folder(tmp_path / "both", csv_text(both())))
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench:begin -->\n<!-- bench:end -->\n")
    out = bench("report", run, "--into", str(readme)).out
    assert "burst, cold: bench against the fastest baseline of each case: faster in 2 of 2 cases" in out
    assert "sustained, cold: bench against the fastest baseline of each case: faster in 2 of 2 cases" in out
    assert "**burst, cold**: One call" in readme.read_text()
    assert "**sustained, cold**" not in readme.read_text()
    bench("report", run, "--into", str(readme), "--regime", "sustained")
    assert "**sustained, cold**: Calls back to back" in readme.read_text()
    assert "**burst, cold**" not in readme.read_text()
    bench("report", run, "--into", str(readme), "--regime", "all")
    assert readme.read_text().count("| verdict |") == 2
    wrong = bench("report", run, "--regime", "graph", code=2)
    assert "the run has burst-cold, sustained-cold" in wrong.err


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


def test_a_kernel_that_is_not_timed_any_more_is_a_regression_and_cases_without_a_counterpart_are_told(
    bench: Bench, tmp_path: Path
) -> None:
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


# --- baselines ------------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_what_a_comparison_fails_on_is_chosen(bench: Bench, runs: dict[str, str], tmp_path: Path) -> None:
    noisy = [str(folder(tmp_path / f"n{n}", measured(1.0, n, noise=0.2, lengths=(128,)))) for n in (1, 2)]  # type: ignore[arg-type]
    bench("compare", *noisy)
    assert "came to no conclusion" in bench("compare", *noisy, "--fail-on", "inconclusive", code=14).err
    bench("compare", runs["before"], runs["slower"], "--fail-on", "never")
    bench("compare", runs["before"], runs["slower"], "--fail-on", "inconclusive", code=12)
    assert "--fail-on often" in bench("compare", *noisy, "--fail-on", "often", code=2).err
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


@pytest.mark.slow
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


@pytest.mark.slow
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
