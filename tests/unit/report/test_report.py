"""What a report says of a run, whatever state the run is in, and that its file needs nothing else."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from orchestrator.api.results import write_files
from orchestrator.core.config.load import load
from orchestrator.report import comparing
from orchestrator.report.boards import draw_boards, figure_svg
from orchestrator.report.comparing import compare_reports
from orchestrator.report.document import report_document, verdicts_csv
from orchestrator.report.html import report_page
from orchestrator.report.markdown import by_baseline, report_markdown
from tests.unit.report.reported import BROKEN, FULL, judged
from tests.unit.report.written import both, csv_text, records, reported, skip


def test_the_file_needs_nothing_else_and_runs_nothing() -> None:
    text = report_page(reported(FULL))
    assert judged(text).reaches == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", text)
    assert len(text.encode()) <= 500_000


def test_the_file_says_the_result_its_method_and_its_environment() -> None:
    text = report_page(reported(FULL))
    for words in ("Attention on NVIDIA L4", "faster in 6 of 6 cases", "A/A control: bench", "bootstrap over blocks",
                  "Holm", "c0ffee", "121 TFLOP/s by the data sheet", "$0.1200", "prefers-color-scheme:dark", "@media print"):  # fmt: skip
        assert words in text


def test_several_regimes_stand_side_by_side_and_each_says_what_it_means() -> None:
    report = reported(csv_text(both(peak_memory_bytes="3145728")))
    text = report_page(report)
    assert judged(text).reaches == []
    for words in ("Every kernel and case", "These are of burst, cold; below also sustained, cold.", "One call at a time",
                  "steady", "Each regime is judged alone", "3.00 MiB", "energy a call"):  # fmt: skip
        assert words in text
    assert set(draw_boards(report.study)) == {
        "speedup", "error", *(f"{name}-{regime}-cold" for name in ("rate", "latency", "roofline", "over-time")
                              for regime in ("burst", "sustained")),
    }  # fmt: skip
    data = report_document(report)
    assert [one["regime"] for one in data["cases"]] == ["burst", "burst", "sustained", "sustained"]
    assert [one["meaning"] for one in data["settings"]] == [one.meaning for one in report.study.settings]
    rows = list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    assert [(row["regime"], row["cache"]) for row in rows] == [("burst", "cold")] * 4 + [("sustained", "cold")] * 4


def test_rows_of_one_device_beside_the_environment_of_another_are_found_out() -> None:
    other = reported(csv_text(records(device="Tesla T4", lengths=(128,))))
    assert (
        "The rows were measured on Tesla T4, but environment.json names another device: NVIDIA L4." in other.warnings()
    )
    assert compare_reports(reported(FULL), other).refused


def test_a_busy_host_and_implementations_that_differ_from_themselves_are_said_first() -> None:
    busy = reported(csv_text(records(lengths=(128,), load_1m="9.5", steal_percent="4")))
    assert busy.busy() == (
        "The host was busy with other work: a load of 9.5 on 4 processors.",
        "The host gave 4.0 % of the processors' time to other machines.",
    )
    quiet = reported(FULL)
    assert quiet.busy() == quiet.unsteady() == ()
    false = reported(csv_text(records(speeds={"bench": 1.5, "sdpa:default": 1.0, "bench:aa": 1.4})))
    assert "different in 2 of 2 cases" in false.unsteady()[0]
    assert "cannot be distinguished from it" in false.unsteady()[1]
    speeds = {"bench": 1.5, "sdpa:default": 1.0, "bench:aa": 1.4, "sdpa:default:aa": 1.0}
    twice = reported(csv_text(records(speeds=speeds)))
    assert "different in 2 of 4 comparisons" in twice.unsteady()[0]
    assert any(
        "bench and sdpa:default, each measured against itself, would have been called different in 2 of 4 comparisons"
        in words
        for words in twice.sentences()
    )
    assert set(false.unsteady()) <= set(false.warnings())


@pytest.mark.parametrize("name", BROKEN)
def test_whatever_state_a_run_is_in_its_report_is_whole(name: str) -> None:
    report = reported(BROKEN[name], complete=False)
    text = report_page(report)
    assert judged(text).reaches == []
    assert "<script>alert" not in text
    assert "The run is not complete" in text
    assert "nan" not in re.sub(r"<[^>]*>", " ", text).lower().replace("finance", "")
    json.dumps(report_document(report), allow_nan=False)
    assert report_markdown(report)
    list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    for board in draw_boards(report.study).values():
        ElementTree.fromstring(figure_svg(board))


@pytest.mark.parametrize(
    "text",
    [csv_text(records(lengths=(128, 256, 512), blocks=50)), csv_text(both(lengths=(128, 256, 512), blocks=25))],
    ids=["one regime", "two regimes"],
)
def test_six_hundred_measurements_make_a_small_file(text: str) -> None:
    report = reported(text)
    size = len(report_page(report).encode())
    assert report.study.measurements == 600
    assert size < 250_000


def test_practice_shows_no_dollar_and_no_zone_as_if_it_were_real() -> None:
    report = reported(FULL, mode="embedded")
    said = "Practice: nothing was rented, and no dollar was spent."
    for text in ("\n".join(report.sentences()), report_page(report), report_markdown(report)):
        assert said in text
        assert "$" not in text
        assert "us-central1" not in text
    assert "us-central1" in report_page(reported(FULL))
    assert report_document(report)["prices_simulated"] is True
    assert report_document(reported(FULL))["prices_simulated"] is False
    assert reported(FULL, cost_usd="0").money() == ""


def test_a_mean_needs_every_case_decided_and_missing_cases_are_counted() -> None:
    whole = reported(FULL, cases_total=8)
    assert "Geometric mean against sdpa:default over 6 of 8 cases, 2 not compared: 1.50× [1.4" in whole.sentences()[0]
    assert "The run is not complete: 6 of 8 cases, 2 not measured." in whole.warnings()
    noisy = reported(csv_text(records(lengths=(128, 1024), noise=0.5, speeds={"bench": 1.02, "sdpa:default": 1.0})))
    assert not any("mean" in words for words in (*noisy.headlines(), *noisy.sentences()))


def test_a_page_has_a_contents_list_and_keyboards_reach_every_scrolling_area() -> None:
    text = report_page(reported(csv_text(both(lengths=(128, 256, 512)))))
    wanted = re.findall(r'<a href="#([^"]+)">', text)
    assert len(wanted) > 5
    assert len(set(wanted)) == len(wanted) == len(re.findall(r"<section ", text))
    assert all(text.count(f'<section id="{anchor}">') == 1 for anchor in wanted)
    scrolling = re.findall(r'<(?:div|pre) class="wide"[^>]*>', text)
    assert len(scrolling) > 5
    assert all('tabindex="0"' in tag and "aria-label=" in tag for tag in scrolling)


def test_the_head_names_device_software_limits_and_the_command_that_repeats_the_run() -> None:
    known = {"cuda": "13.0", "cudnn": "91900", "power_limit_w": 700, "sm_clock_max_mhz": 1980, "cpu": "EPYC"}
    report = reported(FULL, repeat=True)
    report = replace(report, environment={**report.environment, **known})
    assert report.device_facts() == (
        "NVIDIA L4", "driver 580.1", "CUDA 13.0", "cuDNN 91900", "torch 2.13.0", "at most 1980 MHz", "700 W",
    )  # fmt: skip
    here = {"device": "EPYC", "device_kind": "cpu", "cpu": "EPYC", "threads": 1, "torch": "2.13.0", "cuda": "13.0"}
    alone = replace(reported(csv_text(records(device="EPYC"))), environment=here)
    assert alone.device_facts() == ("EPYC", "torch 2.13.0", "1 thread")
    head = report_page(report).partition("</header>")[0]
    for words in report.device_facts()[1:]:
        assert words in head
    for words in ("bench launch repeat.yaml", "commit c0ffee", "g2-standard-4 in us-central1-a"):
        assert words in report_page(report)
    assert "bench launch" not in report_page(reported(FULL))
    own = report_page(reported(FULL, repeat=True, mode="host"))
    assert "On the machine that was measured, or one like it:" in own
    assert "bench launch repeat.yaml --host local<" in own


def test_a_folder_that_no_fetch_has_made_brings_what_measures_it_again(tmp_path: Path) -> None:
    """As far as its spec says it; a fetched folder has what its run was planned by."""
    shape = {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 16, "seq_k": 16, "head_dim": 16, "causal": False}
    grid = {"shapes": [shape], "dtypes": ["float32"]}
    spec = {"implementations": ["bench", "fa4", "bench:aa"], "measure": grid, "correctness": grid, "repeats": 7}
    bare = replace(reported(FULL), manifest={}, spec=spec, environment={"compute_capability": "9.0"})
    assert bare.command() == "bench launch repeat.yaml --host local"
    assert bare.command() in report_page(bare)
    assert "repeat.yaml" in {path.name for path in write_files(bare, tmp_path)}
    config = load((tmp_path / "repeat.yaml").read_text(), source="repeat.yaml")
    assert (config.gpu, config.measure.repeats, config.measure.implementations) == ("h100", 7, ("bench", "fa4"))
    for other in (replace(bare, spec={}), reported(FULL), replace(bare, manifest={"mode": "gce", "repeat": True})):
        assert "repeat.yaml" not in {path.name for path in write_files(other, tmp_path / "other")}


def test_a_run_that_measured_nothing_is_not_called_attention_nor_of_unknown_device() -> None:
    empty = replace(reported(csv_text([])), environment={"device": "AMD EPYC"})
    assert empty.title == "Kernels on AMD EPYC"
    assert empty.device_facts()[0] == "AMD EPYC"


def test_warnings_stand_in_the_rows_that_they_concern() -> None:
    text = report_page(reported(csv_text(records(lengths=(1024,), timer_overhead_us="3"))))
    assert "timer 7%" in text
    assert "fa2" in text
    doubtful = report_page(reported(csv_text(records(lengths=(128,), timer_overhead_us="3"))))
    assert re.search(
        r'class="badge inconclusive">inconclusive</span> <small>below the timer&#39;s resolution', doubtful
    )


def test_a_programs_own_times_have_no_columns_of_what_nobody_measured() -> None:
    unknown = dict.fromkeys(("seq_q", "sm_clock_mhz", "throttle", "max_abs_error", "power_w", "host_us", "hidden"), "")
    rows = records(regime="program", backend="program:csv", speeds={"mine": 2.0, "theirs": 1.0}, lengths=(128,))
    told = reported(csv_text([row | unknown for row in rows]))
    for words in ("TFLOP/s", "launch hidden", "throttled", "max error"):
        assert words not in report_markdown(told)
        assert f">{words}<" not in report_page(told)
    assert "TFLOP/s by" not in report_page(told)


def test_a_measured_launch_says_whether_it_was_hidden() -> None:
    assert ">launch hidden<" in report_page(reported(csv_text(records(host_us="12", hidden="true"))))
    assert ">launch hidden<" not in report_page(reported(csv_text(records())))


# Every report says how much of the machines' time was measuring, and nothing where nobody knows.


TIME = {
    "paid_s": 400.0, "measuring_s": 240.0, "measuring_share": 0.6, "cold_start_s": 102,
    "cold_start_parts_s": {"request": 2.0, "boot": 40.0, "environment": 60.0, "odd": 3.0},
}  # fmt: skip
SAID = (
    "Measuring took 60% of 6.7 min of machine time; the first case began 1.7 min after the request "
    "(request 2 s, boot 40 s, environment 60 s)."
)


def test_every_report_says_the_share_of_time_that_was_measuring() -> None:
    report = reported(csv_text(records()), time=TIME)
    assert SAID in report.sentences()
    assert SAID in report_markdown(report)
    assert SAID in report_page(report)
    assert report_document(report)["time"] == {
        "paid_s": 400.0, "measuring_s": 240.0, "measuring_share": 0.6,
        "cold_start_parts_s": {"request": 2.0, "boot": 40.0, "environment": 60.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    "time",
    [
        None, 3, {}, {**TIME, "paid_s": "x"}, {**TIME, "paid_s": float("nan")}, {**TIME, "measuring_s": 0},
        {**TIME, "measuring_s": 500}, {**TIME, "cold_start_parts_s": []},
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_say_where_the_time_went_costs_the_sentence_alone(time: Any) -> None:
    report = reported(csv_text(records()), time=time)
    assert report.time() == ""
    assert report_document(report)["time"] is None


def test_without_a_cold_start_of_its_own_a_run_tells_its_share_alone() -> None:
    report = reported(csv_text(records()), time={**TIME, "cold_start_parts_s": {}})
    assert report.time() == "Measuring took 60% of 6.7 min of machine time."


# What people paste elsewhere, word for word: Markdown of reports and of comparisons.


BEFORE = reported(csv_text(both()))


def test_the_markdown_of_a_run_in_two_regimes(snapshot: SnapshotAssertion) -> None:
    assert report_markdown(BEFORE, BEFORE.study.settings) == snapshot
    assert by_baseline(BEFORE) == snapshot


def test_the_markdown_of_a_run_with_everything_wrong(snapshot: SnapshotAssertion) -> None:
    rows = [*records(lengths=(128,), speeds={"bench": 1.0}, load_1m="30"), skip("sdpa:cudnn", "needs | CUDA <13>")]
    assert report_markdown(reported(csv_text(rows) + "torn,line\n", complete=False)) == snapshot


def test_the_markdown_of_a_comparison(snapshot: SnapshotAssertion) -> None:
    slower = both(noise=0.011)
    for row in slower:
        if row["regime"] == "sustained" and row["implementation"].startswith("bench"):
            row["latency_us"] = f"{float(row['latency_us']) * 1.08:.3f}"
    after = reported(csv_text(slower))
    device = reported(csv_text(records(device="Tesla T4")))
    assert (
        comparing.comparison_markdown(
            [compare_reports(BEFORE, after), compare_reports(BEFORE, device)], title="Against main"
        )
        == snapshot
    )
