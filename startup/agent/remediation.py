"""The rungs of the ladder that need no package: clock, CUDA's PATH, driver, disk.

Each rung looks, heals what it can, and returns what it healed; None when there was nothing to heal. What it cannot heal
it raises as Halt with a named diagnosis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from startup.agent.clock import AgentClock, Patience
from startup.agent.diagnosis import RebootNeeded, halt_for
from startup.agent.host import CompletedCommand, LocalHost

CUDA_DIRECTORIES = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))

MISMATCH = "Driver/library version mismatch"
"""What nvidia-smi says when the kernel has the module of another driver than the libraries."""


@dataclass(frozen=True)
class HealRecord:
    """One heal; `what` is a word of the contract's list."""

    what: str
    detail: str


def clock_skew(clock: AgentClock, skew_s: float | None, tolerated_s: float) -> HealRecord | None:
    """Corrects the agent's clock by `skew_s`, by which the storage server's clock is ahead. The system's clock is not
    changed."""
    if skew_s is None or abs(skew_s) <= tolerated_s:
        return None
    clock.offset += timedelta(seconds=skew_s)
    return HealRecord(
        "clock", f"the VM's clock was {-skew_s:+.1f} s off the storage server's; event times are corrected"
    )


def cuda_path(host: LocalHost, candidates: Sequence[Path] = CUDA_DIRECTORIES) -> HealRecord | None:
    """Puts CUDA's tools on PATH. If there are none, that is no fault, as the kernel is built with NVRTC first."""
    if host.which("nvcc"):
        return None
    for directory in candidates:
        if (directory / "nvcc").is_file():
            host.prepend("PATH", directory)
            libraries = directory.parent / "lib64"
            if libraries.is_dir():
                host.prepend("LD_LIBRARY_PATH", libraries)
            return HealRecord("cuda_path", f"{directory} put on PATH")
    return None


def driver_version(host: LocalHost, patience: Patience) -> str | None:
    """The NVIDIA driver's version, e.g. `580.95.05`; None when the driver does not answer."""
    ran = _ask_driver(host, patience)
    version = ran.output.split("\n")[0].strip() if ran.ok else ""
    return version if version[:1].isdigit() else None


def _ask_driver(host: LocalHost, patience: Patience) -> CompletedCommand:
    query = ("--query-gpu=driver_version", "--format=csv,noheader")
    return host.run("nvidia-smi", *query, patience=patience, timeout_s=30)


def driver_wait(
    host: LocalHost, wait_s: float, poll_s: float, patience: Patience, *, may_reboot: bool = False
) -> HealRecord | None:
    """Waits for the driver: on a first boot its module may still be compiling. Where its libraries are newer than the
    module that the kernel has loaded, raises `RebootNeeded` if the machine may be rebooted, and else `Halt`."""
    began = host.clock.monotonic()
    tries = 0
    while not (ran := _ask_driver(host, patience)).output[:1].isdigit() or not ran.ok:
        tries += 1
        if MISMATCH in ran.output:
            detail = f"{MISMATCH}: an update replaced the driver's libraries"
            if may_reboot:
                raise RebootNeeded(detail)
            raise halt_for("no_cuda", f"{detail}, and only a reboot mends it")
        waited_s = host.clock.monotonic() - began
        if waited_s >= wait_s or not patience.pause(poll_s):
            host.stop.check()
            what = "nvidia-smi is not installed" if host.which("nvidia-smi") is None else "nvidia-smi does not answer"
            raise halt_for("no_cuda", f"{what} after {waited_s:.0f} s")
    if tries == 0:
        return None
    return HealRecord("driver_wait", f"the driver answered after {host.clock.monotonic() - began:.1f} s")


def package_lists(host: LocalHost, patience: Patience, wait_s: float = 120.0) -> CompletedCommand:
    """Has apt read its lists. Waits for their lock, which apt-daily holds on a first boot and no option of apt waits
    for. A failure is logged: what is installed next then comes from old lists."""
    began = host.clock.monotonic()
    while True:
        ran = host.run("apt-get", "-o", "DPkg::Lock::Timeout=120", "-qq", "update", patience=patience)
        locked = not ran.ok and "lists/lock" in ran.output
        if not locked or host.clock.monotonic() - began >= wait_s or not patience.pause(2):
            break
    if not ran.ok:
        host.log.say(f"apt-get update failed: {ran.last_line}")
    return ran


def disk_space(host: LocalHost, min_free_gb: float, may_change: bool, patience: Patience) -> HealRecord | None:
    """Empties the package caches when less than `min_free_gb` (10^9 bytes) is free.

    Where nothing may be installed nothing is deleted either, as the caches belong to somebody else.
    """
    before = host.free_gb()
    if before >= min_free_gb:
        return None
    if may_change:
        host.run("apt-get", "clean", patience=patience)
        host.run(host.python, "-m", "pip", "cache", "purge", patience=patience)
    after = host.free_gb()
    if after < min_free_gb:
        raise halt_for("disk_full", f"{after:.1f} GB free in {host.home}, {min_free_gb:g} GB needed")
    return HealRecord("disk", f"package caches emptied: {before:.1f} GB free before, {after:.1f} GB after")
