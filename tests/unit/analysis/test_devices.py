"""Devices beside each other: the same speed is never called different, and dollars are counted as they are paid."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.devices import Column, Time, side_by_side
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.verdicts import Noise, NoiseSource, Verdict
from orchestrator.report.devices import column_of, device_sections, devices_document, devices_markdown
from orchestrator.report.page import Page, write_page
from tests.unit.report.written import csv_text, records, reported

BURST = Setting("burst", "cold")


def column(name: str, *medians: float, price: float | None = 1.0, **known: object) -> Column:
    times = [
        Time(f"case-{place}", BURST, "bench", Interval(us * 0.99, us, us * 1.01), Noise(0.01, NoiseSource.CONTROL))
        for place, us in enumerate(medians)
    ]
    return Column(name, times, (f"run-{name}",), usd_per_hour=price, **known)  # type: ignore[arg-type]


def test_a_device_far_ahead_of_all_others_is_named() -> None:
    found = side_by_side([column("L4", 100.0), column("H100", 20.0, price=10.0), column("T4", 300.0)])
    row = found.rows[0]
    assert (row.fastest, row.cheapest) == (1, 0)
    assert [one.speed and one.speed.verdict for one in row.cells if one] == [Verdict.SLOWER, None, Verdict.SLOWER]
    own = row.cells[0]
    assert own is not None
    assert own.speed is not None
    assert own.speed.ratio.mid == pytest.approx(0.2)
    assert own.calls_per_usd == pytest.approx(3.6e7)


def test_a_second_device_as_fast_as_the_first_leaves_nobody_ahead() -> None:
    row = side_by_side([column("a", 20.0), column("b", 20.1), column("c", 100.0)]).rows[0]
    assert (row.fastest, row.cheapest) == (None, None)


def test_where_no_price_is_known_nothing_is_said_of_dollars() -> None:
    row = side_by_side([column("a", 20.0, price=None), column("b", 100.0)]).rows[0]
    assert row.cells[0] is not None
    assert math.isnan(row.cells[0].calls_per_usd)
    assert row.cheapest is None
    assert row.fastest == 0


def test_a_busy_machine_decides_nothing() -> None:
    row = side_by_side([column("a", 20.0), column("b", 100.0, doubt="the host was busy")]).rows[0]
    against = row.cells[1] and row.cells[1].speed
    assert against is not None
    assert (against.verdict, against.doubt, row.fastest) == (Verdict.INCONCLUSIVE, "the host was busy", None)


def test_a_case_that_one_device_lacks_is_a_gap_and_not_a_number() -> None:
    found = side_by_side([column("a", 20.0, 30.0), column("b", 100.0)])
    assert found.rows[1].cells[1] is None
    assert found.rows[1].fastest is None
    assert devices_document(found)["rows"][1]["cells"][1] is None


def test_dollars_an_answer_are_dollars_over_answers() -> None:
    assert column("a", 1.0, cost_usd=0.5, answers=10).usd_per_answer == 0.05
    assert column("a", 1.0, cost_usd=0.5).usd_per_answer is None
    assert column("a", 1.0, answers=10).usd_per_answer is None


@given(st.lists(st.floats(1e-2, 1e6), min_size=1, max_size=6), st.lists(st.floats(0.01, 50), min_size=6, max_size=6))
def test_whoever_is_named_has_the_least_time_and_the_most_calls(medians: list[float], prices: list[float]) -> None:
    row = side_by_side([column(str(n), us, price=prices[n]) for n, us in enumerate(medians)]).rows[0]
    if row.fastest is not None:
        assert medians[row.fastest] == min(medians)
    if row.cheapest is not None:
        costs = [us * price for us, price in zip(medians, prices, strict=False)]
        assert costs[row.cheapest] == min(costs)


def test_runs_of_the_report_become_columns_of_a_page_and_of_a_table() -> None:
    l4 = column_of(reported(csv_text(records())), usd_per_hour=0.25)
    fast = {"bench": 6.0, "sdpa:default": 4.0, "sdpa:math": 2.0, "bench:aa": 6.0}
    h100 = column_of(reported(csv_text(records(device="NVIDIA H100", speeds=fast))), usd_per_hour=4.0)
    found = side_by_side([l4, h100])
    text = write_page(Page("Devices", "Devices", [], device_sections(found)))
    assert "NVIDIA H100" in text
    assert "calls a dollar" in text
    assert "**" in devices_markdown(found)
    shown = json.loads(json.dumps(devices_document(found), allow_nan=False))
    assert [row["fastest"] for row in shown["rows"]] == ["NVIDIA H100"] * 6
    assert [row["most_for_a_dollar"] for row in shown["rows"]] == ["NVIDIA L4"] * 6


def test_what_a_machine_calls_itself_is_text_on_the_page_and_in_the_table() -> None:
    evil = "<script>alert(1)</script>|`x`"
    found = side_by_side([column(evil, 20.0), column("b", 100.0)])
    assert "<script>" not in write_page(Page("x", "x", [], device_sections(found)))
    assert "<script>" not in devices_markdown(found)
