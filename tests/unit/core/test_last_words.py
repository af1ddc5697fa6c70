"""What real failures leave behind, and what they are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.core.run import events as ev
from orchestrator.core.run.diagnose import REMEDIES, diagnose_run, last_attempt, relevant_lines, wants_diagnosis
from orchestrator.core.run.fold import Phase
from tests.unit.core.builders import VM, Log, created, gone, planned, requested, running

FIXTURES = Path(__file__).parent / "fixtures"
LOGS = sorted(FIXTURES.glob("*.log"))
REFUSALS: dict[str, dict[str, str]] = json.loads((FIXTURES / "refusals.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_has_its_cause_and_a_remedy(path: Path) -> None:
    found = diagnose_run(log=path.read_text(encoding="utf-8"))
    assert found.cause == path.stem.partition("-")[0]
    assert found.remedy == REMEDIES[found.cause]


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_recorded_refusal_has_its_cause_and_a_remedy(cause: str) -> None:
    refusal = ev.InstanceRejected(attempt=1, zone="z", **REFUSALS[cause])
    found = diagnose_run(facts=[refusal])
    assert (found.cause, found.remedy) == (cause, REMEDIES[cause])


def test_a_boot_that_goes_well_has_no_cause() -> None:
    log = "cloud-init: done\nstartup-script: preflight\nstartup-script: torch 2.13.0 on NVIDIA L4\nmeasured 12 cases\n"
    assert diagnose_run(log=log).cause == "unknown"


def test_of_an_unknown_failure_the_lines_that_matter_are_shown() -> None:
    log = (FIXTURES / "unknown.log").read_text(encoding="utf-8")
    found = diagnose_run(log=log)
    assert found.lines[0] == "startup-script: the flux capacitor reported an error"
    assert found.lines[-1] == "startup-script: bye"
    assert len(found.lines) == 5


def test_the_lines_that_matter_are_few_whatever_the_log() -> None:
    assert relevant_lines("") == ()
    assert len(relevant_lines("error\n" * 1000)) <= 12


@pytest.mark.parametrize(
    ("how", "cause"),
    [("preempted", "preempted"), ("deadline", "deadline"), ("lost", "lost"), ("never_made", "never_made")],
)
def test_how_a_machine_ended_is_a_cause_when_it_said_nothing_of_it(how: str, cause: str) -> None:
    facts = [event.fact for event in running().add(99, gone(99, how)).events]
    assert diagnose_run(facts=facts).cause == cause


def test_a_machine_that_never_spoke_did_not_boot() -> None:
    log = Log().add(0, planned()).add(2, requested()).add(5, created(4)).add(700, gone(700))
    assert diagnose_run(facts=[event.fact for event in log.events]).cause == "no_boot"
    spoke = [event.fact for event in running().add(700, gone(700)).events]
    assert diagnose_run(facts=spoke).cause == "unknown"


def test_an_ending_without_a_name_keeps_what_was_said_of_it() -> None:
    said = ev.Finished(outcome="failed", detail="the fan stopped")
    assert diagnose_run(facts=[said], log="nothing\n").detail == "the fan stopped"


def test_what_ailed_an_earlier_machine_is_not_why_the_last_one_failed() -> None:
    log = running().vm(20, ev.Diagnosed(cause="preempted"))
    log.add(30, gone(30, "preempted")).add(31, requested(attempt=2)).add(32, created(32, attempt=2))
    assert wants_diagnosis(Phase.FAILED, log.events)
    log.add(40, ev.Diagnosed(cause="disk_full"), "vm-2")
    assert not wants_diagnosis(Phase.FAILED, log.events)
    assert diagnose_run(facts=last_attempt(log.events)).cause == "disk_full"


def test_a_run_that_got_no_machine_is_diagnosed_by_all_its_refusals() -> None:
    log = Log().add(0, planned())
    for number, zone in enumerate(("a", "b"), 1):
        log.add(number, requested(zone)).add(number + 0.5, ev.ZoneExhausted(attempt=1, zone=zone, code="GPU_STOCKOUT"))
    assert [fact.kind for fact in last_attempt(log.events)].count("zone_exhausted") == 2
    assert diagnose_run(facts=last_attempt(log.events)).cause == "stockout"
    log.add(9, requested("c"))
    assert diagnose_run(facts=last_attempt(log.events)).cause == "stockout"


def test_a_refusal_before_the_machine_was_made_is_not_why_it_failed() -> None:
    log = Log().add(0, planned()).add(1, requested("a"))
    log.add(2, ev.ZoneExhausted(attempt=1, zone="a", code="GPU_STOCKOUT")).add(3, requested()).add(5, created(4))
    log.vm(6, ev.VmBooted(vm=VM, attempt=1)).add(9, gone(9, "lost"))
    assert diagnose_run(facts=[event.fact for event in log.events]).cause == "lost"


@pytest.mark.parametrize("outcome", [Phase.SUCCEEDED, Phase.STOPPED, Phase.REFUSED])
def test_what_went_well_or_was_wished_needs_no_diagnosis(outcome: Phase) -> None:
    assert not wants_diagnosis(outcome, running().events)
