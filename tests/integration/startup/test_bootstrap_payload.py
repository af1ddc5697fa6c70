"""Which payload startup.sh runs, and what it says of one that it does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.startup.bootstrapped import assert_left_properly, cloud_for
from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import Machine, payload, run_spec


def test_a_payload_with_another_checksum_is_never_run(tmp_path: Path) -> None:
    with Cloud(run_spec(), payload(), sha256="0" * 64) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 1
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "payload_checksum"
        assert not machine.vm_file("payload").exists()


@pytest.mark.parametrize("folder", ["a\nfolder", "a \\ $(folder)"])
def test_a_payload_is_the_one_it_should_be_whatever_its_folder_is_called(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    with cloud_for() as cloud, Machine(cloud, tmp_path / folder) as machine:
        assert machine.wait() == 0, machine.serial()
        assert_left_properly(cloud, "succeeded")


def test_a_payload_that_is_not_there_is_named(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        del cloud.objects[f"payloads/{cloud.sha256}.tar.gz"]
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "payload_missing"
        assert sum("alt=media" in line for line in cloud.requests) == 1, "what is not there is not asked for again"


def test_a_payload_that_is_no_archive_is_named(tmp_path: Path) -> None:
    with Cloud(run_spec(), b"not an archive") as cloud, Machine(cloud, tmp_path) as machine:
        machine.wait()
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "payload_missing"


@pytest.mark.parametrize("what", [{"status": 503}, {"status": 429}, {"cut": "before"}, {"cut": "after"}])
def test_a_download_is_repeated_until_it_works(tmp_path: Path, what: dict[str, object]) -> None:
    with cloud_for() as cloud:
        fault = cloud.fail("alt=media", times=3, **what)
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert_left_properly(cloud, "succeeded")
        assert fault.fired == 3
