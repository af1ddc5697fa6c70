"""A status line survives a trip through object metadata, and says nothing that is not so."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import replay
from orchestrator.core.run.status import decode_status, encode_status, run_document, status_body, status_line
from tests.unit.core.builders import RUN, ZONE, Log, at, gone, measured, planned, running
from tests.unit.core.test_run import logs


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
