"""What is published under results/ is what the tool makes of the measurements there: nothing is pasted by hand."""

from __future__ import annotations

import csv
import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.doubts import find_disagreements
from orchestrator.api.results import read_report
from orchestrator.report import html
from orchestrator.report.boards import by_size
from orchestrator.report.document import verdicts_csv
from orchestrator.report.markdown import between_marks, by_baseline, report_markdown
from orchestrator.wiring import csv_lines
from scripts.picture import picture
from tests.integration.report.test_browser import opened
from tests.support.browser import WITH_CHROMIUM, browser
from tests.unit.report.written import csv_text, records
from tests.unit.report.written import folder as folder_of

RESULTS = Path(__file__).resolve().parents[3] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/measurements.csv*"))

as_read = functools.cache(read_report)
"""Of what is published, which no test changes: to read it takes seconds."""


@pytest.mark.parametrize("folder", ["h100-20261123-forward", "h200-20261124-forward"])
def test_the_rate_by_size_draws_self_attention_beside_decoding_each_in_its_own_unit(folder: str) -> None:
    graph = next(part for part in as_read(RESULTS / folder).study.parts() if part.regime == "graph")
    board, caption = by_size(graph)
    assert board is not None
    assert caption.startswith("TFLOP/s and GB/s by seq k.")
    titles = re.findall(r'class="strong[^>]*>([^<]+)<', board.svg())
    assert any("seq q 1" in title for title in titles)
    assert sum("head dim 128" in title and "seq q" not in title for title in titles) >= 4
    assert not any("…" in title for title in titles)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_run_is_reported_as_its_measurements_say(folder: Path) -> None:
    """`make results` makes these files anew."""
    report = as_read(folder)
    assert (folder / "report.md").read_text() == report_markdown(report)
    assert (folder / "verdicts.csv").read_text() == verdicts_csv(report)
    assert json.loads((folder / "repeat.yaml").read_text()) == report.again() != {}
    readme = (RESULTS / "README.md").read_text()
    assert between_marks(readme, by_baseline(report), folder.name) == readme


def test_how_far_graphs_of_one_code_are_apart_is_what_the_page_says() -> None:
    apart: dict[str, list[tuple[float, float]]] = {"cudnn": [], "bench": [], "fa4": []}
    for folder in FOLDERS:
        for case in as_read(folder).study.cases:
            for one in case.controls if case.setting.regime == "graph" else ():
                timing = case.timing(one.implementation)
                assert timing is not None
                name = "cudnn" if "cudnn" in timing.group.backend else one.implementation
                apart.setdefault(name, []).append((timing.median_us.mid, abs(one.paired.ratio.mid - 1)))

    def most(name: str, least_us: float, most_us: float) -> str:
        return f"{100 * max(ratio for us, ratio in apart[name] if least_us <= us <= most_us):.1f}"

    text = " ".join((RESULTS.parent / "docs" / "statistics.md").read_text().split())
    assert f"differs from itself by up to {most('cudnn', 6, 12)} % in graphs of calls of 6 to 12 µs" in text
    assert f"by at most {most('bench', 0, 50)} and {most('fa4', 0, 50)} % below 50 µs" in text


def test_the_energy_of_the_steady_cases_is_what_the_page_of_measurements_says() -> None:
    energy = as_read(RESULTS / "h200-20261124-forward").energy()
    joules = dict(re.findall(r"(\S+) ([\d.]+) J", energy))
    text = (RESULTS.parent / "docs" / "measured.md").read_text()
    assert f"bench {joules['bench']} J, cuDNN {joules['sdpa:cudnn']}, flash-attn-4 {joules['fa4']} |" in text
    assert "(geometric mean over 8 cases)" in energy


def test_the_picture_of_the_readme_is_drawn_from_a_published_run() -> None:
    assert (
        picture(RESULTS / "h200-20261126-backward") == (RESULTS.parent / "docs" / "pictures" / "answer.svg").read_text()
    )


