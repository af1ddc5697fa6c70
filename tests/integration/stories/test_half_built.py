"""A client that is interrupted or killed at any step of a build of an image: the next command sees what is left, ends
it, and gives back what was set aside; or finishes what was all but done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.ledger.unlisted import outstanding_images
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.orphans import Orphan
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.image_builds import look_after_builds
from orchestrator.runs.images import reap_images, remove_image, survey_images
from orchestrator.runs.reap import reap_orphans, survey_machines
from orchestrator.runs.reconcile import reconcile_holds
from tests.integration.stories.stage import Killed, Moment, Stage, Struck, at_event, raises, staged
from tests.integration.stories.test_images import BUILD, built, machines, nothing_left, storage

READY_S = 260
"""By when a machine of these stories is ready for the copy of its disk."""


def at_amount(stage: Stage, happens: Callable[[], None]) -> World:
    made = stage.world()
    return replace(made, accounts=Struck(made.accounts, "change", happens))  # type: ignore[arg-type]


def at_machine(*, after: bool) -> Moment:
    def world(stage: Stage, happens: Callable[[], None]) -> World:
        made, cloud = stage.world(), Struck(stage.world().cloud(), "insert", happens, after=after)
        return replace(made, cloud=lambda: cloud)  # type: ignore[arg-type,return-value]

    return world


def at_seal(*, after: bool) -> Moment:
    def world(stage: Stage, happens: Callable[[], None]) -> World:
        made = stage.world()
        assert made.shelf is not None
        images = Struck(made.shelf.cloud(), "seal", happens, after=after)
        return replace(made, shelf=replace(made.shelf, cloud=lambda: images))  # type: ignore[arg-type,return-value]

    return world


def at_object(part: str) -> Moment:
    """A client to which it happens right after it created such an object."""

    def world(stage: Stage, happens: Callable[[], None]) -> World:
        made = stage.world()
        bucket = Struck(made.bucket, "create", happens, when=part)
        assert made.shelf is not None
        records = type(made.shelf.records)(bucket, made.clock)  # type: ignore[arg-type]
        return replace(made, bucket=bucket, shelf=replace(made.shelf, records=records))  # type: ignore[arg-type]

    return world


UNMADE: dict[str, Moment] = {
    "the amount is set aside": at_amount,
    "the run is planned": at_event("RunPlanned"),
    "its hold is taken": at_event("BudgetHeld"),
    "its payload is stored": at_event("PayloadStored"),
    "a machine is about to be asked for": at_event("InstanceRequested"),
    "the request is on its way": at_machine(after=False),
    "the machine is made": at_machine(after=True),
    "the machine is recorded": at_event("InstanceCreated"),
    "the disk is about to be copied": at_event("SealRequested"),
    "the copy is asked for": at_seal(after=False),
}
MADE: dict[str, Moment] = {
    "the image is recorded": at_object("images/"),
    "its machine has heard": at_object("sealed.json"),
}


def run_of_build(stage: Stage) -> Run | None:
    engine = Engine(stage.world(), BUILD)
    return engine.look() if engine.log.read() else None


@pytest.mark.parametrize("moment", UNMADE.values(), ids=UNMADE)
def test_a_build_with_a_killed_client_is_ended_later_and_costs_no_storage(home: Path, moment: Any) -> None:
    with staged(home, machines()) as stage:
        with pytest.raises(Killed):
            built(stage, world=moment(stage, raises(Killed)))
        assert list(outstanding_images(stage.ledger())) == ["bench-image-l4-20261121-040000-0002"]
        (first,) = look_after_builds(stage.world())
        assert first.over is False
        passed = 0
        while outstanding_images(stage.ledger()):
            stage.timeline.advance(60)
            passed += 60
            reconcile_holds(stage.world())
            assert passed < READY_S + 1200, first
        assert storage(stage) == (0, 0)
        nothing_left(stage)
        run = run_of_build(stage)
        assert run is None or run.over
        assert all(entry.settled_usd is not None for entry in stage.ledger().runs.values())


@pytest.mark.parametrize("moment", UNMADE.values(), ids=UNMADE)
def test_ctrl_c_at_any_step_of_a_build_leaves_no_machine_and_no_money_held(home: Path, moment: Any) -> None:
    with staged(home, machines()) as stage:
        with pytest.raises(KeyboardInterrupt):
            built(stage, world=moment(stage, raises(KeyboardInterrupt)))
        assert outstanding_images(stage.ledger()) == {}
        nothing_left(stage)
        run = run_of_build(stage)
        assert run is None or run.phase is Phase.STOPPED


@pytest.mark.parametrize("death", [Killed, KeyboardInterrupt])
@pytest.mark.parametrize("moment", MADE.values(), ids=MADE)
def test_an_image_that_is_recorded_when_its_client_ends_is_made_and_paid_for_once(
    home: Path, moment: Any, death: type[BaseException]
) -> None:
    with staged(home, machines()) as stage:
        with pytest.raises(death):
            built(stage, world=moment(stage, raises(death)))
        for build in look_after_builds(stage.world()):
            assert (build.over, build.what) == (True, "it is made")
        assert outstanding_images(stage.ledger()) == {}
        assert stage.look_after(BUILD).phase is Phase.SUCCEEDED
        shelf = stage.world().shelf
        assert shelf is not None
        (record,), _ = shelf.records.every()
        assert storage(stage)[0] == record.usd
        remove_image(stage.world(), record.name, ())
        nothing_left(stage)


def test_ctrl_c_again_while_a_build_is_ended_leaves_the_rest_to_the_next_command(home: Path) -> None:
    with staged(home, machines()) as stage:
        world = at_event("InstanceCreated")(stage, raises(KeyboardInterrupt))
        cloud = Struck(stage.world().cloud(), "delete", raises(KeyboardInterrupt), after=False)
        with pytest.raises(KeyboardInterrupt):
            built(stage, world=replace(world, cloud=lambda: cloud))  # type: ignore[arg-type,return-value]
        assert len(stage.cloud.instances()) == 1
        reconcile_holds(stage.world())
        stage.look_after(BUILD)
        reconcile_holds(stage.world())
        assert outstanding_images(stage.ledger()) == {}
        nothing_left(stage)


def test_a_machine_that_is_ready_and_that_no_client_came_to_is_an_orphan_for_reap(home: Path) -> None:
    with staged(home, machines()) as stage:
        with pytest.raises(Killed):
            built(stage, world=at_event("InstanceCreated")(stage, raises(Killed)))
        stage.timeline.advance(READY_S)
        assert not isinstance(survey_machines(stage.world())[0].verdict, Orphan)
        stage.timeline.advance(120)
        world = stage.world()
        (finding,) = found = survey_machines(world)
        assert finding.verdict == Orphan("its disk is ready for an image, and no client came to copy it")
        assert reap_orphans(world, found).failed == ()
        look_after_builds(stage.world())
        assert outstanding_images(stage.ledger()) == {}
        assert Engine(stage.world(), BUILD).look().phase is Phase.STOPPED
        nothing_left(stage)


def test_the_client_that_builds_is_not_taken_for_gone_by_its_own_late_look(home: Path) -> None:
    """A laptop that slept while the machine got ready."""
    with staged(home, machines()) as stage:
        world = at_event("InstanceCreated")(stage, lambda: stage.timeline.advance(READY_S + 200))
        record = built(stage, world=world)
        assert storage(stage)[0] == record.usd
        remove_image(stage.world(), record.name, ())
        nothing_left(stage)


class OldLog:
    """A run's log as a client writes it that knows of no `seal_requested`."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def append(self, fact: ev.Fact, *more: Any, **named: Any) -> Any:
        if isinstance(fact, ev.SealRequested):
            return None
        if isinstance(fact, ev.RunPlanned):
            fact = fact.model_copy(update={"seals": False})
        return self.real.append(fact, *more, **named)


