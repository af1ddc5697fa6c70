"""A client that is interrupted, killed or refused between two steps of a beginning leaves no money held for nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.outcome import error_of
from orchestrator.cli.driving import Driving, follow_to_end
from orchestrator.core.errors import BudgetExceeded, LocalError, PermissionDenied, Unavailable
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.naming import run_of
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.status import decode_status
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import PayloadSource
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.runs.resume import resume_run
from tests.integration.stories.keeping import kept_vm
from tests.integration.stories.recovering import careful_vm, where
from tests.integration.stories.stage import (
    PAYLOAD,
    RUN,
    Killed,
    Stage,
    Struck,
    good_vm,
    raises,
    same_to_the_cent,
    staged,
    weather,
)
from tests.integration.stories.test_interrupted import Telling, own_ctrl_c
from tests.integration.stories.test_kept_machines import NEXT, keep

__all__ = ["own_ctrl_c"]
AGAIN = f"{RUN}+1"


def cut_short(stage: Stage) -> Run:
    """A run that lost its machine after a case and is over."""
    weather(stage, {"fault": "preempt", "at": {"case": 2}, "notice_s": 0})
    run = stage.launch()
    assert run.phase is Phase.PREEMPTED
    weather(stage)
    return run


def resumed(stage: Stage, world: World, payload: PayloadSource = PAYLOAD) -> Engine:
    return resume_run(world, stage.plan(), run_id=RUN, where=where(stage), fresh=lambda: payload)


def held(stage: Stage) -> list[str]:
    return [key for key, entry in stage.ledger().runs.items() if entry.settled_usd is None]


def assert_paid_as_billed(stage: Stage, run_id: str = RUN) -> None:
    assert held(stage) == []
    assert stage.cloud.instances() == []
    entries = stage.ledger().runs.items()
    spent = sum((entry.spent for key, entry in entries if run_of(key) == run_id), Decimal(0))
    assert same_to_the_cent(spent, stage.billed(run_id))


def listed(stage: Stage) -> str:
    """What `bench status` says of the run without looking at its events."""
    (one,) = stage.world().index.list_runs()
    line = decode_status(one.run_id, one.status)
    assert line is not None
    return line.phase


# --- a resumption ----------------------------------------------------------------------------------------------------


def dies_at_the_ledger(stage: Stage, death: type[BaseException], *, stored: bool) -> World:
    """A client that ends as it changes the ledger: before that is stored, or right after it."""
    world = stage.world()
    accounts = world.accounts

    class Mortal:
        caps = accounts.caps
        ledger = accounts.ledger
        clock = accounts.clock

        def change(self, change: Callable[[Ledger], Any]) -> Any:
            if stored:
                accounts.change(change)
            raise death

    return replace(world, accounts=Mortal())  # type: ignore[arg-type]


DEATHS: dict[str, Callable[[Stage], World]] = {
    "at its first event": lambda stage: stage.world(dies_after=1),
    "before the hold is stored": lambda stage: dies_at_the_ledger(stage, Killed, stored=False),
    "after the hold is stored": lambda stage: dies_at_the_ledger(stage, Killed, stored=True),
    "at its second event": lambda stage: stage.world(dies_after=2),
}


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS)
def test_a_resumption_with_a_killed_client_is_an_open_run_and_ended_like_any(
    home: Path, death: Callable[[Stage], World]
) -> None:
    with staged(home, careful_vm()) as stage:
        cut_short(stage)
        with pytest.raises(Killed):
            resumed(stage, death(stage))
        run = Engine(stage.world(), RUN).look()
        assert (run.phase, run.generation) == (Phase.PROVISIONING, 1)
        assert held(stage) in ([], [AGAIN])
        stage.timeline.advance(200)
        reconcile_holds(stage.world())
        assert_paid_as_billed(stage)
        ended = stage.look_after()
        assert (ended.phase, ended.cases_done) == (Phase.STOPPED, 1)
        assert_paid_as_billed(stage)


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS)
def test_a_resumption_whose_client_was_killed_goes_on_at_once_under_one_hold(
    home: Path, death: Callable[[Stage], World]
) -> None:
    with staged(home, careful_vm()) as stage:
        cut_short(stage)
        with pytest.raises(Killed):
            resumed(stage, death(stage))
        engine = resumed(stage, stage.world())
        assert held(stage) == [AGAIN]
        assert engine.follow().phase is Phase.SUCCEEDED
        assert set(stage.ledger().runs) == {RUN, AGAIN}
        assert_paid_as_billed(stage)


def test_a_resumption_whose_client_was_killed_is_stopped_at_once(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        cut_short(stage)
        with pytest.raises(Killed):
            resumed(stage, stage.world(dies_after=2))
        assert (held(stage), listed(stage)) == ([AGAIN], "provisioning")
        engine = Engine(stage.world(), RUN)
        engine.request_stop("ada", "enough")
        began = stage.timeline.now()
        assert engine.follow().phase is Phase.STOPPED
        assert (stage.timeline.now() - began).total_seconds() < 5
        assert_paid_as_billed(stage)


@pytest.mark.parametrize("stored", [False, True], ids=["before its hold is stored", "after its hold is stored"])
def test_ctrl_c_as_a_resumption_takes_its_hold_leaves_no_money_held(home: Path, stored: bool) -> None:
    with staged(home, careful_vm()) as stage:
        cut_short(stage)
        world, looker = dies_at_the_ledger(stage, KeyboardInterrupt, stored=stored), stage.world()
        run = follow_to_end(Driving(looker, RUN, lambda: resumed(stage, world), Telling(), "ada"))
        assert (run.phase, run.generation) == (Phase.STOPPED, 1)
        assert_paid_as_billed(stage)


def test_ctrl_c_right_after_a_resumption_is_recorded_leaves_no_money_held(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        cut_short(stage)
        world = stage.world(dies_after=1)
        log = world.log(RUN)
        log.death = KeyboardInterrupt  # type: ignore[attr-defined]
        begins = replace(world, log=lambda _: log)
        run = follow_to_end(Driving(stage.world(), RUN, lambda: resumed(stage, begins), Telling(), "ada"))
        assert (run.phase, run.generation) == (Phase.STOPPED, 1)
        assert_paid_as_billed(stage)


def test_a_refused_resumption_of_a_run_that_is_under_way_leaves_it_under_way(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        engine, _ = stage.with_a_machine()
        with pytest.raises(BudgetExceeded):
            resumed(stage, stage.world(Caps(run=Decimal("0.01"))))
        assert engine.look().closed is None
        assert engine.follow().phase is Phase.SUCCEEDED
        assert_paid_as_billed(stage)


def test_a_guest_resumed_twice_is_held_for_before_it_asks_for_a_machine(home: Path) -> None:
    """It once was on a kept machine; the client that resumed it first was killed before it held anything."""
    with staged(home, kept_vm(cases=4, seconds_each=40)) as stage:
        weather(stage, {"fault": "preempt", "notice_s": 30, "at": {"seconds": 300}})
        keep(stage)
        guest = stage.begin(stage.world(), stage.plan(), NEXT).follow()
        assert (guest.phase, guest.taken is not None) == (Phase.PREEMPTED, True)

        def again(world: World) -> Engine:
            return resume_run(world, stage.plan(), run_id=NEXT, where=where(stage), fresh=lambda: PAYLOAD)

        with pytest.raises(Killed):
            again(stage.world(dies_after=1))
        engine = again(stage.world())
        assert f"{NEXT}+1" in held(stage)
        engine.follow(until=lambda run: run.current.booted_at is not None)
        engine.request_stop("ada", "enough")
        assert engine.follow().phase is Phase.STOPPED
        stage.look_after()
        assert stage.ledger().runs[f"{NEXT}+1"].spent > 0
        assert_paid_as_billed(stage, NEXT)


# --- a beginning that fails after its hold was taken -----------------------------------------------------------------


UPLOADS = {"fault": "http", "service": "storage", "method": "POST", "path": "upload", "status": 403}


def stricken(stage: Stage, happens: Callable[[], None], prefix: str = "payloads/") -> World:
    """A client to which it happens right before that object is stored."""
    world, call = stage.world(), "create" if prefix.endswith("/") else "replace"
    return replace(world, bucket=Struck(world.bucket, call, happens, when=prefix, after=False))  # type: ignore[arg-type]


def refusing(stage: Stage, times: int = 1, prefix: str = "payloads/") -> World:
    """The bucket itself says 403 to that object, and to what is stored after it."""
    return stricken(stage, lambda: weather(stage, {**UPLOADS, "times": times}), prefix)


def test_a_refused_payload_ends_the_launch_and_returns_its_hold_at_once(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        with pytest.raises(PermissionDenied, match=f"payloads/.*; run {RUN} is ended and holds no money") as told:
            stage.begin(refusing(stage))
        assert (told.value.exit_code, stage.fired()) == (6, [1])
        run = Engine(stage.world(), RUN).look()
        assert (run.phase, listed(stage), stage.bill()) == (Phase.STOPPED, "stopped", [])
        assert run.closed is not None
        assert run.closed.detail.startswith("it could not begin: ")
        assert_paid_as_billed(stage)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("the network is gone", hint="try again"), "the network is gone; run .* holds no money"),
        (LocalError("cannot write here"), "cannot write here; run .* holds no money"),
        (OSError(28, "No space left on device"), "No space left on device$"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_whatever_keeps_a_payload_from_storage_ends_the_launch_in_its_class(
    home: Path, error: Exception, said: str
) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        with pytest.raises(type(error), match=said) as told:
            stage.begin(stricken(stage, raises(error)))
        assert getattr(told.value, "hint", "") == getattr(error, "hint", "")
        assert Engine(stage.world(), RUN).look().phase is Phase.STOPPED
        assert_paid_as_billed(stage)


def test_an_unstored_payload_ends_a_resumption_and_returns_its_hold_at_once(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(Killed):
            stage.begin(stage.world(dies_after=2))
        stage.timeline.advance(200)
        assert stage.look_after().payload is None
        with pytest.raises(PermissionDenied, match="holds no money"):
            resumed(stage, refusing(stage))
        assert stage.fired() == [1]
        assert Engine(stage.world(), RUN).look().phase is Phase.STOPPED
        assert_paid_as_billed(stage)
        assert resumed(stage, stage.world()).follow().phase is Phase.SUCCEEDED
        assert_paid_as_billed(stage)


def test_a_plan_that_cannot_be_stored_ends_the_launch_before_money_is_held(stage: Stage) -> None:
    with pytest.raises(PermissionDenied, match="is ended and holds no money"):
        stage.begin(refusing(stage, prefix="plan.json"))
    assert stage.fired() == [1]
    assert Engine(stage.world(), RUN).look().phase is Phase.STOPPED
    assert_paid_as_billed(stage)


def test_a_launch_whose_bucket_takes_nothing_any_more_says_what_gives_its_hold_back(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        with pytest.raises(PermissionDenied, match="may still hold money: `bench status` gives that back"):
            stage.begin(refusing(stage, times=500))
        assert stage.fired()[0] > 1
        assert held(stage) == [RUN]
        weather(stage)
        stage.timeline.advance(200)
        reconcile_holds(stage.world())
        assert_paid_as_billed(stage)


@pytest.mark.parametrize("overrides", [(), ("run.attempts=3",)])
def test_a_client_that_may_not_ask_for_machines_holds_no_money_once_it_was_told(
    stage: Stage, overrides: tuple[str, ...]
) -> None:
    fault = {"fault": "http", "service": "compute", "method": "POST", "path": r"/instances\?", "status": 403}
    weather(stage, fault)
    run = stage.launch(*overrides)
    assert stage.fired() == [1]
    assert run.phase is Phase.FAILED
    error = error_of(run)
    assert error is not None
    assert error.exit_code == 6
    assert "cannot create the VM" in str(error)
    assert_paid_as_billed(stage)