def wrong_with(folder: Path) -> list[str]:
    """What keeps a folder from being published; nothing for one that may be."""
    report = as_read(folder) if folder in FOLDERS else read_report(folder)
    study = report.study
    said = [f"environment.json has no {key}" for key in WANTED if not report.environment.get(key)]
    spec = report.spec
    if report.planned > len(study.case_ids) and report.cases not in (folder / "report.md").read_text():
        said.append(f"nothing says that it has {report.cases}")
    asked = {name.removesuffix(":aa") for name in spec.get("implementations", ())}
    there = {one.implementation for case in study.cases for one in case.timings}
    said += [f"{name} was asked for and has neither a time nor a reason" for name in sorted(asked - there)]
    repeats = spec.get("repeats")
    short = {
        case.case_id
        for case in study.cases
        for one in case.timings
        if one.timed and isinstance(repeats, int) and one.count < repeats and not one.group.words.get("stopped")
    }
    said += [f"{case_id} has fewer repeats than were asked for, and does not say why" for case_id in sorted(short)]
    if not study.controls:
        said.append("there is no A/A control")
    if report.environment.get("device_kind") != "cuda":
        return said
    rows = csv.DictReader(line for path in sorted(folder.glob("measurements.csv*")) for line in csv_lines(path))
    exposed = sum(
        1 for row in rows if row["latency_us"] and row["regime"] != "sustained" and row.get("hidden") != "true"
    )
    said += [f"{exposed} samples do not prove that their launch was hidden"] if exposed else []
    odd = find_disagreements(study.cases)
    verdicts = [one for one in csv.DictReader(verdicts_csv(report).splitlines()) if one["regime"] in ("burst", "graph")]
    decided = {(one["case_id"], one[side]) for one in verdicts if one["verdict"] in DECIDED for side in SIDES}
    many = len({case_id for case_id, _ in odd}) > MOST_ODD * len(study.case_ids)
    said += [f"{case_id}: {words}" for (case_id, name), words in odd.items() if many or (case_id, name) in decided]
    said += [] if report.clock or not all(one.skipped for one in report.watched) else ["CUPTI was not asked"]
    said += [
        f"{one.case_id}: {one.implementation} in {one.regime}: {one.watched_us} where CUPTI says {one.theirs_us} of it"
        for one in report.watched
        if one.convicts
    ]
    regimes: dict[str, set[str]] = {}
    for case in study.cases:
        regimes.setdefault(case.case_id, set()).add(case.setting.regime)
    said += [f"{case_id} lacks burst or graph" for case_id, own in regimes.items() if not {"burst", "graph"} <= own]
    return said


DECIDED = ("faster", "slower", "same")
SIDES = ("subject", "baseline")
MOST_ODD = 0.25
"""Calls of several kernels, and those of some twenty microseconds, take over 1.3 times as long alone as in a graph: each
starts anew. Such cases must be undecided; where more than this share of a run is like that, something else is amiss."""
WANTED = ("spotbench", "payload_sha256", "git_commit")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_run_on_a_gpu_proves_its_samples_and_says_where_it_is_from(folder: Path) -> None:
    """A run from a checkout has no payload, and one whose time ended may lack CUPTI's: then README.md says so."""
    readme = " ".join((RESULTS / "README.md").read_text().split())
    from_checkout = f"`{folder.name}` was measured from a checkout of" in readme
    without_cupti = f"`{folder.name}` has no `cupti.csv`" in readme
    assert without_cupti != (folder / "cupti.csv").exists()
    assert wrong_with(folder) == [
        *["environment.json has no payload_sha256"] * from_checkout,
        *["CUPTI was not asked"] * without_cupti,
    ]


PUBLISHED = {
    "build.json", "correctness.csv", "cupti.csv", "environment.json", "measurements.csv.gz", "repeat.yaml",
    "report.md", "spec.json", "verdicts.csv",
}  # fmt: skip


def test_nothing_is_published_beside_what_results_readme_names() -> None:
    """A whole report is two megabytes that the measurements make again."""
    listed = subprocess.run(
        ["git", "ls-files", "results"], cwd=RESULTS.parent, check=True, capture_output=True, text=True
    )
    tracked = [Path(name).relative_to("results") for name in listed.stdout.splitlines()]
    text = (RESULTS / "README.md").read_text()
    assert {path.name for path in tracked if path.parent.parts} == PUBLISHED
    assert {path.parent.parts[0] for path in tracked if path.parent.parts} == {folder.name for folder in FOLDERS}
    assert all(f"`{path}`" in text for path in tracked if not path.parent.parts and path.name != "README.md")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_where_burst_and_graph_give_two_ratios_the_rows_of_both_say_so(folder: Path) -> None:
    """By the limits in verdicts.csv alone."""
    with (folder / "verdicts.csv").open() as file:
        rows = {(row["case_id"], row["baseline"], row["regime"]): row for row in csv.DictReader(file)}
    for (case_id, baseline, regime), row in rows.items():
        other = rows.get((case_id, baseline, {"burst": "graph", "graph": "burst"}.get(regime, "")))
        apart = other is not None and (
            float(row["ratio_high"] or "nan") < float(other["ratio_low"] or "nan")
            or float(row["ratio_low"] or "nan") > float(other["ratio_high"] or "nan")
        )
        assert row["elsewhere"] == (other["ratio"] if other is not None and apart else ""), (case_id, baseline, regime)


