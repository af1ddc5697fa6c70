"""What else uses the device while an implementation is timed: found without asking it, marked, and charged to its author."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernels.harness.hands import MOST_RETAKEN, AnswerLimits, Hand, Place, RemoteTimer, Turn
from kernels.harness.processes import Worker
from kernels.harness.rivals import PROBES, DeviceProbe, Rivals
from tests.kernels.harness_process import ROOT, HarnessProcess, named
from tests.kernels.played_worker import PlayedWorker
from tests.kernels.test_cheats import own

NOBODY = 1 << 23
"""No process has so large an id."""
HOG = """
import threading

import torch

axes = {"n": [192]}
started = []


def inputs(n, device, generator):
    return torch.randn(n, n, device=device, generator=generator)


def reference(x):
    return x @ x


def baseline_torch(x):
    return x @ x


def kernel_honest(x):
    return torch.mm(x, x)


def spin():
    while True:
        sum(range(1000))


def kernel_hog(x):
    if not started:
        started.append(threading.Thread(target=spin, daemon=True))
        started[0].start()
    return x @ x
"""


def test_a_kernel_that_keeps_a_processor_busy_beside_others_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "hog.py").write_text(HOG)
    spec = own(tmp_path / "hog.py", repeats=12)
    with HarnessProcess("measure", spec, tmp_path, environ={"PYTHONPATH": str(ROOT)}) as harness:
        code, facts = harness.finish()
    (case,) = named(facts, "case_finished")
    assert code == 10, harness.log()
    assert "of a processor while others were timed" in case["skipped"]["hog"]
    assert {"torch", "honest"} <= set(case["median_us"])
    timed = [row for row in harness.rows(case["case_id"]) if row["implementation"] in ("torch", "honest", "torch:aa")]
    assert any(row["retaken"] for row in timed), "who is accused has disturbed at least one sample"
    assert all((row["shared"] == "true") <= (row["retaken"] == str(MOST_RETAKEN)) for row in timed)


class Device:
    """Simulated processes and a device: what `use` says that each does while a sample is taken."""

    def __init__(self, use: Callable[[str], dict[str, float]], busy: Callable[[str], bool] = lambda _: False) -> None:
        self.use, self.busy, self.now, self.clock_s = use, busy, "", 0.0
        self.cpu_s = dict.fromkeys((NOBODY + 1, NOBODY + 2, NOBODY + 3), 0.0)
        self.hands = {name: hand(pid) for name, pid in (("a", NOBODY + 1), ("b", NOBODY + 2), ("c", NOBODY + 3))}
        self.rivals = Rivals(self.hands, lambda: self.busy(self.now), self.cpu_s.__getitem__, lambda: self.clock_s)

    def sample(self, name: str) -> bool:
        self.now = name
        was_disturbed = self.rivals.watch(name)
        self.clock_s += 1.0
        for rival, seconds in self.use(name).items():
            worker = self.hands[rival].worker
            assert worker is not None
            self.cpu_s[cast(int, worker.process.pid)] += seconds
        return was_disturbed()

    def run(self, blocks: int = 20) -> dict[str, str]:
        for _ in range(blocks):
            for name in self.hands:
                self.sample(name)
        return {name: self.rivals.fault_of(name) for name in self.hands}


def hand(pid: int) -> Hand:
    made = Hand("", lambda: pytest.fail("it runs"), AnswerLimits(1.0))
    made.worker = cast(Worker, SimpleNamespace(process=SimpleNamespace(pid=pid)))
    return made


@pytest.mark.parametrize(
    ("use", "busy", "accused"),
    [
        (lambda name: {name: 1.0}, lambda _: False, ""),  # each in its own turn
        (lambda name: {} if name == "b" else {"b": 0.5}, lambda _: False, "b"),
        (lambda name: {"b": 1e-6}, lambda _: False, ""),  # the end of an answer
        (lambda name: dict.fromkeys("abc", 0.2), lambda _: False, ""),  # a library whose threads never sleep
        (lambda name: {}, lambda name: name == "c", "c"),
        (lambda name: {}, lambda name: True, ""),  # something else on the device: nobody here can be named
    ],
)
def test_only_who_uses_the_device_in_the_turn_of_others_is_accused(use: Any, busy: Any, accused: str) -> None:
    faults = Device(use, busy).run()
    assert [name for name, fault in faults.items() if fault] == list(accused)
    assert all(fault.startswith("untrusted: it ") for fault in faults.values() if fault)


@pytest.mark.parametrize(("disturbed", "retaken", "shared"), [(0, 0, False), (1, 1, False), (9, MOST_RETAKEN, True)])
def test_a_disturbed_sample_is_taken_again_and_says_so(disturbed: int, retaken: int, shared: bool) -> None:
    class Sampled(PlayedWorker):
        process = SimpleNamespace(pid=None)

        def ask(self, op: str, _limit_s: float, **_: Any) -> dict[str, Any]:
            taken.append(op)
            return {"timed": {"latency_us": 2.0}, "rest_s": 0.0, "collecting_s": 0.0}

    taken: list[str] = []
    subject = Hand("a", lambda: cast(Worker, Sampled()), AnswerLimits(1.0))
    states = iter([True] * disturbed + [False] * 9)
    timed = RemoteTimer(subject, "burst", 1, 0.0, Turn(), lambda: lambda: next(states))([Place(subject, 0)])
    assert (timed.retaken, timed.shared, taken.count("sample")) == (retaken, shared, 1 + retaken)


def test_a_device_is_busy_if_each_of_several_tiny_calls_has_to_wait() -> None:
    waits = iter([30e-6] * 20 + [2e-3] + [30e-6] + [2e-3] * PROBES)
    clock = [0.0]

    def call() -> None:
        clock[0] += next(waits)

    probe = DeviceProbe(call, now_s=lambda: clock[0])
    assert not any(probe.is_busy() for _ in range(20))
    assert not probe.is_busy(), "one slow call is the host's"
    assert probe.is_busy()
