"""What the agent does when the bucket is away, refuses, or answers what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from startup.agent.__main__ import Conductor
from tests.support.patience import PATIENCE_S, await_truth
from tests.unit.startup.cloud import RUN
from tests.unit.startup.conducted import Conducted, WindUp, cause, cloud_for, ended
from tests.unit.startup.machine import CASES


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


def test_a_bucket_gone_from_the_start_ends_the_run_before_any_measurement(tmp_path: Path) -> None:
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
