"""Laws of startup.sh: whatever happens, the last word is in the bucket and the VM deletes itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.patience import await_truth
from tests.unit.startup.bootstrapped import assert_left_properly, cloud_for
from tests.unit.startup.cloud import RUN
from tests.unit.startup.machine import CASES, SCRIPT, Machine, run_spec


def test_a_healthy_run_tells_its_story_stores_its_results_and_deletes_its_vm(tmp_path: Path) -> None:
    with cloud_for() as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 0
        assert_left_properly(cloud, "succeeded")
        machine.leaves_nothing()
        assert cloud.kinds()[0] == "vm_booted"
        phases = [data["phase"] for data in cloud.said("phase_finished")]
        assert phases == ["preflight", "environment", "build", "correctness", "measure", "finish"]
        for case in CASES:
            assert cloud.objects[f"runs/{RUN}/cases/{case}.csv"] == f"content of cases/{case}.csv\n".encode()
        log = cloud.artifact("log.txt")
        assert "finish: succeeded" in log
        assert log in machine.serial(), "the serial console shows what log.txt has"


def test_a_bucket_that_never_answers_does_not_keep_the_vm_alive(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 0.3, "hurried_finish_s": 0.3}, limits={"finish": 0.5}) as cloud:
        cloud.fail("/upload/", status=503, times=1e9)
        with Machine(cloud, tmp_path) as machine:
            assert machine.wait() != 0
            assert "the last word could not be stored" in machine.serial()
        assert cloud.deleted == 1


def test_a_bucket_back_after_the_agent_gave_up_gets_its_own_last_word(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 0.2}, limits={"finish": 0.4}) as cloud:
        cloud.fail("uploadType=multipart", status=503, times=1e9)
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "storage_unreachable"
        assert "vm_exiting" not in cloud.kinds()


def test_after_a_reboot_a_finished_run_only_deletes_its_vm(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        before = list(cloud.journal)
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert cloud.journal == [*before, "DELETE instance"]


def test_a_run_that_a_reboot_interrupted_begins_again_and_keeps_what_it_had(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"healthy": 1}, {"hang": 1}]}) as cloud:
        with Machine(cloud, tmp_path) as machine:
            await_truth(lambda: len(cloud.said("case_measured")) == 2)
        assert cloud.deleted == 0
        cloud.metadata["instance/attributes/bench-run"] = json.dumps(run_spec())
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert_left_properly(cloud, "succeeded")
        assert len(cloud.said("case_measured")) == 2, "a finished case is not measured again"
        sequence = [event["seq"] for event in cloud.events()]
        assert sequence == list(range(1, len(sequence) + 1)), "a writer never uses a number twice"


def test_a_crashing_agents_own_words_do_not_break_the_last_event(tmp_path: Path) -> None:
    evil = '"}} $(false) \\" `x` {"a": "'
    with cloud_for({"measure": [{"log": evil}, {"kill_parent": 1}]}) as cloud, Machine(cloud, tmp_path) as machine:
        machine.wait()
        assert_left_properly(cloud, "failed")


def test_the_script_is_clean_short_and_never_stops_at_an_error() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    found = subprocess.run([str(shellcheck), str(SCRIPT)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 150
    assert not any(line.strip().startswith("set -e") for line in lines)
