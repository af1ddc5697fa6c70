"""Laws of the agent: what it reports, in which order, and how each kind of end is told."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from startup.agent.__main__ import Conductor, main
from startup.agent.clock import Clock, Patience
from startup.agent.events import writer_name
from startup.agent.logs import Log
from tests.startup.cloud import RUN, VM, Cloud
from tests.startup.machine import CASES, fast_python, payload, run_spec
from tests.startup.played_harness import fact, finished
from tests.support.patience import PATIENCE_S, await_truth, living

BUILD_FAILED = {
    "build": [
        {"say": {"fact": "gate", "name": "kernel_loads", "passed": False, "detail": "cc: error"}},
        {"say": {"fact": "problem", "cause": "no_compiler", "detail": "no NVRTC and no nvcc"}},
        {"exit": 20},
    ]
}


def cloud_for(script: dict[str, Any] | None = None, **spec: Any) -> Cloud:
    return Cloud(run_spec(script, **spec), payload())


def environ(cloud: Cloud, home: Path) -> dict[str, str]:
    """What the bootstrap leaves behind: an unpacked payload, a log, and where to ask."""
    vm = home / "vm"
    vm.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(cloud.payload)) as tar:
        tar.extractall(vm / "payload", filter="data")
    (vm / "log.txt").write_text("the log\n")
    python = fast_python(home / "bin")
    path = f"{python.parent}:/usr/bin:/bin"
    temporary = home / "temporary"
    temporary.mkdir(exist_ok=True)
    return {"PATH": path, "BENCH_VM_DIR": str(vm), "GCE_METADATA_HOST": cloud.host, "TMPDIR": str(temporary)}


class WindUp(Clock):
    """The monotonic clock, which a test can put forward: hours pass for every limit, and none for the test."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Conducted:
    """An agent run to its end in this process, with its console."""

    def __init__(
        self,
        cloud: Cloud,
        home: Path,
        meanwhile: Callable[[Conductor], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.console = io.StringIO()
        self.conductor = Conductor(environ(cloud, home), self.console, clock)
        if meanwhile is not None:
            threading.Thread(target=meanwhile, args=(self.conductor,), daemon=True).start()
        began = time.monotonic()
        self.code = self.conductor.run()
        self.seconds = time.monotonic() - began
        self.vm = home / "vm"

    @property
    def has_last_word(self) -> bool:
        return (self.vm / "last-word").exists()


def ended(cloud: Cloud) -> dict[str, Any]:
    (last,) = cloud.said("finished")
    assert cloud.kinds()[-1] == "finished", "nothing comes after the last word"
    return last


def cause(cloud: Cloud) -> str:
    (diagnosed,) = cloud.said("diagnosed")
    assert diagnosed["detail"]
    assert diagnosed["remedy"]
    return str(diagnosed["cause"])


def test_a_healthy_run_reports_every_fact_once_and_in_order(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert run.has_last_word
        phase = ["phase_started", "phase_finished"]
        assert cloud.kinds() == [
            "vm_booted",
            *phase,
            "phase_started",
            *["gate_passed"] * 3,
            "environment_recorded",
            "phase_finished",
            "phase_started",
            "kernel_built",
            *["gate_passed"] * 2,
            "phase_finished",
            "phase_started",
            "correctness_finished",
            "phase_finished",
            "phase_started",
            "measurement_planned",
            *["case_started", "case_measured"] * 2,
            "phase_finished",
            *phase,
            "finished",
        ]
        booted = {"vm": VM, "zone": "us-central1-a", "instance_id": "4711", "attempt": 1}
        assert cloud.said("vm_booted") == [booted]
        assert ended(cloud) == {
            "outcome": "succeeded",
            "exit_code": 0,
            "phase": "measure",
            "detail": "every case is measured",
        }
        assert all(data["exit_code"] == 0 for data in cloud.said("phase_finished"))


def test_event_names_sort_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        Conducted(cloud, tmp_path)
        names = sorted(name for name in cloud.objects if "/events/" in name)
        for number, (name, event) in enumerate(zip(names, cloud.events(), strict=True), 1):
            stamp = event["time"].replace("-", "").replace(":", "")
            writer = event["writer"]
            assert name == f"runs/{RUN}/events/{stamp}-{writer}-{number:06d}-{event['kind']}.json"
            assert re.fullmatch("vm-1-[0-9a-f]{8}", writer)
            assert (event["seq"], event["schema"], event["run_id"]) == (number, 1, RUN)


def test_a_machine_writes_in_a_name_of_its_own_until_it_boots_again() -> None:
    boots = [("4711", "one boot"), ("4711", "another boot"), ("4712", "one boot")]
    names = [writer_name(1, *boot) for boot in boots]
    assert len(set(names)) == 3
    assert names == [writer_name(1, *boot) for boot in boots]
    assert writer_name(2, "4711", "one boot") == names[0].replace("vm-1-", "vm-2-")


@pytest.mark.parametrize("slow", [".csv", "-case_measured.json"])
def test_a_case_is_stored_before_its_event_and_its_event_before_the_harness_goes_on(tmp_path: Path, slow: str) -> None:
    with cloud_for() as cloud:
        cloud.fail(slow, stall_s=0.3, times=2)
        run = Conducted(cloud, tmp_path)
        acks = dict(line.split() for line in (run.vm / "out" / "acks").read_text().splitlines())
        events = sorted(name for name in cloud.objects if name.endswith("-case_measured.json"))
        for case, event in zip(CASES, events, strict=True):
            stored = cloud.written_at[f"runs/{RUN}/cases/{case}.csv"]
            assert stored < cloud.written_at[event] < float(acks[f"cases/{case}.csv"])


def test_results_are_in_the_bucket_before_the_last_word_and_the_log_is_the_last_of_them(tmp_path: Path) -> None:
    with cloud_for(timing={"log_every_s": 60}) as cloud:
        Conducted(cloud, tmp_path)
        assert cloud.journal[-2] == "STORE artifacts/log.txt"
        assert cloud.journal[-1].endswith("-finished.json")
        stored = {"environment.json", "build.json", "correctness.csv", "log.txt"}
        assert {name.rsplit("/")[-1] for name in cloud.objects if "/artifacts/" in name} == stored


def test_the_harness_is_told_the_run_and_the_payload_its_own_checksum(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        run = Conducted(cloud, tmp_path)
        spec = json.loads((run.vm / "spec.json").read_text())
        assert (spec["run_id"], spec["vm"]) == (RUN, VM)
        image = "projects/images/global/images/common-cu129-v20261101"
        assert spec["machine"] == {"zone": "us-central1-a", "machine_type": "g2-standard-4", "image": image}
        manifest = json.loads((run.vm / "payload" / "manifest.json").read_text())
        assert manifest == {"schema": 1, "git_commit": "abc", "payload_sha256": cloud.sha256}


def test_what_the_metadata_server_does_not_tell_of_the_machine_is_left_out(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        for key in ("instance/machine-type", "instance/image"):
            del cloud.metadata[key]
        run = Conducted(cloud, tmp_path)
        assert json.loads((run.vm / "spec.json").read_text())["machine"] == {"zone": "us-central1-a"}
        assert cloud.said("finished")[0]["outcome"] == "succeeded"


def test_a_resumed_run_skips_what_an_earlier_attempt_has_stored(tmp_path: Path) -> None:
    with cloud_for(skip_cases=["b9-h1-kv1-q1-k1-d64-causal-float16"]) as cloud:
        cloud.page_size = 1
        for name in (CASES[0] + ".csv", "notes.txt", "unfinished.csv"):
            cloud.objects[f"runs/{RUN}/cases/{name}"] = b"before"
        run = Conducted(cloud, tmp_path)
        assert [data["case_id"] for data in cloud.said("case_measured")] == [CASES[1]]
        assert cloud.said("measurement_planned")[0]["cases"] == 1
        assert cloud.objects[f"runs/{RUN}/cases/{CASES[0]}.csv"] == b"before"
        skipped = json.loads((run.vm / "spec.json").read_text())["skip_cases"]
        assert skipped == ["b9-h1-kv1-q1-k1-d64-causal-float16", CASES[0]]


def test_a_case_that_is_stored_already_is_never_overwritten(tmp_path: Path) -> None:
    with cloud_for({"measure": [finished(CASES[0], 1, 1)]}) as cloud:
        name = f"runs/{RUN}/cases/{CASES[0]}.csv"

        def other_vm_is_first(stored: str) -> None:
            if stored.endswith("correctness.csv"):
                cloud.objects[name] = b"the other VM's"

        cloud.on_stored = other_vm_is_first
        assert Conducted(cloud, tmp_path).code == 0
        assert cloud.objects[name] == b"the other VM's"


def test_a_kernel_that_does_not_build_leaves_the_others_to_be_measured(tmp_path: Path) -> None:
    script = {**BUILD_FAILED, "correctness": [{"healthy": 1}, {"exit": 10}], "measure": [{"healthy": 1}, {"exit": 20}]}
    with cloud_for(script) as cloud:
        assert Conducted(cloud, tmp_path).code == 10
        assert cause(cloud) == "no_compiler"
        assert ended(cloud)["outcome"] == "incorrect"
        assert len(cloud.said("case_measured")) == 2
        codes = {data["phase"]: data["exit_code"] for data in cloud.said("phase_finished")}
        assert codes == {"preflight": 0, "environment": 0, "build": 10, "correctness": 10, "measure": 10, "finish": 0}


def test_a_kernel_that_does_not_build_is_the_end_when_nothing_else_is_asked_for(tmp_path: Path) -> None:
    with cloud_for(BUILD_FAILED, implementations=["bench"]) as cloud:
        assert Conducted(cloud, tmp_path).code == 20
        assert cause(cloud) == "no_compiler"
        assert ended(cloud)["outcome"] == "failed"
        assert ended(cloud)["phase"] == "build"
        assert cloud.said("case_measured") == []


def test_a_wrong_kernel_makes_the_run_incorrect_and_is_diagnosed_once(tmp_path: Path) -> None:
    checked = {
        "fact": "checked",
        "implementation": "bench",
        "case_id": CASES[0],
        "passed": False,
        "max_abs_error": 0.5,
        "limit": 0.01,
        "reason": "too far off",
    }
    right = {**checked, "passed": True, "implementation": "sdpa:default"}
    wrong = [{"say": checked}, {"say": right}, {"healthy": 1}, {"exit": 10}]
    with cloud_for({"correctness": wrong, "measure": wrong}) as cloud:
        assert Conducted(cloud, tmp_path).code == 10
        assert cause(cloud) == "kernel_wrong"
        assert ended(cloud)["outcome"] == "incorrect"
        assert [data["implementation"] for data in cloud.said("case_checked")] == ["bench", "bench"]


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([{"exit": 21}], "gate_failed"),
        ([fact("gate", name="cuda_answers", passed=False, detail="no device"), {"exit": 21}], "no_cuda"),
        ([fact("gate", name="brand_new", passed=False, detail="?"), {"exit": 21}], "gate_failed"),
        ([fact("gate", name="numpy_matches", passed=False, detail="ABI")], "numpy_mismatch"),
        (
            [
                fact("gate", name="cuda_answers", passed=False, detail="no device"),
                fact("problem", cause="torch_without_cuda", detail="torch 2.13.0+cpu"),
                {"exit": 21},
            ],
            "torch_without_cuda",
        ),
        ([{"exit": 22}], "spec_refused"),
        ([{"exit": 20}], "build_failed"),
        ([{"log": "Segmentation fault"}, {"exit": 1}], "harness_crashed"),
    ],
)
def test_a_step_that_fails_ends_the_run_with_the_most_exact_cause(
    tmp_path: Path, acts: list[dict[str, Any]], expected: str
) -> None:
    with cloud_for({"environment": acts}, implementations=["bench"]) as cloud:
        assert Conducted(cloud, tmp_path).code != 0
        assert cause(cloud) == expected
        assert (ended(cloud)["outcome"], ended(cloud)["phase"]) == ("failed", "environment")


def test_a_killed_harness_is_diagnosed_with_its_signal_and_the_end_of_its_log(tmp_path: Path) -> None:
    lines = [{"log": f"line {number}"} for number in range(30)]
    with cloud_for({"measure": [*lines, {"signal": signal.SIGKILL}]}) as cloud:
        assert Conducted(cloud, tmp_path).code == 128 + signal.SIGKILL
        assert cause(cloud) == "harness_crashed"
        detail = cloud.said("diagnosed")[0]["detail"]
        assert "SIGKILL" in detail
        assert detail.splitlines()[1:] == [f"line {number}" for number in range(10, 30)]


@pytest.mark.parametrize("how", [[{"hang": 1}], [{"deaf": 1}, {"hang": 1}], [{"signal": signal.SIGSTOP}]])
def test_a_step_that_hangs_is_ended_at_its_phases_limit(tmp_path: Path, how: list[dict[str, Any]]) -> None:
    child, clock = tmp_path / "vm" / "out" / "child", WindUp()

    def time_is_up(_: Conductor) -> None:
        await_truth(lambda: child.exists() and child.read_text(), "what the harness starts")
        clock.ahead_s = 7201

    with cloud_for({"correctness": [{"child": 1}, *how]}, limits={"correctness": 7200}) as cloud:
        run = Conducted(cloud, tmp_path, time_is_up, clock)
        assert run.code == 124
        assert cause(cloud) == "phase_timeout"
        assert ended(cloud)["outcome"] == "timed_out"
        assert run.seconds < PATIENCE_S
        await_truth(lambda: not living(int(child.read_text())), "the end of what the harness started")


def test_what_a_killed_harness_kept_in_memory_is_removed(tmp_path: Path) -> None:
    """It would stay there on a machine that is not deleted."""
    left = tmp_path / "temporary" / "bench-answers-1a2b"
    left.mkdir(parents=True)
    (left / "0.bin").write_bytes(b"an answer")
    with cloud_for({"measure": [{"signal": signal.SIGKILL}]}) as cloud:
        assert Conducted(cloud, tmp_path).code == 128 + signal.SIGKILL
    assert list(left.parent.iterdir()) == []


def test_what_a_step_leaves_running_ends_with_it(tmp_path: Path) -> None:
    with cloud_for({"correctness": [{"child": 1}, {"healthy": 1}]}) as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        child = int((run.vm / "out" / "child").read_text())
        await_truth(lambda: not living(child), "the end of what the step started")


def test_what_a_library_prints_is_not_taken_for_a_fact(tmp_path: Path) -> None:
    chatter = [{"print": "Downloading weights"}, {"print": "[1, 2]"}, {"print": '{"not": "a fact"}'}, {"healthy": 1}]
    with cloud_for({"build": [*chatter, fact("novelty", x=1)]}) as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert "(not a fact) Downloading weights" in run.console.getvalue()


def unwritten(path: str) -> dict[str, Any]:
    """A fact that names a file which the harness has not written."""
    return {**fact("built", path=path, seconds=1, compiler="cc", cached=False), "unwritten": True}


@pytest.mark.parametrize(
    "act",
    [
        unwritten("../../etc/passwd"),
        unwritten("/etc/passwd"),
        unwritten("nothing.json"),
        fact("built", path="build.json"),
        fact("planned", cases=3),
    ],
)
def test_a_fact_that_breaks_the_contract_ends_the_run(tmp_path: Path, act: dict[str, Any]) -> None:
    with cloud_for({"build": [act]}) as cloud:
        assert Conducted(cloud, tmp_path).code == 1
        assert cause(cloud) == "harness_crashed"
        assert not any("passwd" in name for name in cloud.objects)


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


def test_a_vm_that_was_preempted_before_anyone_watched_is_noticed(tmp_path: Path) -> None:
    with cloud_for({"environment": [{"hang": 1}]}) as cloud:
        cloud.preempt()
        assert Conducted(cloud, tmp_path).code == 143
        assert ended(cloud)["outcome"] == "preempted"


def test_a_metadata_server_that_fails_is_asked_again(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"hang": 1}]}) as cloud:
        cloud.fail("instance/preempted", status=503, times=2)
        cloud.fail("instance/preempted", cut="before", times=2)

        def preempt(conductor: Conductor) -> None:
            time.sleep(0.3)
            cloud.preempt()

        Conducted(cloud, tmp_path, preempt)
        assert ended(cloud)["outcome"] == "preempted"


