"""A report holds what was measured, nothing that it must fetch, and whatever can still be shown of what is broken."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import statistics
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.reading import write_files
from orchestrator.core.bundled.names import AXES
from orchestrator.core.config.load import load
from orchestrator.core.results import MEASURED, ORIGIN
from orchestrator.report import comparing
from orchestrator.report.comparison import Comparison, compared
from orchestrator.report.document import document, summary_csv, verdicts_csv
from orchestrator.report.files import boards, figure_svg
from orchestrator.report.html import page
from orchestrator.report.markdown import BEGIN, END, NoMarks, between_marks, by_baseline, markdown
from orchestrator.report.palette import DARK, LIGHT, looks
from orchestrator.report.rates import by_size
from orchestrator.report.svg import Scale, linear_ticks, log_ticks
from orchestrator.report.text import digits, in_words, labels, size, tick
from tests.report.written import both, csv_text, records, reported, skip

FULL = csv_text(records(lengths=(128, 256, 512, 1024, 2048, 4096)))
BROKEN = {
    "empty": csv_text([]),
    "one implementation": csv_text(records(speeds={"bench": 1.0})),
    "one measurement": csv_text(records(speeds={"bench": 1.0, "sdpa:default": 1.0}, blocks=1, lengths=(128,))),
    "all skipped": csv_text([skip("bench", "no <compiler>"), skip("sdpa:cudnn", "a | b")]),
    "not a number": csv_text(records(lengths=(128,), latency_us="nan")),
    "no sensors, no axes": csv_text(records(power_w="", sm_clock_mhz="", started_at="", seq_q="", temperature_c="")),
    "errors of zero": csv_text(records(max_abs_error="0")),
    "infinite error": csv_text(records(max_abs_error="inf")),
    "hostile": csv_text(records(device='<script>alert("1")</script>', lengths=(128,))),
    "constant": csv_text(records(noise=0.0)),
    "two regimes, one without a comparison": csv_text(
        row for row in both() if row["regime"] == "burst" or row["implementation"] == "bench"
    ),
    "a regime of which nothing is known": csv_text(records(regime="", cache="odd <b>")),
    "repeated": csv_text([*records(lengths=(128,)), *records(lengths=(128,))]),
    "torn": csv_text(both())[:-40],
    "two runs": csv_text([*records(lengths=(128,)), *records(lengths=(256,), run_id="20261121-040506-l4-0000")]),
}


class Balance(HTMLParser):
    """Counts elements that are opened and not closed, and notes everything that would be fetched or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.reaches: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "line", "rect", "path", "circle"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data") and not (value or "").startswith(("data:,", "#")):
                self.reaches.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.reaches.append(f"{tag} {name}")
        if tag in ("script", "iframe", "object", "img"):
            self.reaches.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)


def judged(text: str) -> Balance:
    balance = Balance()
    balance.feed(text)
    balance.close()
    assert balance.open == []
    return balance


def test_the_file_needs_nothing_else_and_runs_nothing() -> None:
    text = page(reported(FULL))
    assert judged(text).reaches == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", text)
    assert len(text.encode()) <= 500_000


def test_the_file_says_the_result_its_method_and_its_environment() -> None:
    text = page(reported(FULL))
    for words in ("Attention on NVIDIA L4", "faster in 6 of 6 cases", "A/A control: bench", "bootstrap over blocks",
                  "Holm", "c0ffee", "121 TFLOP/s by the data sheet", "$0.1200", "prefers-color-scheme:dark", "@media print"):  # fmt: skip
        assert words in text


def test_several_regimes_stand_side_by_side_and_each_says_what_it_means() -> None:
    report = reported(csv_text(both(peak_memory_bytes="3145728")))
    text = page(report)
    assert judged(text).reaches == []
    for words in ("Side by side", 'colspan="3">burst</th>', 'colspan="3">sustained</th>', "One call at a time",
                  "steady", "Each regime is judged alone", "3.00 MiB", "energy a call"):  # fmt: skip
        assert words in text
    assert set(boards(report.study)) == {
        "speedup", "error", *(f"{name}-{regime}-cold" for name in ("rate", "latency", "roofline", "over-time")
                              for regime in ("burst", "sustained")),
    }  # fmt: skip
    data = document(report)
    assert [one["regime"] for one in data["cases"]] == ["burst", "burst", "sustained", "sustained"]
    assert [one["meaning"] for one in data["settings"]] == [one.meaning for one in report.study.settings]
    rows = list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    assert [(row["regime"], row["cache"]) for row in rows] == [("burst", "cold")] * 4 + [("sustained", "cold")] * 4


