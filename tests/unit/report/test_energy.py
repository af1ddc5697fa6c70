"""Joules of a call stand beside dollars of an answer; where they are not given, that is said."""

from __future__ import annotations

import csv
import io

import pytest

from orchestrator.analysis.devices import side_by_side
from orchestrator.analysis.summaries import find_energies
from orchestrator.report import comparing, devices
from orchestrator.report.comparing import compare_reports
from orchestrator.report.document import changes_document, report_document, summary_csv
from orchestrator.report.html import report_page
from orchestrator.report.report import NOT_GIVEN
from orchestrator.report.text import format_energy
from tests.unit.report.written import csv_text, records, reported

FED = {"regime": "sustained", "cache": "cold", "calls": "100"}


def fed(joules: str, **changes: str) -> str:
    return csv_text(records(joules_per_call=joules, energy_s="0.6", **(FED | changes)))


def test_a_report_says_what_calls_take_in_words_page_data_and_csv() -> None:
    report = reported(fed("0.0125"))
    said = report.sentences()
    assert any(words.startswith("Energy of a call, sustained, cold: bench 12.5 mJ") for words in said), said
    (one,) = report_document(report)["energy"]
    assert (one["regime"], one["cases"]) == ("sustained", 2)
    assert one["joules_per_call"]["bench"] == pytest.approx(0.0125)
    assert "bench:aa" not in one["joules_per_call"]
    assert "12.5 mJ" in report_page(report)
    rows = list(csv.DictReader(io.StringIO(summary_csv(report))))
    assert {row["joules_per_call"] for row in rows} == {"0.0125"}


def test_where_no_device_gives_its_energy_the_report_says_so_and_every_cell_is_empty() -> None:
    report = reported(csv_text(records()))
    assert NOT_GIVEN in report.sentences()
    assert report_document(report)["energy"] == []
    assert {row["joules_per_call"] for row in csv.DictReader(io.StringIO(summary_csv(report)))} == {""}


def test_a_run_that_measured_nothing_says_nothing_of_energy() -> None:
    assert not reported(csv_text([])).energy()


def test_a_mean_is_over_the_cases_where_all_have_it() -> None:
    rows = list(records(joules_per_call="0.5", **FED))
    for row in rows:
        if "q128" in row["case_id"] and row["implementation"] == "sdpa:math":
            row["joules_per_call"] = ""
    (one,) = find_energies(reported(csv_text(rows)).study)
    assert one.cases == 1


def test_a_comparison_has_both_runs_joules_and_says_where_one_has_none() -> None:
    more, less = reported(fed("0.02")), reported(fed("0.01", run_id="20261121-050607-l4-0001"))
    found = compare_reports(more, less)
    assert "0.50× of before" in found.joules()
    assert {one["ratio"] for one in changes_document(found)["energy"]} == {0.5}
    assert "20.0 mJ" in comparing.comparison_page([found])
    assert "Energy of a call" in comparing.comparison_markdown([found])
    without = compare_reports(more, reported(csv_text(records(**FED))))
    assert without.joules() == "Energy: not given by both runs."
    assert "not given by both runs" in comparing.comparison_page([without])


def test_devices_beside_each_other_show_the_joules_that_they_give() -> None:
    given, hidden = reported(fed("0.02")), reported(csv_text(records(device="Tesla T4", **FED)))
    found = side_by_side([devices.column_of(given), devices.column_of(hidden)])
    assert any(section.title == "Energy of a call" for section in devices.device_sections(found))
    cells = devices.devices_document(found)["rows"][0]["cells"]
    assert [cell["joules_per_call"] for cell in cells] == [0.02, None]


def test_joules_are_written_in_the_unit_that_leaves_them_three_digits() -> None:
    assert [format_energy(one) for one in (12.3, 0.0123, 1.23e-5, 1.23e-8)] == [
        "12.3 J",
        "12.3 mJ",
        "12.3 µJ",
        "12.3 nJ",
    ]
    assert format_energy(float("nan")) == "–"
