"""The state of the host during a measurement: its clock, its load, and the time that a hypervisor gave to others."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

CLOCK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class HostReading:
    """One reading of the host; None where a value could not be read.

    `cpu_mhz` is the mean over the processors, `load_1m` the load average over one minute, `steal_percent` the share of
    processor time since the last reading that the hypervisor gave to others, 0 to 100.
    """

    cpu_mhz: float | None = None
    load_1m: float | None = None
    steal_percent: float | None = None


class Host:
    """Reads `proc` (/proc), which may lack any of the files; never raises."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self.mhz: float | None = None
        self.mhz_at = -CLOCK_EVERY_S
        self.before = self.ticks()

    def read(self) -> HostReading:
        """A reading of the host now."""
        ticks, steal = self.ticks(), None
        if ticks and self.before and ticks[0] > self.before[0]:
            steal = 100 * (ticks[1] - self.before[1]) / (ticks[0] - self.before[0])
            self.before = ticks
        load = self.text("loadavg").split()
        # Asking for the clocks may wake every processor, so it is done seldom.
        if time.monotonic() - self.mhz_at >= CLOCK_EVERY_S:
            clocks = [float(mhz) for mhz in re.findall(r"(?m)^cpu MHz\s*:\s*([0-9.]+)", self.text("cpuinfo"))]
            self.mhz, self.mhz_at = (sum(clocks) / len(clocks) if clocks else None), time.monotonic()
        return HostReading(
            cpu_mhz=self.mhz,
            load_1m=float(load[0]) if load else None,
            steal_percent=steal,
        )

    def ticks(self) -> tuple[int, int] | None:
        """All processor time so far, and the stolen part of it, in ticks of the kernel; None where it cannot be
        read."""
        match = re.search(r"(?m)^cpu +([0-9 ]+)$", self.text("stat"))
        times = [int(one) for one in match.group(1).split()] if match else []
        # user nice system idle iowait irq softirq steal; what follows (guest) is counted in user already.
        return (sum(times[:8]), times[7]) if len(times) >= 8 else None

    def text(self, name: str) -> str:
        """The text of a file of /proc; empty where it cannot be read."""
        try:
            return (self.proc / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
