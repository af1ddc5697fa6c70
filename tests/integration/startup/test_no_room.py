"""A machine whose disk is full says so, whichever step of its boot found no room first, and is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.startup.test_bootstrap import assert_left_properly, cloud_for
from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import Machine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="only root can mount a small disk"
)


@contextlib.contextmanager
def disk(at: Path, *, size_kb: int, files: int = 1000, full: bool = False) -> Iterator[None]:
    """A small disk at a folder; a full one has no byte left."""
    at.mkdir()
    options = f"size={size_kb}k,nr_inodes={files}"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(at)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    try:
        if full:
            filling = os.open(at / "filling", os.O_CREAT | os.O_WRONLY)
            with contextlib.suppress(OSError):
                while os.write(filling, bytes(4096)):
                    pass
            os.close(filling)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def diagnosed(cloud: Cloud) -> str:
    (said,) = cloud.said("diagnosed")
    assert "no room is left" in said["detail"]
    return str(said["cause"])


@pytest.mark.parametrize(
    ("size_kb", "files", "full"),
    [(64, 1000, True), (64, 3, False), (64, 10, False), (400, 1000, False), (4000, 80, False)],
    ids=["no byte", "no file", "few files", "little room", "no room for the agent"],
)
def test_a_machine_without_room_on_its_disk_says_so_and_goes(
    tmp_path: Path, size_kb: int, files: int, full: bool
) -> None:
    small = disk(tmp_path / "vm", size_kb=size_kb, files=files, full=full)
    # There may be no room for the end of the log: then it is waited for in vain.
    with small, cloud_for(timing={"log_lag_s": 0.2}) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() in (1, 3)
        assert diagnosed(cloud) == "disk_full"
        assert_left_properly(cloud, "failed")
        machine.leaves_nothing()


def test_a_machine_with_little_room_that_is_enough_runs(tmp_path: Path) -> None:
    with disk(tmp_path / "vm", size_kb=8000), cloud_for() as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 0
        assert_left_properly(cloud, "succeeded")
        machine.leaves_nothing()