def test_a_metadata_server_that_does_not_wait_for_a_change_is_not_asked_in_a_tight_loop(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"hang": 1}]}, timing={"preempted_poll_s": 0.05}) as cloud:
        fault = cloud.fail("instance/preempted", status=200, body=b"FALSE", times=1e9)

        def stop(conductor: Conductor) -> None:
            await_truth(lambda: fault.fired >= 10)
            conductor.stop.request("terminated")

        run = Conducted(cloud, tmp_path, stop)
        assert fault.fired <= 5 + run.seconds / 0.05


def test_term_ends_the_run_as_terminated_unless_the_vm_is_being_preempted(tmp_path: Path) -> None:
    for outcome, preempted in (("terminated", False), ("preempted", True)):
        home = tmp_path / outcome
        home.mkdir()
        with cloud_for({"measure": [{"hang": 1}]}, timing={"preempted_poll_s": 30}) as cloud:
            # The watcher is kept from seeing it first.
            cloud.fail("instance/preempted$", status=503)

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


@pytest.mark.parametrize("what", [{"status": 503}, {"status": 429}, {"cut": "before"}, {"cut": "after"}])
def test_a_bucket_that_is_away_for_a_while_delays_the_run_and_costs_nothing(
    tmp_path: Path, what: dict[str, Any]
) -> None:
    with cloud_for() as cloud:
        faults = [
            cloud.fail("POST .*cases/", times=3, **what),
            cloud.fail("POST .*events/", times=5, **what),
            cloud.fail("GET .*prefix=", times=2, **what),
        ]
        assert Conducted(cloud, tmp_path).code == 0
        assert [fault.fired for fault in faults] == [3, 5, 2]
        assert [event["seq"] for event in cloud.events()] == list(range(1, len(cloud.events()) + 1))
        assert len(cloud.said("case_measured")) == 2


