"""How startup.sh ends a run whose agent is killed, hangs, is told to stop or is preempted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S, await_truth
from tests.unit.startup.bootstrapped import assert_left_properly, boot, cloud_for
from tests.unit.startup.machine import Machine, stub


def test_an_agent_that_is_killed_still_gets_a_last_word_and_its_harness_dies_with_it(tmp_path: Path) -> None:
    script = {"measure": [{"healthy": 1}, {"kill_parent": 1}]}
    with cloud_for(script) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 128 + signal.SIGKILL
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[-1]["cause"] == "agent_crashed"
        assert cloud.said("vm_exiting") == [{"outcome": "failed", "exit_code": 137}]
        assert len(cloud.said("case_measured")) == 2, "what was measured before is kept"
        machine.leaves_nothing()


def test_events_that_a_killed_agent_could_not_deliver_are_delivered_by_the_bootstrap(tmp_path: Path) -> None:
    script = {"build": [{"log": "about to die"}, {"kill_parent": 1}]}
    with cloud_for(script) as cloud:

        def agent_is_cut_off(name: str) -> None:
            if name.endswith("-environment_recorded.json"):
                cloud.fail("uploadType=multipart", status=503, times=1e9)

        cloud.on_stored = agent_is_cut_off
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "failed")
        vm = [event for event in cloud.events() if event["writer"].startswith("vm-1-")]
        assert [event["seq"] for event in vm] == list(range(1, len(vm) + 1)), "no event is missing"
        assert [data["phase"] for data in cloud.said("phase_started")][-1] == "build"


def test_the_watchdog_ends_a_hanging_run_ahead_of_the_deadline(tmp_path: Path) -> None:
    script = {"measure": [{"deaf": 1}, {"hang": 1}]}
    with cloud_for(script) as cloud, Machine(cloud, tmp_path).hold_time() as machine:
        await_truth(lambda: "measure" in [data["phase"] for data in cloud.said("phase_started")])
        machine.time_is_up()
        assert machine.wait() == 124
        assert_left_properly(cloud, "timed_out")
        assert cloud.said("diagnosed")[-1]["cause"] == "deadline"
        machine.leaves_nothing()


def test_the_watchdog_kills_an_agent_that_no_longer_listens_and_never_the_script(tmp_path: Path) -> None:
    script = {"environment": [{"hang": 1}]}
    with cloud_for(script) as cloud, Machine(cloud, tmp_path).hold_time() as machine:
        await_truth(lambda: "environment" in [data["phase"] for data in cloud.said("phase_started")])
        os.kill(machine.await_file("worker"), signal.SIGSTOP)
        machine.time_is_up()
        machine.wait()
        assert_left_properly(cloud, "timed_out")
        assert cloud.said("diagnosed")[-1]["cause"] == "deadline"
        assert cloud.said("vm_exiting")[0]["outcome"] == "timed_out"


def test_a_deadline_that_passes_during_the_download_ends_the_run_too(tmp_path: Path) -> None:
    with cloud_for(deadline_s=2) as cloud:
        cloud.fail("alt=media", until=cloud.closing, times=9)
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "timed_out")
        assert cloud.said("diagnosed")[0]["cause"] == "deadline"


def test_term_ends_the_run_as_terminated(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"healthy": 1}, {"hang": 1}]}) as cloud, Machine(cloud, tmp_path) as machine:
        await_truth(lambda: len(cloud.said("case_measured")) == 2)
        os.killpg(machine.process.pid, signal.SIGTERM)
        assert machine.wait() == 143
        assert_left_properly(cloud, "terminated")
        assert cloud.said("finished")[0]["phase"] == "measure"


def test_term_before_the_agent_has_started_is_obeyed(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("alt=media", until=cloud.closing, times=9)
        with Machine(cloud, tmp_path) as machine:
            await_truth(lambda: any("alt=media" in line for line in cloud.requests))
            os.kill(machine.process.pid, signal.SIGTERM)
            machine.wait()
        assert_left_properly(cloud, "terminated")
        assert cloud.said("diagnosed") == []


@pytest.mark.parametrize(
    "key", ["instance/name", "instance/zone", "project-id", "bench-endpoints", "bench-run", "bench-payload"]
)
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_term_while_metadata_is_read_is_obeyed(tmp_path: Path, key: str, send: Callable[[int, int], None]) -> None:
    """A trap that bash 5.2 has due while it expands a second `$(...)` of one command is lost. A signal to the group also
    ends the request."""
    with cloud_for() as cloud:
        answered = threading.Event()
        fault = cloud.fail(key, until=answered)
        with Machine(cloud, tmp_path) as machine:
            await_truth(lambda: any(key in line for line in cloud.requests))
            send(machine.process.pid, signal.SIGTERM)
            answered.set()
            assert machine.wait() == 143
        assert fault.fired == 1
        assert_left_properly(cloud, "terminated")
        assert cloud.said("diagnosed") == []
        assert "unexpected" not in machine.serial()


def test_a_step_that_is_ended_by_term_is_not_called_a_failure(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        machine = Machine(cloud, tmp_path)
        stub(machine.bin, "sha256sum", f"touch {tmp_path}/hashing; exec sleep 3600")
        with machine:
            await_truth((tmp_path / "hashing").exists)
            os.killpg(machine.process.pid, signal.SIGTERM)
            assert machine.wait() == 143
        assert_left_properly(cloud, "terminated")
        assert cloud.said("diagnosed") == []


def test_term_while_python_is_installed_is_not_called_a_failure_to_install_it(tmp_path: Path) -> None:
    with cloud_for(environment={"torch": "2.13.0", "allow_install": True, "min_free_gb": 0}) as cloud:
        machine = Machine(cloud, tmp_path)
        stub(machine.bin, "python3", "exit 1")
        stub(machine.bin, "apt-get", f"touch {tmp_path}/installing; exec sleep 3600")
        with machine:
            await_truth((tmp_path / "installing").exists)
            os.kill(machine.process.pid, signal.SIGTERM)
            assert machine.wait() == 143
        assert_left_properly(cloud, "terminated")
        assert cloud.said("diagnosed") == []


def test_a_preempted_vm_says_so_and_goes_within_its_notice(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"healthy": 1}, {"deaf": 1}, {"hang": 1}]}) as cloud:
        with Machine(cloud, tmp_path) as machine:
            await_truth(lambda: len(cloud.said("case_measured")) == 2)
            began = time.monotonic()
            cloud.preempt()
            assert machine.wait() == 143
            assert time.monotonic() - began < PATIENCE_S
            machine.leaves_nothing()
        assert_left_properly(cloud, "preempted")
        assert len(cloud.said("preempted")) == 1


def test_preemption_before_the_agent_has_started_is_called_preemption(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("alt=media", until=cloud.closing, times=9)
        with Machine(cloud, tmp_path) as machine:
            await_truth(lambda: any("alt=media" in line for line in cloud.requests))
            cloud.preempt()
            os.kill(machine.process.pid, signal.SIGTERM)
            machine.wait()
        assert_left_properly(cloud, "preempted")
