"""Clocks that share no code with the harness: CUDA events behind a long fixed spin, a graph and a loop of their own,
CUPTI by way of torch.profiler, and NVIDIA's NVBench where it is installed."""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kernels.attention.case import Case, Shape
from kernels.attention.workload import WORKLOAD
from kernels.harness import watching
from kernels.harness.timers import CudaTimer, Timed, timer_for
from kernels.harness.turns import Contender
from kernels.harness.workload import Site, Unavailable

Call = Callable[[], object]
Scope = Callable[[], AbstractContextManager[object]]
DEV = torch.device("cuda", 0)
GHZ = 1.98
CALM_SPIN_S, LOADED_SPIN_S, GRAPH_SPIN_S = 0.01, 0.06, 0.0005
"""How long the fixed spin lasts: longer than any enqueue, also of a host whose interpreter is taken. Before a graph it is
short, so that the chip gets no more rest than the harness gives it."""


@dataclass(frozen=True)
class Subject:
    """One implementation on one case: a call for each of the copies of its inputs."""

    case: Case
    name: str
    calls: tuple[Call, ...]
    scope: Scope


def subject(case: Case, name: str, most_sets: int = 100) -> Subject:
    """Bound to so many copies of random inputs that the L2 cache never holds the next. Raises `Unavailable`."""
    problem = WORKLOAD.problem()
    site = Site(DEV, 0, Path(tempfile.mkdtemp()), Path.home() / ".cache" / "bench-kernels")
    implementation = WORKLOAD.implementation(name, site)
    implementation.build(site)
    first = problem.inputs(case, torch.Generator(DEV).manual_seed(5))
    cache = torch.cuda.get_device_properties(DEV).L2_cache_size
    count = min(most_sets, 1 + math.ceil(3 * cache / problem.set_bytes(case, first)))
    bound = [implementation.bind(case, first)]
    bound += [implementation.bind(case, problem.copied(first)) for _ in range(count - 1)]
    return Subject(case, name, tuple(one.plan for one in bound), bound[0].scope)


def by_events(calls: Sequence[Call], spin_s: float, samples: int = 25) -> float:
    """The median of single calls, each behind the spin and followed by a rest."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for number in range(samples):
        torch.cuda._sleep(int(spin_s * GHZ * 1e9))
        start.record()
        calls[number % len(calls)]()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
        time.sleep(min(0.02, 9e-6 * times[-1]))
    return statistics.median(times)


def by_own_graph(calls: Sequence[Call], spin_s: float, seconds: float = 0.001, samples: int = 15) -> float:
    """Calls in a graph of its own, replayed behind the spin: microseconds a call."""
    turns = max(1, math.ceil(seconds * 1e6 / max(1.0, by_events(calls, spin_s, 5)) / len(calls)))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            for call in calls:
                call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    times = []
    for _ in range(samples):
        torch.cuda.synchronize()
        torch.cuda._sleep(int(spin_s * GHZ * 1e9))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / turns / len(calls))
    return statistics.median(times)


def by_loop(calls: Sequence[Call], each_us: float, seconds: float = 0.1) -> float:
    """Calls back to back from the host, the second half of them between two events."""
    count = max(4, min(1000, int(seconds * 1e6 / each_us)))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(2 * count):
        if number == count:
            start.record()
        calls[number % len(calls)]()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / count


def by_cupti(work: Call, repeats: int, calls_each: int, pause_s: float = 0.0) -> float:
    """Device microseconds a call by CUPTI: from the first kernel's start to the last one's end in each of `repeats`
    pieces of work, which make `calls_each` calls; the median."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repeats):
            torch.cuda._sleep(int(1e-3 * GHZ * 1e9))
            work()
            torch.cuda.synchronize()
            time.sleep(pause_s)
    spans: list[list[int]] = []
    kernels = [one for one in seen.profiler.kineto_results.events() if one.device_type().name == "CUDA"]
    for one in sorted(kernels, key=lambda event: event.start_ns()):
        if "spin" in one.name():
            spans.append([])
        elif spans and not one.name().startswith(("Context Sync", "Event", "Stream", "Device")):
            began = one.start_ns()
            spans[-1] += [began, began + one.duration_ns()]
    told = [(max(one) - min(one)) / 1e3 / calls_each for one in spans if one]
    return statistics.median(told) if told else math.nan


