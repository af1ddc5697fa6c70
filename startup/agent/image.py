"""A machine that becomes an image: what later runs would install is put on its disk, what is its own is taken off, and
it waits, quiet, until a client has sealed the disk. Where nothing may be installed nothing is changed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from startup.agent.clock import Patience
from startup.agent.diagnosis import Diagnosis, Ending
from startup.agent.events import EventWriter
from startup.agent.heals import driver_version
from startup.agent.host import Host
from startup.agent.packages import Packages
from startup.agent.spec import RunSpec
from startup.agent.stop import Stop
from startup.agent.storage import Storage, StorageError

PREPARED = Path("/opt/bench")
"""What an image brings along; the run's own folder is never baked."""
COUNTERS = "options nvidia NVreg_RestrictProfilingToAdminUsers=0\n"
NCU_DIRECTORIES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
OWN = ("etc/machine-id", "var/lib/dbus/machine-id")
"""Files of one machine that must be made anew by the next: emptied, as systemd wants it."""


class Preparation:
    """Steps, in order; `root` is the file system that becomes the image."""

    def __init__(
        self,
        host: Host,
        packages: Packages,
        storage: Storage,
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
        """Prepares, says so, and waits for the seal. The machine ends when it is told that it is sealed, or that nobody
        could."""
        ncu = self.ncu(limit)
        steps: tuple[Callable[[Patience], None], ...] = (self.hold_kernel, self.open_counters, self.forget)
        if self.spec.allow_install:
            for step in steps:
                step(limit)
                stop.check()
        found = self.packages.probe(limit)
        self.quiet(limit)
        events.append(
            "image_prepared",
            torch=found.torch or "",
            driver=driver_version(self.host, limit) or self.installed_driver(),
            kernel=platform.release(),
            ncu=ncu,
        )
        return self.wait(stop)

    def ncu(self, limit: Patience) -> str:
        """Where the profiler is: looked for first, else installed; empty where there is none, which is no failure."""
        found = self.host.which("ncu")
        for folder in NCU_DIRECTORIES:
            found = found or next((str(path) for path in sorted(Path(folder).rglob("ncu")) if path.is_file()), None)
        if found is None and self.spec.allow_install and self.spec.prepare.get("ncu"):
            self.packages.apt("nsight-compute", patience=limit)
            found = self.host.which("ncu")
        return found or ""

    def hold_kernel(self, limit: Patience) -> None:
        """Kernel and driver must match at every later boot: neither is renewed behind our back."""
        release = platform.release()
        self.host.run("apt-mark", "hold", f"linux-image-{release}", f"linux-headers-{release}", patience=limit)
        self.host.run("systemctl", "disable", "--now", "unattended-upgrades.service", patience=limit)
        self.host.run("systemctl", "mask", "apt-daily.timer", "apt-daily-upgrade.timer", patience=limit)

    def open_counters(self, _: Patience) -> None:
        """The profiler's counters for everybody: nobody but the run is on such a machine."""
        folder = self.root / "etc/modprobe.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench-profiling.conf").write_text(COUNTERS)

    def forget(self, limit: Patience) -> None:
        """What is this machine's own, and caches. The run's folder goes as far as it is not in use: a `first-boot` in
        an image would fire the next machine's watchdog at once."""
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
        """What is written is on the disk, and blocks that hold nothing are given back: the archive is paid by size."""
        if self.spec.allow_install:
            self.host.run("fstrim", "--all", patience=limit)
        os.sync()

    def installed_driver(self) -> str:
        """The driver's version by its module's file: on a machine without a GPU nothing answers."""
        version = self.root / "sys/module/nvidia/version"
        return version.read_text().strip() if version.is_file() else ""

    def wait(self, stop: Stop) -> Ending:
        """Until the client has said what became of the disk."""
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