def test_an_older_clients_build_that_does_not_tell_of_a_disk_copy_is_left_to_it(home: Path) -> None:
    with staged(home, machines()) as stage:

        def others_look() -> None:
            stage.timeline.advance(150)
            (finding,) = found = survey_machines(stage.world())
            assert not isinstance(finding.verdict, Orphan)
            assert reap_orphans(stage.world(), found).gone == ()
            reconcile_holds(stage.world())
            assert Engine(stage.world(), BUILD).catch_up().closed is None
            assert [vm["status"] for vm in stage.cloud.instances()] == ["RUNNING"]

        world = at_seal(after=False)(stage, others_look)
        record = built(stage, world=replace(world, log=lambda run_id: OldLog(stage.world().log(run_id))))
        assert Engine(stage.world(), BUILD).look().phase is Phase.SUCCEEDED
        assert storage(stage)[0] == record.usd
        remove_image(stage.world(), record.name, ())
        nothing_left(stage)


def test_an_amount_under_a_name_of_no_run_is_kept_while_its_image_exists(home: Path) -> None:
    """Older clients gave images names of their own."""
    with staged(home, machines()) as stage:
        with pytest.raises(Killed):
            built(stage, world=at_seal(after=True)(stage, raises(Killed)))
        name, world = "bench-image-l4-20261121-040000-0002", stage.world()
        stage.timeline.advance(timedelta(minutes=20).total_seconds())
        stage.delete_objects(f"runs/{BUILD}")
        (build,) = look_after_builds(world)
        assert (build.run_id, build.over) == ("", False)
        assert list(outstanding_images(stage.ledger())) == [name]
        assert world.shelf is not None
        world.shelf.cloud().delete(name)
        assert [one.over for one in look_after_builds(stage.world())] == [True]
        assert outstanding_images(stage.ledger()) == {}