def test_markdown_has_the_table_of_one_regime_says_which_and_what_else_there_is() -> None:
    report = reported(csv_text(both()))
    picked = markdown(report)
    assert "**burst, cold**: One call at a time" in picked
    assert "Also measured, and in the whole report: sustained, cold." in picked
    assert picked.count("| verdict |") == 1
    other = markdown(report, report.study.settings[1:])
    assert "**sustained, cold**: Calls back to back" in other
    assert markdown(report, report.study.settings).count("| verdict |") == 2
    for words in ("burst, cold: bench against", "sustained, cold: bench against"):
        assert words in picked
        assert words in other


def test_rows_of_one_device_beside_the_environment_of_another_are_found_out() -> None:
    other = reported(csv_text(records(device="Tesla T4", lengths=(128,))))
    assert (
        "The rows were measured on Tesla T4, but environment.json names another device: NVIDIA L4." in other.warnings()
    )
    assert compared(reported(FULL), other).refused


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
    text = page(report)
    assert judged(text).reaches == []
    assert "<script>alert" not in text
    assert "The run is not complete" in text
    assert "nan" not in re.sub(r"<[^>]*>", " ", text).lower().replace("finance", "")
    json.dumps(document(report), allow_nan=False)
    assert markdown(report)
    list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    for board in boards(report.study).values():
        ElementTree.fromstring(figure_svg(board))


def test_every_coordinate_of_every_figure_is_a_number_within_it() -> None:
    for name, board in boards(reported(FULL).study).items():
        svg = figure_svg(board)
        assert "nan" not in svg
        assert "inf" not in svg
        assert "var(" not in svg
        root = ElementTree.fromstring(svg)
        assert board.height > 50, name
        for element in root.iter():
            for axis, end in (("x", board.width), ("cx", board.width), ("y", board.height), ("cy", board.height)):
                if axis in element.attrib:
                    assert -1 <= float(element.attrib[axis]) <= end + 1, (name, element.attrib)


def test_the_document_and_the_csv_say_the_same() -> None:
    report = reported(FULL)
    data = json.loads(json.dumps(document(report), allow_nan=False))
    rows = list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    told = [(case["case_id"], one) for case in data["cases"] for one in case["contrasts"]]
    assert len(rows) == len(told) == 12
    for row, (case_id, one) in zip(rows, told, strict=True):
        assert (row["case_id"], row["baseline"], row["verdict"]) == (case_id, one["baseline"], one["verdict"])
        assert float(row["ratio"]) == pytest.approx(one["ratio"]["mid"], rel=1e-5)
    assert data["usd_per_answer"] == pytest.approx(0.12 / 12)


def test_markdown_has_a_row_a_case_and_no_cell_breaks_out() -> None:
    table = [line for line in markdown(reported(FULL)).splitlines() if line.startswith("|")]
    assert len(table) == 2 + 6
    assert {line.count("|") for line in table} == {8}
    broken = markdown(reported(BROKEN["hostile"]))
    assert "<script" not in broken


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    before = f"# mine\n\n{BEGIN}\nold\n{END}\n\nrest\n"
    once = between_marks(before, "new\n")
    assert once == f"# mine\n\n{BEGIN}\nnew\n{END}\n\nrest\n"
    assert between_marks(once, "new\n") == once
    for wrong in ("", BEGIN, f"{END} {BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"):
        with pytest.raises(NoMarks):
            between_marks(wrong, "new")


@pytest.mark.parametrize(
    "text",
    [csv_text(records(lengths=(128, 256, 512), blocks=50)), csv_text(both(lengths=(128, 256, 512), blocks=25))],
    ids=["one regime", "two regimes"],
)
def test_six_hundred_measurements_make_a_small_file(text: str) -> None:
    report = reported(text)
    size = len(page(report).encode())
    assert report.study.measurements == 600
    assert size < 250_000


