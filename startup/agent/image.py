"""Prepares a machine whose disk becomes an image: installs what later runs need, removes what belongs to this machine
alone, and waits without writing until a client has sealed the disk. Where nothing may be installed nothing is
changed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from startup.agent.clock import Patience
from startup.agent.diagnosis import Diagnosis, Ending
from startup.agent.events import EventWriter
from startup.agent.host import LocalHost
from startup.agent.packages import Packages
from startup.agent.remediation import driver_version
from startup.agent.spec import RunSpec
from startup.agent.stop import Stop
from startup.agent.storage import AgentStorage, StorageError

PREPARED = Path("/opt/bench")
"""The folder of an image for what is prepared; the run's own folder is never part of an image."""
COUNTERS = "options nvidia NVreg_RestrictProfilingToAdminUsers=0\n"
NCU_DIRECTORIES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
OWN = ("etc/machine-id", "var/lib/dbus/machine-id")
"""Files that every machine must make for itself. They are emptied, as systemd expects."""


class Preparation:
    """The steps of the preparation, in order; `root` is the file system that becomes the image."""

    def __init__(
        self,
        host: LocalHost,
        packages: Packages,
        storage: AgentStorage,
        sealed: str,
        spec: RunSpec,
        home: Path,
        root: Path = Path("/"),
    ) -> None:
        self.host = host
        self.packages = packages
        self.storage = storage
        self.sealed = sealed
        self.spec = spec
        self.home = home
        self.root = root
        if spec.prepare and spec.allow_install:
            packages.venv = PREPARED / "venv"

    def run(self, limit: Patience, events: EventWriter, stop: Stop) -> Ending:
        """Prepares the disk, writes an event, and waits for the seal. The machine ends when a client has sealed the
        disk or reports that it could not."""
        ncu = self.ncu(limit)
        steps: tuple[Callable[[Patience], None], ...] = (self.hold_kernel, self.open_counters, self.forget)
        if self.spec.allow_install:
            for step in steps:
                step(limit)
                stop.check()
        probe = self.packages.probe(limit)
        self.quiet(limit)
        events.append(
            "image_prepared",
            torch=probe.torch or "",
            driver=driver_version(self.host, limit) or self.installed_driver(),
            kernel=platform.release(),
            ncu=ncu,
        )
        return self.wait(stop)

    def ncu(self, limit: Patience) -> str:
        """The path of the profiler, which is installed where it is missing; empty where there is none, which is no
        failure."""
        ncu_path = self.host.which("ncu")
        for folder in NCU_DIRECTORIES:
            ncu_path = ncu_path or next(
                (str(path) for path in sorted(Path(folder).rglob("ncu")) if path.is_file()), None
            )
        if ncu_path is None and self.spec.allow_install and self.spec.prepare.get("ncu"):
            self.packages.apt("nsight-compute", patience=limit)
            ncu_path = self.host.which("ncu")
        return ncu_path or ""

    def hold_kernel(self, limit: Patience) -> None:
        """Excludes kernel and driver from automatic updates, as the two must match at every later boot."""
        release = platform.release()
        self.host.run("apt-mark", "hold", f"linux-image-{release}", f"linux-headers-{release}", patience=limit)
        self.host.run("systemctl", "disable", "--now", "unattended-upgrades.service", patience=limit)
        self.host.run("systemctl", "mask", "apt-daily.timer", "apt-daily-upgrade.timer", patience=limit)

    def open_counters(self, _: Patience) -> None:
        """Opens the profiler's counters to all users, as only the run uses such a machine."""
        folder = self.root / "etc/modprobe.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench-profiling.conf").write_text(COUNTERS)

    def forget(self, limit: Patience) -> None:
        """Removes what belongs to this machine alone, and caches. The run's folder is removed as far as it is not in
        use: a `first-boot` file in an image would fire the next machine's watchdog at once."""
        for name in OWN:
            path = self.root / name
            if path.exists() and not path.is_symlink():
                path.write_text("")
        for path in (*self.root.glob("etc/ssh/ssh_host_*"), *self.root.glob("root/.ssh/*")):
            path.unlink(missing_ok=True)
        for path in self.root.glob("home/*/.ssh"):
            shutil.rmtree(path, ignore_errors=True)
        self.host.run("apt-get", "clean", patience=limit)
        (self.home / "first-boot").unlink(missing_ok=True)

    def quiet(self, limit: Patience) -> None:
        """Writes all data to the disk and frees unused blocks, as the image is paid by size."""
        if self.spec.allow_install:
            self.host.run("fstrim", "--all", patience=limit)
        os.sync()

    def installed_driver(self) -> str:
        """The driver's version, from the file of its module, as on a machine without a GPU the driver does not
        answer."""
        version = self.root / "sys/module/nvidia/version"
        return version.read_text().strip() if version.is_file() else ""

    def wait(self, stop: Stop) -> Ending:
        """Waits until the client has reported whether the disk is sealed."""
        patience = Patience(self.host.clock, float(self.spec.prepare.get("wait_s", 600)), stop.requested)
        while patience.left() > 0:
            stop.check()
            try:
                if self.storage.get(self.sealed, patience) is not None:
                    return Ending("succeeded", 0, "the disk was sealed")
            except StorageError as error:
                self.host.log.say(str(error))
            patience.pause(self.spec.timing.seal_poll_s)
        stop.check()
        detail = "no client sealed the disk in time"
        return Ending("failed", 1, detail, Diagnosis("not_sealed", detail))
