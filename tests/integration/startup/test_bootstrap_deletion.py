"""How startup.sh deletes its VM, and what it does when the API refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.unit.startup.bootstrapped import assert_left_properly, cloud_for
from tests.unit.startup.machine import SCRIPT, Machine, stub


def test_the_deletion_is_repeated_until_the_api_accepts_it(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        refused = cloud.fail("DELETE", status=503, times=3)
        cut = cloud.fail("DELETE", cut="before", times=2)
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert (refused.fired, cut.fired) == (3, 2)
        assert_left_properly(cloud, "succeeded")


def test_a_deletion_whose_answer_is_lost_is_not_taken_for_granted(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("DELETE", cut="after")
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert cloud.deleted == 2


def test_a_vm_that_is_already_gone_has_nothing_left_to_delete(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        fault = cloud.fail("DELETE", status=404, times=9)
        with Machine(cloud, tmp_path) as machine:
            machine.wait()
        assert fault.fired == 1


def test_the_last_resort_comes_only_after_the_api_has_refused_every_time(tmp_path: Path) -> None:
    resort = stub(tmp_path / "bin", "last-resort", f"touch {tmp_path}/shut-down")
    env = {"BENCH_DELETE_TRIES": "3", "BENCH_LAST_RESORT": str(resort)}
    with cloud_for() as cloud:
        fault = cloud.fail("DELETE", status=403, times=1e9)
        with Machine(cloud, tmp_path, **env) as machine:
            machine.wait()
        assert fault.fired == 3
        assert (tmp_path / "shut-down").exists()


def test_as_it_ships_the_api_is_asked_150_times_before_the_vm_shuts_itself_down(tmp_path: Path) -> None:
    """The script's own functions on what looks like a real VM: no variable of the tests, an API that always refuses."""
    functions = SCRIPT.read_text().partition('mkdir -p "$dir"; trap')[0]
    play = f"""{functions}
dir={tmp_path} name=vm
sleep() {{ :; }}
delete_self() {{ echo asked; return 1; }}
shutdown() {{ echo "shutdown $*"; }}
finish"""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BENCH_")}
    ran = subprocess.run(["bash", "-c", play], capture_output=True, text=True, env=clean, timeout=600)
    said = [line for line in ran.stdout.splitlines() if " boot: " not in line]
    assert said == ["asked"] * 150 + ["shutdown -P now"]


def test_a_machine_that_only_stands_in_for_a_vm_is_never_shut_down(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("DELETE", status=403, times=1e9)
        stub(tmp_path / "bin", "shutdown", f"touch {tmp_path}/shut-down")
        with Machine(cloud, tmp_path, BENCH_DELETE_TRIES="2") as machine:
            machine.wait()
        assert not (tmp_path / "shut-down").exists()
