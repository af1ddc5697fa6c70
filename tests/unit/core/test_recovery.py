"""What becomes of a run whose machine was taken back, and of one that goes on after its end."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from orchestrator.core.market.machines import Instance
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.run import decide as do
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import open_offers
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import request_id
from tests.unit.core.builders import RATE, Log, at, created, gone, measured, offer, planned, replayed, requested

POLICY = do.Policy()
NOWHERE = do.Observation(None)
A, B, C = offer("us-central1-a"), offer("us-central1-b"), offer("us-east1-b", Decimal("0.40"))
OFFERS = (A, B, C)


def taken(attempts: int = 3, hold: str = "2.00", **plan: object) -> Log:
    """A run whose first machine, in `A`, measured one of two cases and was taken back."""
    log = Log().add(0, planned(attempts=attempts, **plan)).add(1, ev.BudgetHeld(hold_usd=Decimal(hold)))
    log.add(2, requested()).add(5, created(4)).vm(10, ev.VmBooted(vm="vm", attempt=1))
    log.vm(20, ev.MeasurementPlanned(cases=2, total=2, measurements_per_implementation=100))
    log.vm(25, measured("a"))
    return log.vm(30, ev.Preempted()).vm(31, ev.Finished(outcome="preempted")).add(70, gone(64, "preempted"))


def decided(log: Log, now: float = 80, offers: tuple[Offer, ...] | None = OFFERS) -> tuple[do.Command, ...]:
    return do.decide_commands(replayed(log), NOWHERE, at(now), POLICY, offers)


def closing(commands: tuple[do.Command, ...]) -> tuple[Phase, str]:
    close = commands[-1]
    assert isinstance(close, do.Close)
    return close.outcome, close.detail


def test_the_next_machine_is_asked_for_elsewhere_first_and_its_attempt_is_the_next() -> None:
    assert decided(taken()) == (do.Create(B, 2),)
    assert replayed(taken()).phase is Phase.PROVISIONING
    assert replayed(taken()).case is None
    assert decided(taken(), offers=(A,)) == (do.Create(A, 2),)


def test_a_new_machine_inherits_no_word_of_the_last_one() -> None:
    run = replayed(taken().add(81, requested("us-central1-b", 2)).add(85, created(84, "us-central1-b", 2)))
    assert (run.current.finished, run.current.preempted, run.current.booted_at, run.current.last_word_at, run.vm_phase) == (None, False, None, None, "")
    assert run.phase is Phase.BOOTING
    assert run.cases_done == 1


def test_a_run_is_given_up_when_its_machines_are_used_up_or_it_was_stopped() -> None:
    assert closing(decided(taken(attempts=1)))[0] is Phase.PREEMPTED
    assert closing(decided(taken().add(72, ev.StopRequested(by="ada", reason="enough"))))[0] is Phase.PREEMPTED


def test_what_the_machine_itself_ended_is_not_resumed() -> None:
    failed = taken().vm(32, ev.Finished(outcome="failed", detail="no torch"))
    assert not replayed(failed).taken_back
    cut = taken().vm(32, ev.Finished(outcome="terminated"))
    assert replayed(cut).taken_back
    assert not replayed(Log().add(0, planned())).taken_back


def test_others_wait_for_the_client_that_may_ask_and_close_the_run_when_it_does_not() -> None:
    assert decided(taken(), offers=None) == (do.Wait(POLICY.poll_s),)
    outcome, detail = closing(decided(taken(), now=1000, offers=None))
    assert outcome is Phase.PREEMPTED
    assert "bench launch --resume" in detail


def test_a_request_that_failed_is_no_machine_and_is_closed_as_stopped_by_others() -> None:
    log = Log().add(0, planned()).add(2, requested()).add(9, gone(2, "never_made"))
    assert replayed(log).attempts_left == 1
    assert decided(log) == (do.Create(B, 2),)
    outcome, detail = closing(decided(log, now=1000, offers=None))
    assert outcome is Phase.STOPPED
    assert "no client requested another machine" in detail


def test_a_refusal_that_no_zone_mends_ends_a_run_with_how_its_last_machine_ended() -> None:
    log = taken().add(81, requested("us-central1-b", 2))
    log.add(82, ev.InstanceRejected(attempt=2, zone="us-central1-b", code="FORBIDDEN", message="no"))
    outcome, detail = closing(decided(log))
    assert outcome is Phase.PREEMPTED
    assert detail.endswith("; FORBIDDEN: no")


def test_what_does_not_fit_into_the_rest_of_the_hold_is_not_asked_for() -> None:
    outcome, detail = closing(decided(taken(hold="0.18")))
    assert outcome is Phase.PREEMPTED
    assert "no zone is allowed" in detail


def test_a_machine_that_may_exist_costs_its_worst_case_whatever_the_clocks_say() -> None:
    most = ceiling_usd(RATE, 1800, 1)
    for hold, offered in ((2 * most, (A,)), (2 * most - Decimal("0.000001"), ())):
        log = Log().add(0, planned()).add(1, ev.BudgetHeld(hold_usd=hold)).add(2, requested()).add(5, created(4))
        assert open_offers(replayed(log), (A,)) == offered
        assert (
            open_offers(replayed(log.add(1700, ev.PayloadStored(sha256="0" * 64, size_bytes=1, uploaded=True))), (A,))
            == offered
        )
        assert open_offers(replayed(log.add(1701, gone(10, "preempted"))), (A,)) == (A,)


def test_a_machine_that_has_cost_more_than_was_held_is_deleted() -> None:
    log = Log().add(0, planned()).add(1, ev.BudgetHeld(hold_usd=Decimal("0.01"))).add(2, requested()).add(5, created(4))
    seen = Instance("vm", "z", "1", "RUNNING", "m", {}, at(3), at(4), at(1804), True)
    (command,) = do.decide_commands(replayed(log), do.Observation(seen), at(300), POLICY, None)
    assert isinstance(command, do.Delete)
    assert "more than the $0.01 held" in command.reason


def test_a_device_that_was_measured_on_is_not_exchanged_for_another() -> None:
    other = replace(offer("us-east4-a", Decimal("0.10")), gpu="t4", machine_type="n1-standard-4")
    fresh = replayed(Log().add(0, planned()))
    assert open_offers(fresh, (A, other)) == (A, other)
    assert open_offers(replayed(taken()), (A, other)) == (A,)
    assert open_offers(replayed(taken()), (other,)) == (other,)


def test_spot_comes_first_until_enough_was_taken_back() -> None:
    sure = replace(A, provisioning="STANDARD", usd_per_hour=Decimal("0.90"))
    assert open_offers(replayed(taken()), (sure, A)) == (A, sure)
    assert open_offers(replayed(taken(on_demand_after=2)), (sure, A)) == (A, sure)
    assert open_offers(replayed(taken(on_demand_after=1)), (sure, A)) == (sure, A)


def test_a_stock_out_of_spot_machines_says_nothing_of_others() -> None:
    sure = replace(A, provisioning="STANDARD")
    log = Log().add(0, planned()).add(1, requested())
    dry = ev.ZoneExhausted(attempt=1, zone=A.zone, code="S", machine_type=A.machine_type, provisioning="SPOT")
    assert open_offers(replayed(log.add(2, dry)), (A, sure)) == (sure,)


# --- over, and resumed ------------------------------------------------------------------------------------------------


def ended() -> Log:
    log = taken(attempts=1).add(90, ev.Settled(cost_usd=Decimal("0.006020"), released_usd=Decimal("0.1")))
    return log.add(91, ev.RunClosed(outcome="preempted", cases_stored=1))


def resumed(seconds: float = 100) -> Log:
    log = ended().add(seconds, ev.RunResumed(generation=1, attempts=2, by="bob"), "client-bob")
    return log.add(seconds + 1, ev.BudgetHeld(hold_usd=Decimal("1.00"), generation=1), "client-bob")


@pytest.mark.parametrize("seconds", [100, 50], ids=["clocks agree", "the resumer's clock is behind"])
def test_a_run_that_was_over_goes_on_whatever_the_clocks_say(seconds: float) -> None:
    run = replayed(resumed(seconds))
    assert (run.closed, run.settled, run.hold_usd) == (None, None, Decimal("1.00"))
    assert run.attempts_left == 2
    assert do.decide_commands(run, NOWHERE, at(110), POLICY, OFFERS) == (do.Create(B, 2),)
    assert run.cost(at(110)) == Decimal("0.006020")
    assert run.due(at(110)) == 0


def test_a_second_resumption_of_the_same_end_is_the_same_one() -> None:
    twice = resumed().add(120, ev.RunResumed(generation=1, attempts=9), "client-eve")
    assert replayed(twice).attempts_left == 2


def test_what_was_said_of_an_earlier_end_does_not_end_a_resumed_run() -> None:
    late = resumed().add(130, ev.RunClosed(outcome="preempted"), "client-slow")
    late.add(131, ev.StopRequested(by="eve", reason="the old one", generation=0), "client-slow")
    assert replayed(late).closed is None
    assert replayed(late).stop is None
    stopped = resumed().add(130, ev.StopRequested(by="eve", reason="enough"))
    assert closing(do.decide_commands(replayed(stopped), NOWHERE, at(140), POLICY, OFFERS)) == (Phase.STOPPED, "enough")


def test_the_dearer_of_two_settlements_stands_in_a_run_too() -> None:
    log = ended().add(95, ev.Settled(cost_usd=Decimal("0.5"), released_usd=Decimal(0)), "client-other")
    assert replayed(log).cost(at(200)) == Decimal("0.5")


def test_a_machine_under_a_run_that_is_over_is_deleted_and_what_it_cost_is_settled() -> None:
    log = ended().add(200, requested("us-central1-b", 2)).add(205, created(204, "us-central1-b", 2))
    run = replayed(log)
    assert not run.over
    seen = Instance("vm", "z", "1", "RUNNING", "m", {}, at(203), at(204), at(2004), True)
    (command,) = do.decide_commands(run, do.Observation(seen), at(210), POLICY, OFFERS)
    assert command == do.Delete(run.vms[1], "its run is over")
    log.add(270, gone(264, "deleted", 2))
    assert decided(log, now=300) == (do.Settle(2 * Decimal("0.006020")),)
    assert decided(ended(), now=300) == ()
    refused = Log().add(0, planned()).add(1, ev.RunClosed(outcome="refused"))
    assert decided(refused, now=300) == ()


def test_a_stored_case_without_an_event_counts_when_the_next_machine_finds_it() -> None:
    log = taken().add(81, requested("us-central1-b", 2)).add(85, created(84, "us-central1-b", 2))
    log.add(95, ev.MeasurementPlanned(cases=3, total=5, measurements_per_implementation=1), "vm-2")
    assert replayed(log).cases_done == 2
    log.add(99, measured("c"), "vm-2")
    assert (replayed(log).cases_done, len(replayed(log).measured)) == (3, 2)


def test_a_kernel_that_was_wrong_on_a_lost_machine_is_wrong() -> None:
    wrong = ev.CaseChecked(implementation="bench", case_id="a", passed=False, reason="off")
    log = taken().vm(22, wrong).vm(23, wrong).add(81, requested("us-central1-b", 2))
    log.add(85, created(84, "us-central1-b", 2)).add(90, ev.Finished(outcome="succeeded"), "vm-2")
    outcome, detail = closing(decided(log.add(99, gone(99, "deleted", 2))))
    assert outcome is Phase.INCORRECT
    assert "wrong on 1 case," in detail


def test_the_price_that_was_asked_is_the_price_that_is_counted() -> None:
    assert replayed(taken()).due(at(9999)) == (RATE * 60 / 3600).quantize(Decimal("0.000001"))


def test_a_request_has_the_same_id_each_time_and_another_for_every_other_wish() -> None:
    """A retry makes no second machine, and no wish is taken for the retry of another."""
    wishes = [(run, zone, attempt, of) for run in ("a", "b") for zone in ("x", "y") for attempt in (1, 2)
              for of in ("/g2/SPOT/0", "/g2/STANDARD/0", "/g2/SPOT/1")]  # fmt: skip
    first, again = ([request_id(*wish[:3], of=wish[3]) for wish in wishes] for _ in range(2))
    assert first == again
    assert len({*first, request_id("a", "x", 1, "delete")}) == len(wishes) + 1
