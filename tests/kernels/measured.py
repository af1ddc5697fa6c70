"""Measurements of contenders that only write down when they were called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from typing import Any

import torch

from kernels.attention.case import Case, Shape
from kernels.harness import axes
from kernels.harness.clocks import NoClocks
from kernels.harness.timers import Timed, Timer
from kernels.harness.timing import Extent, Instruments, Measured, Sample, measure_contenders
from kernels.harness.turns import Contender

CASE = Case(Shape(batch=2, heads=4, kv_heads=2, seq_q=9, seq_k=11, head_dim=8, causal=True), "bfloat16")
CPU = torch.device("cpu")


class Journal:
    """Contenders and a timer that write down what was done to them, in order. A contender has a plan for each of
    `sets` input sets; `lasts` says how many microseconds the measurement takes that comes after so many."""

    def __init__(self, sets: int = 1, lasts: Callable[[int], float] | None = None) -> None:
        self.lines: list[str] = []
        self.sets, self.lasts = sets, lasts or (lambda before: before + 1.0)
        self.timed = 0
        self.read_sets: list[int] = []

    def contender(self, name: str) -> Contender:
        def plan_on(number: int) -> Callable[[], torch.Tensor]:
            def plan() -> torch.Tensor:
                self.lines.append(f"call {name}")
                self.read_sets.append(number)
                return torch.empty(0)

            return plan

        @contextmanager
        def scope() -> Iterator[None]:
            self.lines.append(f"enter {name}")
            yield
            self.lines.append(f"leave {name}")

        def entered() -> AbstractContextManager[object]:
            return scope()

        return Contender(name, tuple(plan_on(number) for number in range(self.sets)), entered)

    def timer(self, contender: Contender) -> Timer:
        return self.Stopwatch(self, contender.implementation)

    class Stopwatch:
        calls_made = 3
        overhead_us = 0.125

        def __init__(self, journal: Journal, name: str) -> None:
            self.journal, self.name = journal, name

        def __call__(self, plans: Sequence[Callable[[], torch.Tensor]]) -> Timed:
            self.journal.lines.append(f"time {self.name}")
            for plan in plans:
                plan()
            self.journal.timed += 1
            return Timed(self.journal.lasts(self.journal.timed - 1), 1.5, "gate", True)

        def rest_s(self, latency_us: float) -> float:
            return latency_us / 1000


def measured(journal: Journal, names: str, **changes: Any) -> tuple[Measured, list[Sample]]:
    """A measurement of contenders in the journal, and what it kept."""
    kept: list[Sample] = []
    asked = {
        "blocks": 5,
        "warmup": 0,
        "rng": axes.shuffle_generator(CASE, 1),
        "clocks": NoClocks(),
        "pause": lambda _: None,
    }
    contenders = [journal.contender(name) for name in names]
    return played(contenders, timer=journal.timer, keep=kept.append, **(asked | changes)), kept


def played(contenders: Sequence[Contender], **asked: Any) -> Measured:
    """What `measure` says, asked by the names of what it takes."""
    extent = Extent(**{field.name: asked.pop(field.name) for field in fields(Extent) if field.name in asked})
    by = Instruments(**{field.name: asked.pop(field.name) for field in fields(Instruments) if field.name in asked})
    return measure_contenders(contenders, extent, by, **asked)
