"""After a run: why it failed is said, what its machine said is kept, and what nobody owns is deleted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from orchestrator.core.run import Phase
from orchestrator.embedded.scripted import ScriptedVm, Steps
from orchestrator.last_words import log_of, serial_object
from orchestrator.reaping import reap, survey
from tests.stories.stage import RUN, Stage, good_vm, lingering_vm, silent_vm, staged, weather


def mumbling_vm(vm: ScriptedVm) -> Steps:
    """A machine that never reaches the bucket, and says why on its serial port."""
    while True:
        vm.log("startup-script: bash: python3: command not found")
        yield 60


def left_alone(stage: Stage, seconds: float) -> None:
    """A run whose client is gone as soon as there is a machine."""
    engine = stage.begin(stage.world())
    while (vm := engine.step()[0].vm) is None or vm.started_at is None:
        pass
    stage.timeline.advance(seconds)


def test_what_a_silent_machine_said_on_its_serial_port_outlives_it_and_explains_the_end(home: Path) -> None:
    with staged(home, mumbling_vm) as stage:
        run = stage.launch()
        assert run.phase is Phase.FAILED
        (said,) = run.diagnoses
        assert said.cause == "no_python"
        assert "python3: command not found" in log_of(stage.world().bucket, RUN, 1)


def test_a_machine_is_deleted_though_its_serial_port_cannot_be_read(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        weather(stage, {"fault": "http", "service": "compute", "path": "serialPort", "status": 403})
        run = stage.launch()
        assert stage.fired() == [1]
        assert stage.cloud.instances() == []
        assert stage.world().bucket.read(serial_object(RUN, 1)) is None
        assert [said.cause for said in run.diagnoses] == ["no_boot"]


def test_a_run_without_capacity_is_diagnosed_as_one(home: Path) -> None:
    with staged(home) as stage:
        weather(stage, {"fault": "stockout", "times": 3})
        run = stage.launch()
        assert run.phase is Phase.NO_CAPACITY
        assert [said.cause for said in run.diagnoses] == ["stockout"]


def test_a_run_that_goes_well_has_no_diagnosis(home: Path) -> None:
    with staged(home) as stage:
        assert stage.launch().diagnoses == ()


def test_a_machine_at_work_is_not_reaped_though_its_client_is_gone(home: Path) -> None:
    with staged(home, good_vm(cases=5)) as stage:
        left_alone(stage, 100)
        world = stage.world()
        (finding,) = survey(world)
        assert not finding.orphan
        assert finding.usd_per_hour is not None
        assert finding.cost_usd is not None
        assert finding.cost_usd > 0
        assert reap(world, survey(world)) == 0
        assert stage.look_after().phase is Phase.SUCCEEDED


def test_a_machine_that_hangs_on_is_reaped_from_another_machine_and_its_run_settled(home: Path) -> None:
    with staged(home, lingering_vm) as stage:
        left_alone(stage, 300)
        world = stage.world()
        (finding,) = survey(world)
        assert finding.verdict.reason == "it finished but did not delete itself"
        assert reap(world, (finding,)) == 1
        assert stage.cloud.instances() == []
        assert stage.ledger().runs[RUN].held == 0
        assert survey(world) == ()


def test_a_machine_whose_run_was_deleted_from_the_bucket_is_found_and_reaped(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        left_alone(stage, 30)
        for folder in (stage.cloud.home / "objects").rglob("runs"):
            for path in sorted(folder.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
        world = stage.world()
        (finding,) = survey(world)
        assert finding.verdict.reason == f"there is no run {RUN} in this bucket"
        assert reap(world, (finding,)) == 1
        assert stage.cloud.instances() == []


def test_reaping_what_is_gone_already_is_success(home: Path) -> None:
    with staged(home, lingering_vm) as stage:
        left_alone(stage, 300)
        world = stage.world()
        findings = survey(world)
        assert (reap(world, findings), reap(world, findings)) == (1, 1)
        assert stage.cloud.instances() == []
        assert stage.timeline.now() - stage.timeline.start < timedelta(minutes=15)
