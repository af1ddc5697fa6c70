"""How the agent ends when it is preempted, told to stop or out of time."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from startup.agent.__main__ import Conductor, main
from startup.agent.stop import Signals
from tests.support.patience import PATIENCE_S, await_truth
from tests.unit.startup.cloud import RUN, Cloud
from tests.unit.startup.conducted import Conducted, cause, cloud_for, ended, environ
from tests.unit.startup.machine import CASES
from tests.unit.startup.played_harness import fact, finished


def test_preemption_stops_the_work_and_keeps_what_there_is_within_seconds(tmp_path: Path) -> None:
    measure = [finished(CASES[0], 1, 2), {"write": f"cases/{CASES[1]}.csv"}, {"deaf": 1}, {"hang": 1}]
    with cloud_for({"measure": measure}) as cloud:

        def preempt_after_the_first_case(name: str) -> None:
            if name.endswith("-case_measured.json"):
                cloud.preempt()

        cloud.on_stored = preempt_after_the_first_case
        run = Conducted(cloud, tmp_path)
        assert run.code == 143
        assert run.seconds < PATIENCE_S
        assert run.has_last_word
        assert len(cloud.said("preempted")) == 1
        assert (ended(cloud)["outcome"], ended(cloud)["phase"]) == ("preempted", "measure")
        assert f"runs/{RUN}/cases/{CASES[0]}.csv" in cloud.objects
        assert f"runs/{RUN}/cases/{CASES[1]}.csv" not in cloud.objects, "an unfinished case is not stored"
        assert cloud.artifact("log.txt") == "the log\n"


def test_a_preemption_amid_two_cases_loses_only_these_and_resuming_measures_them(tmp_path: Path) -> None:
    cases = [*CASES, CASES[0].replace("q64", "q96")]

    def started(number: int) -> dict[str, Any]:
        return fact("case_started", case_id=cases[number], index=number + 1, of=3)

    amid = [started(0), started(1), finished(cases[1], 2, 3), started(2), {"deaf": 1}, {"hang": 1}]
    homes = tmp_path / "first", tmp_path / "second"
    with cloud_for({"measure": amid}, cases=cases) as cloud:
        cloud.on_stored = lambda _name: cloud.preempt() if len(cloud.said("case_started")) == 3 else None
        homes[0].mkdir()
        assert Conducted(cloud, homes[0]).code == 143
        assert [data["case_id"] for data in cloud.said("case_measured")] == [cases[1]]
        stored = {name: body for name, body in cloud.objects.items() if "/cases/" in name}
    assert len(stored) == 1
    with cloud_for(cases=cases) as cloud:
        cloud.objects.update(stored)
        homes[1].mkdir()
        assert Conducted(cloud, homes[1]).code == 0
        assert [data["case_id"] for data in cloud.said("case_measured")] == [cases[0], cases[2]]


def test_a_vm_that_was_preempted_before_anyone_watched_is_noticed(tmp_path: Path) -> None:
    with cloud_for({"environment": [{"hang": 1}]}) as cloud:
        cloud.preempt()
        assert Conducted(cloud, tmp_path).code == 143
        assert ended(cloud)["outcome"] == "preempted"


def test_a_metadata_server_that_fails_is_asked_again(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"hang": 1}]}) as cloud:
        faults = [
            cloud.fail("instance/preempted", status=503, times=2),
            cloud.fail("instance/preempted", cut="before", times=2),
        ]

        def preempt(_: Conductor) -> None:
            await_truth(lambda: all(fault.fired == 2 for fault in faults))
            cloud.preempt()

        Conducted(cloud, tmp_path, preempt)
        assert ended(cloud)["outcome"] == "preempted"


def test_a_metadata_server_that_answers_at_once_is_not_asked_in_a_tight_loop(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"hang": 1}]}, timing={"preempted_poll_s": 0.05}) as cloud:
        fault = cloud.fail("instance/preempted", status=200, body=b"FALSE", times=1e9)

        def stop(conductor: Conductor) -> None:
            await_truth(lambda: fault.fired >= 10)
            conductor.stop.request("terminated")

        run = Conducted(cloud, tmp_path, stop)
        assert fault.fired <= 5 + run.seconds / 0.05


def nobody_watches(cloud: Cloud) -> None:
    """Keeps the watcher from seeing a preemption before the signal comes."""
    cloud.fail("instance/preempted.wait_for_change", until=cloud.closing, times=1e9)


def test_what_a_signal_ends_beside_the_agent_is_no_failure_of_the_run(tmp_path: Path) -> None:
    """A machine that is shut down sends TERM to all processes, and says only when it is asked that it is preempted."""
    for outcome in ("terminated", "preempted"):
        home, answered = tmp_path / outcome, threading.Event()
        home.mkdir()
        with cloud_for({"measure": [{"hang": 1}]}) as cloud:
            nobody_watches(cloud)

            def stop(
                conductor: Conductor, cloud: Cloud = cloud, answered: threading.Event = answered, outcome: str = outcome
            ) -> None:
                harness = conductor.home / "harness"
                await_truth(lambda: conductor.agent.phase == "measure" and harness.exists())
                if outcome == "preempted":
                    cloud.preempt()
                cloud.fail("instance/preempted", until=answered, times=1)
                Signals(conductor.on_signal, conductor.stop).receive(signal.SIGTERM, None)
                os.killpg(int(harness.read_text()), signal.SIGTERM)
                await_truth(lambda: any(one["phase"] == "measure" for one in cloud.said("phase_finished")))
                answered.set()

            assert Conducted(cloud, home, stop).code == 143
            assert ended(cloud)["outcome"] == outcome
            assert cloud.said("diagnosed") == []


def test_term_ends_the_run_as_terminated_unless_the_vm_is_being_preempted(tmp_path: Path) -> None:
    for outcome, preempted in (("terminated", False), ("preempted", True)):
        home = tmp_path / outcome
        home.mkdir()
        with cloud_for({"measure": [{"hang": 1}]}) as cloud:
            nobody_watches(cloud)

            def stop(conductor: Conductor, cloud: Cloud = cloud, preempted: bool = preempted) -> None:
                while conductor.agent.phase != "measure":
                    time.sleep(0.01)
                if preempted:
                    cloud.preempt()
                conductor.on_signal(signal.SIGTERM)
                conductor.on_signal(signal.SIGTERM)

            assert Conducted(cloud, home, stop).code == 143
            assert ended(cloud)["outcome"] == outcome
            assert len(cloud.said("preempted")) == preempted
            assert cloud.said("diagnosed") == []


def test_term_waits_for_a_slow_metadata_server_to_tell_of_a_preemption(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"hang": 1}]}) as cloud:
        nobody_watches(cloud)

        def stop(conductor: Conductor) -> None:
            await_truth(lambda: conductor.agent.phase == "measure")
            cloud.preempt()
            cloud.fail("instance/preempted$", stall_s=3)
            conductor.on_signal(signal.SIGTERM)

        assert Conducted(cloud, tmp_path, stop).code == 143
        assert cloud.faults[-1].fired == 1
        assert ended(cloud)["outcome"] == "preempted"


def test_term_from_the_watchdog_is_called_the_deadline(tmp_path: Path) -> None:
    with cloud_for({"correctness": [{"hang": 1}]}) as cloud:

        def watchdog(conductor: Conductor) -> None:
            while conductor.agent.phase != "correctness":
                time.sleep(0.01)
            (conductor.home / "deadline").touch()
            conductor.on_signal(signal.SIGTERM)

        assert Conducted(cloud, tmp_path, watchdog).code == 124
        assert cause(cloud) == "deadline"
        assert (ended(cloud)["outcome"], ended(cloud)["phase"]) == ("timed_out", "correctness")


def test_a_stop_during_a_long_upload_is_obeyed_at_once(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 3600, "retry_max_s": 3600}, limits={"build": 3600}) as cloud:
        cloud.fail("build.json", status=503, times=3)

        def stop(conductor: Conductor) -> None:
            while not any("build.json" in line for line in list(cloud.requests)):
                time.sleep(0.01)
            conductor.stop.request("terminated")

        run = Conducted(cloud, tmp_path, stop)
        assert run.seconds < PATIENCE_S
        assert ended(cloud)["outcome"] == "terminated"


def test_a_signal_to_the_process_reaches_the_run(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with cloud_for({"build": [{"hang": 1}]}) as cloud:
            where = environ(cloud, tmp_path)

            def terminate(name: str) -> None:
                if name.endswith("-environment_recorded.json"):
                    os.kill(os.getpid(), signal.SIGTERM)

            cloud.on_stored = terminate
            assert main(where, io.StringIO()) == 143
            assert ended(cloud)["outcome"] == "terminated"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
