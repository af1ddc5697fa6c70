"""A client that is interrupted, killed or refused between two steps of a beginning leaves no money held for nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.outcome import error_of
from orchestrator.core.errors import LocalError, PermissionDenied, Unavailable
from orchestrator.core.run.fold import Phase
from orchestrator.core.run.status import decode
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import Payload
from orchestrator.runs.reconcile import reconcile
from orchestrator.runs.resume import resume
from tests.stories.stage import PAYLOAD, RUN, Killed, Stage, good_vm, same_to_the_cent, staged, weather
from tests.stories.test_recovery import careful_vm, where


def resumed(stage: Stage, world: World, payload: Payload = PAYLOAD) -> Engine:
    return resume(world, stage.plan(), run_id=RUN, where=where(stage), fresh=lambda: payload)


def held(stage: Stage) -> list[str]:
    return [key for key, entry in stage.ledger().runs.items() if entry.settled_usd is None]


def assert_paid_as_billed(stage: Stage) -> None:
    assert held(stage) == []
    assert stage.cloud.instances() == []
    spent = sum((entry.spent for entry in stage.ledger().runs.values()), Decimal(0))
    assert same_to_the_cent(spent, stage.billed())


def listed(stage: Stage) -> str:
    """What `bench status` says of the run without looking at its events."""
    (one,) = stage.world().index.list_runs()
    line = decode(one.run_id, one.status)
    assert line is not None
    return line.phase


# --- a beginning that fails after its hold was taken -----------------------------------------------------------------


class Stricken:
    """A bucket to which something happens right before a certain object is stored."""

    def __init__(self, bucket: Any, prefix: str, happens: Callable[[], None]) -> None:
        self.bucket, self.prefix, self.happens = bucket, prefix, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bucket, name)

    def create(self, name: str, *args: Any, **named: Any) -> Any:
        if name.startswith(self.prefix):
            self.happens()
        return self.bucket.create(name, *args, **named)

    def replace(self, name: str, *args: Any, **named: Any) -> Any:
        if name.endswith(self.prefix):
            self.happens()
        return self.bucket.replace(name, *args, **named)


UPLOADS = {"fault": "http", "service": "storage", "method": "POST", "path": "upload", "status": 403}


def stricken(stage: Stage, happens: Callable[[], None], prefix: str = "payloads/") -> World:
    world = stage.world()
    return replace(world, bucket=Stricken(world.bucket, prefix, happens))


def refusing(stage: Stage, times: int = 1, prefix: str = "payloads/") -> World:
    """The bucket itself says 403 to that object, and to what is stored after it."""
    return stricken(stage, lambda: weather(stage, {**UPLOADS, "times": times}), prefix)


def raises(error: Exception) -> Callable[[], None]:
    def happens() -> None:
        raise error

    return happens


def test_a_payload_that_the_bucket_refuses_ends_the_launch_and_its_hold_is_given_back_at_once(home: Path) -> None:
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
def test_whatever_keeps_a_payload_from_being_stored_ends_the_launch_and_keeps_its_class(
    home: Path, error: Exception, said: str
) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        with pytest.raises(type(error), match=said) as told:
            stage.begin(stricken(stage, raises(error)))
        assert getattr(told.value, "hint", "") == getattr(error, "hint", "")
        assert Engine(stage.world(), RUN).look().phase is Phase.STOPPED
        assert_paid_as_billed(stage)


def test_a_payload_that_cannot_be_stored_ends_a_resumption_and_its_hold_is_given_back_at_once(home: Path) -> None:
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


def test_a_plan_that_cannot_be_stored_ends_the_launch_before_money_is_held(home: Path) -> None:
    with staged(home) as stage:
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
        reconcile(stage.world())
        assert_paid_as_billed(stage)


@pytest.mark.parametrize("overrides", [(), ("run.attempts=3",)])
def test_a_client_that_may_not_ask_for_machines_holds_no_money_once_it_was_told(
    home: Path, overrides: tuple[str, ...]
) -> None:
    with staged(home) as stage:
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