def test_a_hundred_thousand_measurements_cost_little_more_each_than_ten_thousand() -> None:
    """In two regimes, and against itself in one process, so that neither a slow machine nor a tracer of coverage
    decides; `make bench` has the seconds."""

    def cost(blocks: int) -> float:
        text = csv_text(both(lengths=range(64, 89), blocks=blocks))
        begun = time.process_time()
        report = reported(text)
        size = len(page(report))
        assert report.study.measurements == 200 * blocks
        assert size < 2_000_000
        return time.process_time() - begun

    assert cost(500) < 2 * 10 * cost(50)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1), st.booleans())
def test_a_scale_puts_many_values_where_it_puts_each(values: list[float], log: bool) -> None:
    scale = Scale(0.5, 200.0, 10.0, 800.0, log=log)
    assert scale.each(np.array(values)) == pytest.approx([scale(value) for value in values])


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e6), st.integers(3, 10))
def test_ticks_lie_within_their_axis_rise_and_are_few(low: float, factor: float, most: int) -> None:
    for ticks in (log_ticks(low, low * factor, most), linear_ticks(low, low * factor, most)):
        assert ticks == sorted(set(ticks))
        assert len(ticks) <= max(most, 5)
        assert all(low * 0.998 <= value <= low * factor * 1.002 for value in ticks)


