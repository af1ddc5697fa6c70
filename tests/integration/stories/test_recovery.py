"""Machines that are taken back: another one goes on, nothing is measured twice, and the books stay right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.run.fold import Phase
from tests.integration.stories.recovering import CASES, THREE, assert_sound, careful_vm
from tests.integration.stories.stage import RUN, staged, weather

MOMENTS: dict[str, dict[str, Any]] = {
    "with notice, while it measures": {"at": {"case": 3}, "notice_s": 30},
    "at once, while it measures": {"at": {"case": 3}, "notice_s": 0},
    "70 s after it runs, with notice": {"at": {"seconds": 70}, "notice_s": 30},
    "before its first word": {"at": {"seconds": 1}, "notice_s": 0},
    "while it builds": {"at": {"phase": "build"}, "notice_s": 0},
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_machine_preempted_at_any_moment_is_replaced_and_nothing_measured_twice(
    home: Path, moment: dict[str, Any]
) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", **moment})
        run = stage.launch(THREE)
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert stage.fired() == [1]
        assert [vm.attempt for vm in run.vms] == [1, 2]
        assert run.vms[0].zone != run.vms[1].zone
        assert_sound(stage, run)


def test_a_machine_that_vanishes_without_a_trace_is_replaced(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "lost", "at": {"case": 4}})
        run = stage.launch(THREE)
        assert (run.phase, run.cases_done, len(run.vms)) == (Phase.SUCCEEDED, CASES, 2)
        assert_sound(stage, run)


def test_a_case_that_was_stored_but_never_told_of_counts_and_is_not_measured_again(home: Path) -> None:
    with staged(home, careful_vm(loses_word_of="case-3")) as stage:
        engine = stage.begin(stage.world(), stage.plan(THREE))
        while not stage.world().bucket.list(f"runs/{RUN}/cases/case-3"):
            _, pause = engine.step()
            stage.timeline.advance(pause)
        assert engine.look().cases_done == 2
        vm = engine.look().vm
        assert vm is not None
        assert stage.cloud.preempt(vm.name, 0)
        run = engine.follow()
        assert (run.phase, run.cases_done, len(run.measured)) == (Phase.SUCCEEDED, CASES, CASES - 1)
        assert_sound(stage, run)


def test_when_the_last_machine_dies_before_it_told_of_a_case_the_files_are_counted(home: Path) -> None:
    with staged(home, careful_vm(loses_word_of="case-2")) as stage:
        weather(stage, {"fault": "preempt", "at": {"seconds": 150}, "notice_s": 0})
        run = stage.launch("run.attempts=1")
        assert (run.phase, run.cases_done, len(run.measured)) == (Phase.PREEMPTED, 2, 1)
        assert_sound(stage, run)


def test_when_every_machine_is_taken_back_the_run_ends_within_its_hold(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"seconds": 70}, "notice_s": 0, "times": 5})
        run = stage.launch(THREE)
        assert (run.phase, len(run.vms)) == (Phase.PREEMPTED, 3)
        assert stage.fired() == [3]
        assert_sound(stage, run)


def test_when_no_zone_has_another_machine_the_run_says_both(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        engine = stage.begin(stage.world(), stage.plan(THREE))
        while engine.step()[0].cases_done < 2:
            stage.timeline.advance(5)
        weather(stage, {"fault": "stockout", "times": 9})
        vm = engine.look().vm
        assert vm is not None
        stage.cloud.preempt(vm.name, 0)
        run = engine.follow()
        assert run.phase is Phase.PREEMPTED
        assert run.closed is not None
        assert "was preempted" in run.closed.detail
        assert "no machine in 3 zones" in run.closed.detail
        assert_sound(stage, run)


def test_once_enough_spot_machines_were_taken_back_one_on_demand_is_asked_for(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"seconds": 70}, "notice_s": 0, "times": 2})
        run = stage.launch(THREE, "placement.on_demand_after=2")
        assert [vm.provisioning for vm in run.vms] == ["SPOT", "SPOT", "STANDARD"]
        assert run.phase is Phase.SUCCEEDED
        assert_sound(stage, run)
