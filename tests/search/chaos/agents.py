"""The agent that ships, judged for what it loses and measures twice: real machines, seeded faults and deaths.

A machine here is a session of processes that runs the real `startup.sh` and agent beside a played harness; nothing of
them is scripted. One after the other is taken back or killed, or comes to its end; each begins with what the ones before
it have stored. What a machine began and what it was told is stored is read from its own disk, and what is stored from
the bucket: the judge asks no code of ours.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.search.chaos.judge import AGAIN, LOST, MISSING, UNENDED, hold
from tests.support.patience import PATIENCE_S
from tests.unit.startup.cloud import RUN, Cloud
from tests.unit.startup.machine import Machine, payload, run_spec

CASES: Final = tuple(f"b1-h2-kv2-q{64 * n}-k{64 * n}-d64-full-float16" for n in range(1, 7))
REQUESTS: Final = (
    r"POST .*/cases/", r"POST .*-case_measured", r"POST .*/events/", r"POST /upload", r"GET .*/o\?", r"GET .*alt=media",
    r"GET /computeMetadata",
)  # fmt: skip
Ending = Literal["killed", "preempted", "itself"]


@dataclass(frozen=True, slots=True)
class Life:
    """How one machine ends: when the n-th object is stored whose name has `of` in it, or by itself; and what its
    requests meet."""

    ending: Ending
    at: int = 0
    of: str = ""
    faults: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Story:
    cases: tuple[str, ...]
    lives: tuple[Life, ...]


@dataclass
class Told:
    """What came of stories."""

    machines: int = 0
    killed: int = 0
    preempted: int = 0
    faults: int = 0
    cases: int = 0
    skipped: int = 0
    """Cases that a machine found stored and left alone."""

    def take(self, other: Told) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def line(self) -> str:
        return (
            f"{self.machines} machines ran the agent ({self.killed} killed, {self.preempted} taken back), {self.faults} "
            f"requests failed, {self.cases} cases were measured once, {self.skipped} found stored and skipped"
        )


def story(seed: int) -> Story:
    """The same on every machine. The last life is a calm one, so that all of it comes to an end."""
    dice = random.Random(seed)
    lives = []
    for _ in range(dice.randint(1, 3)):
        of, most = dice.choice((("", 45), ("/cases/", 3), ("-case_measured", 3), ("-case_started", 3)))
        ending: Ending = dice.choice(("killed", "killed", "preempted"))
        lives.append(Life(ending, dice.randint(1, most), of, faults_of(dice)))
    return Story(CASES[: dice.randint(2, len(CASES))], (*lives, Life("itself", faults=faults_of(dice))))


def faults_of(dice: random.Random) -> tuple[dict[str, Any], ...]:
    made: list[dict[str, Any]] = []
    for _ in range(dice.choice((0, 1, 3))):
        how: dict[str, Any] = dice.choice(
            ({"status": 503}, {"status": 429}, {"status": 500}, {"cut": "before"}, {"cut": "after"}, {"stall_s": 0.2})
        )
        made.append({"pattern": dice.choice(REQUESTS), "times": dice.randint(1, 3), **how})
    return tuple(made)


def play(chosen: Story, home: Path) -> Told:
    """Raises `Broken` with the promise that does not hold."""
    told = Told()
    with Cloud(run_spec(cases=list(chosen.cases)), payload()) as cloud:
        for number, life in enumerate(chosen.lives, 1):
            before = stored(cloud)
            cloud.preemption.clear()
            cloud.metadata["instance/attributes/bench-run"] = json.dumps({**cloud.spec, "attempt": number})
            cloud.faults = []
            for fault in life.faults:
                cloud.fail(**fault)
            folder = home / str(number)
            folder.mkdir(parents=True)
            lived(cloud, folder, life)
            cloud.on_stored = lambda _: None
            judged(cloud, folder, before, f"machine {number}")
            told.machines += 1
            told.killed += life.ending == "killed"
            told.preempted += life.ending == "preempted"
            told.faults += sum(fault.fired for fault in cloud.faults)
            told.skipped += len(before)
        last = [event for event in cloud.events() if event["writer"].startswith(f"vm-{len(chosen.lives)}-")]
        hold(UNENDED, bool(last) and last[-1]["data"].get("outcome") == "succeeded", "the last machine did not succeed")
        hold(MISSING, stored(cloud) == set(chosen.cases), f"{sorted(stored(cloud))} of {sorted(chosen.cases)}")
        told.cases += len(chosen.cases)
    return told


def stored(cloud: Cloud) -> set[str]:
    prefix = f"runs/{RUN}/cases/"
    with cloud.lock:
        return {name.removeprefix(prefix).removesuffix(".csv") for name in cloud.objects if name.startswith(prefix)}


def lived(cloud: Cloud, folder: Path, life: Life) -> None:
    """One machine, to its end."""
    with Machine(cloud, folder) as machine:
        over = threading.Event()
        cloud.on_stored = after(life.at, life.of, over.set) if life.ending != "itself" else lambda _: None
        watcher = threading.Thread(target=lambda: (machine.process.wait(), over.set()), daemon=True)
        watcher.start()
        assert over.wait(PATIENCE_S), machine.serial()[-2000:]
        if life.ending == "killed":
            for pid in machine.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        elif life.ending == "preempted":
            cloud.preempt()
        machine.wait()
        watcher.join()


def after(count: int, of: str, do: Callable[[], None]) -> Callable[[str], None]:
    """Does it once, when so many objects are stored whose name has `of` in it."""
    seen = 0

    def stored(name: str) -> None:
        nonlocal seen
        seen += of in name
        if seen == count and of in name:
            do()

    return stored


def judged(cloud: Cloud, folder: Path, before: set[str], who: str) -> None:
    out, now = folder / "vm" / "out", stored(cloud)
    acks = out / "acks"
    heard = [line.split()[0] for line in acks.read_text().splitlines()] if acks.exists() else []
    told = {name.removeprefix("cases/").removesuffix(".csv") for name in heard if name.startswith("cases/")}
    measured = {path.stem for path in (out / "cases").glob("*.csv")}
    hold(MISSING, told <= now, f"{who} was told that {sorted(told - now)} is stored")
    hold(AGAIN, not measured & before, f"{who} measured {sorted(measured & before)} again")
    hold(
        LOST,
        len(measured - now) <= 1,
        f"{who} measured {sorted(measured)}, of which {sorted(measured & now)} is stored",
    )
    twice = [name for name, times in cloud.generations.items() if "/cases/" in name and times > 1]
    hold(AGAIN, not twice, f"{twice} was stored over what was there")
