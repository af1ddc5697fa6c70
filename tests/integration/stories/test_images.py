"""Prepared images from seal to end, on simulated time: each story ends as documented, and its dollars are the meter's."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.config import load as configs
from orchestrator.core.config.model import Config, Workload
from orchestrator.core.errors import BudgetExceeded, ConfigError, ProviderError, RunFailed, Unavailable
from orchestrator.core.images import ImageRecord, image_name
from orchestrator.core.ledger.budget import Caps, counted_costs
from orchestrator.core.ledger.unlisted import outstanding_images
from orchestrator.core.naming import Mode
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.status import StatusLine, decode_status, paid_time
from orchestrator.runs.engine import World
from orchestrator.runs.image_builds import look_after_builds
from orchestrator.runs.images import (
    ImageWish,
    build_image,
    build_plan,
    reap_images,
    remove_image,
    survey_images,
    wish_of,
)  # fmt: skip
from orchestrator.runs.launch import LaunchContext, RunOrder
from orchestrator.runs.planning import RentedFrom, plan_on_cloud
from tests.integration.stories.stage import (
    GRIDS,
    PAYLOAD,
    RUN,
    SHEET,
    ZONES,
    Killed,
    Stage,
    good_vm,
    same_to_the_cent,
    staged,
    weather,
)
from tests.support.scripted_machines import Script, ScriptedVm, Steps

RENTED = RentedFrom(Mode.GCE, SHEET)
BUILD = "20261121-040000-cpu-0002"
FACTS = {"torch": "2.13.0", "driver": "580.95.05", "kernel": "6.8.0-1024-gcp"}


CITED_S = {"base": 215.0, "prepared": 75.0}
"""From the request to a machine that is ready, on a GPU of Google's, without and with an image of one's own: as
docs/images.md cites them."""


def machines(
    cold_s: float = CITED_S["base"], warm_s: float = CITED_S["prepared"], measuring: Script | None = None
) -> Script:
    """Machines that prepare an image where they are asked to, and otherwise measure: sooner on a prepared image."""
    measuring = measuring or good_vm()

    def script(vm: ScriptedVm) -> Steps:
        if "prepare" not in vm.spec:
            vm.put(
                f"runs/{vm.spec['run_id']}/artifacts/environment.json", b'{"torch": "2.13.0", "driver": "580.95.05"}'
            )
            yield warm_s if "bench-image-" in vm.guest.image else cold_s
            yield from measuring(vm)
            return
        vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": 1})
        yield 240
        vm.event("image_prepared", FACTS)
        for _ in range(200):
            yield 5
            if vm.read(f"runs/{vm.spec['run_id']}/sealed.json") is not None:
                break
        vm.event("finished", {"outcome": "succeeded", "exit_code": 0})
        vm.delete_self()
        yield 1

    return script


def config(gpu: str = "l4", *more: str) -> Config:
    places = f"zones=[{','.join(ZONES)}]" if gpu == "l4" else "zones=[us-central1-a]"
    settings = (places, "measure.repeats=2", "run.attempts=1", "machine.disk_gb=60", *more)
    return configs.load(f"gpu: {gpu}", source="story.yaml", overrides=settings, grids=GRIDS)


def planned(world: World, *more: str) -> LaunchPlan:
    return plan_on_cloud(world, config("l4", *more), "story", RENTED)


def built(stage: Stage, days: int = 14, run_id: str = BUILD, world: World | None = None) -> ImageRecord:
    world = world or stage.world()
    wish = wish_of(config(), world.cloud().image(*config().image_source), days)
    return build_image(world, order(stage, world, wish, run_id), wish)


def order(stage: Stage, world: World, wish: ImageWish, run_id: str) -> RunOrder:
    return RunOrder(run_id, small(world, wish), PAYLOAD, where(stage))


def small(world: World, wish: ImageWish) -> LaunchPlan:
    return build_plan(plan_on_cloud(world, config("cpu"), "image-l4", RENTED), wish)


def where(stage: Stage) -> LaunchContext:
    return LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)


def launched(stage: Stage, run_id: str = RUN) -> Run:
    world = stage.world()
    return stage.begin(world, planned(world), run_id).follow()


def storage(stage: Stage) -> tuple[Decimal, Decimal]:
    """What images cost: by the ledger, and by the meter."""
    ledger = stage.ledger()
    said = sum((cost.usd for cost in counted_costs(ledger).values() if cost.category == "image"), Decimal(0))
    now = stage.timeline.now()
    return said, sum((row.usd(now) for row in stage.cloud.bill().images), Decimal(0))


def nothing_left(stage: Stage) -> None:
    assert stage.cloud.instances() == []
    assert stage.cloud.images.documents() == []
    spent = sum((entry.spent for entry in stage.ledger().runs.values()), Decimal(0))
    billed = sum((Decimal(row["usd"]) for row in stage.bill()), Decimal(0))
    assert abs(spent - billed) < Decimal("0.005")
    said, metered = storage(stage)
    assert same_to_the_cent(said, metered)


def test_an_image_is_built_used_validated_and_taken_off_when_it_has_expired(home: Path) -> None:
    with staged(home, machines()) as stage:
        plain = launched(stage, "20261121-035900-l4-0001")
        record = built(stage)
        assert stage.cloud.instances() == []
        assert (record.kernel, record.run, record.validated_at) == (FACTS["kernel"], BUILD, None)
        plan = planned(stage.world())
        assert plan.image.endswith(record.name)
        assert any("this launch validates it: no run has passed the checks" in said for said in plan.notices)
        run = launched(stage)
        assert run.phase is Phase.SUCCEEDED
        assert run.image.endswith(record.name)
        lines = {one.run_id: decode_status(one.run_id, one.status) for one in stage.world().index.list_runs()}
        base, ready = lines[plain.run_id], lines[run.run_id]
        assert base is not None
        assert ready is not None
        assert 2 * ready.billed_start_s <= base.billed_start_s
        assert any(said.endswith("valid") for said in planned(stage.world()).notices)
        stage.timeline.advance(49 * 3600)
        again = planned(stage.world())
        assert any("it was validated 49 h ago" in said for said in again.notices)
        stage.timeline.advance(13 * 86_400)
        late = planned(stage.world())
        assert late.image == record.base
        assert any("it expired on" in said for said in late.notices)
        world = stage.world()
        found = survey_images(world)
        assert [one.why for one in found] == ["it has expired"]
        assert reap_images(world, found) == ((record.name,), ())
        assert survey_images(world) == ()
        nothing_left(stage)


def test_600_measurements_of_an_l4_are_half_of_the_paid_minutes_on_a_prepared_image(home: Path) -> None:
    """12 cases, 50 repeats each, with the seconds that docs/images.md adds up."""
    with staged(home, machines(measuring=good_vm(cases=12, seconds_each=165 / 12))) as stage:
        plain = launched(stage, "20261121-035900-l4-0001")
        record = built(stage)
        ready = launched(stage)
        shares = [paid_time(run, stage.timeline.now()).share or 0 for run in (plain, ready)]
        assert shares[0] < 0.5 <= shares[1]
        remove_image(stage.world(), record.name, ())
        nothing_left(stage)


def test_a_workload_boots_from_the_image_that_was_built_for_it_and_others_do_not(home: Path) -> None:
    own = config().model_copy(
        update={"workload": Workload(path="/x/rms.py", name="rms", cases=("n8",), needs=("pip triton==3.4",))}
    )
    with staged(home, machines()) as stage:
        world = stage.world()
        wish = wish_of(own, world.cloud().image(*own.image_source), 14)
        record = build_image(world, order(stage, world, wish, BUILD), wish)
        assert record.requirements == ("pip triton==3.4",)
        plan = plan_on_cloud(world, own, "story", RENTED)
        assert plan.image.endswith(record.name)
        others = planned(world)
        assert others.image == record.base
        assert any("made for a workload that needs pip triton==3.4" in said for said in others.notices)
        remove_image(world, record.name, ())
        nothing_left(stage)


def test_an_images_cost_is_held_until_its_expiry_and_corrected_when_it_goes_sooner(home: Path) -> None:
    with staged(home, machines()) as stage:
        record = built(stage)
        assert storage(stage)[0] == record.usd
        stage.timeline.advance(2 * 86_400)
        remove_image(stage.world(), record.name, [])
        assert storage(stage)[0] < record.usd
        nothing_left(stage)
        assert planned(stage.world()).image == record.base


def test_a_newer_base_or_another_torch_makes_an_image_stale_and_launches_say_so(home: Path) -> None:
    with staged(home, machines()) as stage:
        record = built(stage)
        shelf = stage.world().shelf
        assert shelf is not None
        assert planned(stage.world(), "environment.torch=2.14.0").image == record.base
        shelf.records.update(record.name, lambda one: one.model_copy(update={"base": "projects/p/global/images/older"}))
        plan = planned(stage.world())
        assert plan.image == record.base
        assert any("is newer" in said for said in plan.notices)
        assert not any(record.name in said for said in planned(stage.world(), "machine.prepared=false").notices)
        remove_image(stage.world(), record.name, [])
        nothing_left(stage)


def test_an_image_that_is_deleted_under_a_launch_costs_it_nothing_but_the_minutes(home: Path) -> None:
    with staged(home, machines()) as stage:
        record = built(stage)
        world = stage.world()
        plan = planned(world)
        weather(stage, {"fault": "image_vanishes"})
        run = stage.begin(world, plan, RUN).follow()
        assert (run.phase, stage.fired()) == (Phase.SUCCEEDED, [1])
        assert run.image == record.base
        assert run.replaced is not None
        assert len([row for row in stage.bill() if row["run_id"] == RUN]) == 1
        assert planned(stage.world()).image == record.base
        shelf = world.shelf
        assert shelf is not None
        with pytest.raises(ConfigError, match="boots from"):
            remove_image(world, record.name, [StatusLine(RUN, "running", image=record.name)])
        remove_image(world, record.name, [])
        nothing_left(stage)


@pytest.mark.parametrize(("fault", "error"), [("image_failed", ProviderError), ("image_pending", Unavailable)])
def test_an_image_that_fails_or_is_never_done_is_deleted_and_costs_nothing(
    home: Path, fault: str, error: type[Exception]
) -> None:
    with staged(home, machines()) as stage:
        weather(stage, {"fault": fault})
        with pytest.raises(error):
            built(stage)
        assert stage.fired() == [1]
        assert planned(stage.world()).base_image == ""
        nothing_left(stage)
        assert storage(stage)[0] == 0


def test_a_machine_that_never_gets_ready_makes_no_image(home: Path) -> None:
    def script(vm: ScriptedVm) -> Steps:
        vm.event("vm_booted", {"vm": vm.name, "attempt": 1})
        yield 5
        vm.event("finished", {"outcome": "failed", "exit_code": 1, "detail": "no torch"})
        vm.delete_self()
        yield 1

    with staged(home, script) as stage:
        with pytest.raises(RunFailed, match="no torch"):
            built(stage)
        nothing_left(stage)


def test_an_image_over_the_caps_is_refused_before_a_machine_is_asked_for(home: Path) -> None:
    with staged(home, machines()) as stage:
        with pytest.raises(BudgetExceeded, match="an image that is kept for 14 days can cost up to"):
            built(stage, world=stage.world(Caps(day=Decimal("1.00"))))
        assert stage.bill() == []
        nothing_left(stage)


def test_a_build_whose_run_was_guessed_gives_its_money_back(home: Path) -> None:
    with staged(home, machines()) as stage:
        stage.world().bucket.create(f"runs/{BUILD}/sealed.json", b"{}")
        with pytest.raises(ProviderError, match="stored before"):
            built(stage)
        assert storage(stage) == (0, 0)
        assert stage.ledger().runs == {}
        nothing_left(stage)


def test_the_run_of_a_build_is_the_one_that_its_client_began(home: Path) -> None:
    """A machine may store objects below a name that the name of the image could stand for too."""
    with staged(home, machines()) as stage:
        name = image_name("l4", BUILD)
        stamp, entropy = BUILD[:15], BUILD[-4:]
        stage.world().bucket.create(f"runs/{stamp}-a-{entropy}/events/x.json", b"{}")
        world, wish = (
            stage.world(dies_after=3),
            wish_of(config(), stage.world().cloud().image(*config().image_source), 14),
        )
        with pytest.raises(Killed):
            build_image(world, order(stage, world, wish, BUILD), wish)
        assert {build.run_id for build in look_after_builds(stage.world())} == {BUILD}
        stage.timeline.advance(7200)
        look_after_builds(stage.world())
        look_after_builds(stage.world())
        assert outstanding_images(stage.ledger()) == {}, name
