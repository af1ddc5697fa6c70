"""An implementation's word on its own time is compared with the time that went by on the other side of its pipe."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from kernels.harness.arena import Arena
from kernels.harness.candidates import CandidateProcesses
from kernels.harness.hands import AnswerLimits, Hand, Place, RemoteTimer, Turn, waited_s
from kernels.harness.own import OwnCase
from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.timers import Timed
from kernels.harness.workload import BuildFailed
from tests.kernels.played_worker import PlayedWorker
from tests.support.patience import PATIENCE_S

TOOK_S = 0.05


class Process:
    pid = 4711


class Sampled(PlayedWorker):
    """A worker that says that a call took 20 µs, and answers after `TOOK_S`."""

    process = Process()

    def ask(self, op: str, limit_s: float, /, **given: Any) -> Mapping[str, Any]:
        time.sleep(TOOK_S)
        return {"timed": asdict(Timed(latency_us=20.0)), "rest_s": 0.0, "collecting_s": 0.0}


def walls(*waited: float) -> list[tuple[float, float, float]]:
    """Of one sample, before and after which the two processes have waited so long."""
    hand = Hand("bench", lambda: cast(Worker, Sampled()), AnswerLimits(PATIENCE_S))
    hand.worker = cast(Worker, Sampled())
    said = iter(waited)
    RemoteTimer(hand, "burst", 1, 0.0, Turn(), waited=lambda _: next(said))([Place(hand, 0)])
    return hand.walls


def test_what_went_by_is_the_whole_of_it_on_a_host_with_processors_to_spare() -> None:
    ((wall, said, each),) = walls(3.0, 5.0, 3.0, 5.0)
    assert wall >= TOOK_S
    assert (said, each) == (pytest.approx(20e-6), pytest.approx(20e-6))


@pytest.mark.parametrize("own", [0.0, TOOK_S / 2, TOOK_S])
def test_what_either_process_waited_for_a_processor_is_nobodys_lie(own: float) -> None:
    began = time.perf_counter()
    ((wall, _, _),) = walls(3.0, 5.0, 3.0 + own, 5.0 + TOOK_S - own)
    assert 0 <= wall <= time.perf_counter() - began - TOOK_S
    ((least, _, _),) = walls(0.0, 0.0, 1e6, 1e6)
    assert least == 0.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count")
def test_a_process_that_shares_its_processor_has_waited_for_it() -> None:
    spin = "import os, time; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); time.sleep(0.2)\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        before = [waited_s(one.pid) for one in both]
        ends = time.monotonic() + PATIENCE_S
        while sum(waited_s(one.pid) for one in both) - sum(before) < 0.05 and time.monotonic() < ends:
            time.sleep(0.05)
        assert sum(waited_s(one.pid) for one in both) - sum(before) >= 0.05
    finally:
        for one in both:
            one.kill()
            one.wait()
    assert waited_s(both[0].pid) == waited_s(None) == 0.0


class Answering(PlayedWorker):
    """A worker that answers at once and keeps the limit that each request had."""

    def __init__(self) -> None:
        self.limits_s: dict[str, float] = {}

    def ask(self, op: str, limit_s: float, /, **_: Any) -> Mapping[str, Any]:
        self.limits_s[op] = limit_s
        return {}


def test_an_answer_may_take_20_times_as_long_as_the_slowest_baseline_by_default() -> None:
    limits, workers = AnswerLimits(None), (Answering(), Answering())
    baseline, kernel = (
        Hand(name, lambda worker=worker: cast(Worker, worker), limits, is_baseline=name == "torch")  # type: ignore[misc]
        for name, worker in zip(("torch", "mine"), workers, strict=True)
    )
    for op in ("check", "sample"):
        kernel.ask(op)
        baseline.ask(op)
    assert workers[1].limits_s == {"load": 180, "check": 180, "sample": 180}  # no baseline had answered
    for op in ("check", "sample"):
        kernel.ask(op)
    assert workers[1].limits_s == {"load": 180, "check": 60, "sample": 10}
    limits.record_baseline("sample", 3.0)
    limits.record_baseline("check", 4.0)
    limits.record_baseline("sample", 2.0)
    for op in ("check", "sample"):
        kernel.ask(op)
        baseline.ask(op)
    assert workers[1].limits_s == {"load": 180, "check": 80, "sample": 60}
    assert workers[0].limits_s == {"load": 180, "check": 180, "sample": 180}  # a baseline follows nothing
    limits.clear()
    kernel.ask("sample")
    assert workers[1].limits_s["sample"] == 180


def test_a_limit_that_is_configured_holds_for_all() -> None:
    limits, worker = AnswerLimits(7.0), Answering()
    for is_baseline in (True, False):
        Hand("any", lambda: cast(Worker, worker), limits, is_baseline=is_baseline).ask("check")
        assert worker.limits_s == {"load": 7, "check": 7}


class Loading(PlayedWorker):
    """A worker that keeps in `order` when its `load` was sent, and when the answer was asked for."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order

    def send(self, op: str, /, **given: Any) -> None:
        self.order.append(f"{op} sent to {self.name}")
        super().send(op, **given)

    def ask(self, op: str, _limit_s: float, /, **_: Any) -> Mapping[str, Any]:
        self.order.append(f"{op} of {self.name}")
        return {}


