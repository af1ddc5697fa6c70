"""CUPTI's record of the very launches that a timer of ours times: two clocks on one launch, sample by sample.

Each sample of burst and graph stands behind a cover (the gate's kernel, or a spin), and before each sample of sustained
a short spin is put as a mark. These kernels are in CUPTI's record too, so that what lies behind the n-th of them there
is what lies behind the n-th that was enqueued here. Where the counts differ nothing is compared, and it is said why.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernels.harness import gate
from kernels.harness.cupti import Activity, Trace, span_of, trace_activities
from kernels.harness.regimes import BURST, SUSTAINED
from kernels.harness.settings import without_collector
from kernels.harness.timers import CudaTimer, Timed
from kernels.harness.turns import Contender, Turns
from kernels.harness.workload import Unavailable

SAMPLES = {"burst": 11, "graph": 11, "sustained": 5}
MARK_US = 20.0
SPIN_KERNEL = "spin_kernel"
EARLY_NS = 1000
"""An activity that begins earlier than this before the end of its cover was not behind the cover."""
COLUMNS = (
    "regime", "samples", "calls", "watched_us", "unwatched_us", "cupti_us", "cupti_covered_us", "cupti_kernel_us",
    "worst_ratio", "kernels_per_call", "kernels", "skipped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Watched:
    """Medians over samples in microseconds a call, of `calls` timed calls each. They are our time; CUPTI's time from
    the start of the first kernel to the end of the last; in burst CUPTI's time from the end of the cover to the end of
    the last kernel (NaN in other regimes), which includes the first event and the way to the first kernel, as ours
    does; and the time of the kernels alone. `worst_ratio` is our time over CUPTI's (in burst the covered one) in the
    sample where they differ most."""

    samples: int
    calls: int
    watched_us: float
    cupti_us: float
    covered_us: float
    kernel_us: float
    worst_ratio: float
    kernels_per_call: int
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missed:
    """The reason why nothing can be compared."""

    why: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A cover, and what the device did between it and the next one."""

    cover: Activity
    work: list[Activity] = field(default_factory=list)

    @property
    def end(self) -> int:
        return max(one.end for one in self.work)


def watch_samples(
    timer: CudaTimer, contender: Contender, trace: Trace = trace_activities, pause: Callable[[float], None] = time.sleep
) -> Watched | Missed:
    """Takes some samples of this timer while CUPTI watches, with the rests of the regime. The caller has not entered
    the contender's scope."""
    taken: list[Timed] = []
    turns = Turns(len(contender.plans))

    def sampled() -> None:
        for _ in range(SAMPLES[timer.regime]):
            if timer.regime == SUSTAINED:
                timer.stream.spin(MARK_US)
            taken.append(timer(turns.take(contender, timer.calls_made)))
            pause(timer.rest_s(taken[-1].latency_us))

    try:
        with contender.scope(), without_collector():
            seen = trace(sampled)
    except Unavailable as exc:
        return Missed(str(exc))
    except (RuntimeError, AttributeError, AssertionError, MemoryError) as exc:
        return Missed(f"{type(exc).__name__}: {exc}"[:200])
    return match_launches(seen, taken, timer)


def match_launches(seen: Sequence[Activity], taken: Sequence[Timed], timer: CudaTimer) -> Watched | Missed:
    """Compares each sample with its launches in CUPTI's record."""
    own_launches = launches_of(seen, taken, covered=timer.regime != SUSTAINED)
    if isinstance(own_launches, Missed):
        return own_launches
    counts = {len(one.work) for one in own_launches}
    each, remainder = divmod(min(counts), timer.calls_made)
    if len(counts) > 1 or remainder or not each:
        counted = " or ".join(map(str, sorted(counts)))
        return Missed(f"CUPTI has {counted} kernels of a sample of {timer.calls_made} calls")
    calls = timer.calls_made - timer.warm
    timed = [one.work[timer.warm * each :] for one in own_launches]
    spans = [span_of(work) / 1000 / calls for work in timed]
    burst = timer.regime == BURST
    covered = [(one.end - one.cover.end) / 1000 for one in own_launches] if burst else []
    cupti_us = covered or spans
    if min(cupti_us) <= 0:
        return Missed("CUPTI's times are not in order")
    ratios = [one.latency_us / us for one, us in zip(taken, cupti_us, strict=True)]
    return Watched(
        samples=len(taken),
        calls=calls,
        watched_us=statistics.median(one.latency_us for one in taken),
        cupti_us=statistics.median(spans),
        covered_us=statistics.median(covered) if burst else math.nan,
        kernel_us=statistics.median(sum(one.length for one in work) / 1000 / calls for work in timed),
        worst_ratio=max(ratios, key=lambda ratio: abs(ratio - 1)),
        kernels_per_call=each,
        kernels=tuple(dict.fromkeys(one.name for one in timed[0][:each])),
    )


def launches_of(seen: Sequence[Activity], taken: Sequence[Timed], *, covered: bool) -> list[Launch] | Missed:
    """The launches behind the cover of each sample; of the last try, where it took several."""
    if covered and not all(one.cover for one in taken):
        return Missed("its launch had no cover")
    launches: list[Launch] = []
    for one in seen:
        if is_cover(one.name):
            launches.append(Launch(one))
        elif launches:
            launches[-1].work.append(one)
    made = sum(one.tries for one in taken)
    if len(launches) != made or not made:
        return Missed(f"CUPTI has {len(launches)} covers of the {made} that were enqueued")
    last_launches = [launches[last - 1] for last in itertools.accumulate(one.tries for one in taken)]
    if covered and any(one.work and one.work[0].start < one.cover.end - EARLY_NS for one in last_launches):
        return Missed("a kernel began before its cover had ended")
    return last_launches


def is_cover(name: str) -> bool:
    """Whether a kernel of this name is the gate or a spin."""
    return name.split("(")[0].strip() == gate.NAME or SPIN_KERNEL in name


def watched_cells(found: Watched | Missed, regime: str, unwatched_us: float) -> dict[str, str]:
    """A row's own cells; `unwatched_us` is our median of the ordinary measurement."""
    common = {"regime": regime, "unwatched_us": format_microseconds(unwatched_us)}
    if isinstance(found, Missed):
        return common | {"skipped": found.why}
    return common | {
        "samples": str(found.samples),
        "calls": str(found.calls),
        "watched_us": format_microseconds(found.watched_us),
        "cupti_us": format_microseconds(found.cupti_us),
        "cupti_covered_us": format_microseconds(found.covered_us),
        "cupti_kernel_us": format_microseconds(found.kernel_us),
        "worst_ratio": f"{found.worst_ratio:.5f}",
        "kernels_per_call": str(found.kernels_per_call),
        "kernels": " ".join(name.split("(")[0].strip().replace(" ", "_") for name in found.kernels)[:400],
        "skipped": "",
    }


def format_microseconds(microseconds: float) -> str:
    """The number as it is written to a file; empty where it is not known."""
    return "" if math.isnan(microseconds) else f"{microseconds:.3f}"
