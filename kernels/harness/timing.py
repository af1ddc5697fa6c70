"""Times implementations against each other. Each runs once a block, in random order, so that drift affects all
alike."""

from __future__ import annotations

import math
import random
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kernels.harness.calls import THESE
from kernels.harness.clocks import Clocks, Reading
from kernels.harness.energy import Drawn, measure_energy
from kernels.harness.host import Host, HostReading
from kernels.harness.settings import without_collector
from kernels.harness.spec import STEADY
from kernels.harness.stamps import utc_now
from kernels.harness.stopping import REPEATS, Enough, never_stop
from kernels.harness.timers import Timer
from kernels.harness.turns import Contender, Turns
from kernels.harness.warming import (
    FIXED,
    LIMIT,
    LIMIT_S,
    MOST_WINDOWS,
    WINDOW_BLOCKS,
    Warming,
    Window,
    is_steady,
)
from kernels.harness.workload import Unavailable


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: microseconds per call, its block and its place in the block (from 1), the device's sensors right
    after it, and the host's state before the block. The last fields are those of `Timed`."""

    implementation: str
    block: int
    repeat: int
    latency_us: float
    reading: Reading
    started_at: str
    position: int
    calls: int
    host: HostReading
    host_us: float | None = None
    cover: str = ""
    hidden: bool | None = None
    cover_us: float | None = None
    retaken: int = 0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What is left of a measurement once its samples are kept elsewhere: eight bytes each.

    `latencies` are in microseconds in the order of blocks; `stopped` is `repeats`, `precision` or `dollars`;
    `overhead_us` is the timer's share of a latency; `refused` has the reason of each contender that this regime cannot
    time; `energy` is what a call takes, where the device gives it and there was the time to follow it.
    """

    latencies: Mapping[str, array[float]]
    stopped: str
    warming: Warming
    overhead_us: Mapping[str, float]
    refused: Mapping[str, str]
    energy: Mapping[str, Drawn] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured: so many blocks after a warm-up, `warmup` calls of each contender or until `steady`.

    `enough` may end the measuring before the last block; `spare_s` says what time is left for energy.
    """

    blocks: int
    warmup: int | str
    enough: Enough = never_stop
    warmup_limit_s: float = LIMIT_S["cpu"]
    spare_s: Callable[[], float] = lambda: math.inf


@dataclass(frozen=True, slots=True)
class Instruments:
    """The instruments: a timer for each contender, the device's sensors, the host's sensors, and the time."""

    timer: Callable[[Contender], Timer]
    clocks: Clocks
    host: Host | None = None
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def measure_contenders(
    contenders: Sequence[Contender],
    extent: Extent,
    by: Instruments,
    rng: random.Random,
    keep: Callable[[Sample], None],
) -> Measured:
    """Measures all contenders, interleaved.

    The order is random in every odd block and reversed in the block after it, so that the effect of a place in the
    order is the same for all. Each sample is passed to `keep` and not kept here. Energy is measured after the last
    block, where there are a sensor and the time for it.
    """
    ready, timers, called, refused = prepare_contenders(contenders, extent.warmup, by.timer)
    course = Course(ready, timers, rng, by.clocks, by.host or Host(), by.pause)
    with without_collector():
        steady = extent.warmup == STEADY
        ended = warm_up(course, called, extent.warmup_limit_s, by.clock) if steady else FIXED
        latencies: dict[str, array[float]] = {contender.implementation: array("d") for contender in ready}
        stopped = REPEATS
        for _ in range(extent.blocks if ready else 0):
            for sample in course.block():
                latencies[sample.implementation].append(sample.latency_us)
                keep(sample)
            for name in course.refused:
                latencies.pop(name, None)
            if reason := extent.enough(latencies):
                stopped = reason
                break
        energy = course.energy(extent.spare_s)
    return Measured(
        latencies=latencies,
        stopped=stopped,
        warming=Warming(called, ended),
        overhead_us={name: one.overhead_us for name, one in timers.items()},
        refused=refused | course.refused,
        energy=energy,
    )


def prepare_contenders(
    contenders: Sequence[Contender], warmup: int | str, timer: Callable[[Contender], Timer]
) -> tuple[list[Contender], dict[str, Timer], dict[str, int], dict[str, str]]:
    """The contenders that can be timed, their timers and the numbers of calls made; and the reasons why the others
    cannot."""
    refused: dict[str, str] = {}
    timers: dict[str, Timer] = {}
    called: dict[str, int] = {}
    ready = []
    for contender in contenders:
        try:
            with contender.scope():
                called[contender.implementation] = fixed_calls(contender, warmup)
                THESE.tell()
                timers[contender.implementation] = timer(contender)
        except (Unavailable, torch.OutOfMemoryError, MemoryError) as exc:
            refused[contender.implementation] = str(exc) if isinstance(exc, Unavailable) else "out of memory"
            continue
        ready.append(contender)
    return ready, timers, called, refused


