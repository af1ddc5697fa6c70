"""How startup.sh reads its metadata: late, odd, broken or missing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.startup.bootstrapped import assert_left_properly, cloud_for
from tests.unit.startup.cloud import BUCKET, INSTANCE, Cloud
from tests.unit.startup.machine import SCRIPT, Machine, payload, run_spec


def test_metadata_is_data_whatever_characters_it_has(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    evil = f'"\'; touch {trap}; $(touch {trap}) `touch {trap}` \\ \n %s | & "run_id": "other", "bucket": "theirs"'
    spec = run_spec()
    spec = {"comment": evil, **spec}
    spec["harness"]["note"] = {"x": evil, "y": [evil]}
    script = {
        "build": [{"log": evil}, {"say": {"fact": "gate", "name": "kernel_loads", "passed": True, "detail": evil}}]
    }
    spec["harness"]["script"] = script
    with Cloud(spec, payload()) as cloud, Machine(cloud, tmp_path) as machine:
        machine.wait()
        assert_left_properly(cloud, "succeeded")
        assert not trap.exists()
        assert evil in [data["detail"] for data in cloud.said("gate_passed")]


def test_a_spec_that_is_missing_or_broken_still_ends_in_a_deletion(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.metadata["instance/attributes/bench-run"] = "{"
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert cloud.journal == ["DELETE instance"]


def test_a_spec_that_the_agent_refuses_is_reported_by_the_bootstrap(tmp_path: Path) -> None:
    spec = run_spec()
    del spec["phase_limits_s"]["build"]
    with Cloud(spec, payload()) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 3
        assert_left_properly(cloud, "failed")
        assert "build" in cloud.said("diagnosed")[0]["detail"]


def test_a_metadata_server_that_is_late_is_waited_for(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("instance/name", status=503, times=2)
        cloud.fail("attributes/bench-run", cut="before", times=2)
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert_left_properly(cloud, "succeeded")


def test_pretty_printed_metadata_is_read_too(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        for name in ("bench-run", "bench-payload", "bench-endpoints"):
            key = "instance/attributes/" + name
            cloud.metadata[key] = json.dumps(json.loads(cloud.metadata[key]), indent=4, sort_keys=True)
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert_left_properly(cloud, "succeeded")


def test_without_endpoints_the_script_addresses_google() -> None:
    text = SCRIPT.read_text()
    assert "https://storage.googleapis.com" in text
    assert "https://compute.googleapis.com" in text
    assert BUCKET not in text
    assert INSTANCE not in text
