"""What the agent reports and stores, and in which order."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.run.events import Unrecognised, decode_event
from startup.agent.__main__ import Conductor
from startup.agent.clock import AgentClock, Patience
from startup.agent.events import writer_name
from startup.agent.logs import Log
from tests.support.patience import PATIENCE_S
from tests.unit.startup.bootstrapped import boot
from tests.unit.startup.cloud import RUN, VM, Cloud
from tests.unit.startup.conducted import Conducted, cloud_for, ended, environ
from tests.unit.startup.machine import CASES, Machine, payload, run_spec
from tests.unit.startup.played_harness import fact, finished


def test_a_healthy_run_reports_every_fact_once_and_in_order(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert run.has_last_word
        phase = ["phase_started", "phase_finished"]
        assert cloud.kinds() == [
            "vm_booted", *phase, "phase_started", *["gate_passed"] * 3, "environment_recorded", "phase_finished",
            "phase_started", "kernel_built", *["gate_passed"] * 2, "phase_finished", "phase_started",
            "correctness_finished", "phase_finished", "phase_started", "measurement_planned",
            *["case_started", "case_measured"] * 2, "phase_finished", *phase, "finished",
        ]  # fmt: skip
        booted = {"vm": VM, "zone": "us-central1-a", "instance_id": "4711", "attempt": 1}
        assert cloud.said("vm_booted") == [booted]
        succeeded = {"outcome": "succeeded", "exit_code": 0, "phase": "measure"}
        assert ended(cloud) == {**succeeded, "detail": "every case is measured"}
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


def test_results_are_in_the_bucket_before_the_last_word_and_the_log_comes_last(tmp_path: Path) -> None:
    with cloud_for(timing={"log_every_s": 3600}) as cloud:
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
        for name in (CASES[0] + ".csv", "notes.txt", ".unfinished.csv"):
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


def test_a_wrong_clock_is_recorded_and_every_stamp_is_corrected(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.clock_ahead_s = 7200
        before = time.time()
        Conducted(cloud, tmp_path)
        assert [data["what"] for data in cloud.said("healed")] == ["clock"]
        expected = time.strftime("%Y-%m-%dT%H", time.gmtime(before + 7200))
        assert all(event["time"] >= expected for event in cloud.events())


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


# Laws of the profile: it comes after everything is measured, its files are artifacts, and it spoils nothing.


SUMMARY = "profile/summary.json"


def profiling(*acts: dict[str, Any]) -> Cloud:
    spec = run_spec({"profile": list(acts)})
    spec["harness"]["profile"] = {"cases": CASES[:1], "set": "roofline"}
    return Cloud(spec, payload())


def cases_of(cloud: Cloud) -> set[str]:
    prefix = f"runs/{RUN}/cases/"
    return {name.removeprefix(prefix).removesuffix(".csv") for name in cloud.objects if name.startswith(prefix)}


def test_a_profile_follows_the_last_case_and_its_files_are_artifacts_and_no_rows(tmp_path: Path) -> None:
    told = {"fact": "profiled", "path": SUMMARY, "case_id": "", "implementation": ""}
    with profiling({"say": told}) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 0
        assert f"runs/{RUN}/artifacts/{SUMMARY}" in cloud.objects
        assert cases_of(cloud) == set(CASES)
        phases = [data["phase"] for data in cloud.said("phase_started")]
        assert phases[-3:] == ["measure", "profile", "finish"]
        assert cloud.kinds().index("case_measured") < len(cloud.kinds())
        assert cloud.said("finished")[0]["outcome"] == "succeeded"


@pytest.mark.parametrize("act", [{"exit": 1}, {"signal": 11}, {"exit": 22}])
def test_a_profile_that_goes_wrong_spoils_nothing_that_was_measured(tmp_path: Path, act: dict[str, Any]) -> None:
    with profiling(act) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 0
        assert cloud.said("finished")[0]["outcome"] == "succeeded"
        assert cloud.said("diagnosed") == []
        assert cases_of(cloud) == set(CASES)
        assert "no profile:" in cloud.objects[f"runs/{RUN}/artifacts/log.txt"].decode()


# The VM and the client were written apart: whatever the VM says, the client's vocabulary has a word for.


WRONG = fact(
    "checked", implementation="bench", case_id=CASES[0], passed=False, max_abs_error=None, limit=0.01, reason="NaN"
)


@pytest.mark.parametrize(
    "script",
    [
        {"correctness": [WRONG, {"healthy": 1}, {"exit": 10}], "measure": [{"healthy": 1}, {"exit": 10}]},
        {"measure": [{"healthy": 1}, {"kill_parent": 1}]},
        {"environment": [{"exit": 21}]},
    ],
)
def test_every_event_of_a_vm_is_an_event_of_the_client_under_the_same_name(
    tmp_path: Path, script: dict[str, Any]
) -> None:
    with Cloud(run_spec(script), payload()) as cloud:
        cloud.clock_ahead_s = 100
        boot(cloud, tmp_path)
        names = [name for name in cloud.objects if "/events/" in name]
        assert names
        for name in names:
            event = decode_event(cloud.objects[name])
            assert event is not None
            assert not isinstance(event.fact, Unrecognised), event
            assert event.object_name == name


# How the agent's log reaches the bucket.


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


class Copying(AgentClock):
    """A clock during whose third sleep the bootstrap has its turn, and copies what came through the pipe."""

    slept = 0

    def __init__(self, pipe: int, to: Path) -> None:
        super().__init__()
        self.pipe, self.to = pipe, to

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.slept == 3:
            with self.to.open("ab") as file:
                file.write(os.read(self.pipe, 65536))


@contextmanager
def copied_late(file: Path) -> Iterator[tuple[Log, Copying]]:
    """A log whose text comes into `file` as it is waited for, and which is waited for within the block."""
    out, into = os.pipe()
    clock = Copying(out, file)
    with os.fdopen(into, "w") as stream:
        yield Log(stream, clock), clock
    os.close(out)
    assert clock.slept == 3


def test_what_was_said_last_is_in_the_log_before_the_log_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    with copied_late(file) as (log, clock):
        log.say("first\nnot the last: \u00e9\nthe last")
        log.await_copy(file, Patience(clock, PATIENCE_S))
    assert file.read_text().endswith(" the last\n")


def test_what_the_run_before_it_said_last_is_not_taken_for_the_end_of_the_log(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    with copied_late(file) as (log, clock):
        log.say("finish: succeeded")
        file.write_text(f"{log.last}\n")  # two runs on one VM may end within a second
        log.await_copy(file, Patience(clock, PATIENCE_S), file.stat().st_size)
    assert file.read_text().count(" finish: succeeded\n") == 2


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
