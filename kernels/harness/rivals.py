"""Whether anything else used the device while an implementation was timed: the processes of the others, by the
processor time that the kernel counts for them, or work on the device that a kernel of ours has to wait for.

No process of an implementation is asked, because a kernel that slows its rivals would not say so.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from kernels.harness.ending import list_descendants, read_parents
from kernels.harness.hands import Hand

SHARE, LEAST_S = 0.05, 50e-6
"""Others may use this share of a processor while a sample is taken, and so many seconds in any case: a process that has
answered has a little left to do."""
ACCUSED_S = 0.02
"""So many seconds of processor time, and more than `SHARE` of other implementations' samples, are a reason against an
implementation."""
ACCUSED_SAMPLES, OFTEN, SELDOM = 5, 0.5, 0.1
"""An implementation is said to leave work behind if the device is busy after more than `OFTEN` of at least so many of
its samples, and after at most `SELDOM` of the others'."""
LISTED_S = 1.0
"""How long a list of the processes that implementations have started is used."""
PROBES, SLOW_TIMES, SLOW_S = 3, 5.0, 500e-6
"""The device is busy if so many probes in a row take that many times as long as usual and so many seconds more."""


def processor_s(pid: int) -> float:
    """The processor time of a process in seconds, of all its threads; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, OverflowError):
        return time.clock_gettime(~pid << 3 | 2)  # the kernel's number of a process's clock
    return 0.0


@dataclass
class DeviceProbe:
    """Says whether a device is busy, by how long a tiny call of this process waits for it."""

    call: Callable[[], object]
    now_s: Callable[[], float] = time.perf_counter
    usual_s: list[float] = field(default_factory=list)

    def is_busy(self) -> bool:
        """Whether each of several calls had to wait."""
        for _ in range(PROBES):
            began = self.now_s()
            self.call()
            taken_s = self.now_s() - began
            if len(self.usual_s) < 20:
                self.usual_s.append(taken_s)
            if taken_s <= SLOW_TIMES * statistics.median_low(self.usual_s) + SLOW_S:
                return False
        return True


def probe_of(device: torch.device) -> Callable[[], bool]:
    """The probe of a device; a processor is never busy by it."""
    if device.type != "cuda":
        return lambda: False
    cell = torch.zeros(1, device=device)

    def call() -> None:
        cell.add_(1)
        torch.cuda.synchronize(device)

    probe = DeviceProbe(call)
    for _ in range(20):  # nothing else runs yet
        probe.is_busy()
    return probe.is_busy


@dataclass
class Rivals:
    """What the processes of the other implementations do while one is timed, in one case."""

    hands: Mapping[str, Hand]
    is_busy: Callable[[], bool]
    cpu_s: Callable[[int], float] = processor_s
    now_s: Callable[[], float] = time.perf_counter
    used_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The processor time that each has used while others were timed, in seconds."""
    others_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """For how long others were timed."""
    samples: Counter[str] = field(default_factory=Counter)
    busy_after: Counter[str] = field(default_factory=Counter)
    started: dict[int, list[int]] = field(default_factory=dict)
    listed_at: float = -math.inf

    def watch(self, name: str) -> Callable[[], bool]:
        """Called before a sample. Returns the function to call after it, which says whether it was disturbed."""
        before = {rival: self.used_so_far(hand) for rival, hand in self.hands.items() if rival != name}
        return partial(self.was_disturbed, name, before, self.now_s())

    def was_disturbed(self, name: str, before: Mapping[str, float], began: float) -> bool:
        """Whether anything else used the device since `began`."""
        wall_s, used_s = self.now_s() - began, 0.0
        for rival, start_s in before.items():
            used_by_rival_s = max(0.0, self.used_so_far(self.hands[rival]) - start_s)
            self.used_s[rival] += used_by_rival_s
            self.others_s[rival] += wall_s
            used_s += used_by_rival_s
        busy = self.is_busy()
        self.samples[name] += 1
        self.busy_after[name] += busy
        return busy or used_s > max(LEAST_S, SHARE * wall_s)

    def used_so_far(self, hand: Hand) -> float:
        """The processor time of an implementation's process and of those that it has started, in seconds."""
        pid = None if hand.worker is None else hand.worker.process.pid
        if pid is None:
            return 0.0
        if time.monotonic() - self.listed_at > LISTED_S:
            parents = read_parents()
            roots = [one.worker.process.pid for one in self.hands.values() if one.worker is not None]
            self.started = {root: list_descendants(root, parents) for root in roots if root is not None}
            self.listed_at = time.monotonic()
        return sum(map(self.cpu_s, (pid, *self.started.get(pid, ()))))

    def used_share(self, name: str) -> float:
        """How many processors an implementation has used while others were timed."""
        return self.used_s[name] / self.others_s[name] if self.others_s[name] else 0.0

    def fault_of(self, name: str) -> str:
        """Why an implementation is not trusted because of what it did while others were timed; empty where it is. What
        all of them do is their library's: threads that wait for more work without sleeping."""
        share, least = (
            self.used_share(name),
            min((self.used_share(one) for one in self.hands if one != name), default=0),
        )
        if self.used_s[name] > ACCUSED_S and share > SHARE + 2 * least:
            return f"untrusted: it used {share:.2g} of a processor while others were timed"
        others = Counter({rival: count for rival, count in self.samples.items() if rival != name})
        busy_others = sum(self.busy_after[rival] for rival in others)
        if (
            self.samples[name] >= ACCUSED_SAMPLES
            and self.busy_after[name] > OFTEN * self.samples[name]
            and busy_others <= SELDOM * others.total()
        ):
            return "untrusted: it kept the device busy after its calls had returned"
        return ""
