"""How the agent heals a machine's clock, PATH, driver and disk, against real commands."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from startup.agent.clock import AgentClock, Patience
from startup.agent.diagnosis import Halt
from startup.agent.remediation import (
    HealRecord,
    clock_skew,
    cuda_path,
    disk_space,
    driver_version,
    driver_wait,
    package_lists,
)
from tests.unit.startup.healed import Bench, cause_of, disk_of
from tests.unit.startup.machine import stub


class SimulatedClock(AgentClock):
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


# --- clock ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [None, 0.0, 4.0, -4.0])
def test_a_clock_that_is_right_or_cannot_be_compared_is_left_alone(skew_s: float | None) -> None:
    clock = AgentClock()
    assert clock_skew(clock, skew_s, 5.0) is None
    assert clock.offset == timedelta(0)


@pytest.mark.parametrize("skew_s", [90.0, -90.0])
def test_a_wrong_clock_is_corrected_by_what_it_is_off(skew_s: float) -> None:
    clock = AgentClock()
    healed = clock_skew(clock, skew_s, 5.0)
    assert healed is not None
    assert healed.what == "clock"
    assert clock.offset == timedelta(seconds=skew_s)


@pytest.mark.parametrize("jump_s", [90.0, -90.0, 86400.0])
def test_a_clock_that_is_set_while_a_run_goes_on_moves_no_event(jump_s: float) -> None:
    wall, steady = [1e9 - jump_s], [50.0]
    clock = AgentClock(lambda: wall[0], lambda: steady[0])
    clock_skew(clock, jump_s, 5.0)  # the storage server's is right
    wall[0] += jump_s + 10.0  # and so is ours from now on
    steady[0] += 10.0
    assert clock.now().timestamp() == 1e9 + 10.0


# --- CUDA's PATH ------------------------------------------------------------------------------------------------------


def test_cuda_is_put_on_path_where_it_is_installed_but_not_found(bench: Bench, tmp_path: Path) -> None:
    cuda = tmp_path / "cuda"
    (cuda / "lib64").mkdir(parents=True)
    stub(cuda / "bin", "nvcc", "echo nvcc")
    assert bench.host.which("nvcc") is None
    healed = cuda_path(bench.host, [tmp_path / "absent", cuda / "bin"])
    assert healed is not None
    assert healed.what == "cuda_path"
    assert bench.host.run("nvcc", patience=bench.patience).output == "nvcc"
    assert bench.host.env["LD_LIBRARY_PATH"] == str(cuda / "lib64")
    assert cuda_path(bench.host, [cuda / "bin"]) is None, "once healed there is nothing left to heal"


def test_cuda_without_libraries_beside_it_only_changes_path(bench: Bench, tmp_path: Path) -> None:
    stub(tmp_path / "cuda" / "bin", "nvcc", "echo nvcc")
    assert cuda_path(bench.host, [tmp_path / "cuda" / "bin"]) is not None
    assert "LD_LIBRARY_PATH" not in bench.host.env


def test_no_cuda_toolkit_is_no_fault(tmp_path: Path) -> None:
    assert cuda_path(Bench(tmp_path).host, [tmp_path / "absent"]) is None


# --- driver -----------------------------------------------------------------------------------------------------------


def test_a_driver_that_answers_at_once_needs_no_heal(bench: Bench) -> None:
    bench.driver("580.95.05")
    assert driver_wait(bench.host, 5, 0.01, bench.patience) is None


def test_a_driver_that_is_late_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    bench.stub("nvidia-smi", f'echo x >> {tmp_path}/asked; [ "$(wc -l < {tmp_path}/asked)" -ge 4 ] && echo 580.95.05')
    healed = driver_wait(bench.host, 60, 3, bench.patience)
    assert healed == HealRecord("driver_wait", "the driver answered after 9.0 s")


@pytest.mark.parametrize(
    ("body", "says"), [("exit 9", "does not answer"), ("echo No devices were found", "not answer")]
)
def test_a_driver_that_never_answers_is_named(tmp_path: Path, body: str, says: str) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    bench.stub("nvidia-smi", body)
    with pytest.raises(Halt, match=says) as halted:
        driver_wait(bench.host, 20, 3, bench.patience)
    assert cause_of(halted) == "no_cuda"


def test_a_driver_of_another_version_is_named_without_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    bench.stub("nvidia-smi", "echo Failed to initialize NVML: Driver/library version mismatch; exit 18")
    with pytest.raises(Halt, match="a reboot mends it"):
        driver_wait(bench.host, 600, 3, bench.patience)
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize(("locked", "asked", "ok"), [(0, 1, True), (3, 4, True), (999, 61, False)])
def test_the_lock_of_the_package_lists_is_waited_for(tmp_path: Path, locked: int, asked: int, ok: bool) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    says = "E: Could not get lock /var/lib/apt/lists/lock"
    count = f'echo x >> {tmp_path}/asked; [ "$(wc -l < {tmp_path}/asked)" -gt {locked} ]'
    bench.stub("apt-get", f"{count} || {{ echo {says}; exit 100; }}")
    assert package_lists(bench.host, Patience(bench.clock, 1e6)).ok is ok
    assert len((tmp_path / "asked").read_text().split()) == asked


def test_an_image_without_a_driver_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    (bench.bin / "nvidia-smi").unlink()
    bench.host.env["PATH"] = str(bench.bin)
    with pytest.raises(Halt, match="not installed") as halted:
        driver_wait(bench.host, 20, 3, bench.patience)
    assert cause_of(halted) == "no_cuda"


def test_waiting_for_the_driver_ends_when_the_phase_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    bench.stub("nvidia-smi", "exit 9")
    with pytest.raises(Halt, match="after 3 s"):
        driver_wait(bench.host, 600, 3, Patience(bench.clock, 5))


def test_an_empty_disk_is_left_alone(bench: Bench) -> None:
    assert bench.host.free_gb() > 0
    assert disk_space(bench.host, 0, True, bench.patience) is None


def test_a_full_disk_is_freed_of_package_caches(bench: Bench, tmp_path: Path) -> None:
    disk_of(bench, 1.0, 6.5)
    bench.python()
    bench.stub("apt-get", f'echo "apt-get $*" >> {tmp_path}/calls')
    healed = disk_space(bench.host, 4, True, bench.patience)
    assert healed == HealRecord("disk", "package caches emptied: 1.0 GB free before, 6.5 GB after")
    assert bench.calls() == ["apt-get clean", "-m pip cache purge"]


def test_a_disk_that_stays_full_is_named(bench: Bench) -> None:
    disk_of(bench, 1.0)
    with pytest.raises(Halt, match=r"1\.0 GB free") as halted:
        disk_space(bench.host, 4, True, bench.patience)
    assert cause_of(halted) == "disk_full"


def test_where_nothing_may_be_installed_nothing_is_deleted_either(bench: Bench, tmp_path: Path) -> None:
    disk_of(bench, 1.0)
    bench.stub("apt-get", f"touch {tmp_path}/deleted")
    with pytest.raises(Halt):
        disk_space(bench.host, 4, False, bench.patience)
    assert not (tmp_path / "deleted").exists()


def test_driver_version_is_only_what_looks_like_one(bench: Bench) -> None:
    bench.driver("NVIDIA-SMI has failed")
    assert driver_version(bench.host, bench.patience) is None
