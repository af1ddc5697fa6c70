"""Kept machines: who may claim one, what its run came to, and whether waiting is worth its price."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.run import decide as do
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import Observation, Policy, decide_commands
from orchestrator.core.run.fold import Phase, Run, replay
from orchestrator.core.run.orphans import Keep, Orphan, judge_machine
from orchestrator.core.run.slots import MachineWanted, Slot, owned_vm, seconds_left, unfit_reason, with_claim
from orchestrator.core.run.status import (
    ColdStart,
    KeepAdvice,
    StatusLine,
    advise_keeping,
    cold_start,
    cold_starts,
    status_line,
)
from orchestrator.runs.engine import with_confirmed_claim
from orchestrator.store.events import EventLog
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.core.builders import (
    RATE,
    RUN,
    VM,
    ZONE,
    Log,
    at,
    created,
    gone,
    instance,
    offer,
    operation,
    planned,
    replayed,
    requested,
    running,
)

OTHER = "20261121-050607-l4-0002"
POLICY = Policy(exit_grace_s=60, take_limit_s=90)
SLOT = Slot(state="idle", vm=VM, zone=ZONE, owner=RUN, idle_until=at(700))


def kept(seconds: float = 100, outcome: str = "succeeded") -> Log:
    """A run that is done and whose machine waits since then."""
    log = running().vm(50, ev.CaseStarted(case_id="a", index=1, of=1))
    return log.vm(seconds, ev.Kept(outcome=outcome, idle_limit_s=600, detail="every case is measured"))


def guest(*facts: tuple[float, ev.Fact]) -> Run:
    log = Log().add(0, planned())
    log.add(1, ev.MachineTaken(vm=VM, zone=ZONE, owner=OTHER, deadline_at=at(900)))
    for seconds, fact in facts:
        log.vm(seconds, fact)
    return replayed(log)


def wanted(**changes: object) -> MachineWanted:
    return replace(MachineWanted("gce", "l4", "", (offer(),), 240), **changes)  # type: ignore[arg-type]


# --- the fold -------------------------------------------------------------------------------------------------------


def test_a_kept_run_is_neither_over_nor_in_need_of_another_machine() -> None:
    run = replayed(kept())
    assert (run.phase, run.over, run.goes_on) == (Phase.KEPT, False, False)
    assert run.current.idle_until == at(700)


@pytest.mark.parametrize("how", ["preempted", "lost", "deleted", "deadline"])
def test_the_fate_of_a_kept_machine_does_not_change_its_runs_outcome(how: str) -> None:
    log = kept().vm(110, ev.VmExiting(outcome="failed", exit_code=137)).add(120, gone(119, how))
    run = replayed(log)
    assert run.taken_back is False
    settle, close = decide_commands(run, Observation(None), at(130), POLICY, None)
    assert isinstance(settle, do.Settle)
    assert close.outcome is Phase.SUCCEEDED


def test_a_machine_that_is_lent_has_no_idle_limit_until_it_is_kept_again() -> None:
    log = kept().vm(200, ev.Lent(to=OTHER))
    assert replayed(log).current.idle_until is None
    assert replayed(log).current.lent_to == OTHER
    again = replayed(log.vm(900, ev.Kept(outcome="succeeded", idle_limit_s=600))).current
    assert (again.idle_until, again.work_done_at) == (at(1500), at(100))


# --- decisions ------------------------------------------------------------------------------------------------------


def test_a_kept_machine_is_left_alone_until_its_limit_and_its_grace_are_over() -> None:
    run = replayed(kept())
    alive = Observation(instance())
    assert decide_commands(run, alive, at(759), POLICY, None) == (do.Wait(POLICY.poll_s),)
    (command,) = decide_commands(run, alive, at(761), POLICY, None)
    assert isinstance(command, do.Delete)


def test_a_reaper_takes_a_machine_that_waits_too_long_and_no_other() -> None:
    run = replayed(kept())
    seen = replace(instance(), labels={"bench-run": RUN})
    assert isinstance(judge_machine(seen, run, "b", at(759), POLICY), Keep)
    assert isinstance(judge_machine(seen, run, "b", at(761), POLICY), Orphan)


def test_a_guest_waits_while_its_machine_is_at_it() -> None:
    run = guest((5, ev.VmBooted(vm=VM, attempt=1)))
    assert run.phase is Phase.RUNNING
    assert decide_commands(run, Observation(instance()), at(500), POLICY, None) == (do.Wait(POLICY.poll_s),)


def test_a_guest_ends_with_the_machines_word_on_it_and_costs_nothing() -> None:
    run = guest((5, ev.VmBooted(vm=VM, attempt=1)), (60, ev.Finished(outcome="succeeded")))
    assert run.phase is Phase.FINISHING
    settle, close = decide_commands(run, Observation(instance()), at(61), POLICY, None)
    assert settle == do.Settle(Decimal(0))
    assert close.outcome is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("seconds", "why"), [(92, "did not begin"), (961, "deadline")], ids=["not begun", "past its deadline"]
)
def test_a_machine_that_does_not_serve_its_guest_is_deleted(seconds: float, why: str) -> None:
    run = guest() if seconds < 100 else guest((5, ev.VmBooted(vm=VM, attempt=1)))
    (command,) = decide_commands(run, Observation(instance()), at(seconds), POLICY, None)
    assert isinstance(command, do.Delete)
    assert why in command.reason


def test_a_machine_that_only_stopped_is_deleted_by_its_guest_too() -> None:
    (command,) = decide_commands(guest(), Observation(instance("TERMINATED")), at(20), POLICY, None)
    assert isinstance(command, do.Delete)


def test_stopping_a_guest_deletes_the_machine_and_then_ends_it_as_stopped() -> None:
    log = Log().add(0, planned()).add(1, ev.MachineTaken(vm=VM, zone=ZONE, owner=OTHER))
    run = replayed(log.add(9, ev.StopRequested(by="ada", reason="enough")))
    (command,) = decide_commands(run, Observation(instance()), at(10), POLICY, None)
    assert isinstance(command, do.Delete)
    _, close = decide_commands(run, Observation(None, (operation("delete", 12),)), at(13), POLICY, None)
    assert (close.outcome, close.detail) == (Phase.STOPPED, "enough")


def claimed(*events: ev.Event, claim: ev.MachineTaken | None = None) -> Run:
    """A run that only a machine calls its guest, as an engine sees it beside the log of the machine's owner."""
    bucket, clock = MemoryBucket(), SimulatedClock(at(5))
    fact = claim or ev.MachineTaken(vm=OTHER_VM, zone=ZONE, owner=OTHER, deadline_at=at(90_000))
    own = Log().add(0, planned()).vm(1, fact)
    for event in events:
        own.add(2, event.fact, event.writer)
    owner = [requested(), created(4)]
    for run_id, facts in ((RUN, own.events), (OTHER, [])):
        for event in facts:
            bucket.create(event.object_name, ev.encode_event(event.model_copy(update={"run_id": run_id})))
    log = EventLog(bucket, OTHER, "client-1", clock)
    for one in owner:
        log.append(one.model_copy(update={"vm": OTHER_VM}))
    world: Any = SimpleNamespace(log=lambda run_id: EventLog(bucket, run_id, "client-2", clock))
    run = replay(world.log(RUN).read())
    assert run is not None
    return with_confirmed_claim(world, run)