@dataclass
class Course:
    """Measures block after block of all contenders. `number` counts the blocks so far. `refused` has the contenders
    that ran out of memory or could not be hidden; they are left out from then on."""

    contenders: Sequence[Contender]
    timers: Mapping[str, Timer]
    rng: random.Random
    clocks: Clocks
    host: Host
    pause: Callable[[float], None]
    number: int = 0
    order: list[Contender] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = Turns(len(self.contenders[0].plans) if self.contenders else 1)

    def block(self) -> Iterator[Sample]:
        """The samples of the next block."""
        self.number += 1
        odd = self.number % 2
        self.order = self.rng.sample(self.contenders, len(self.contenders)) if odd else self.order[::-1]
        self.order = [one for one in self.order if one.implementation not in self.refused]
        around = self.host.read()
        for position, contender in enumerate(self.order, start=1):
            timer = self.timers[contender.implementation]
            plans = self.turns.take(contender, timer.calls_made)
            started_at = utc_now()
            try:
                with contender.scope():
                    timed = timer(plans)
            except Unavailable as exc:
                self.refused[contender.implementation] = str(exc)
                continue
            except (torch.OutOfMemoryError, MemoryError):
                self.refused[contender.implementation] = "out of memory while it was timed"
                continue
            yield Sample(
                implementation=contender.implementation,
                block=self.number,
                repeat=self.number,
                latency_us=timed.latency_us,
                reading=self.clocks.read(),
                started_at=started_at,
                position=position,
                calls=timer.calls_made,
                host=around,
                host_us=timed.host_us,
                cover=timed.cover,
                hidden=timed.hidden,
                cover_us=timed.cover_us,
                retaken=timed.retaken,
                shared=timed.shared,
            )
            rest_s = timer.rest_s(timed.latency_us)
            if rest_s:
                self.pause(rest_s)

    def energy(self, spare_s: Callable[[], float]) -> dict[str, Drawn]:
        """The energy of a call of each contender, where the device reports it. A contender that fails now has none."""
        samples: dict[str, Drawn] = {}
        for contender in self.contenders if self.clocks.energy_j() is not None else ():
            timer = self.timers[contender.implementation]
            if contender.implementation in self.refused:
                continue

            def work(contender: Contender = contender, timer: Timer = timer) -> int:
                timer(self.turns.take(contender, timer.calls_made))
                return timer.calls_made

            try:
                with contender.scope():
                    energy_sample = measure_energy(work, self.clocks.energy_j, patience_s=spare_s())
            except (Unavailable, torch.OutOfMemoryError, MemoryError):
                continue
            if energy_sample is not None:
                samples[contender.implementation] = energy_sample
        return samples

    def window(self) -> Window:
        """Measures some blocks whose samples are not kept."""
        samples = [sample for _ in range(WINDOW_BLOCKS) for sample in self.block()]
        times: dict[str, list[float]] = {}
        for sample in samples:
            times.setdefault(sample.implementation, []).append(sample.latency_us)
        times = {name: own for name, own in times.items() if name not in self.refused}
        return Window(times, [s.reading.sm_clock_mhz for s in samples if s.reading.sm_clock_mhz is not None])


def fixed_calls(contender: Contender, warmup: int | str) -> int:
    """Makes a fixed number of calls, on each input set in turn; none if the warm-up goes on until steady. Returns the
    number."""
    if not isinstance(warmup, int):
        return 0
    for plan in Turns(len(contender.plans)).take(contender, warmup):
        THESE.tell()
        plan()
    return warmup


def warm_up(course: Course, called: dict[str, int], limit_s: float, clock: Callable[[], float]) -> str:
    """Measures windows until two agree, or for `limit_s` seconds, without keeping samples. Adds the calls to `called`.
    Blocks are then counted from the start. Returns how the warm-up ended."""
    began, windows = clock(), 1
    before, ended = course.window(), LIMIT
    while windows < MOST_WINDOWS and clock() - began < limit_s:
        after = course.window()
        windows += 1
        if is_steady(before, after):
            ended = STEADY
            break
        before = after
    for name, timer in course.timers.items():
        called[name] += windows * WINDOW_BLOCKS * timer.calls_made
    course.number = 0
    return ended
