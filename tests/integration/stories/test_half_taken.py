"""A client that is interrupted between claiming a kept machine and saying so: the machine waits for the next launch, or
the run is measured on it; nobody is left at work for a run that was stopped, and it is paid for once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.driving import Driving, follow_to_end
from orchestrator.core.errors import PermissionDenied
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.slots import Slot
from orchestrator.runs.engine import World
from tests.integration.stories.keeping import kept_vm
from tests.integration.stories.stage import Killed, Stage, Struck, at_event, raises, staged
from tests.integration.stories.test_interrupted import Telling, own_ctrl_c
from tests.integration.stories.test_kept_machines import (
    NEXT,
    RUN,
    THIRD,
    assert_books_balance,
    keep,
    look_after_everything,
    passes,
)

__all__ = ["own_ctrl_c"]


def as_it_claims(stage: Stage, happens: Callable[[], None]) -> World:
    world = stage.world()
    return replace(world, bucket=Struck(world.bucket, "replace", happens, when="machines/"))  # type: ignore[arg-type]


as_it_says_so = at_event("MachineTaken", after=False)


def slot(stage: Stage) -> Slot:
    world = stage.world()
    (entry,) = world.bucket.list("machines/")
    blob = world.bucket.read(entry.name)
    found = Slot.parse(blob.data) if blob is not None else None
    assert found is not None
    return found


def launched(stage: Stage, world: World) -> tuple[Run, list[str]]:
    watch = Telling()
    run = follow_to_end(Driving(world, NEXT, lambda: stage.begin(world, stage.plan(), NEXT), watch, "ada"))
    return run, watch.said


@pytest.mark.parametrize("moment", [as_it_claims, as_it_says_so])
def test_ctrl_c_as_a_kept_machine_is_claimed_lets_the_next_launch_have_it(home: Path, moment: Any) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        run, _ = launched(stage, moment(stage, raises(KeyboardInterrupt)))
        assert run.phase is Phase.STOPPED
        found = slot(stage)
        assert (found.state, found.claim) == ("idle", None)
        third = stage.begin(stage.world(), stage.plan(), THIRD).follow()
        assert (third.phase, third.taken is not None) == (Phase.SUCCEEDED, True)
        assert len(stage.bill()) == 1
        look_after_everything(stage)
        assert_books_balance(stage)


@pytest.mark.parametrize("moment", [as_it_claims, as_it_says_so])
def test_ctrl_c_after_the_kept_machine_took_the_claim_detaches_from_a_live_run(home: Path, moment: Any) -> None:
    def interrupt_late() -> None:
        passes(stage, 20)
        assert slot(stage).state == "running"
        raise KeyboardInterrupt

    with staged(home, kept_vm()) as stage:
        keep(stage)
        run, said = launched(stage, moment(stage, interrupt_late))
        assert run.guest_of is not None
        assert run.closed is None
        assert "detached; the run continues" in said
        passes(stage, 120)
        look_after_everything(stage)
        ended = stage.look_after(NEXT)
        assert (ended.phase, ended.cases_done) == (Phase.SUCCEEDED, 3)
        assert len(stage.bill()) == 1
        assert_books_balance(stage)


def test_a_claim_that_cannot_be_recorded_is_taken_back_and_the_launch_says_why(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        world = as_it_says_so(stage, raises(PermissionDenied("the bucket says no", hint="ask its owner")))
        with pytest.raises(PermissionDenied, match=r"the bucket says no; run .* is ended and holds no money"):
            stage.begin(world, stage.plan(), NEXT)
        assert slot(stage).state == "idle"
        assert stage.look_after(NEXT).phase is Phase.STOPPED
        stage.look_after(RUN)
        assert_books_balance(stage)


def test_a_deaf_machine_is_given_back_too_and_ends_at_its_own_limit(home: Path) -> None:
    with staged(home, kept_vm(deaf=True)) as stage:
        keep(stage, "run.idle_minutes=2")
        assert launched(stage, as_it_claims(stage, raises(KeyboardInterrupt)))[0].phase is Phase.STOPPED
        assert slot(stage).state == "idle"
        passes(stage, 240)
        look_after_everything(stage)
        assert stage.look_after(RUN).phase is Phase.SUCCEEDED
        assert_books_balance(stage)


@pytest.mark.parametrize("moment", [as_it_claims, as_it_says_so])
@pytest.mark.parametrize("deaf", [False, True])
def test_a_client_killed_while_claiming_a_kept_machine_has_it_used_or_ended_once(
    home: Path, moment: Any, deaf: bool
) -> None:
    with staged(home, kept_vm(deaf=deaf)) as stage:
        keep(stage, "run.idle_minutes=2")
        with pytest.raises(Killed):
            stage.begin(moment(stage, raises(Killed)), stage.plan(), NEXT)
        assert slot(stage).state == "claimed"
        passes(stage, 300)
        look_after_everything(stage)
        assert stage.look_after(NEXT).phase is (Phase.STOPPED if deaf else Phase.SUCCEEDED)
        assert stage.look_after(RUN).phase is Phase.SUCCEEDED
        assert len(stage.bill()) == 1
        assert_books_balance(stage)