OTHER_VM = f"bench-{OTHER}-1"


def test_a_machines_claim_counts_if_its_owner_confirms_it_until_its_deadline() -> None:
    taken = claimed().guest_of
    assert (taken.vm, taken.owner, taken.deadline_at) == (OTHER_VM, OTHER, created(4).deadline_at)


@pytest.mark.parametrize(
    "claim",
    [
        ev.MachineTaken(vm=VM, zone=ZONE, owner=OTHER), ev.MachineTaken(vm=OTHER_VM, zone="us-east1-b", owner=OTHER),
        ev.MachineTaken(vm=OTHER_VM, zone=ZONE, owner=RUN), ev.MachineTaken(vm=VM, zone=ZONE, owner=RUN),
        ev.MachineTaken(vm=OTHER_VM, zone=ZONE, owner=OTHER, attempt=7),
        ev.MachineTaken(vm=OTHER_VM, zone=ZONE, owner=OTHER, generation=1),
    ],
)  # fmt: skip
def test_a_claim_that_no_owner_confirms_makes_no_guest(claim: ev.MachineTaken) -> None:
    assert claimed(claim=claim).guest_of is None
    assert claimed(claim=claim).next_attempt == 1


@pytest.mark.parametrize("own", [ev.BudgetHeld(hold_usd=Decimal("0.03")), requested(), ev.RunClosed(outcome="failed")])
def test_no_claim_makes_a_guest_of_a_run_with_money_or_machine_or_that_is_over(own: ev.Fact) -> None:
    event = ev.Event(run_id=RUN, time=at(2), writer="client-abc123", seq=9, fact=own)
    assert claimed(event).guest_of is None