OLD_CLOCK = "case_id,implementation,cupti_us\n{case},bench,5.4\n"
CLOCK = "case_id,implementation,regime,watched_us,cupti_us,cupti_covered_us\n{case},bench,burst,%s,5.4,9.1\n"


def published(path: Path, rows: list[dict[str, str]], *, cupti: str = OLD_CLOCK, **spec: Any) -> Path:
    """A folder that may be published, but for what `rows` and `spec` have wrong."""
    place = folder_of(path, csv_text(rows), spotbench="0.2.0", payload_sha256="a" * 64, device_kind="cuda")
    (place / "manifest.json").unlink()
    asked = {"implementations": ["bench", "sdpa:default", "bench:aa"], "repeats": 50} | spec
    (place / "spec.json").write_text(json.dumps(asked))
    if cupti:
        case = rows[0]["case_id"]
        (place / "cupti.csv").write_text(cupti.format(case=case))
    (place / "report.md").write_text(report_markdown(read_report(place)))
    return place


def good(**changes: str) -> list[dict[str, str]]:
    speeds = {"bench": 1.5, "sdpa:default": 1.0, "bench:aa": 1.5}
    return [
        row | changes
        for seed, regime in enumerate(("burst", "graph"))
        for row in records(speeds=speeds, regime=regime, cache="cold", hidden="true", stopped="repeats", seed=seed)
    ]


def test_a_folder_that_is_wrong_in_any_way_is_kept_out_and_a_good_one_is_not(tmp_path: Path) -> None:
    rows = good()
    assert wrong_with(published(tmp_path / "good", rows)) == []
    assert wrong_with(published(tmp_path / "watched", rows, cupti=CLOCK % "9.2")) == []
    leak = [row | ({"latency_us": "90"} if row["regime"] == "burst" and "1024" in row["case_id"] and
                   row["implementation"] == "sdpa:default" else {}) for row in rows]  # fmt: skip
    bad = {
        "takes 90.0 µs in burst": published(tmp_path / "leak", leak),
        "do not prove that their launch": published(tmp_path / "open", [*rows[:-1], rows[-1] | {"hidden": "false"}]),
        "lacks burst or graph": published(tmp_path / "one", [row for row in rows if row["regime"] == "burst"]),
        "CUPTI was not asked": published(tmp_path / "clock", rows, cupti=""),
        "bench in burst: 9.9 where CUPTI says 9.1": published(tmp_path / "wrong", rows, cupti=CLOCK % "9.9"),
        "there is no A/A control": published(
            tmp_path / "control", [row for row in rows if row["implementation"] != "bench:aa"]
        ),
        "sdpa:cudnn was asked for": published(tmp_path / "absent", rows, implementations=["bench", "sdpa:cudnn"]),
        "has fewer repeats": published(tmp_path / "short", good(stopped=""), repeats=60),
    }
    for words, place in bad.items():
        found = wrong_with(place)
        assert len(found) >= 1, words
        assert any(words in one for one in found), found
    fewer = published(tmp_path / "fewer", rows, measure={"shapes": [1, 2, 3], "dtypes": ["float16"]})
    assert wrong_with(fewer) == []
    (fewer / "report.md").write_text("all cases of the grid")
    assert wrong_with(fewer) == ["nothing says that it has 2 of 3 cases, 1 not measured"]
    for key in WANTED:
        told = json.loads((tmp_path / "good" / "environment.json").read_text())
        (tmp_path / "good" / "environment.json").write_text(json.dumps(told | {key: ""}))
        assert f"environment.json has no {key}" in wrong_with(tmp_path / "good")


@WITH_CHROMIUM
def test_what_is_published_fits_without_scrolling(tmp_path: Path) -> None:
    """Problems that have no axis in common, in three regimes."""
    table = "document.querySelector('#every-kernel-and-case .wide')"
    with browser(tmp_path / "profile") as chromium, chromium.tab() as page:
        for folder in FOLDERS:
            text = html.report_page(as_read(folder))
            for width in (390, 1280):
                opened(page, text, tmp_path, width)
                assert page.run(f"{table}.scrollWidth - {table}.clientWidth") <= 0, (folder.name, width)