def by_nvbench(subjects: Sequence[Sequence[Call]]) -> list[float]:
    """NVBench's cold measurements, in microseconds; once in a process. Raises ImportError where cuda-bench is absent."""
    import json

    import cuda.bench as nvbench

    def register(number: int, calls: Sequence[Call]) -> None:
        turns = itertools.cycle(calls)

        def measured(state: nvbench.State) -> None:
            def launch(one: nvbench.Launch) -> None:
                stream = torch.cuda.ExternalStream(one.get_stream().addressof(), device=DEV)
                with torch.cuda.stream(stream):
                    next(turns)()

            state.exec(launch)

        measured.__name__ = f"subject_{number}"
        nvbench.register(measured)

    for number, calls in enumerate(subjects):
        register(number, calls)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nvbench.json"
        nvbench.run_all_benchmarks(["here", "--json", str(path), "--timeout", "4", "--devices", "0"])
        told = json.loads(path.read_text())
    wanted = ("nv/cold/time/gpu/median", "nv/cold/time/gpu/mean")
    times = []
    for one in told["benchmarks"]:
        found = {own["tag"]: own["data"][0]["value"] for own in one["states"][0]["summaries"] if own["tag"] in wanted}
        times.append(float(next(found[tag] for tag in wanted if tag in found)) * 1e6)
    return times


def ours(one: Subject, regime: str, samples: int = 25) -> list[Timed]:
    """What the harness says. Raises `Unavailable`."""
    take = taker(one, regime)
    return [take() for _ in range(samples)]


def taker(one: Subject, regime: str) -> Callable[[], Timed]:
    """What takes one sample of the harness at each call, and rests as the harness does. Raises `Unavailable`."""
    timer = timer_for(DEV, regime)(Contender(one.name, one.calls, one.scope))
    calls = itertools.cycle(one.calls)

    def take() -> Timed:
        taken = timer([next(calls) for _ in range(timer.calls_made)])
        time.sleep(min(0.02, timer.rest_s(taken.latency_us)))
        return taken

    return take


def watched(one: Subject, regime: str) -> watching.Watched | watching.Missed:
    """What the harness and CUPTI say of the same launches; its scope is not entered."""
    contender = Contender(one.name, one.calls, one.scope)
    try:
        with one.scope():
            timer = timer_for(DEV, regime)(contender)
    except Unavailable as exc:
        return watching.Missed(str(exc))
    assert isinstance(timer, CudaTimer)
    return watching.watch_samples(timer, contender)


def middle(taken: Sequence[Timed]) -> float:
    return statistics.median(one.latency_us for one in taken)


@contextmanager
def loader(most_rest_s: float = 0.0) -> Iterator[None]:
    """A thread that takes the interpreter as often as it can get it, or rests at random for up to so long in between."""
    ended, dice = threading.Event(), random.Random(11)

    def load() -> None:
        while not ended.is_set():
            sum(range(5000))
            if most_rest_s and dice.random() < 0.02:
                time.sleep(dice.random() * most_rest_s)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def crowd(processes: int) -> Iterator[None]:
    """Processes that never rest, one of them nicer than the rest."""
    busy = [sys.executable, "-c", "while True: sum(range(5000))"]
    started = [
        subprocess.Popen(busy, preexec_fn=(lambda: os.nice(10)) if number == 0 else None)  # noqa: PLW1509
        for number in range(processes)
    ]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def sleepy(one: Subject, most_s: float = 0.0004, share: float = 0.5, seed: int = 7) -> Subject:
    """The same, of which each call sleeps for a random time with this probability, before or after it enqueues."""
    dice = random.Random(seed)

    def slowed(call: Call) -> Call:
        def slow() -> object:
            nap = dice.random() * most_s if dice.random() < share else 0.0
            before = dice.random() < 0.5
            if nap and before:
                time.sleep(nap)
            answer = call()
            if nap and not before:
                time.sleep(nap)
            return answer

        return slow

    return replace(one, calls=tuple(slowed(call) for call in one.calls))


def case(seq: int, dtype: str, head_dim: int = 64, causal: bool = False) -> Case:
    return Case(Shape(2, 8, 8, seq, seq, head_dim, causal), dtype)