@pytest.mark.parametrize("status", ["RUNNING", "TERMINATED"])
def test_on_the_word_of_a_machine_alone_no_machine_is_deleted(status: str) -> None:
    """It may be another's that it names; whoever owns that one ends it."""
    run, until = claimed(), created(4).deadline_at
    (command,) = decide_commands(run, Observation(instance(status)), until - timedelta(seconds=1), POLICY, None)
    assert isinstance(command, do.Wait)
    _, close = decide_commands(run, Observation(instance(status)), until + timedelta(seconds=1), POLICY, None)
    assert isinstance(close, do.Close)
    stopped = replace(run, stop=ev.StopRequested(by="ada", reason="enough"))
    _, close = decide_commands(stopped, Observation(instance(status)), at(10), POLICY, None)
    assert (close.outcome, close.detail) == (Phase.STOPPED, "enough")  # type: ignore[union-attr]


@pytest.mark.parametrize("first", [1, 3])
def test_the_clients_word_on_the_machine_it_claimed_outranks_a_machines(first: float) -> None:
    log = Log().add(0, planned()).add(2, ev.MachineTaken(vm=VM, zone=ZONE, owner=OTHER, deadline_at=at(900)))
    forged = ev.MachineTaken(vm="bench-other-9", zone=ZONE, owner=RUN, deadline_at=at(9000))
    log.vm(first, forged).vm(first, forged.model_copy(update={"generation": 7}))
    taken = replayed(log).guest_of
    assert taken.vm == VM


def test_a_guest_whose_machine_was_taken_back_says_so() -> None:
    operations = (operation("compute.instances.preempted", 40),)
    _, close = decide_commands(guest(), Observation(None, operations), at(50), POLICY, None)
    assert close.outcome is Phase.PREEMPTED


def test_a_resumed_guest_asks_for_a_machine_under_a_number_of_its_own() -> None:
    log = Log().add(0, planned()).add(1, ev.MachineTaken(vm=VM, zone=ZONE, owner=OTHER))
    log.add(2, ev.RunClosed(outcome="preempted")).add(3, ev.RunResumed(generation=1, attempts=2))
    run = replayed(log)
    assert (run.guest_of, run.goes_on, run.next_attempt) == (None, True, 2)
    (command,) = decide_commands(run, Observation(None), at(4), POLICY, (offer(),))
    assert isinstance(command, do.Create)


# --- the slot -------------------------------------------------------------------------------------------------------


def test_a_slot_survives_a_trip_through_the_bucket_and_anything_else_is_none() -> None:
    taken = with_claim(SLOT, OTHER, "ada", {"schema": 1}, {"sha256": "ab"})
    assert Slot.parse(taken.dump()) == taken
    assert Slot.parse(b"{}") is None


def test_only_an_idle_slot_can_be_claimed() -> None:
    taken = with_claim(SLOT, OTHER, "ada", {}, {})
    assert taken is not None
    assert with_claim(taken, RUN, "bob", {}, {}) is None


def test_a_waiting_machine_of_the_right_kind_will_do() -> None:
    assert unfit_reason(SLOT, replayed(kept()), wanted(), at(200)) == ""


@pytest.mark.parametrize(
    ("why", "changes", "seconds"),
    [
        ("no longer waits", {}, 696),
        ("image", {"image": "another"}, 200),
        ("image", {"mode": "embedded"}, 200),
        ("GPU", {"gpu": "t4"}, 200),
        ("offers", {"offers": ()}, 200),
        ("offers", {"offers": (offer("us-east1-b"),)}, 200),
        ("deadline", {"seconds": 1600}, 200),
    ],
)
def test_a_machine_of_another_kind_or_with_too_little_time_will_not_do(
    why: str, changes: dict[str, object], seconds: float
) -> None:
    assert why in unfit_reason(SLOT, replayed(kept()), wanted(**changes), at(seconds))


def test_a_machine_whose_run_is_over_or_unknown_or_has_lost_it_will_not_do() -> None:
    assert unfit_reason(SLOT, None, wanted(), at(200))
    assert unfit_reason(SLOT, replayed(Log().vm(1, ev.VmBooted(vm=VM, attempt=1))), wanted(), at(200))
    assert unfit_reason(SLOT, replayed(kept().add(150, gone(149))), wanted(), at(200))
    assert unfit_reason(SLOT, replayed(kept().add(150, ev.StopRequested(by="ada", reason="x"))), wanted(), at(200))
    assert unfit_reason(SLOT, replayed(kept().add(150, ev.RunClosed(outcome="succeeded"))), wanted(), at(200))


def test_a_machine_without_a_known_deadline_has_no_time_left() -> None:
    vm = owned_vm(SLOT, replayed(kept()))
    assert vm is not None
    assert seconds_left(vm, at(4)) == 1740
    assert seconds_left(vm, at(5000)) == 0
    assert seconds_left(replace(vm, deadline_at=None), at(4)) == 0


# --- keep or stop ---------------------------------------------------------------------------------------------------


def line(run_id: str = RUN, cold: int = 240, billed: int = 200, gpu: str = "l4", mode: str = "gce") -> StatusLine:
    return StatusLine(run_id, "succeeded", gpu=gpu, mode=mode, cold_start_s=cold, billed_start_s=billed)


