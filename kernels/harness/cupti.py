"""What the device did according to CUPTI, which is read through torch.profiler. It is a clock that depends neither on
events nor on our code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NO_KERNEL = ("Context Sync", "Event Sync", "Event Record", "Stream Wait", "Stream Sync", "Device Sync", "cuda")


@dataclass(frozen=True, slots=True)
class Activity:
    """One activity of the device, with times in nanoseconds: a kernel, a copy, or a fill of memory."""

    name: str
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


Trace = Callable[[Callable[[], None]], Sequence[Activity]]
"""Does the work, and returns what the device did meanwhile, in order of time."""


def trace_activities(work: Callable[[], None]) -> list[Activity]:
    """What the device did for `work`, which waits for the device. Where the profiler is not available, raises what it
    raises: `RuntimeError`, `AttributeError` or `AssertionError`."""
    from torch.profiler import ProfilerActivity, profile

    # There is only one cycle, so keeping the events only prevents a warning of the profiler.
    kept = {"acc_events": True} if "acc_events" in inspect.signature(profile.__init__).parameters else {}
    with profile(activities=[ProfilerActivity.CUDA], **kept) as trace:
        work()
    return list_activities(trace.profiler.kineto_results.events())


def list_activities(events: Sequence[Any]) -> list[Activity]:
    """The activities of the device without its waits, in order of time."""
    mine = [
        Activity(one.name(), one.start_ns(), one.duration_ns()) for one in events if one.device_type().name == "CUDA"
    ]
    return sorted((one for one in mine if not one.name.startswith(NO_KERNEL)), key=lambda one: one.start)


def span_of(own: Sequence[Activity]) -> int:
    """The nanoseconds from the start of the first activity to the end of the last; 0 for none."""
    return max((one.end for one in own), default=0) - (own[0].start if own else 0)