def test_all_processes_load_before_the_first_of_them_is_waited_for() -> None:
    order: list[str] = []
    names = iter(["judge", "torch", "mine", "torch:aa"])
    limits = AnswerLimits(PATIENCE_S)

    def start(_name: str = "") -> Worker:
        return cast(Worker, Loading(next(names), order))

    arena = Arena(torch.device("cpu"), 1, "cold", 4, limits, start, Hand("", start, limits), ("torch",))
    crew = arena.load(("torch", "mine", "torch:aa"))
    assert list(crew) == ["torch", "mine"]
    assert order == [
        *(f"load sent to {name}" for name in ("judge", "torch", "mine", "torch:aa")),
        "load of torch",
        "load of mine",
    ]
    arena.hand("torch:aa").ready()
    assert order[-1] == "load of torch:aa"
    arena.hand("mine").begin()
    assert len(order) == 7, "it is loaded"


class Hanging(PlayedWorker):
    """A worker whose `load` hangs for its whole limit."""

    def ask(self, op: str, limit_s: float, /, **_: Any) -> Mapping[str, Any]:
        if op == "load":
            raise Lost(f"hung: no answer within {limit_s:g} s", hung=True)
        return {}

    def end(self) -> None:
        """Nothing runs."""


@pytest.mark.parametrize("foreseen", [True, False])
def test_a_kernel_that_hangs_while_it_is_loaded_costs_its_limit_once(*, foreseen: bool) -> None:
    limits, workers = AnswerLimits(7.0), list[Worker]()

    def start(_name: str = "") -> Worker:
        workers.append(cast(Worker, Hanging()))
        return workers[-1]

    arena = Arena(torch.device("cpu"), 1, "cold", 4, limits, start, Hand("", start, limits), ("torch",))
    processes = CandidateProcesses("mine.py", None, is_ahead=foreseen)
    processes.begin(["mine"], start, limits)
    processes.names(PATIENCE_S)
    hand = processes.take("mine", start)
    assert hand is not None, "another would be loaded again"
    arena.hands["mine"] = hand
    for _ in range(2):
        built = arena.finish_loading("mine")
        assert isinstance(built, BuildFailed)
        assert str(built) == "hung: no answer within 7 s while it was loaded"
    assert len(workers) == 1


class Bound(PlayedWorker):
    """A worker whose inputs have `size` bytes, and which keeps in `order` what it was sent and what was read of it."""

    def __init__(self, name: str, order: list[str], size: int) -> None:
        self.name, self.order, self.size = name, order, size

    def send(self, op: str, /, **given: Any) -> None:
        self.order += [f"{op} sent to {self.name}"] * (op == "check")
        super().send(op, **given)

    def ask(self, op: str, _limit_s: float, /, **_: Any) -> Mapping[str, Any]:
        self.order += [f"{op} of {self.name}"] * (op in ("bind", "check"))
        if self.name == "broken" and op == "bind":
            raise Answered("memory", "out of memory")
        right = {"passed": True, "max_abs_error": 0.0, "limit": 1.0, "reason": "", "bytes": 4}
        return {"judge": right, "bind": {"set_bytes": self.size}}.get(op, {"tree": 0, "files": [], "seconds": 0.25})


@pytest.mark.parametrize(("size", "begun"), [(4, True), (1 << 60, False)])
def test_first_calls_are_made_at_once_where_memory_has_room_for_them(size: int, *, begun: bool) -> None:
    order: list[str] = []
    limits, case = AnswerLimits(None), OwnCase({"n": 1}, "n1")

    def start(name: str = "judge") -> Worker:
        return cast(Worker, Bound(name, order, size))

    arena = Arena(torch.device("cpu"), 1, "cold", 4, limits, start, Hand("", start, limits), ("torch",))
    arena.begin_checks(("torch", "broken", "mine"), case, 1, 2)
    outcomes = {name: arena.outcome(name, case, 1, 2) for name in ("torch", "broken", "mine")}
    assert {name: one.reason for name, one in outcomes.items()} == {
        "torch": "",
        "broken": "out of memory while it was checked",
        "mine": "",
    }
    binds, ahead = [f"bind of {name}" for name in ("torch", "broken", "mine")], ["torch", "mine"]
    if begun:
        assert order == [*binds, *(f"check sent to {name}" for name in ahead), *(f"check of {name}" for name in ahead)]
        assert limits.slowest_s["check"] == 0.25, "as long as the call took, not as long as it waited to be read"
    else:
        assert order == [*binds, *(f"check of {name}" for name in ahead)]
