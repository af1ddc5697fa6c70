"""What a client does next, for every state that a run can be in."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.market.machines import Operation
from orchestrator.core.run import decide as do
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Phase, replay
from tests.unit.core.builders import (
    T0,
    VM,
    ZONE,
    Log,
    at,
    created,
    gone,
    instance,
    measured,
    offer,
    operation,
    planned,
    replayed,
    requested,
    running,
)
from tests.unit.core.test_run import logs

POLICY = do.Policy()
NOWHERE = do.Observation(None)
OFFERS = (offer("us-central1-a"), offer("us-central1-b"), offer("us-east1-b"))


def next_of(
    log: Log, seen: do.Observation = NOWHERE, now: float = 20, *, launching: bool = False
) -> tuple[do.Command, ...]:
    return do.decide_commands(replayed(log), seen, at(now), POLICY, OFFERS if launching else None)


@given(
    logs(),
    st.floats(0, 1e6),
    st.booleans(),
    st.sampled_from([None, instance(), instance("TERMINATED"), instance(started=None)]),
)
def test_every_state_has_an_answer_and_a_settled_run_needs_nothing(events, now, launching, seen) -> None:  # type: ignore[no-untyped-def]
    run = replay(events)
    assert run is not None
    commands = do.decide_commands(run, do.Observation(seen), at(now), POLICY, OFFERS if launching else None)
    done = run.over and (
        run.phase is Phase.REFUSED or (run.settled is not None and run.due(at(now)) <= run.settled.cost_usd)
    )
    assert (commands == ()) == done


@given(logs(), st.floats(0, 1e6))
def test_a_client_that_did_not_launch_never_makes_a_machine(events, now) -> None:  # type: ignore[no-untyped-def]
    run = replay(events)
    assert run is not None
    commands = do.decide_commands(run, NOWHERE, at(now), POLICY, None)
    assert not any(isinstance(command, (do.Create, do.Reinsert)) for command in commands)


@given(logs(), st.floats(0, 1e6), st.booleans())
def test_a_run_is_never_closed_while_a_machine_may_exist(events, now, launching) -> None:  # type: ignore[no-untyped-def]
    run = replay(events)
    assert run is not None
    commands = do.decide_commands(run, NOWHERE, at(now), POLICY, OFFERS if launching else None)
    if any(isinstance(command, do.Close) for command in commands):
        assert run.vm is None or not run.vm.open


# --- no machine yet ---------------------------------------------------------------------------------------------------


def test_the_best_offer_is_asked_for_first() -> None:
    assert next_of(Log().add(0, planned()), launching=True) == (do.Create(OFFERS[0], 1),)


def test_after_a_stock_out_the_hinted_zone_is_next_and_the_attempt_is_the_same() -> None:
    log = Log().add(0, planned()).add(1, requested())
    log.add(2, ev.ZoneExhausted(attempt=1, zone=ZONE, code="STOCKOUT", zones_available=("us-east1-b",)))
    assert next_of(log, launching=True) == (do.Create(OFFERS[2], 1),)


def test_a_region_out_of_quota_is_left_alone_as_a_whole() -> None:
    log = Log().add(0, planned()).add(1, requested())
    log.add(2, ev.ZoneExhausted(attempt=1, zone=ZONE, scope="region", code="QUOTA_EXCEEDED"))
    assert next_of(log, launching=True) == (do.Create(OFFERS[2], 1),)


def test_when_no_zone_is_left_the_run_ends_and_its_hold_is_released() -> None:
    log = Log().add(0, planned()).add(1, requested())
    log.add(2, ev.ZoneExhausted(attempt=1, zone=ZONE, scope="all", code="QUOTA_EXCEEDED"))
    settle, close = next_of(log, launching=True)
    assert settle == do.Settle(Decimal(0))
    assert close.outcome is Phase.NO_CAPACITY
    assert "QUOTA_EXCEEDED" in close.detail
    *_, close = do.decide_commands(replayed(Log().add(0, planned())), NOWHERE, at(1), POLICY, ())
    assert close == do.Close(Phase.NO_CAPACITY, "no zone is allowed")


def test_a_refusal_that_no_zone_can_mend_ends_the_run() -> None:
    log = (
        Log().add(0, planned()).add(1, requested()).add(2, ev.InstanceRejected(attempt=1, zone=ZONE, code="FORBIDDEN"))
    )
    assert next_of(log, launching=True)[1] == do.Close(Phase.FAILED, "FORBIDDEN: ")


def test_a_stop_before_any_machine_ends_the_run_at_once() -> None:
    log = Log().add(0, planned()).add(1, ev.StopRequested(by="ada", reason="enough"))
    assert next_of(log, launching=True) == (do.Settle(Decimal(0)), do.Close(Phase.STOPPED, "enough"))


def test_a_run_whose_client_left_before_any_request_is_closed_once_that_is_sure() -> None:
    log = Log().add(0, planned())
    assert next_of(log, now=10) == (do.Wait(POLICY.poll_s),)
    assert isinstance(next_of(log, now=POLICY.insert_limit_s + 1)[1], do.Close)


def test_no_machines_word_from_the_future_keeps_an_abandoned_run_open() -> None:
    log = Log().add(0, planned()).vm(86_400, ev.Unrecognised(name="instance_created"))
    assert isinstance(next_of(log, now=POLICY.insert_limit_s + 1)[1], do.Close)
    assert replayed(log.vm(172_800, ev.PhaseStarted(phase="measure", limit_s=9))).updated_at == at(0)


def test_a_run_of_which_machines_alone_have_spoken_is_closed_whatever_time_they_give() -> None:
    log = Log().vm(86_400, ev.Unrecognised(name="run_planned"))
    assert isinstance(next_of(log, now=1)[1], do.Close)


def test_a_run_is_as_old_as_its_first_clients_word_whatever_a_machine_says() -> None:
    log = Log().vm(-40 * 86_400, ev.VmBooted(vm="x", zone=ZONE, attempt=1)).add(0, planned())
    run = replayed(log.vm(-86_400, ev.Unrecognised(name="run_planned")).add(9, requested()))
    assert (run.created_at, run.updated_at) == (at(0), at(9))
    assert replayed(Log().vm(-5, ev.PhaseStarted(phase="measure", limit_s=9))).created_at == at(-5)


# --- asked for, not seen ----------------------------------------------------------------------------------------------


def test_an_unanswered_request_is_sent_again_by_its_client_and_waited_for_by_others() -> None:
    log = Log().add(0, planned()).add(2, requested())
    run = replayed(log)
    assert run.vm is not None
    assert next_of(log, launching=True) == (do.Reinsert(run.vm),)
    assert next_of(log) == (do.Wait(POLICY.poll_s),)
    pending = do.Observation(None, (operation("insert", None, status="RUNNING"),))
    assert next_of(log, pending) == (do.Wait(POLICY.poll_s),)


def test_as_shipped_a_client_waits_nearly_three_minutes_for_an_unanswered_request() -> None:
    log = Log().add(0, planned()).add(2, requested())
    assert next_of(log, now=2 + 175) == (do.Wait(POLICY.poll_s),)
    assert next_of(log, now=2 + 185) != (do.Wait(POLICY.poll_s),)


def test_a_stop_waits_for_an_unanswered_request_lest_its_machine_be_nobodys() -> None:
    log = Log().add(0, planned()).add(2, requested()).add(3, ev.StopRequested(by="ada", reason="enough"))
    assert next_of(log, launching=True) == (do.Wait(POLICY.poll_s),)


@pytest.mark.parametrize(
    ("operations", "now", "how"),
    [
        ((), 1000.0, "unanswered"),
        ((operation("insert", 5, "STOCKOUT"),), 20.0, "never_made"),
        ((operation("insert", None, status="PENDING"),), 1000.0, "unanswered"),
    ],
)
def test_a_request_that_made_nothing_is_recorded_as_such(operations, now, how) -> None:  # type: ignore[no-untyped-def]
    log = Log().add(0, planned()).add(2, requested())
    (command,) = next_of(log, do.Observation(None, operations), now=now)
    assert isinstance(command, do.RecordGone)
    assert (command.how, command.started_at) == (how, None)


def test_a_machine_that_came_and_went_unrecorded_is_learned_of_from_the_operations() -> None:
    log = Log().add(0, planned()).add(2, requested())
    seen = do.Observation(None, (operation("insert", 5), operation("delete", 65)))
    (command,) = next_of(log, seen, now=100)
    assert command == do.RecordGone(replayed(log).vm, at(65), "deleted", at(5))  # type: ignore[arg-type]


def test_a_machine_that_exists_but_was_not_recorded_is_recorded() -> None:
    log = Log().add(0, planned()).add(2, requested())
    (command,) = next_of(log, do.Observation(instance()))
    assert isinstance(command, do.RecordCreated)


# --- alive ------------------------------------------------------------------------------------------------------------


def alive(log: Log, now: float, status: str = "RUNNING") -> do.Command:
    (command,) = next_of(log, do.Observation(instance(status)), now)
    return command


def test_a_healthy_machine_is_left_alone() -> None:
    assert alive(running(), 20) == do.Wait(POLICY.poll_s)
    assert alive(Log().add(0, planned()).add(2, requested()).add(5, created(4)), 20) == do.Wait(POLICY.poll_s)


def test_a_machine_still_being_made_is_waited_for() -> None:
    log = Log().add(0, planned()).add(2, requested())
    assert next_of(log, do.Observation(instance("PROVISIONING", started=None))) == (do.Wait(POLICY.poll_s),)


def reason(command: do.Command) -> str:
    assert isinstance(command, do.Delete)
    return command.reason


def test_a_machine_is_deleted_when_it_should_not_be_there() -> None:
    assert reason(alive(running().add(15, ev.StopRequested(by="ada", reason="enough")), 20)) == "enough"
    assert "stopped without deleting itself" in reason(alive(running(), 20, "TERMINATED"))
    assert "it is past its deadline" in reason(alive(running(), 1804 + POLICY.deadline_slack_s + 1))
    assert "did not delete itself" in reason(alive(running().vm(30, ev.Finished(outcome="succeeded")), 120))
    silent = Log().add(0, planned()).add(2, requested()).add(5, created(4))
    assert "it sent nothing for 600 s" in reason(alive(silent, 4 + POLICY.boot_limit_s + 1))


def test_a_machine_without_a_known_start_has_a_deadline_all_the_same() -> None:
    log = Log().add(0, planned()).add(2, requested())
    (command,) = next_of(log, do.Observation(instance("PROVISIONING", started=None)), now=1e5)
    assert "past its deadline" in reason(command)


# --- gone -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "now", "ended", "how"),
    [
        ((operation("compute.instances.preempted", 60), operation("delete", 61)), 100, 60, "preempted"),
        ((operation("compute.instances.hostError", 60), operation("delete", 61)), 100, 60, "host_error"),
        ((operation("insert", 5), operation("delete", 70)), 100, 70, "deleted"),
        ((operation("delete", 1810),), 2000, 1810, "deadline"),
        ((operation("insert", 5), operation("compute.instances.somethingNew", 50)), 100, 50, "deleted"),
        ((operation("compute.instances.somethingNew", 1804),), 2000, 1804, "deadline"),
        ((operation("setLabels", 50), operation("compute.instances.somethingNew", None)), 100, 100, "lost"),
        ((), 100, 100, "lost"),
        ((), 5000, 1834, "lost"),
        ((operation("delete", 2),), 100, 4, "deleted"),
        ((operation("compute.instances.preempted", None),), 100, 100, "preempted"),
    ],
)
def test_when_and_how_a_machine_ended_is_read_from_the_zones_log(operations, now, ended, how) -> None:  # type: ignore[no-untyped-def]
    (command,) = next_of(running(), do.Observation(None, operations), now)
    assert isinstance(command, do.RecordGone)
    assert (command.ended_at, command.how, command.started_at) == (at(ended), how, at(4))


def test_a_machine_known_only_by_its_deletion_cost_nothing_that_can_be_shown() -> None:
    log = Log().add(0, planned()).add(2, requested())
    (command,) = next_of(log, do.Observation(None, (operation("delete", 60),)), now=100)
    assert command == do.RecordGone(replayed(log).vm, at(60), "deleted", None)  # type: ignore[arg-type]


def test_a_machine_that_is_gone_is_settled_and_its_run_closed() -> None:
    log = running().vm(30, ev.Finished(outcome="succeeded")).add(70, gone(64))
    settle, close = next_of(log, now=5000)
    assert settle == do.Settle(Decimal("0.006020"))
    assert close == do.Close(Phase.SUCCEEDED, "")


def ending(log: Log, how: str = "deleted") -> tuple[Phase, str]:
    _, close = next_of(log.add(70, gone(64, how)), now=100)
    return close.outcome, close.detail


def test_how_a_run_ended() -> None:
    wrong = ev.CaseChecked(implementation="bench", case_id="c", passed=False, reason="off by 0.5")
    incorrect = running().vm(20, wrong).vm(30, ev.Finished(outcome="incorrect", exit_code=10))
    assert ending(incorrect) == (Phase.INCORRECT, "bench was wrong on 1 case, first c: off by 0.5")
    crashed = ev.CaseChecked(implementation="flash", case_id="c", passed=False, reason="crashed (SIGSEGV)")
    both = running().vm(20, wrong).vm(21, crashed).vm(30, ev.Finished(outcome="incorrect", exit_code=10))
    assert ending(both) == (Phase.INCORRECT, "bench was wrong on 1 case (flash too), first c: off by 0.5")
    assert ending(running().vm(20, measured("a")), "preempted") == (
        Phase.PREEMPTED,
        f"{VM} was preempted; 1 of 2 cases measured",
    )
    assert ending(running().vm(20, ev.Preempted()))[0] is Phase.PREEMPTED
    assert ending(running().vm(20, ev.Finished(outcome="preempted")))[0] is Phase.PREEMPTED
    assert ending(running().add(20, ev.StopRequested(by="ada", reason="enough"))) == (Phase.STOPPED, "enough")
    assert ending(running().vm(20, ev.Finished(outcome="terminated"))) == (Phase.STOPPED, "terminated")
    assert ending(running().vm(20, ev.Finished(outcome="failed", detail="why"))) == (Phase.FAILED, "why")
    diagnosed = running().vm(19, ev.Diagnosed(cause="no_compiler", detail="no g++"))
    assert ending(diagnosed.vm(20, ev.Finished(outcome="failed", detail="why"))) == (
        Phase.FAILED,
        "no_compiler: no g++",
    )
    assert ending(running(), "deadline") == (Phase.EXPIRED, f"{VM} reached its deadline of 1800 s")
    assert ending(running(), "lost") == (Phase.FAILED, f"{VM} disappeared without a message (lost)")
    assert ending(Log().add(0, planned()).add(2, requested()), "unanswered")[0] is Phase.FAILED


@pytest.mark.parametrize("how", ["preempted", "host_error", "lost"])
def test_a_run_goes_on_where_the_cloud_lost_its_machine_but_not_if_it_was_deleted(how: str) -> None:
    def next_machine(how: str) -> bool:
        log = Log().add(0, planned(attempts=2)).add(2, requested()).add(4, created(4)).add(70, gone(64, how))
        run = replay(log.events)
        return run.goes_on

    assert next_machine(how)
    assert not next_machine("deleted")


def test_two_clients_that_look_at_the_same_run_decide_the_same() -> None:
    log = running().vm(30, ev.Finished(outcome="succeeded")).add(70, gone(64))
    shuffled = random.Random(1).sample(log.events, k=len(log.events))
    assert do.decide_commands(replay(shuffled), NOWHERE, T0, POLICY, None) == next_of(log)  # type: ignore[arg-type]


# --- the cloud's queue of flex-start machines -------------------------------------------------------------------------


def queued(queue_s: int = 600) -> Log:
    """A run whose flex-start machine was requested at 2 s and seen in the queue, until 602 s."""
    wish = requested().model_copy(update={"provisioning": "FLEX_START", "queue_s": queue_s})
    held = Log().add(0, planned()).add(1, ev.BudgetHeld(hold_usd=Decimal("0.18"))).add(2, wish)
    until = at(2 + queue_s)
    return held.add(4, ev.InstanceQueued(attempt=1, zone=ZONE, until=until, request_id=wish.request_id))


PENDING = replace(instance("PENDING", None), deadline_at=None)


def test_a_machine_in_the_queue_is_recorded_once_and_waited_for() -> None:
    seen = do.Observation(PENDING)
    for now in (500, 602 + 1800 + POLICY.insert_limit_s):
        assert next_of(queued(), seen, now) == (do.Wait(POLICY.request_gap_s),)
    wish = requested().model_copy(update={"provisioning": "FLEX_START", "queue_s": 600})
    unseen = Log().add(0, planned()).add(2, wish)
    (record,) = next_of(unseen, seen)
    assert isinstance(record, do.RecordQueued)
    assert record.until == at(3 + 600)
    assert isinstance(next_of(queued(), do.Observation(instance()))[0], do.RecordCreated)


NO_STOCK = operation("insert", 602, "ZONE_RESOURCE_POOL_EXHAUSTED: none left")
MADE = operation("insert", 4)


@pytest.mark.parametrize(
    ("operations", "queued_at", "now", "seconds"),
    [
        ((NO_STOCK,), None, 9000, "stock-out"),
        ((MADE, operation("delete", 610)), 600, 9000, "stock-out"),
        ((MADE, operation("delete", 610)), None, 9000, 608),
        ((MADE, operation("delete", 610)), 500, 9000, 608),
        ((MADE,), 600, 604, "stock-out"),
        ((MADE,), 298, 310, 308),
        ((MADE, operation("delete", 300)), 298, 310, None),
        ((MADE, operation("compute.instances.preempted", 300)), 298, 310, 298),
        ((MADE, operation("compute.instances.hostError", 602)), 600, 610, 600),
        ((MADE, operation("delete", 1500)), None, 9000, 1498),
        ((MADE, operation("delete", 2500)), None, 9000, 1830),
        ((MADE,), None, 10**6, 1830),
    ],
    ids=[
        "its request failed", "deleted when its wait ended", "deleted then, unseen", "deleted then, seen long before", "seen in the queue a moment ago",
        "gone from the queue long before its end", "deleted in the queue",
        "preempted moments after it waited", "lost with its host as its wait ended",
        "deleted long after, unseen", "deleted after all its time", "gone without a word",
    ],
)  # fmt: skip
def test_what_left_the_queue_costs_nothing_only_if_it_certainly_never_ran(
    operations: tuple[Operation, ...], queued_at: float | None, now: float, seconds: float | str | None
) -> None:
    last_seen = None if queued_at is None else at(queued_at)
    (record,) = next_of(queued(), do.Observation(None, operations, last_seen), now)
    if seconds == "stock-out":
        assert isinstance(record, do.RecordStockOut)
        return
    assert isinstance(record, do.RecordGone)
    ran_s = None if record.started_at is None else (record.ended_at - record.started_at).total_seconds()
    assert ran_s == seconds


@pytest.mark.parametrize(
    ("model", "round_number", "left_s", "seconds"),
    [("SPOT", 3, 9000, 0), ("FLEX_START", 0, None, 90), ("FLEX_START", 0, 9000, 90), ("FLEX_START", 1, 9000, 7200),
     ("FLEX_START", 1, 3000, 3000), ("FLEX_START", 2, 20, 90)],
)  # fmt: skip
def test_each_zone_is_asked_shortly_before_one_is_waited_in(
    model: str, round_number: int, left_s: float | None, seconds: int
) -> None:
    remaining = None if left_s is None else timedelta(seconds=left_s)
    assert do.queue_seconds(replace(offer(), provisioning=model), round_number, remaining) == seconds