def test_a_bucket_that_is_gone_from_the_start_ends_the_run_before_anything_is_measured(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 0.2}, limits={"finish": 0.3}) as cloud:
        cloud.fail("/b/my-bench/", status=503, times=1e9)
        run = Conducted(cloud, tmp_path)
        assert run.code == 1
        assert not run.has_last_word
        pending = [path.name for path in (run.vm / "events" / "pending").iterdir()]
        assert any(name.endswith("-finished.json") for name in pending), "the bootstrap can still deliver it"
        assert not (run.vm / "out").exists()


def test_a_bucket_that_goes_away_for_good_while_measuring_ends_the_run(tmp_path: Path) -> None:
    clock = WindUp()
    with cloud_for(timing={"storage_patience_s": 3600}, limits={"measure": 7200}) as cloud:
        fault = cloud.fail("POST .*cases/", status=503, times=1e9)

        def patience_runs_out(_: Conductor) -> None:
            await_truth(lambda: fault.fired >= 3)
            clock.ahead_s = 3601

        def recover(name: str) -> None:
            if name.endswith("-diagnosed.json"):
                fault.times = 0

        cloud.on_stored = recover
        Conducted(cloud, tmp_path, patience_runs_out, clock)
        assert cause(cloud) == "storage_unreachable"
        assert ended(cloud)["outcome"] == "failed"
        assert ended(cloud)["phase"] == "measure"
        assert f"runs/{RUN}/cases/{CASES[0]}.csv" in cloud.objects, "finish tries once more to store what there is"


