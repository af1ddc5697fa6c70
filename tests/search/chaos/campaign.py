"""Many scenarios, and what came of them as one table; a scenario that breaks a promise, made as small as it gets."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.search.chaos.aftermath import Seen
from tests.search.chaos.clients import Rules
from tests.search.chaos.judge import CRASHED, NAMES, Broken
from tests.search.chaos.play import Arena
from tests.search.chaos.scenario import Scenario, from_seed

EACH_ARENA = 25
"""Scenarios that share a cloud: what is remembered of them all is gone through now and then."""
SHRINKS = 120
PATIENCE_S = 300
"""A scenario takes a second or two: what takes so long will not end."""


class NoEnd(BaseException):
    """No error that any code of ours may catch."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    scenario: Scenario
    smallest: Scenario
    promise: str
    detail: str

    @property
    def again(self) -> str:
        """The commands that show it again: as it was found, and made small."""
        return f"make chaos N=1 SEED={self.scenario.seed}\nmake chaos SCENARIO='{self.smallest.line()}'"


@dataclass
class Tally:
    """The sum of a campaign."""

    played: int = 0
    seconds: float = 0.0
    moments: int = 0
    checks: int = 0
    kills: int = 0
    refused: int = 0
    machines: int = 0
    preemptions: int = 0
    resumes: int = 0
    cases: int = 0
    junk: int = 0
    taken_over: int = 0
    clocks: int = 0
    swaps: int = 0
    damaged: int = 0
    hosted: int = 0
    hosts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    broken: list[Counterexample] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        self.played += 1
        for name in ("moments", "checks", "kills", "refused", "machines", "preemptions", "resumes", "cases",
                     "junk", "taken_over", "clocks", "swaps", "damaged", "hosted"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(seen, name))
        self.outcomes.update(seen.outcomes)
        self.fired.update(seen.fired)
        self.hosts.update(seen.hosts)

    def take(self, other: Tally) -> None:
        """Adds what another process has played."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def table(self) -> str:
        """The promises and how often each was broken, then what the campaign went through."""
        broken = Counter(one.promise for one in self.broken)
        rows = [(name, str(broken[name])) for name in NAMES]
        rows += [(name, str(broken[name])) for name in sorted(broken.keys() - set(NAMES))]
        done = [
            ("scenarios played", self.played + len(self.broken)),
            ("moments judged", self.checks),
            ("clients killed", self.kills),
            ("launches refused by the budget", self.refused),
            ("machines made", self.machines),
            ("preemptions", self.preemptions),
            ("resumes", self.resumes),
            ("cases stored", self.cases),
            ("runs on kept machines", self.taken_over),
            ("clients with a clock that is off", self.clocks),
            ("answers to swaps that were lost", self.swaps),
            ("ledgers damaged", self.damaged),
            ("documents put into buckets", self.junk),
            ("runs on hosts", self.hosted),
            *((f"hosts: {name}", count) for name, count in sorted(self.hosts.items())),
            ("seconds", round(self.seconds)),
        ]
        width = max(len(name) for name, _ in [*rows, *done])
        lines = [f"{name:<{width}}  {count:>7}" for name, count in rows]
        lines += ["", *(f"{name:<{width}}  {count:>7}" for name, count in done)]
        lines += ["", "ended as: " + ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))]
        lines += ["fired: " + ", ".join(f"{name} {count}" for name, count in sorted(self.fired.items()))]
        return "\n".join(lines)


def campaign(
    scenarios: Iterable[Scenario],
    home: Path,
    rules: Rules | None = None,
    say: Callable[[str], None] = lambda _: None,
    seconds: float = math.inf,
) -> Tally:
    """Plays them one after the other, none any more after `seconds`; each that breaks a promise is shrunk and kept."""
    tally, began, arena = Tally(), time.monotonic(), Arena(home / "0", rules)
    try:
        for number, scenario in enumerate(scenarios, 1):
            if time.monotonic() - began > seconds:
                break
            if arena.played >= EACH_ARENA:
                arena.close()
                arena = Arena(home / str(number), rules)
            found = breaks(arena, scenario, tally)
            if found is None:
                continue
            arena.close()  # what it left behind must not disturb the next
            example = shrunk(scenario, found, home / f"shrink-{number}", rules)
            tally.broken.append(example)
            say(f"BROKEN {example.promise}: {example.detail}\n{example.again}")
            arena = Arena(home / f"after-{number}", rules)
    finally:
        arena.close()
        tally.seconds = time.monotonic() - began
    return tally


def breaks(arena: Arena, scenario: Scenario, tally: Tally | None = None) -> Broken | None:
    """The promise that does not hold in a scenario, or None. A defect that is no broken promise counts as one."""
    try:
        with no_longer_than(PATIENCE_S):
            seen = arena.play(scenario)
    except Broken as broken:
        return broken
    except (Exception, NoEnd) as crash:
        return Broken(CRASHED, f"{type(crash).__name__}: {crash}")
    if tally is not None:
        tally.add(seen)
    return None


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raises `NoEnd` in what takes longer. Only the main thread can be interrupted: elsewhere nothing is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise NoEnd(f"after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def shrunk(scenario: Scenario, broken: Broken, home: Path, rules: Rules | None = None) -> Counterexample:
    """Drops one thing after another as long as the same promise stays broken."""
    smallest, detail, tries = scenario, str(broken), 0
    smaller = True
    while smaller and tries < SHRINKS:
        smaller = False
        for candidate in smallest.simpler():
            tries += 1
            arena = Arena(home / str(tries), rules)
            try:
                again = breaks(arena, candidate)
            finally:
                arena.close()
            if again is not None and again.promise == broken.promise:
                smallest, detail, smaller = candidate, str(again), True
                break
    return Counterexample(scenario, smallest, broken.promise, detail)


def seeds(first: int, count: int) -> Iterable[Scenario]:
    return (from_seed(seed) for seed in range(first, first + count))
