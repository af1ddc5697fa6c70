"""A device whose time is simulated: what the campaign does with its budget can be watched in no time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.attention.cuda.campaign.cells import Cell
from kernels.attention.cuda.campaign.contenders import Field
from kernels.attention.cuda.campaign.timing import Call, Contender, Sustained

ROUND_S, PREPARE_S = 0.004, 0.1
SPEEDS = {
    "ours": 1.0,
    "ours:lse": 1.02,
    "ours:again": 1.0,
    "cudnn": 1.2,
    "cudnn:lse": 1.25,
    "flash": 1.7,
    "efficient": 4.0,
}
"""How many times as long as a cell's guess each contender takes."""


@dataclass(frozen=True, slots=True)
class Work:
    """A call that takes this long and does nothing."""

    us: float

    def __call__(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Graph:
    """Calls in a row."""

    us: float

    def __call__(self) -> None:
        return None


@dataclass(slots=True)
class SimulatedWatch:
    """A stopwatch whose clock only its own measurements advance; each is off by up to `noise`, relatively."""

    noise: float = 0.0
    clock: float = 0.0
    bursts: list[tuple[str, ...]] = field(default_factory=list)
    captured: list[tuple[str, int, bool]] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def now(self) -> float:
        return self.clock

    def off(self, us: float) -> float:
        self.clock += us * 1e-6
        return us * (1 + self.noise * self.chance.uniform(-1, 1))

    def burst(self, contenders: Sequence[Contender]) -> list[float]:
        self.clock += ROUND_S
        self.bursts.append(tuple(one.name for one in contenders))
        return [self.off(work_of(one).us) for one in contenders]

    def capture(self, contender: Contender, calls: int, cold: bool) -> Call:
        self.captured.append((contender.name, calls, cold))
        return Graph(calls * work_of(contender).us * (1.1 if cold else 0.9))

    def replay(self, graphs: Sequence[Call]) -> list[float]:
        return [self.off(one.us) for one in graphs if isinstance(one, Graph)]

    def sustain(self, contender: Contender, seconds: float) -> Sustained:
        us = work_of(contender).us
        self.clock += seconds
        return Sustained(us * 1.1, int(seconds * 1e6 / us), self.state())

    def state(self) -> dict[str, float]:
        return {"sm_mhz": 1500.0, "power_w": 650.0}


def work_of(contender: Contender) -> Work:
    work = contender.calls[0]
    assert isinstance(work, Work)
    return work


@dataclass(slots=True)
class SimulatedStable:
    """Contenders that take `speeds` times a cell's guess; those in `broken` are absent."""

    watch: SimulatedWatch
    speeds: Mapping[str, float] = field(default_factory=lambda: SPEEDS)
    broken: Mapping[str, str] = field(default_factory=dict)
    checked: list[Cell] = field(default_factory=list)

    def about(self) -> dict[str, Any]:
        return {"torch": "0", "cudnn": 0}

    def prepare(self, cell: Cell, *, check: bool) -> Field:
        self.watch.clock += PREPARE_S
        if check:
            self.checked.append(cell)
        sets = 1 if cell.set_bytes > 2**26 else 3
        names = [name for name in self.speeds if name not in self.broken]
        errors = {name: {"max_abs": 1e-2, "relative": 2e-3} for name in names if check and ":" not in name}
        return Field(
            [Contender(name, (Work(cell.guess_us * self.speeds[name]),) * sets) for name in names],
            errors,
            dict(self.broken),
            {name: "fa90-128x128s2" for name in names if name.startswith("ours")},
        )
