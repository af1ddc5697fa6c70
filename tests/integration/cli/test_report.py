"""Reports as a person or a script asks for them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from tests.integration.cli.conftest import Bench
from tests.integration.cli.measured_runs import measured
from tests.unit.report.written import both, csv_text, folder, records, skip


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
    assert "bench cannot run here in 1 of 1 case: no compiler" in out
    assert "sdpa:cudnn cannot run here in 1 of 1 case: needs CUDA" in out
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
    assert "'all' is not one of" in bench("report", run, "--into", str(page), "--table", "all", code=2).err
    alone = csv_text(records(speeds={"bench": 1.0}))
    page.write_text("<!-- bench:begin -->\n<!-- bench:end -->\n")
    bench("report", str(folder(tmp_path / "alone", alone)), "--into", str(page), "--table", "baselines")
    assert "Nothing was compared." in page.read_text()


def test_several_implementations_are_named_in_the_table(bench: Bench, runs: dict[str, str]) -> None:
    wanted = ("--implementation", "bench", "--implementation", "sdpa:default", "--absolute")
    out = bench("compare", runs["before"], runs["same"], *wanted).out
    assert "sdpa:default" in out
    assert "µs a call" in out


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
