"""What the agent reports and stores, and in which order."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from startup.agent.events import writer_name
from tests.unit.startup.cloud import RUN, VM
from tests.unit.startup.conducted import Conducted, cloud_for, ended
from tests.unit.startup.machine import CASES
from tests.unit.startup.played_harness import finished


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