@given(st.floats(1e-6, 1e6), st.booleans())
def test_a_scale_never_leaves_its_ends(value: float, log: bool) -> None:
    scale = Scale(0.5, 100, 10, 20, log=log)
    assert 10 <= scale(value) <= 20
    assert scale(0.5) == 10
    assert scale(100) == pytest.approx(20)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_stands_out_from_its_paper(colours: dict[str, str]) -> None:
    for name in ("ink", "soft", *(f"c{number}" for number in range(8)), "good", "bad"):
        light, dark = sorted((luminance(colours[name]), luminance(colours["paper"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, name


def test_no_two_implementations_share_a_shape_or_a_colour() -> None:
    """As many as are published beside each other, and one more."""
    known = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
    found = looks((*known, "fa4", "mine"))
    assert len({look.colour for look in found.values()}) == len({look.shape for look in found.values()}) == 8
    assert {look.colour for look in found.values()} <= {f"c{number}" for number in range(8)}
    assert looks(known) == {name: found[name] for name in known}
    assert looks(("bench", "mine"))["mine"] != looks(("bench", "mine"))["bench"]
    more = looks((*known, *(f"other{number}" for number in range(20))))
    assert list(more.values()).count(more["bench"]) == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("nan"), "–"), (0, "0"), (1234.6, "1,235"), (12.345, "12.3"), (0.012345, "0.0123"), (9.999, "10.00"), (3.2e-12, "3.20e-12")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert digits(value) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(float("nan"), "–"), (0, "0 B"), (999, "999 B"), (4096, "4.00 KiB"), (3 << 20, "3.00 MiB"), (5 << 30, "5.00 GiB"), (1 << 40, "1,024 GiB")],
)  # fmt: skip
def test_sizes_have_the_unit_that_leaves_three_digits(number: float, shown: str) -> None:
    assert size(number) == shown


def test_documents_are_shown_as_a_person_writes_them() -> None:
    assert in_words([{"vm": "a", "zone_name": None}, {"vm": "b"}]) == "vm a, zone name –; vm b"
    assert (in_words(True), in_words(3), in_words(("x", 1))) == ("True", "3", "x; 1")


def test_ticks_have_no_digits_to_spare() -> None:
    assert [tick(value) for value in (1.0, 0.05, 2500, 1e-7)] == ["1", "0.05", "2,500", "1e-07"]


def test_a_case_is_called_by_what_sets_it_apart() -> None:
    found = labels(["b2-h8-kv8-q16-k16-d64-full-float16", "b2-h8-kv8-q1-k300-d64-causal-float16"])
    assert list(found.values()) == ["S 16 full", "q1 k300 causal"]
    assert labels(["b2-h8-kv8-q16-k16-d64-full-float16"]) == {
        "b2-h8-kv8-q16-k16-d64-full-float16": "b2 h8 kv8 S 16 d64 full float16"
    }


def test_dollars_of_the_embedded_cloud_are_called_simulated_everywhere() -> None:
    report = reported(FULL, mode="embedded")
    said = "Simulated prices of the embedded cloud: $0.1200: $0.010000 for each of 12 answers. No dollar was spent."
    assert said in report.sentences()
    assert said in page(report)
    assert said in markdown(report)
    assert document(report)["prices_simulated"] is True
    assert document(reported(FULL))["prices_simulated"] is False
    assert reported(FULL, cost_usd="0").money() == ""


def test_a_mean_is_said_only_where_every_case_of_it_is_decided_and_cases_that_are_missing_are_counted() -> None:
    whole = reported(FULL, cases_total=8)
    assert "Geometric mean against sdpa:default over 6 of 8 cases, 2 not compared: 1.50× [1.4" in whole.sentences()[0]
    assert "The run is not complete: 6 of 8 cases, 2 not measured." in whole.warnings()
    noisy = reported(csv_text(records(lengths=(128, 1024), noise=0.5, speeds={"bench": 1.02, "sdpa:default": 1.0})))
    assert not any("mean" in words for words in (*noisy.headlines(), *noisy.sentences()))


def test_every_file_of_a_run_says_the_same_ratio_and_verdict() -> None:
    """Against a second computation that shares no code with ours: the median of the ratios within each block."""
    rows = list(records(lengths=(128, 1024), noise=0.2))
    report = reported(csv_text(rows))
    summaries = list(csv.DictReader(io.StringIO(summary_csv(report))))
    verdicts = list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    told = {(case["case_id"], one["baseline"]): one for case in document(report)["cases"] for one in case["contrasts"]}
    for (case_id, baseline), one in told.items():
        times = {
            (row["block"], row["implementation"]): float(row["latency_us"]) for row in rows if row["case_id"] == case_id
        }
        middle = statistics.median(times[str(n), baseline] / times[str(n), "bench"] for n in range(1, 51))
        assert one["ratio"]["mid"] == pytest.approx(middle, rel=1e-3)
        (summary,) = (row for row in summaries if row["case_id"] == case_id and row["implementation"] == "bench")
        (verdict,) = (row for row in verdicts if row["case_id"] == case_id and row["baseline"] == baseline)
        column = f"speedup_vs_{baseline.replace(':', '_')}"
        for cell, name in (
            (summary[column], "mid"),
            (summary[f"{column}_low"], "low"),
            (verdict["ratio_high"], "high"),
        ):
            assert float(cell) == pytest.approx(one["ratio"][name], rel=1e-5)
        assert summary[f"{column}_verdict"] == verdict["verdict"] == one["verdict"]


HOSTILE = "=cmd|'/C calc'!A0 <script>alert(1)</script> @octocat https://evil.example [a](b) **x** `y`"


def test_what_a_machine_says_is_text_in_every_format() -> None:
    rows = [*records(lengths=(128,), device=HOSTILE, run_id=HOSTILE, backend=HOSTILE), skip("bench:aa", HOSTILE)]
    rows = [*rows, skip(HOSTILE, HOSTILE, run_id=HOSTILE, case_id=HOSTILE)]
    report = reported(csv_text(rows), git_commit=HOSTILE)
    judged(page(report))
    assert "<script" not in page(report)
    both_pages = [markdown(report), by_baseline(report), told(compared(report, report))]
    for text in both_pages:
        for live in ("<script", "@octocat", "https://", "a](b)", "**x**", " `y`"):
            assert live not in text, (live, text)
    for text in (summary_csv(report), verdicts_csv(report)):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert f"'{HOSTILE}" in cells
        assert not any(cell.startswith(("=", "@")) for cell in cells)


def told(one: Comparison) -> str:
    return comparing.markdown([one], title=HOSTILE)


def test_a_page_has_a_contents_list_and_every_area_that_scrolls_can_be_reached_by_keyboard() -> None:
    text = page(reported(csv_text(both(lengths=(128, 256, 512)))))
    wanted = re.findall(r'<a href="#([^"]+)">', text)
    assert len(wanted) > 5
    assert len(set(wanted)) == len(wanted) == len(re.findall(r"<section ", text))
    assert all(text.count(f'<section id="{anchor}">') == 1 for anchor in wanted)
    scrolling = re.findall(r'<(?:div|pre) class="wide"[^>]*>', text)
    assert len(scrolling) > 5
    assert all('tabindex="0"' in tag and "aria-label=" in tag for tag in scrolling)


def test_the_head_names_the_device_its_software_and_limits_and_the_command_that_repeats_the_run() -> None:
    known = {"cuda": "13.0", "cudnn": "91900", "power_limit_w": 700, "sm_clock_max_mhz": 1980, "cpu": "EPYC"}
    report = reported(FULL, repeat=True)
    report = replace(report, environment={**report.environment, **known})
    assert report.device_facts() == (
        "NVIDIA L4", "driver 580.1", "CUDA 13.0", "cuDNN 91900", "torch 2.13.0", "at most 1980 MHz", "700 W",
    )  # fmt: skip
    here = {"device": "EPYC", "device_kind": "cpu", "cpu": "EPYC", "threads": 1, "torch": "2.13.0"}
    alone = replace(reported(csv_text(records(device="EPYC"))), environment=here)
    assert alone.device_facts() == ("EPYC", "torch 2.13.0", "1 thread")
    head = page(report).partition("</header>")[0]
    for words in (
        *report.device_facts(),
        "bench launch repeat.yaml",
        "commit c0ffee",
        "g2-standard-4 in us-central1-a",
    ):
        assert words in head
    assert "bench launch" not in page(reported(FULL))
    own = page(reported(FULL, repeat=True, mode="host")).partition("</header>")[0]
    assert "On the machine that was measured, or one like it:" in own
    assert "bench launch repeat.yaml --host local<" in own


def test_a_folder_that_no_fetch_has_made_brings_what_measures_it_again(tmp_path: Path) -> None:
    """As far as its spec says it; a fetched folder has what its run was planned by."""
    shape = {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 16, "seq_k": 16, "head_dim": 16, "causal": False}
    grid = {"shapes": [shape], "dtypes": ["float32"]}
    spec = {"implementations": ["bench", "fa4", "bench:aa"], "measure": grid, "correctness": grid, "repeats": 7}
    bare = replace(reported(FULL), manifest={}, spec=spec, environment={"compute_capability": "9.0"})
    assert bare.command() == "bench launch repeat.yaml --host local"
    assert bare.command() in page(bare)
    assert "repeat.yaml" in {path.name for path in write_files(bare, tmp_path)}
    config = load((tmp_path / "repeat.yaml").read_text(), source="repeat.yaml")
    assert (config.gpu, config.measure.repeats, config.measure.implementations) == ("h100", 7, ("bench", "fa4"))
    for other in (replace(bare, spec={}), reported(FULL), replace(bare, manifest={"mode": "gce", "repeat": True})):
        assert "repeat.yaml" not in {path.name for path in write_files(other, tmp_path / "other")}


def test_the_axis_of_a_speed_up_shows_one_one_and_a_half_two_and_three_and_math_only_where_it_is_asked_for() -> None:
    speeds = {"bench": 1.5, "sdpa:default": 1.45, "sdpa:flash": 0.5, "sdpa:math": 0.06, "bench:aa": 1.5}
    study_ = reported(csv_text(records(speeds=speeds))).study
    svg = figure_svg(boards(study_)["speedup"])
    ticks = set(re.findall(r'class="middle soft">([^<]+)<', svg))
    assert {"1", "1.5", "2", "3"} <= ticks
    assert "over math" not in svg
    assert "over math" in figure_svg(boards(study_, everything=True)["speedup"])
    assert "over math" in page(reported(csv_text(records(speeds=speeds))))


@given(st.floats(0.05, 1.0), st.floats(1.0, 50.0), st.floats(120, 800))
def test_the_numbers_of_an_axis_of_ratios_do_not_run_into_each_other(low: float, high: float, width: float) -> None:
    scale = Scale(low * 0.98, high * 1.02, 0, width, log=True)
    ticks = scale.ratios()
    assert ticks == sorted(ticks)
    assert all(0 <= scale(one) <= width for one in ticks)
    if len(ticks) > 2 and high > 1.2:
        room = [7.2 * (len(tick(one)) - tick(one).count(".") / 2) / 2 for one in ticks]
        ends = [(scale(one) - half, scale(one) + half) for one, half in zip(ticks, room, strict=True)]
        assert all(right[0] - left[1] >= 5 for left, right in itertools.pairwise(ends))


def test_three_regimes_beside_each_other_leave_room_for_one_and_a_half() -> None:
    """As in what is published: a panel of 170 points, ratios to 7."""
    assert {1.0, 1.5, 2.0, 3.0, 5.0} <= set(Scale(0.95, 7.5, 0, 170, log=True).ratios())


def test_the_rate_by_size_has_a_panel_for_what_else_varies_and_needs_no_attention() -> None:
    rows = [row | {"dtype": dtype, "case_id": f"{row['case_id']}{dtype}"} for dtype in ("float16", "bfloat16")
            for row in records()]  # fmt: skip
    board, caption = by_size(reported(csv_text(rows)).study)
    assert board is not None
    svg = board.svg()
    assert caption.startswith("TFLOP/s by seq q.")
    assert (svg.count(">float16<"), svg.count(">bfloat16<")) == (1, 1)
    own = [
        {key: value for key, value in row.items() if key not in AXES}
        | {"rows": row["seq_q"], "case_id": f"n{row['seq_q']}"}
        for row in records()
    ]
    columns = [*ORIGIN, "rows", *MEASURED]
    report = reported(csv_text(own, columns))
    board, caption = by_size(report.study)
    assert board is not None
    assert caption.startswith("µs a call by rows.")
    assert report.title == "Kernels on NVIDIA L4"
    assert "Attention" not in page(report)
    assert "seq_q" not in page(report).partition("How this was measured")[0]


def test_a_run_that_measured_nothing_is_called_neither_attention_nor_of_an_unknown_device() -> None:
    empty = replace(reported(csv_text([])), environment={"device": "AMD EPYC"})
    assert empty.title == "Kernels on AMD EPYC"
    assert empty.device_facts()[0] == "AMD EPYC"


def test_warnings_stand_in_the_rows_that_they_concern() -> None:
    text = page(reported(csv_text(records(lengths=(1024,), timer_overhead_us="3"))))
    assert "timer 7%" in text
    assert "fa2" in text
    doubtful = page(reported(csv_text(records(lengths=(128,), timer_overhead_us="3"))))
    assert re.search(
        r'class="inconclusive">1\.50× inconclusive</span> <small>below the timer&#39;s resolution', doubtful
    )


def test_a_programs_own_times_have_no_columns_of_what_nobody_measured() -> None:
    unknown = dict.fromkeys(("seq_q", "sm_clock_mhz", "throttle", "max_abs_error", "power_w", "host_us", "hidden"), "")
    rows = records(regime="program", backend="program:csv", speeds={"mine": 2.0, "theirs": 1.0}, lengths=(128,))
    told = reported(csv_text([row | unknown for row in rows]))
    for words in ("TFLOP/s", "launch hidden", "throttled", "max error"):
        assert words not in markdown(told)
        assert f">{words}<" not in page(told)
    assert "TFLOP/s by" not in page(told)


def test_a_measured_launch_says_whether_it_was_hidden() -> None:
    assert ">launch hidden<" in page(reported(csv_text(records(host_us="12", hidden="true"))))
    assert ">launch hidden<" not in page(reported(csv_text(records())))


def test_gradients_have_panels_names_and_operations_of_their_own() -> None:
    rows = [
        {**row, "case_id": row["case_id"] + suffix}
        for suffix in ("", "-backward", "-both")
        for row in records(lengths=(128, 1024))
    ]
    report = reported(csv_text(rows))
    names = labels([case.case_id for case in report.study.cases])
    assert len(set(names.values())) == 6
    board, below = by_size(report.study)
    assert board is not None
    assert {"backward", "both"} <= set(re.findall(r">(\w+)</text>", board.svg()))
    assert "10 in place of 4" in below
    assert "10 in place of 4" not in by_size(reported(FULL).study)[1]
    told = {row["case_id"]: row["pass"] for row in csv.DictReader(io.StringIO(summary_csv(report)))}
    assert {case: case.rpartition("-")[2] if value else "" for case, value in told.items()} == told
    assert "pass" not in summary_csv(reported(FULL)).splitlines()[0].split(",")
