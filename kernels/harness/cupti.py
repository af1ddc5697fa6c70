"""What CUPTI, by way of torch.profiler, saw the device do: a clock that is neither an event's nor ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NO_KERNEL = ("Context Sync", "Event Sync", "Event Record", "Stream Wait", "Stream Sync", "Device Sync", "cuda")


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing that the device did, in nanoseconds: a kernel, a copy, or memory that was set."""

    name: str
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


Trace = Callable[[Callable[[], None]], Sequence[Activity]]
"""Does the work and tells what the device did meanwhile, in order of time."""


def traced(work: Callable[[], None]) -> list[Activity]:
    """What the device did for `work`, which waits for it. Raises what the profiler does where it is
    not to be had: `RuntimeError`, `AttributeError` or `AssertionError`."""
    from torch.profiler import ProfilerActivity, profile

    # Where there is one cycle only, keeping the events changes nothing but that the profiler does not warn of it.
    kept = {"acc_events": True} if "acc_events" in inspect.signature(profile.__init__).parameters else {}
    with profile(activities=[ProfilerActivity.CUDA], **kept) as trace:
        work()
    return activities(trace.profiler.kineto_results.events())


def activities(events: Sequence[Any]) -> list[Activity]:
    """Those of the device, without its waits, in order of time."""
    mine = [
        Activity(one.name(), one.start_ns(), one.duration_ns()) for one in events if one.device_type().name == "CUDA"
    ]
    return sorted((one for one in mine if not one.name.startswith(NO_KERNEL)), key=lambda one: one.start)


def span_of(own: Sequence[Activity]) -> int:
    """Nanoseconds from the first one's start to the last one's end; 0 for none."""
    return max((one.end for one in own), default=0) - (own[0].start if own else 0)
