"""One implementation on one case in one setting, in numbers: times, rates, clocks, energy, memory, error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.bootstrap import Interval, median, median_interval
from orchestrator.analysis.modes import TimingMode, two_modes
from orchestrator.analysis.roofs import CountedWork, Roof, share_of_roof
from orchestrator.analysis.samples import PEAK, Group, Vector


@dataclass(frozen=True, slots=True)
class CaseTiming:
    """One implementation on one case in one setting. Latencies are in microseconds a call; unknown values are NaN."""

    implementation: str
    backend: str
    count: int
    median_us: Interval
    p5_us: float
    p95_us: float
    min_us: float
    tflops: float
    roof_percent: float
    """The rate in per cent of the data sheet's rate."""
    held_percent: float
    """The rate in per cent of the data sheet's rate at the clock that the device held."""
    clock_mhz: float
    throttled: float
    """The share of measurements taken while the device throttled, 0 to 1."""
    joules: float
    """The energy of a call, of the whole device."""
    peak_bytes: float
    """The most device memory that a call held beyond its inputs."""
    timer_share: float
    """The timer's share of the median, 0 to 1; it is not taken off the median."""
    host_us: float
    """The time in which the host enqueues a call, in microseconds."""
    max_abs_error: float
    skipped: str
    group: Group
    modes: tuple[TimingMode, ...] = ()
    """The two groups into which the times fall; empty where there are not clearly two."""

    @property
    def timed(self) -> bool:
        return self.count > 0

    @property
    def modes_text(self) -> str:
        """`300 µs (52 %) and 520 µs (48 %)`; empty without two modes."""
        return " and ".join(f"{mode.us:.4g} µs ({mode.share:.0%})".replace("%", " %") for mode in self.modes)


def timing_of(group: Group, work: CountedWork | None, roof: Roof | None) -> CaseTiming:
    """The timing of a group; rates need `work`, and shares of peaks need `roof` too."""
    nothing = math.nan
    times = group.latency_us
    middle = median_interval(times) if group.count else Interval(nothing, nothing, nothing)
    least, p5, p95 = (float(q) for q in np.quantile(times, [0, 0.05, 0.95])) if group.count else (nothing,) * 3
    clock = _middle(group.sensors["sm_clock_mhz"])
    tflops = work.tflops(middle.mid) if work else nothing
    top = roof.tflops if roof else nothing
    peaks = group.sensors[PEAK]
    return CaseTiming(
        implementation=group.key.implementation,
        backend=group.backend,
        count=group.count,
        median_us=middle,
        p5_us=p5,
        p95_us=p95,
        min_us=least,
        tflops=tflops,
        roof_percent=share_of_roof(tflops, top),
        held_percent=share_of_roof(tflops, top * clock / roof.clock_mhz if roof else nothing),
        clock_mhz=clock,
        throttled=float(group.throttled.mean()) if group.count else nothing,
        joules=_joules(group),
        peak_bytes=float(np.fmax.reduce(peaks)) if peaks.size else nothing,
        timer_share=_middle(group.sensors["timer_overhead_us"]) / middle.mid,
        host_us=_middle(group.sensors["host_us"]),
        max_abs_error=group.max_abs_error,
        skipped=group.skipped,
        group=group,
        modes=two_modes(times),
    )


def _middle(values: Vector) -> float:
    valid_values = values[~np.isnan(values)]
    return median(valid_values) if valid_values.size else math.nan


def _joules(group: Group) -> float:
    """The energy of a call in joules, as the harness measured it in a stretch of its own. Older files have the
    counter's difference around each sample. These are summed before they are divided, as the counter moves in steps
    longer than a sample."""
    followed = _middle(group.sensors["joules_per_call"])
    if not math.isnan(followed):
        return followed
    energy, calls = group.sensors["energy_j"], group.sensors["calls"]
    has_energy = ~np.isnan(energy) & (calls > 0)
    total = float(calls[has_energy].sum())
    return float(energy[has_energy].sum()) / total if total else math.nan
