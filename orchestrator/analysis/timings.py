"""One implementation on one case in one setting, in numbers: times, rates, clocks, energy, memory, error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.bootstrap import Interval, median, median_interval
from orchestrator.analysis.roofs import Roof, Work, share
from orchestrator.analysis.samples import PEAK, Group, Vector


@dataclass(frozen=True, slots=True)
class Timing:
    """One implementation on one case. Latencies in microseconds a call; what is not known is NaN."""

    implementation: str
    backend: str
    count: int
    median_us: Interval
    p5_us: float
    p95_us: float
    min_us: float
    tflops: float
    roof_percent: float
    """Of the data sheet's rate."""
    held_percent: float
    """Of what the data sheet's rate would be at the clock that was held."""
    clock_mhz: float
    throttled: float
    """The share of measurements taken while the device was held back, 0 to 1."""
    joules: float
    """A call's energy, of the whole device."""
    peak_bytes: float
    """The most device memory that a call held beyond its inputs."""
    timer_share: float
    """The timer's own part of the median, which still has it."""
    host_us: float
    """What the host takes to enqueue a call."""
    max_abs_error: float
    skipped: str
    group: Group

    @property
    def timed(self) -> bool:
        return self.count > 0


def timing_of(group: Group, work: Work | None, roof: Roof | None) -> Timing:
    """One group in numbers."""
    nothing = math.nan
    times = group.latency_us
    middle = median_interval(times) if group.count else Interval(nothing, nothing, nothing)
    least, p5, p95 = (float(q) for q in np.quantile(times, [0, 0.05, 0.95])) if group.count else (nothing,) * 3
    clock = _middle(group.sensors["sm_clock_mhz"])
    tflops = work.tflops(middle.mid) if work else nothing
    top = roof.tflops if roof else nothing
    peaks = group.sensors[PEAK]
    return Timing(
        implementation=group.key.implementation,
        backend=group.backend,
        count=group.count,
        median_us=middle,
        p5_us=p5,
        p95_us=p95,
        min_us=least,
        tflops=tflops,
        roof_percent=share(tflops, top),
        held_percent=share(tflops, top * clock / roof.clock_mhz if roof else nothing),
        clock_mhz=clock,
        throttled=float(group.throttled.mean()) if group.count else nothing,
        joules=_joules(group),
        peak_bytes=float(np.fmax.reduce(peaks)) if peaks.size else nothing,
        timer_share=_middle(group.sensors["timer_overhead_us"]) / middle.mid,
        host_us=_middle(group.sensors["host_us"]),
        max_abs_error=group.max_abs_error,
        skipped=group.skipped,
        group=group,
    )


def _middle(values: Vector) -> float:
    known = values[~np.isnan(values)]
    return median(known) if known.size else math.nan


def _joules(group: Group) -> float:
    """As the harness found it in a stretch of its own. Older files have what the counter said around each sample, which
    is summed before it is divided: the counter moves in steps longer than a sample."""
    followed = _middle(group.sensors["joules_per_call"])
    if not math.isnan(followed):
        return followed
    energy, calls = group.sensors["energy_j"], group.sensors["calls"]
    known = ~np.isnan(energy) & (calls > 0)
    total = float(calls[known].sum())
    return float(energy[known].sum()) / total if total else math.nan
