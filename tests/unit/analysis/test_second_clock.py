"""The agreement of our medians with CUPTI's, in numbers and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.second_clock import (
    LONG_US,
    SHORT_US,
    Told,
    describe_agreement,
    measure_agreement,
    read_cupti_times,
)
from orchestrator.report.report import Report
from tests.unit.report.written import csv_text, records, studied


def told(study_text: str, factor: float, less_us: float = 0.0) -> tuple[Told, ...]:
    found = studied(study_text)
    return tuple(
        Told(case.case_id, one.implementation, factor * one.median_us.mid - less_us)
        for case in found.cases
        for one in case.timings
        if one.timed
    )


def test_the_graph_is_compared_as_a_ratio_and_burst_as_what_is_added() -> None:
    graph, burst = (csv_text(records(regime=regime)) for regime in ("graph", "burst"))
    near = measure_agreement(studied(graph), told(graph, 1 / 1.03))
    assert near is not None
    assert near.ratios
    assert near.within(0.05) == len(near.ratios)
    assert near.within(0.02) == 0
    assert near.worst == pytest.approx(0.03)
    assert "within 5% of it in" in describe_agreement(near)
    more = measure_agreement(studied(burst), told(burst, 1.0, 0.25))
    assert more is not None
    assert not more.ratios
    assert all(us == pytest.approx(0.25) for us in more.added_us)
    assert not more.long_ratios
    assert "burst has 0.2 µs more" in describe_agreement(more) or "burst has 0.3 µs more" in describe_agreement(more)


def test_long_calls_are_compared_as_a_ratio_in_burst_too() -> None:
    burst = csv_text(records(regime="burst"))
    found = measure_agreement(studied(burst), [replace(one, cupti_us=LONG_US) for one in told(burst, 1.0)])
    assert found is not None
    assert not found.added_us
    assert found.long_ratios
    assert f"burst is within 5% of it in 0 of {len(found.long_ratios)}" in describe_agreement(found)


def test_graphs_are_compared_with_calls_that_had_no_rest_where_those_are_known() -> None:
    graph, burst = (csv_text(records(regime=regime)) for regime in ("graph", "burst"))
    slow = [replace(one, busy_us=1.1 * one.cupti_us) for one in told(graph, 1.0)]
    found = measure_agreement(studied(graph), slow)
    assert found is not None
    assert all(ratio == pytest.approx(1 / 1.1) for ratio in found.ratios)
    rested = measure_agreement(studied(burst), [replace(one, busy_us=9.0) for one in told(burst, 1.0)])
    assert rested is not None
    assert all(us == pytest.approx(0.0) for us in rested.added_us)


def test_short_graphs_are_compared_in_microseconds() -> None:
    text = csv_text(records(regime="graph"))
    found = measure_agreement(studied(text), [replace(one, cupti_us=SHORT_US / 2) for one in told(text, 1.0)])
    assert found is not None
    assert not found.ratios
    assert len(found.short_us) == len(told(text, 1.0))
    assert "of shorter ones it has " in describe_agreement(found)


def test_what_is_not_in_both_is_not_compared_and_warm_caches_never_are() -> None:
    text = csv_text(records(regime="graph"))
    assert measure_agreement(studied(text), ()) is None
    assert measure_agreement(studied(text), (Told("another", "bench", 1.0),)) is None
    warm = csv_text(records(regime="graph", cache="warm"))
    assert measure_agreement(studied(warm), told(warm, 1.0)) is None


def test_a_file_of_anybodys_is_read_as_far_as_it_makes_sense() -> None:
    lines = ["case_id,implementation,cupti_us", "a,bench,5.5", "b,bench,", "c,bench,nan", "d,bench,-1", ",bench,3", "e"]
    assert [(one.case_id, one.cupti_us, one.unrested_us) for one in read_cupti_times(lines)] == [("a", 5.5, 5.5)]
    rows = ["case_id,implementation,cupti_us,cupti_busy_us", "a,bench,5,7", "b,bench,5,x", "c,bench,6,-1"]
    assert [one.unrested_us for one in read_cupti_times(rows)] == [7, 5, 6]
    assert read_cupti_times(["no header at all"]) == ()
    assert read_cupti_times([]) == ()
    assert read_cupti_times(["x,y", "1,2"]) == ()


def test_the_report_says_it_before_what_the_run_cost_in_dollars_and_joules() -> None:
    text = csv_text(records(regime="graph"))
    report = Report(studied(text), clock=told(text, 1.0))
    assert report.sentences()[-2].startswith(
        "A second clock, CUPTI's time of the kernels: of calls over 10 µs graph is within 5%"
    )
    assert not any("second clock" in words for words in Report(studied(text)).sentences())
