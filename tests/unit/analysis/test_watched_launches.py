"""The agreement of our timers with CUPTI's record of the same launches, in numbers and in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis import second_clock
from orchestrator.analysis.second_clock import (
    SLACK_US,
    Watched,
    by_regime,
    count_within,
    describe_watched,
    read_watched,
)
from orchestrator.report.html import report_page
from orchestrator.report.report import Report
from tests.unit.report.written import csv_text, records, studied

HEADER = "case_id,implementation,regime,watched_us,unwatched_us,cupti_us,cupti_covered_us,skipped"
BURST = Watched("a", "bench", "burst", 10.6, 10.5, 6.0, 10.5)
GRAPH = Watched("a", "bench", "graph", 6.06, 6.0, 6.0)


def test_burst_is_held_against_its_covers_end_and_the_others_against_the_kernels() -> None:
    assert BURST.theirs_us == 10.5
    assert GRAPH.theirs_us == 6.0
    assert GRAPH.ratio == pytest.approx(1.01)


@given(st.floats(0.5, 1e5), st.floats(0.5, 2.0))
def test_a_timer_is_convicted_from_a_twentieth_and_half_a_microsecond_on(theirs: float, factor: float) -> None:
    one = Watched("a", "bench", "graph", factor * theirs, math.nan, theirs)
    far = abs(one.watched_us - theirs)
    assert one.convicts == (far > 0.05 * theirs and far > SLACK_US)


def test_a_timer_that_is_wrong_by_a_twentieth_is_in_the_words_and_a_right_one_too() -> None:
    right = [replace(GRAPH, case_id=f"{number}", watched_us=6.0 * (1 + number / 1000)) for number in range(5)]
    assert count_within(right, 0.01) == 5
    assert "graph is within 1% of it in 5 and within 2% in 5 of 5 cells (worst 0.4%)" in describe_watched(right)
    wrong = [replace(one, watched_us=1.051 * one.cupti_us) for one in right]
    assert count_within(wrong, 0.02) == 0
    assert "graph is within 1% of it in 0 and within 2% in 0 of 5 cells (worst 5.1%)" in describe_watched(wrong)


def test_what_burst_has_beside_its_kernels_and_what_the_tracer_costs_is_told_apart() -> None:
    words = describe_watched([BURST, GRAPH])
    assert "burst has 4.6 µs (4.6 to 4.6) more than the kernels take from the first one's start" in words
    assert "watched, medians are 1.010 times (1.010 to 1.010) those of the ordinary measurement" in words
    assert "ordinary" not in describe_watched([replace(BURST, unwatched_us=math.nan)])


def test_what_could_not_be_compared_is_counted_and_in_no_regime() -> None:
    missed = Watched("b", "sdpa:math", "graph", skipped="CUPTI has 0 covers of the 11 that were enqueued")
    assert by_regime([missed, BURST]) == {"burst": [BURST]}
    assert describe_watched([BURST, missed]).endswith("1 of 2 cells could not be compared.")
    assert describe_watched([missed]).endswith("launches that were timed: 1 of 1 cell could not be compared.")
    assert describe_watched([]) == ""


def test_a_file_of_anybodys_is_read_as_far_as_it_makes_sense() -> None:
    lines = [
        HEADER, "a,bench,burst,10.6,10.5,6.0,10.5,", "a,bench,graph,6.06,6.0,6.0,,", "b,bench,graph,,7.0,,,why not",
        "c,bench,graph,nan,1,1,,", "c,bench,graph,1,1,-1,,", "c,bench,warp,1,1,1,,", ",bench,graph,1,1,1,,", "e",
        "d,bench,sustained,5,x,6,inf,",
    ]  # fmt: skip
    burst, graph, skipped, last = read_watched(lines)
    assert burst == BURST
    assert (graph.watched_us, graph.theirs_us) == (6.06, 6.0)
    assert (skipped.skipped, skipped.unwatched_us) == ("why not", 7.0)
    assert (last.theirs_us, math.isnan(last.unwatched_us)) == (6.0, True)
    assert read_watched(["no header at all"]) == ()
    assert read_watched([]) == ()
    assert read_watched(["x,y", "1,2"]) == ()


def test_old_files_and_new_ones_are_told_apart_by_their_rows() -> None:
    old = ["case_id,implementation,cupti_us,cupti_busy_us", "a,bench,5.5,"]
    new = [HEADER, "a,bench,graph,6.06,6.0,6.0,,"]
    assert read_watched(old) == ()
    assert len(second_clock.read_cupti_times(old)) == 1
    assert second_clock.read_cupti_times(new) == ()
    assert len(read_watched(new)) == 1


def test_the_report_says_it_in_words_and_in_a_table_of_the_cases_that_it_has() -> None:
    study = studied(csv_text(records(regime="graph")))
    case = study.case_ids[0]
    mine = replace(GRAPH, case_id=case)
    missed = replace(mine, implementation="sdpa:math", skipped="<b>no</b>")
    report = Report(study, watched=(mine, missed, replace(BURST, case_id="another")))
    assert report.second_clock().startswith(
        "A second clock, CUPTI's record of the very launches that were timed: graph"
    )
    assert "burst" not in report.second_clock()
    assert report.second_clock() in report.sentences()
    text = report_page(report)
    assert "1.010 of CUPTI" in text
    assert "&lt;b&gt;no&lt;/b&gt;" in text
    assert "<b>no</b>" not in text
    assert ">another<" not in text