def test_an_event_log_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 0.3}, limits={"finish": 0.3}) as cloud:
        cloud.fail("-environment_recorded", status=403, times=1e9)
        run = Conducted(cloud, tmp_path)
        assert run.code == 1
        assert not run.has_last_word
        assert "storage_unreachable" in run.console.getvalue()


def test_a_refusal_is_not_taken_for_a_passing_failure(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 3600}) as cloud:
        fault = cloud.fail("POST .*build.json", status=403, times=1)
        run = Conducted(cloud, tmp_path)
        assert run.seconds < PATIENCE_S
        assert fault.fired == 1
        assert cause(cloud) == "storage_unreachable"
        assert "403" in cloud.said("diagnosed")[0]["detail"]


@pytest.mark.parametrize("what", [{"status": 404}, {"status": 200, "body": b"<html>"}, {"status": 200, "body": b"[]"}])
def test_a_listing_that_cannot_be_read_ends_the_run_rather_than_measure_twice(
    tmp_path: Path, what: dict[str, Any]
) -> None:
    with cloud_for() as cloud:
        cloud.fail("GET .*cases/", **what)
        assert Conducted(cloud, tmp_path).code == 1
        assert cause(cloud) == "storage_unreachable"


def test_what_could_not_be_stored_is_said(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("POST .*correctness.csv", status=403, times=1e9)
        run = Conducted(cloud, tmp_path)
        assert "could not store correctness.csv" in run.console.getvalue()
        finish = cloud.said("phase_finished")[-1]
        assert (finish["phase"], finish["exit_code"]) == ("finish", 1)
        assert run.has_last_word, "a lost file does not cost the last word"


def test_an_expired_token_is_replaced(tmp_path: Path) -> None:
    with cloud_for() as cloud:

        def revoke(name: str) -> None:
            if name.endswith("build.json"):
                cloud.token = "another"

        cloud.on_stored = revoke
        assert Conducted(cloud, tmp_path).code == 0
        assert cloud.refused, "the old token was tried"


def test_a_wrong_clock_is_recorded_and_every_stamp_is_corrected(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.clock_ahead_s = 7200
        before = time.time()
        Conducted(cloud, tmp_path)
        assert [data["what"] for data in cloud.said("healed")] == ["clock"]
        expected = time.strftime("%Y-%m-%dT%H", time.gmtime(before + 7200))
        assert all(event["time"] >= expected for event in cloud.events())


def test_a_run_that_needs_an_installation_is_not_healed_where_nothing_may_be_installed(tmp_path: Path) -> None:
    with cloud_for(require_cuda=True, timing={"driver_wait_s": 0.1}) as cloud:
        assert Conducted(cloud, tmp_path).code == 1
        assert cause(cloud) == "no_cuda"
        assert ended(cloud)["phase"] == "preflight"


def test_a_full_disk_is_named_and_nobodys_caches_are_emptied(tmp_path: Path) -> None:
    environment = {"torch": "2.13.0", "allow_install": False, "min_free_gb": 1e9}
    with cloud_for(environment=environment) as cloud:
        Conducted(cloud, tmp_path)
        assert cause(cloud) == "disk_full"


def test_a_defect_of_the_agent_is_reported_as_one(tmp_path: Path) -> None:
    (tmp_path / "vm" / "spec.json").mkdir(parents=True)
    with cloud_for() as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 1
        assert cause(cloud) == "agent_crashed"
        assert ended(cloud)["outcome"] == "failed"


def test_events_of_an_earlier_boot_are_delivered_first_and_numbers_go_on(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        pending = tmp_path / "vm" / "events" / "pending"
        pending.mkdir(parents=True)
        name = "20260101T000000.000000Z-vm-1-000041-phase_started.json"
        old = {"schema": 1, "kind": "phase_started", "seq": 41, "writer": "vm-1", "data": {"phase": "build"}}
        (pending / name).write_text(json.dumps(old))
        (pending.parent / "notes.json").write_text("{}")
        Conducted(cloud, tmp_path)
        assert [event["seq"] for event in cloud.events()][:3] == [41, 42, 43]
        assert list(pending.iterdir()) == []


def test_the_log_is_stored_while_the_run_goes_on_and_only_when_it_has_changed(tmp_path: Path) -> None:
    with cloud_for({"build": [{"healthy": 1}, {"hang": 1}]}, timing={"log_every_s": 0.02}) as cloud:
        log = f"runs/{RUN}/artifacts/log.txt"

        def watch(conductor: Conductor) -> None:
            while log not in cloud.objects:
                time.sleep(0.005)
            time.sleep(0.1)
            with (conductor.home / "log.txt").open("a") as file:  # in one piece, as `tee` does: no half of it is seen
                file.write("and longer\n")
            while cloud.objects[log] != b"the log\nand longer\n":
                time.sleep(0.005)
            conductor.stop.request("terminated")

        Conducted(cloud, tmp_path, watch)
        assert cloud.journal.count("STORE artifacts/log.txt") == 2


class Copying(Clock):
    """A clock during whose third sleep the bootstrap has its turn, and copies what came through the pipe."""

    slept = 0

    def __init__(self, pipe: int, to: Path) -> None:
        super().__init__()
        self.pipe, self.to = pipe, to

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.slept == 3:
            self.to.write_bytes(os.read(self.pipe, 65536))


def test_what_was_said_last_is_in_the_log_before_the_log_is_stored(tmp_path: Path) -> None:
    out, into = os.pipe()
    file = tmp_path / "log.txt"
    clock = Copying(out, file)
    with os.fdopen(into, "w") as stream:
        log = Log(stream, clock)
        log.say("first\nnot the last: \u00e9\nthe last")
        log.await_copy(file, Patience(clock, PATIENCE_S))
    os.close(out)
    assert clock.slept == 3
    assert file.read_text().endswith(" the last\n")


def test_a_log_that_nobody_copies_is_not_waited_for(tmp_path: Path) -> None:
    clock = Copying(-1, tmp_path / "log.txt")
    for stream in (io.StringIO(), (tmp_path / "console").open("w")):
        with stream:
            log = Log(stream, clock)
            log.say("the last")
            log.await_copy(tmp_path / "log.txt", Patience(clock, PATIENCE_S))
    assert clock.slept == 0


def test_a_missing_log_or_a_closed_console_ends_nothing(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        where = environ(cloud, tmp_path)
        (tmp_path / "vm" / "log.txt").unlink()
        console = io.StringIO()
        console.close()
        assert Conductor(where, console).run() == 0
        assert ended(cloud)["outcome"] == "succeeded"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda spec: spec.clear(), "schema 1"),
        (lambda spec: spec["phase_limits_s"].pop("measure"), "measure"),
        (lambda spec: spec["harness"].update(implementations=[]), "implementations"),
        (lambda spec: spec.update(attempt="first"), "attempt"),
        (lambda spec: spec.update(timing=[1]), "timing"),
    ],
)
def test_a_spec_that_cannot_be_read_stops_the_agent_before_it_starts(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], says: str
) -> None:
    spec = run_spec()
    spoil(spec)
    with Cloud(spec, payload()) as cloud:
        console = io.StringIO()
        assert main(environ(cloud, tmp_path), console) == 3
        assert "cannot start" in console.getvalue()
        assert cloud.journal == []


def test_metadata_that_is_no_json_or_not_there_stops_the_agent_before_it_starts(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        where = environ(cloud, tmp_path)
        cloud.metadata["instance/attributes/bench-run"] = "{"
        assert main(where, io.StringIO()) == 3
        del cloud.metadata["instance/attributes/bench-run"]
        assert main(where, io.StringIO()) == 3
        cloud.fail("bench-run", status=403)
        assert main(where, io.StringIO()) == 3


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
