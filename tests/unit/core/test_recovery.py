"""What becomes of a run whose machine was taken back, and of one that goes on after its end."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config.load import load, repeat_config
from orchestrator.core.config.model import Alerts, Budget, Config, MachineSpec, effective_grids, harness_settings
from orchestrator.core.market.machines import Instance
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.naming import Mode
from orchestrator.core.plan.resumption import CHOSEN, plan_differences, resumed_config
from orchestrator.core.run import decide as do
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import open_offers
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import request_id
from tests.unit.core.asked import GRIDS, TWO, accepted, asked
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
    return close.outcome, close.detail


def test_the_next_machine_is_asked_for_elsewhere_first_and_its_attempt_is_the_next() -> None:
    assert decided(taken()) == (do.Create(B, 2),)
    assert replayed(taken()).phase is Phase.PROVISIONING
    assert replayed(taken()).current.cases == ()
    assert decided(taken(), offers=(A,)) == (do.Create(A, 2),)


def test_a_new_machine_inherits_no_word_of_the_last_one() -> None:
    run = replayed(taken().add(81, requested("us-central1-b", 2)).add(85, created(84, "us-central1-b", 2)))
    assert (
        run.current.finished, run.current.preempted, run.current.booted_at, run.current.last_word_at, run.vm_phase,
    ) == (None, False, None, None, "")  # fmt: skip
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


# Of a plan from the bucket only what is measured is believed: all that costs, runs or reaches out is today's.


HOSTILE = {
    "alerts": Alerts(command="touch pwned", webhook="http://127.0.0.1:9/x"),
    "budget": Budget(per_run_usd=Decimal(10**6), per_day_usd=Decimal(10**6), per_month_usd=None, total_usd=None),
}


def test_commands_prices_caps_and_code_sources_are_the_resuming_clients() -> None:
    today: Config = asked(TWO)
    stored = accepted(today)
    machine = today.machine.model_copy(
        update={"service_account": "eve@x.iam", "network": "global/networks/eve", "image_project": "eve"}
    )
    wish = today.model_copy(update={**HOSTILE, "machine": machine})
    payload = today.payload.model_copy(update={"root": "/tmp/eve"})
    hostile = wish.model_copy(update={"payload": payload, "run": today.run.model_copy(update={"attempts": 20})})
    made = resumed_config(today, replace(stored, config=hostile, ceiling_usd=Decimal(10**6)))
    assert made.alerts == today.alerts
    assert made.payload == today.payload
    assert made.budget == today.budget
    assert made.run.attempts <= today.run.attempts
    for name in ("service_account", "network", "image_project", "image_family"):
        assert getattr(made.machine, name) == getattr(today.machine, name)


def test_only_an_accepted_plan_chooses_machines_prices_and_what_counts_as_correct() -> None:
    today: Config = asked(TWO, "placement.max_usd_per_hour=3")
    wanted = ("placement.fallback_gpus=[h100]", "placement.on_demand_after=0", "machine.type=g2-standard-32",
              "machine.provisioning=standard", "correctness.max_abs_error=9", "environment.torch=1.0.0",
              "placement.max_usd_per_hour=99", "measure.repeats=7")  # fmt: skip
    stored = replace(accepted(today), config=asked(TWO, *wanted))
    kept, followed = resumed_config(today, stored), resumed_config(today, stored, accepted=True)
    assert kept.measure.repeats == followed.measure.repeats == 7
    assert kept.placement.max_usd_per_hour == followed.placement.max_usd_per_hour == 3
    assert [attrgetter(key)(kept) for key in CHOSEN] == [attrgetter(key)(today) for key in CHOSEN]
    assert [attrgetter(key)(followed) for key in CHOSEN] == [attrgetter(key)(stored.config) for key in CHOSEN]
    assert len(plan_differences(today, stored)) == 6
    assert plan_differences(today, accepted(today)) == ()


def test_every_key_of_a_configuration_is_measured_todays_own_or_a_choice_to_accept() -> None:
    """A new key that a stored plan could steer has to be put into one of these."""
    measured = {"gpu", "measure", "profile", "workload", "correctness.grid", "correctness.embedded_grid",
                "correctness.dtypes", "correctness.embedded_dtypes"}  # fmt: skip
    own = {"budget", "alerts", "payload", "host"}
    lower = {"run.max_minutes", "run.attempts", "placement.max_usd_per_hour"}
    todays = {"run.keep", "run.idle_minutes"} | {f"machine.{name}" for name in MachineSpec.model_fields}
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        for key in [name] if name in measured | own or not inner else [f"{name}.{one}" for one in inner]:
            assert key in measured | own | lower | todays | set(CHOSEN), key


# What a run's spec asked for, asked for once more.


RESULTS = Path(__file__).parents[3] / "results"
SPECS = sorted(RESULTS.glob("*/spec.json"))
CAPABILITY = {"l4": "8.9", "t4": "7.5", "h100": "9.0", "cpu": ""}
SETTINGS = (
    "measure.repeats=7", "measure.warmup=3", "measure.warmup=0", "measure.control=false", "measure.regime=graph",
    "measure.cache=warm", "measure.seed=4", "measure.threads=2", "measure.stop_at_relative_ci=0.01",
    "measure.implementations=[bench, fa4]", "measure.grid=smoke", "measure.dtypes=[float32]",
    "correctness.max_abs_error=0.5", "correctness.grid=smoke",
)  # fmt: skip


def spec_of(config: Config, mode: Mode = Mode.HOST) -> dict[str, Any]:
    """As the machine gets it: through JSON."""
    told: dict[str, Any] = json.loads(json.dumps(harness_settings(config, effective_grids(config, mode), mode)))
    return told


def planned_again(spec: dict[str, Any], capability: str) -> Config:
    return load(json.dumps(repeat_config(spec, capability)), source="repeat.yaml", grids=GRIDS)


@given(st.sampled_from(sorted(CAPABILITY)), st.lists(st.sampled_from(SETTINGS), max_size=6, unique=True))
def test_the_same_spec_comes_of_it(gpu: str, settings: list[str]) -> None:
    first = asked(f"gpu: {gpu}", *settings)
    second = planned_again(spec_of(first), CAPABILITY[gpu])
    assert second.gpu == gpu
    assert spec_of(second) == spec_of(first)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.parent.name)
def test_what_is_published_can_be_measured_again(path: Path) -> None:
    """By its grid and in its way; what a case might cost was this machine's affair, and where a run was in parts, all
    implementations of all parts are in it."""
    spec = json.loads(path.read_text())
    capability = json.loads((path.parent / "environment.json").read_text())["compute_capability"]
    told = spec_of(planned_again(spec, capability))
    assert sorted(told.pop("implementations")) == sorted(spec["implementations"])
    assert told == {key: spec[key] for key in told}
    assert set(spec) - set(told) == {"implementations", "run_id", "vm", "usd_per_hour", "case_budget_usd"}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"workload": {"form": "file", "path": "own/rmsnorm.py"}, "implementations": ["*"], "measure": {}},
        {"implementations": ["bench"], "measure": {"shapes": []}, "correctness": {}},
        {"implementations": [], "measure": {"shapes": [{}]}, "correctness": {}},
        {"implementations": "bench", "measure": {"shapes": [{}]}, "correctness": {}},
        {"implementations": ["bench"], "measure": [], "correctness": {}},
    ],
)
def test_a_spec_that_does_not_say_it_all_gives_none(spec: dict[str, Any]) -> None:
    assert repeat_config(spec, "9.0") == {}