def test_a_cold_start_counts_from_the_first_request_and_costs_from_the_boot() -> None:
    assert cold_start(replayed(kept())) == (48, 46)
    assert status_line(replayed(kept()), at(101)).cold_start_s == 48


def test_a_run_without_a_case_or_its_own_machine_tells_nothing_of_cold_starts() -> None:
    assert cold_start(replayed(running())) == (0, 0)
    assert cold_start(guest((5, ev.CaseStarted(case_id="a", index=1, of=1)))) == (0, 0)
    unstarted = replayed(Log().vm(9, ev.CaseStarted(case_id="a", index=1, of=1)))
    assert cold_start(unstarted) == (0, 0)


def test_the_first_machine_that_measured_a_case_is_the_one_that_counts() -> None:
    log = running().add(60, gone(59, "preempted"))
    log.add(70, ev.InstanceRequested(attempt=2, vm=VM, zone=ZONE, machine_type="x", provisioning="SPOT",
        usd_per_hour=RATE, max_run_s=60, request_id="2"))  # fmt: skip
    log.add(75, ev.InstanceCreated(attempt=2, vm=VM, zone=ZONE, instance_id="1", started_at=at(74), deadline_at=at(9),
        request_id="2"))  # fmt: skip
    log.add(100, ev.CaseStarted(case_id="a", index=1, of=1), "vm-2")
    assert cold_start(replayed(log)) == (30, 26)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_the_median_is_of_the_newest_runs_of_the_same_gpu_alone(seconds: list[int]) -> None:
    lines = [line(f"20261121-{n:06d}-l4-0000", cold) for n, cold in enumerate(seconds)]
    others = [line("20261122-000000-t4-0000", gpu="t4"), line(mode="embedded"), line(cold=0)]
    found = cold_starts([*others, *lines], "l4", "gce")
    assert found is not None
    newest = seconds[-20:]
    assert found.runs == len(newest)
    assert min(newest) <= found.seconds <= max(newest)
    assert found == cold_starts([*lines[::-1], *others], "l4", "gce")


def test_without_history_there_is_no_median() -> None:
    assert cold_starts([line(cold=0)], "l4", "gce") is None


COLD = ColdStart(240.0, 180.0, 7)


def advice(log: Log, seconds: float, cold: ColdStart | None = COLD) -> KeepAdvice:
    return advise_keeping(replayed(log), cold, at(seconds))


def test_there_is_no_advice_about_a_machine_that_is_not_there() -> None:
    assert advise_keeping(replayed(Log().add(0, planned())), COLD, at(1)) is None
    assert advise_keeping(replayed(running().add(60, gone(59))), COLD, at(61)) is None
    asked = replayed(Log().add(0, planned()))
    assert (
        advise_keeping(replace(asked, vms=(replace(replayed(running()).vms[0], started_at=None),)), COLD, at(3)) is None
    )


def test_a_machine_at_work_is_advised_on_only_when_it_works_for_another_run() -> None:
    assert advise_keeping(replayed(running()), COLD, at(60)) is None
    lent = advice(kept().vm(120, ev.Lent(to=OTHER)), 130)
    assert (lent.verdict, OTHER in lent.text) == ("keep", True)


@given(st.integers(100, 700))
def test_waiting_is_worth_it_until_it_has_cost_what_a_cold_start_costs(seconds: int) -> None:
    found = advice(kept(), seconds)
    assert found.cold_usd is not None
    so_far = found.usd_per_hour * Decimal(found.idle_s) / 3600
    assert (found.verdict == "keep") == (so_far < found.usd_per_hour * Decimal(180) / 3600)


def test_the_advice_says_what_it_rests_on() -> None:
    text = advice(kept(), 130).text
    assert "$0.36/h" in text
    assert "4.0 min and $0.0181 (median of 7 runs)" in text
    assert "(median of 1 run)" in advice(kept(), 130, replace(COLD, runs=1)).text
    document = advice(kept(), 130).document()
    assert document["rests_on_runs"] == 7
    assert document["idle_s"] == 30
    assert document["cold_start_usd"] == "0.018060"


def test_without_history_the_advice_is_to_stop_and_says_that_it_knows_nothing() -> None:
    found = advice(kept(), 130, None)
    assert found.verdict == "stop"
    assert "no run of this GPU" in found.text
    assert found.document()["rests_on_runs"] == 0
    assert found.document()["cold_start_usd"] is None
    assert found.idle_s == timedelta(seconds=30).total_seconds()


def test_an_instance_of_a_run_that_only_asked_is_no_slots_owner() -> None:
    log = Log().add(0, planned()).add(2, created(4))
    assert owned_vm(SLOT, replayed(log)) is None
