"""What CUPTI says that the kernels of a call took: a clock that is neither an event's nor ours, for some of the cases.

It is asked after everything else has been measured, since tracing costs; its answers are kept in `cupti.csv`.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.harness.timers import REST_MOST_S, REST_TIMES
from kernels.harness.turns import Contender
from kernels.harness.workload import Unavailable

CASES = 6
CALLS = 11
SPIN = "spin_kernel"
SPIN_CYCLES = 2_000_000
"""A millisecond: each call is enqueued while this lasts, and told by it from the one before."""
SHORT_SPIN_CYCLES = 400_000
BUSY_FROM_US = 200.0
"""Calls as long as this are asked for once more on a device that gets no rest, as in the graph and sustained regimes:
there a power limit may hold it back."""
HEATING_S = 0.5
NO_KERNEL = ("Context Sync", "Event Sync", "Stream Wait", "Device Sync", "cuda")
COLUMNS = ("calls", "cupti_us", "cupti_kernel_us", "cupti_busy_us", "kernels", "burst_us", "graph_us", "sustained_us")


@dataclass(frozen=True, slots=True)
class Seen:
    """Medians over calls, in microseconds: from the first kernel's start to the last one's end, and the kernels' own
    time; and what they are called."""

    calls: int
    span_us: float
    kernel_us: float
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing that the device did, in nanoseconds."""

    name: str
    start: int
    length: int


def sampled(cases: Sequence[Any], most: int = CASES) -> list[Any]:
    """So many of them, evenly spread over the grid, the first and the last among them."""
    if len(cases) <= most:
        return list(cases)
    return [cases[round(number * (len(cases) - 1) / (most - 1))] for number in range(most)]


def seen(contender: Contender) -> Seen | None:
    """The contender's calls by CUPTI, each on the next of its input sets after a rest; None where it does not see any.
    The caller has not entered the contender's scope."""
    plans = itertools.cycle(contender.plans)
    rest_s = 0.0

    def once() -> None:
        nonlocal rest_s
        time.sleep(rest_s)
        torch.cuda._sleep(SPIN_CYCLES)
        began = time.perf_counter()
        next(plans)()
        torch.cuda.synchronize()
        rest_s = min(REST_MOST_S, REST_TIMES * (time.perf_counter() - began))

    try:
        with contender.scope():
            return told(traced(once, CALLS))
    except (RuntimeError, AttributeError, Unavailable):
        return None


def busy(contenders: Sequence[Contender]) -> dict[str, float]:
    """The median microseconds of each contender's calls by CUPTI, taken in turns on a device that has no rest; nothing
    where it does not see all of them."""
    turns = {one.implementation: itertools.cycle(one.plans) for one in contenders}

    def round_() -> None:
        for one in contenders:
            with one.scope():
                torch.cuda._sleep(SHORT_SPIN_CYCLES)
                next(turns[one.implementation])()
        torch.cuda.synchronize()

    try:
        until = time.monotonic() + HEATING_S
        while time.monotonic() < until:
            round_()
        return shared_out([one.implementation for one in contenders], traced(round_, CALLS))
    except (RuntimeError, AttributeError, Unavailable):
        return {}


def shared_out(names: Sequence[str], activities: Sequence[Activity]) -> dict[str, float]:
    """The median span of each one's calls in microseconds, where the calls are theirs in turns; nothing if one is
    missing."""
    spans = [span_of(own) for own in calls_of(activities)]
    if len(spans) != CALLS * len(names) or not all(spans):
        return {}
    return {name: statistics.median(spans[place :: len(names)]) / 1000 for place, name in enumerate(names)}


def traced(once: Callable[[], None], times: int) -> list[Activity]:
    """What the device did meanwhile, in order of time."""
    from torch.profiler import ProfilerActivity, profile

    once()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(times):
            once()
    events = trace.profiler.kineto_results.events()
    mine = [
        Activity(one.name(), one.start_ns(), one.duration_ns()) for one in events if one.device_type().name == "CUDA"
    ]
    return sorted(mine, key=lambda one: one.start)


def told(activities: Sequence[Activity]) -> Seen | None:
    """Each call's own between one spin and the next, summed up; None where there is nothing."""
    calls = [own for own in calls_of(activities) if own]
    if not calls:
        return None
    work = [sum(one.length for one in own) for own in calls]
    names = tuple(dict.fromkeys(one.name for own in calls for one in own))
    return Seen(len(calls), statistics.median(map(span_of, calls)) / 1000, statistics.median(work) / 1000, names)


def calls_of(activities: Sequence[Activity]) -> list[list[Activity]]:
    """What the device did between one spin and the next, for each spin."""
    calls: list[list[Activity]] = []
    for one in activities:
        if SPIN in one.name:
            calls.append([])
        elif calls and not one.name.startswith(NO_KERNEL):
            calls[-1].append(one)
    return calls


def span_of(own: Sequence[Activity]) -> int:
    """Nanoseconds from the first one's start to the last one's end; 0 for none."""
    return max((one.start + one.length for one in own), default=0) - (own[0].start if own else 0)


def cells(one: Seen, medians: Mapping[str, float], busy_us: float = math.nan) -> dict[str, str]:
    """The cells of a row: CUPTI's, and beside them our own medians by regime."""
    return {
        "calls": str(one.calls),
        "cupti_us": f"{one.span_us:.3f}",
        "cupti_kernel_us": f"{one.kernel_us:.3f}",
        "cupti_busy_us": "" if math.isnan(busy_us) else f"{busy_us:.3f}",
        "kernels": " ".join(name.split("(")[0].strip().replace(" ", "_") for name in one.kernels)[:400],
        **{f"{regime}_us": f"{us:.3f}" for regime, us in medians.items() if not math.isnan(us)},
    }