def test_the_machine_of_an_older_client_that_died_ends_by_itself(home: Path) -> None:
    with staged(home, machines()) as stage:
        made = at_event("InstanceCreated")(stage, raises(Killed))
        with pytest.raises(Killed):
            built(stage, world=replace(made, log=lambda run_id: OldLog(made.log(run_id))))
        stage.timeline.advance(READY_S + 1200)
        for _ in range(2):
            reconcile_holds(stage.world())
        assert outstanding_images(stage.ledger()) == {}
        assert all(entry.settled_usd is not None for entry in stage.ledger().runs.values())
        nothing_left(stage)


def test_an_unrecorded_image_of_a_killed_client_is_deleted_and_its_amount_returned(
    home: Path,
) -> None:
    with staged(home, machines()) as stage:
        with pytest.raises(Killed):
            built(stage, world=at_seal(after=True)(stage, raises(Killed)))
        (first,) = look_after_builds(stage.world())
        assert (first.run_id, first.over) == (BUILD, False)
        stage.timeline.advance(timedelta(minutes=32).total_seconds())
        (second,) = look_after_builds(stage.world())
        assert second.what == "what is left of it is deleted by `bench reap --yes`"
        assert stage.cloud.instances() == []
        world = stage.world()
        assert reap_images(world, survey_images(world)) == (("bench-image-l4-20261121-040000-0002",), ())
        assert [one.over for one in look_after_builds(stage.world())] == [True]
        assert storage(stage)[0] == 0


def test_an_image_that_the_caps_do_not_allow_leaves_no_run_and_no_amount(home: Path) -> None:
    with staged(home, machines()) as stage:
        with pytest.raises(BudgetExceeded):
            built(stage, world=stage.world(Caps(day=stage.plan().ceiling_usd * 0)))
        assert outstanding_images(stage.ledger()) == {}
        assert run_of_build(stage) is None
