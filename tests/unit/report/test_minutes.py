"""Every report says how much of the machines' time was measuring, and nothing where nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.document import report_document
from orchestrator.report.html import report_page
from orchestrator.report.markdown import report_markdown
from tests.unit.report.written import csv_text, records, reported

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
