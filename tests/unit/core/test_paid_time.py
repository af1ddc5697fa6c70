"""Where the minutes of a run's machines went, what the next run is expected to take, and who tells it."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.market.offers import START_S, WORK_S, ExpectedWork, ZoneAdvice, weigh_offers
from orchestrator.core.plan.plan import expect_run
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import replay
from orchestrator.core.run.status import (
    PARTS,
    StatusLine,
    cold_start,
    cold_start_parts,
    cold_starts,
    decode_status,
    describe_parts,
    encode_status,
    format_parts,
    median_parts,
    paid_time,
    parse_parts,
    run_document,
    status_body,
    status_line,
)
from tests.unit.core.builders import RUN, ZONE, Log, at, gone, measured, offer, planned, replayed, running
from tests.unit.core.test_run import logs


def measuring() -> Log:
    """Asked for at 2, there at 4, first case at 50, measured until 90, gone at 100."""
    log = running()
    for seconds, phase in ((12, "preflight"), (14, "environment"), (34, "build"), (40, "correctness"), (46, "measure")):
        log.vm(seconds, ev.PhaseStarted(phase=phase))
    log.vm(50, ev.CaseStarted(case_id="a", index=1, of=1)).vm(88, measured("a", of=1))
    log.vm(90, ev.PhaseFinished(phase="measure", exit_code=0, seconds=44)).vm(91, ev.Finished(outcome="succeeded"))
    return log.add(101, gone(100)).add(102, ev.RunClosed(outcome="succeeded"))


def test_each_second_of_a_cold_start_belongs_to_one_part_of_it() -> None:
    parts = cold_start_parts(replayed(measuring()))
    assert parts == {
        "request": 2, "boot": 8, "preflight": 2, "environment": 20, "build": 6, "correctness": 6, "measure": 4
    }  # fmt: skip
    assert describe_parts({"boot": 8.0, "environment": 150.0}) == "boot 8 s, environment 2.5 min"


@given(logs())
def test_the_parts_of_a_cold_start_add_up_and_measuring_is_a_part_of_the_paid_time(events) -> None:  # type: ignore[no-untyped-def]
    run = replay(events)
    assert run is not None
    parts, (whole, _) = cold_start_parts(run), cold_start(run)
    assert set(parts) <= set(PARTS)
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) + 1 >= whole
    paid = paid_time(run, at(5000))
    assert 0 <= paid.measuring_s <= paid.paid_s
    assert paid.share is None or 0 <= paid.share <= 1


def test_the_share_is_of_all_machines_until_they_were_gone() -> None:
    paid = paid_time(replayed(measuring()), at(5000))
    assert (paid.paid_s, paid.measuring_s) == (96, 40)
    assert paid.share == pytest.approx(40 / 96)


def test_what_a_machine_waits_after_its_run_is_not_that_runs_time() -> None:
    kept = running().vm(46, ev.PhaseStarted(phase="measure")).vm(50, ev.CaseStarted(case_id="a", index=1, of=1))
    kept.vm(90, ev.PhaseFinished(phase="measure", exit_code=0, seconds=44))
    kept.vm(100, ev.Kept(outcome="succeeded", idle_limit_s=600)).add(700, gone(699))
    assert paid_time(replayed(kept), at(5000)).paid_s == 96


def test_a_machine_that_was_taken_back_measured_until_it_went() -> None:
    lost = running().vm(46, ev.PhaseStarted(phase="measure")).vm(50, ev.CaseStarted(case_id="a", index=1, of=1))
    lost.add(71, gone(70, "preempted"))
    assert paid_time(replayed(lost), at(5000)).measuring_s == 20


@given(st.dictionaries(st.sampled_from(PARTS), st.floats(1, 10_000)))
def test_the_parts_survive_a_trip_through_a_status_line(parts: dict[str, float]) -> None:
    assert parse_parts(format_parts(parts)) == {part: round(seconds) for part, seconds in parts.items()}


@given(st.text(max_size=80))
def test_parts_that_are_none_are_left_out_and_never_an_error(text: str) -> None:
    assert set(parse_parts(text)) <= set(PARTS)


def test_a_line_carries_what_a_later_plan_needs() -> None:
    line = status_line(replayed(measuring()), at(5000))
    assert decode_status(RUN, encode_status(line)) == line
    assert (line.paid_s, line.measuring_s, line.config, line.image) == (96, 40, "l4", "")
    assert run_document(replayed(measuring()), at(5000))["time"] == {
        "paid_s": 96, "measuring_s": 40, "measuring_share": 0.4167, "cold_start_s": 48,
        "cold_start_parts_s": cold_start_parts(replayed(measuring())),
    }  # fmt: skip


def test_medians_are_of_each_part_over_the_runs_that_tell() -> None:
    assert median_parts(["boot 10 build 4", "boot 20", "boot 30 build 8", "", "?"]) == {"boot": 20.0, "build": 4.0}
    assert median_parts([]) == {}


# --- what a plan expects --------------------------------------------------------------------------------------------

LINE = replace(status_line(replayed(measuring()), at(5000)), created_at="2026-11-21T04:05:06Z")


def line(number: int, **changes: object) -> StatusLine:
    return replace(LINE, **{"run_id": f"20261121-{number:06d}-l4-0000", **changes})  # type: ignore[arg-type]


def test_history_shows_the_parts_of_a_cold_start_and_the_share_of_measuring() -> None:
    found = cold_starts([line(1), line(2)], "l4", "gce")
    assert (found.parts["environment"], found.measuring_share) == (20, 0.4167)
    assert "environment 20 s" in found.text
    assert "measuring took 42% of machine time" in found.text
    assert found.document()["rests_on_runs"] == 2


def test_what_is_expected_is_the_start_and_a_case_times_the_cases() -> None:
    found = expect_run(
        [line(1), line(2, measuring_s=60, cases_done=2), line(3, gpu="t4")],
        "l4",
        "gce",
        "l4",
        10,
        LINE.machine_type,
        prepared=False,
    )
    assert (found.cold.billed_s, found.measuring_s, found.runs) == (46, 350, 2)
    assert found.usd(Decimal("0.36")) == Decimal("0.0396")
    assert found.document(Decimal("0.36"))["usd"] == "0.039600"
    assert "48 s to the first case (median of 2 runs), 5.8 min of measuring (median of 2)" in found.text


def test_runs_of_another_configuration_tell_of_cold_starts_and_not_of_measuring() -> None:
    found = expect_run([line(1, config="mine")], "l4", "gce", "l4", 10, LINE.machine_type, prepared=False)
    assert (found.measuring_s, found.usd(Decimal(1))) == (None, None)
    assert found.work == ExpectedWork(46 + WORK_S - START_S, 46)
    assert expect_run([], "l4", "gce", "l4", 10, LINE.machine_type, prepared=False) is None


def test_a_machine_with_more_gpus_tells_nothing_of_the_time_of_another() -> None:
    lines = [
        line(1, machine_type="a3-highgpu-8g", measuring_s=10),
        line(2, machine_type="a3-highgpu-1g", measuring_s=80),
    ]
    found = [
        expect_run(lines, "l4", "gce", "l4", 4, f"a3-highgpu-{size}", prepared=False) for size in ("8g", "1g", "2g")
    ]
    cases = lines[0].cases_done
    assert [one and one.measuring_s for one in found] == [40 / cases, 320 / cases, None]


def test_cold_starts_on_prepared_images_are_kept_apart_where_there_are_any() -> None:
    slow, quick = line(1), line(2, image="bench-image-l4-20261121-0001", billed_start_s=20, cold_start_s=22)
    told = {
        prepared: expect_run([slow, quick], "l4", "gce", "l4", 1, LINE.machine_type, prepared=prepared)
        for prepared in (True, False)
    }
    assert [(found.cold.billed_s, found.prepared) for found in told.values() if found] == [(20, True), (46, False)]
    first = expect_run([slow], "l4", "gce", "l4", 1, LINE.machine_type, prepared=True)
    assert (first.cold.billed_s, first.prepared) == (46, False)


def test_expected_dollars_count_the_start_that_is_lost_with_each_machine() -> None:
    said = [ZoneAdvice("us-central1-a", preemption_rate=0.5)]
    usual, short = (
        weigh_offers([offer()], advice=said, now=at(0), work=work)[0].key
        for work in (ExpectedWork(), ExpectedWork(900, 20))
    )
    assert short < usual
    assert weigh_offers([offer()], now=at(0), work=ExpectedWork(450, 20))[0].key * 2 == pytest.approx(
        weigh_offers([offer()], now=at(0))[0].key
    )


# A status line survives a trip through object metadata, and says nothing that is not so.


@given(logs())
def test_a_line_decodes_to_itself(events) -> None:  # type: ignore[no-untyped-def]
    run = replay(events)
    assert run is not None
    line = status_line(run, at(5000))
    assert decode_status(RUN, encode_status(line)) == line
    assert json.loads(status_body(run, at(5000)))["run_id"] == RUN


@given(
    st.dictionaries(
        st.sampled_from(["run_id", "phase", "seconds", "cost_usd", "created_at", "odd"]),
        st.text("0123456789.-+:eETZnaif \n\x00é€𝟙", max_size=8),
    )
)
def test_what_is_no_line_is_nothing_and_never_an_error(metadata: dict[str, str]) -> None:
    decode_status(RUN, metadata)
    assert decode_status(RUN, {}) is None


@pytest.mark.parametrize("broken", [{"seconds": "x"}, {"cost_usd": "cheap"}, {"created_at": "yesterday"}])
def test_a_damaged_line_is_not_believed(broken: dict[str, str]) -> None:
    run = replay(running().events)
    assert run is not None
    assert decode_status(RUN, encode_status(status_line(run, at(20))) | broken) is None


def test_metadata_is_printable_ascii() -> None:
    log = running().vm(11, ev.EnvironmentRecorded(device="Prozessor mit Ümlaut\n", device_kind="cpu"))
    run = replay(log.events)
    assert run is not None
    assert encode_status(status_line(run, at(20)))["device"] == "Prozessor mit ?mlaut "


def test_an_open_run_names_its_machine_and_its_rate_and_a_closed_one_does_not() -> None:
    run = replay(running().events)
    assert run is not None
    line = status_line(run, at(64))
    assert (line.vm.split("/")[0], line.usd_per_hour, line.over) == (ZONE, "0.3612", False)
    assert line.seconds == 64
    log = running().vm(20, measured("a")).add(70, gone(64)).add(71, ev.RunClosed(outcome="succeeded", detail="x"))
    run = replay(log.events)
    assert run is not None
    line = status_line(run, at(5000))
    assert (line.vm, line.usd_per_hour, line.over, line.seconds, line.detail) == ("", "0", True, 71, "x")


def test_the_document_has_the_keys_that_scripts_lean_on() -> None:
    run = replay(running().vm(11, ev.PhaseStarted(phase="build")).events)
    assert run is not None
    made = run_document(run, at(64))
    assert {"run_id", "state", "cost_usd", "ceiling_usd", "attempts", "vms", "phases", "cases", "diagnoses"} <= set(
        made
    )
    unplanned = replay(Log().vm(0, ev.Preempted()).events)
    assert unplanned is not None
    assert run_document(unplanned, at(1))["config"] == ""
    planned_only = replay(Log().add(0, planned()).events)
    assert planned_only is not None
    assert run_document(planned_only, at(1))["config"] == "l4"
