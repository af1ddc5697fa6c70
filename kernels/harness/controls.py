"""A second A/A control, on the implementation with the longest launch. If host time leaks into measurements, it shows
there first.

The control `bench:aa` has the short launch of `bench`, so it does not show noise that only long launches have.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.harness.contenders import Bound, Crew
from kernels.harness.judging import Judged, Session, judge_one, send_outcome
from kernels.harness.spec import CONTROL, original_name
from kernels.harness.workload import Unavailable

LOOKS = 5
COMPARABLE = 4.0
"""An implementation that takes over four times as long as the fastest gets no control, which would cost more than it
tells."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a call in microseconds: on the host, and until the device has done it."""

    implementation: str
    host_us: float
    whole_us: float


def slowest_launcher(costs: Sequence[Cost], has_control: frozenset[str]) -> str | None:
    """The implementation of comparable speed whose calls take the host longest; None where it already has a control."""
    least = min((one.whole_us for one in costs), default=0.0)
    near = [one for one in costs if one.whole_us <= COMPARABLE * least]
    longest = max(near, key=lambda one: one.host_us, default=None)
    return None if longest is None or longest.implementation in has_control else longest.implementation


def call_cost(bound: Bound, device: torch.device) -> Cost:
    """The cost of a call: medians of five separate calls."""
    host, whole_us = [], []
    with bound.scope():
        for _ in range(LOOKS):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            bound.plan()
            enqueued = time.perf_counter()
            torch.cuda.synchronize(device)
            host.append((enqueued - began) * 1e6)
            whole_us.append((time.perf_counter() - began) * 1e6)
    return Cost(bound.implementation, statistics.median(host), statistics.median(whole_us))


def with_second_control(session: Session, crew: Crew, judged: Judged) -> Judged:
    """The case with one more control. It is added only where controls are wanted, the device works in parallel with the
    host, and the implementations run in this process."""
    names = session.spec.implementations
    if session.device.type != "cuda" or judged.by is None or not any(name.endswith(CONTROL) for name in names):
        return judged
    try:
        costs = [call_cost(one, session.device) for one in judged.bound if not one.implementation.endswith(CONTROL)]
    except (RuntimeError, Unavailable):
        return judged
    chosen = slowest_launcher(costs, frozenset(original_name(name) for name in names if name.endswith(CONTROL)))
    if chosen is None:
        return judged
    outcome = judge_one(chosen + CONTROL, crew, judged.case, judged.inputs, judged.by)
    send_outcome(session.facts, judged.case, outcome)
    return replace(judged, outcomes=(*judged.outcomes, outcome))
