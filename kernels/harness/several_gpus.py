"""Gives the cases of a measuring step to processes that each have one GPU of the machine.

Facts of all processes go through the one that serves steps onto its standard output, and an acknowledgement goes to the
process that named the file: the agent sees one step. A case and its baselines share a GPU. Before a second GPU is given
a case, a trial shows whether the GPUs disturb each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from kernels.harness.ending import describe_exit, end_with_descendants, wait_for_fork
from kernels.harness.facts import CRASHED, log_line

SLOT: Final = "BENCH_GPU_SLOT"
"""The environment variable that tells a measuring process its slot."""
LEAST_CASES: Final = 4
"""With fewer cases, starting processes and the trial would take longer than they save."""
READY_LIMIT_S: Final = 180.0
"""How long a process may take until it is ready for the first case, in seconds."""
MOST_DIFFERENCE: Final = 0.01
"""GPUs whose times differ by more, side by side, from those of the first one alone do not share the cases."""
GPU_DIGITS: Final = 12
"""So many digits of the sha256 of its UUID name a GPU in rows and in the log."""
FINE: Final = (0, 10)
"""The exit codes of a step that went through: done, and done with an implementation that was wrong."""


# --- in a measuring process ---


@dataclass(frozen=True, slots=True)
class GpuSlot:
    """The place of a process among those that measure: its number, its GPU's UUID, and the file by whose lock they
    take turns."""

    number: int
    gpu: str
    turns: str


def own_slot() -> GpuSlot | None:
    """The slot of this process; None if it measures all cases."""
    text = os.environ.get(SLOT)
    return GpuSlot(**json.loads(text)) if text else None


@contextlib.contextmanager
def host_turn(*, is_host_bound: bool) -> Iterator[float]:
    """The context of a measurement. If the host's speed may matter to it, it waits until no other process measures so;
    yields the seconds of waiting."""
    slot = own_slot() if is_host_bound else None
    if slot is None:
        yield 0.0
        return
    began = time.monotonic()
    descriptor = os.open(slot.turns, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield time.monotonic() - began
    finally:
        os.close(descriptor)


# --- in the process that serves steps ---


def shares_cases(spec: Path) -> bool:
    """Whether the workload of a spec can be measured case by case on several GPUs. A program that measures itself
    cannot: it is given the whole machine."""
    try:
        workload = json.loads(spec.read_text(encoding="utf-8")).get("workload")
    except (OSError, ValueError, AttributeError):
        return False
    return not isinstance(workload, dict) or workload.get("form") != "program"


def short_digest(gpu: str) -> str:
    """The name of a GPU in rows and in the log."""
    return hashlib.sha256(gpu.encode()).hexdigest()[:GPU_DIGITS]


@dataclass(eq=False)
class GpuProcess:
    """A process that measures on one GPU, and our ends of its pipes."""

    slot: GpuSlot
    pid: int
    facts: int
    answers: int
    case: str = ""
    """The case that it was given and has not finished."""
    is_trial: bool = False
    is_waiting: bool = False
    has_measured: bool = False
    """Whether it was given a case whose results are kept."""
    trials: list[Mapping[str, float]] = field(default_factory=list)
    """The medians of its trials, by regime, in microseconds."""
    code: int | None = None
    remainder: bytes = b""

    @property
    def name(self) -> str:
        """The GPU, for the log."""
        return f"GPU {self.slot.number} ({short_digest(self.slot.gpu)})"

    def answer(self, message: Mapping[str, Any]) -> None:
        """Writes a line to its standard input. If it has ended, nothing happens."""
        if self.code is not None:
            return
        with contextlib.suppress(OSError):
            os.write(self.answers, json.dumps(message).encode() + b"\n")

    def close(self, code: int) -> None:
        """Closes our ends of its pipes: it has ended with this code, or is given up."""
        os.close(self.facts)
        os.close(self.answers)
        self.code = code

    def give_case(self, case: str, *, is_trial: bool) -> None:
        """Gives it a case."""
        self.case, self.is_trial, self.is_waiting = case, is_trial, False
        self.has_measured = self.has_measured or not is_trial
        self.answer({"case": {"id": case, "is_trial": is_trial}})


class TrialStage(Enum):
    """What is under way: the first process starts, all start, the trial alone, the trial side by side, the cases."""

    FIRST = auto()
    ALL = auto()
    ALONE = auto()
    TOGETHER = auto()
    CASES = auto()


@dataclass
class CaseQueue:
    """The processes of one measuring step. `start` starts the process of a slot, which has to close our ends of the
    others' pipes."""

    gpus: Sequence[str]
    turns: str
    start: Callable[[GpuSlot, Sequence[int]], GpuProcess]
    processes: list[GpuProcess] = field(default_factory=list)
    sharing: list[GpuProcess] = field(default_factory=list)
    """Those that are given cases."""
    stage: TrialStage = TrialStage.FIRST
    began: float = 0.0
    """When the other processes were started."""
    cases: deque[str] | None = None
    """The cases that nobody was given yet; None before the plan is known."""
    owners: dict[str, GpuProcess] = field(default_factory=dict)
    """By the path of a file that was named to the agent: who waits for its acknowledgement."""

    @property
    def living(self) -> list[GpuProcess]:
        """The processes that have not ended."""
        return [process for process in self.processes if process.code is None]

    def run(self) -> int:
        """Gives cases until every process has ended. Returns the exit code of the step, or minus a signal."""
        remainder = b""
        self.add_process()
        while self.living:
            with selectors.DefaultSelector() as selector:
                selector.register(0, selectors.EVENT_READ)
                for process in self.living:
                    selector.register(process.facts, selectors.EVENT_READ, process)
                ready = [key.data for key, _ in selector.select(1.0 if self.stage == TrialStage.ALL else None)]
            for process in ready:
                if process is not None:
                    self.read_facts(process)
                    continue
                chunk = os.read(0, 65536)
                if not chunk:
                    self.abandon()
                *lines, remainder = (remainder + chunk).split(b"\n")
                for line in lines:
                    self.pass_on(line)
            self.end_late()
            self.give_cases()
        return self.exit_code()

    def add_process(self) -> None:
        """Starts the process of the next slot."""
        slot = GpuSlot(len(self.processes), self.gpus[len(self.processes)], self.turns)
        ours = [end for process in self.living for end in (process.facts, process.answers)]
        self.processes.append(self.start(slot, ours))

    def end_late(self) -> None:
        """Gives up the processes that are not ready in time: a GPU that hangs must not hold up the others, not even if
        its driver lets no process end."""
        if self.stage == TrialStage.ALL and time.monotonic() - self.began > READY_LIMIT_S:
            for process in self.living:
                if not process.is_waiting:
                    log_line(f"{process.name} was not ready within {READY_LIMIT_S:g} s and is left out")
                    end_with_descendants(process.pid)
                    process.close(CRASHED)

    def abandon(self) -> None:
        """Ends everything, because the agent is gone."""
        for process in self.living:
            end_with_descendants(process.pid)
        os._exit(CRASHED)

    def pass_on(self, line: bytes) -> None:
        """Passes an acknowledgement to the process that waits for it."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            path = json.loads(line)["ack"]
            self.owners.pop(path).answer({"ack": path})

    def read_facts(self, process: GpuProcess) -> None:
        """Reads what a process has written, or its end."""
        chunk = os.read(process.facts, 65536)
        *lines, process.remainder = (process.remainder + chunk).split(b"\n")
        for line in lines:
            self.take_fact(process, line)
        if chunk:
            return
        code = wait_for_fork(process.pid)
        process.close(code)
        if process.case and code not in FINE:
            detail = f"{process.case}: its process on {process.name} {describe_exit(code)} while it measured"
            if self.is_needed(process):
                send_line({"fact": "problem", "cause": "harness_crashed", "detail": detail})
            log_line(detail)

    def take_fact(self, process: GpuProcess, line: bytes) -> None:
        """Acts on a fact that is for this process, and hands any other line on to the agent."""
        try:
            fact = json.loads(line)
            kind = fact["fact"]
        except (ValueError, KeyError, TypeError):
            fact, kind = {}, ""
        if kind == "ready":
            process.is_waiting = True
            if process.case:  # it was started again in the middle of this case
                process.give_case(process.case, is_trial=process.is_trial)
        elif kind == "tried":
            process.trials.append(fact["median_us"])
            process.case = ""
        elif kind == "problem" and not self.is_needed(process):
            log_line(f"{process.name} measures nothing: {fact.get('detail', '')}")
        elif kind != "planned" or self.cases is None:
            if kind == "planned":
                self.cases = deque(fact["cases"])
            if kind == "case_finished":
                process.case = ""
            if "path" in fact:
                self.owners[fact["path"]] = process
            os.write(1, line + b"\n")

    @staticmethod
    def is_needed(process: GpuProcess) -> bool:
        """Whether the step fails if this process does. One that was never given a case may be missed."""
        return process.slot.number == 0 or process.has_measured

    def give_cases(self) -> None:
        """Gives every waiting process what it does next."""
        while self.stage != TrialStage.CASES and self.living and all(process.is_waiting for process in self.living):
            self.next_stage()
        if self.stage != TrialStage.CASES:
            return
        for process in [process for process in self.living if process.is_waiting]:
            if self.cases and process in self.sharing:
                process.give_case(self.cases.popleft(), is_trial=False)
            elif process.slot.number or len(self.living) == 1:
                # The first ends last: it asks the second clock, which must not run beside measurements.
                process.is_waiting = False
                process.answer({"case": None})

    def next_stage(self) -> None:
        """Goes on to the next stage, when every process waits."""
        assert self.cases is not None, "the plan comes before the first case is asked for"
        first = self.living[0]
        if self.stage == TrialStage.FIRST and len(self.cases) >= LEAST_CASES:
            self.stage, self.began = TrialStage.ALL, time.monotonic()
            for _ in self.gpus[1 : len(self.cases) // 2]:
                self.add_process()
        elif self.stage == TrialStage.ALL and len(self.living) > 1:
            self.stage = TrialStage.ALONE
            first.give_case(self.cases[0], is_trial=True)
        elif self.stage == TrialStage.ALONE and len(self.living) > 1:
            tried = len(first.trials)
            if first.trials and not first.trials[-1] and tried < LEAST_CASES:  # nothing could be timed in that case
                first.give_case(self.cases[tried], is_trial=True)
                return
            self.stage = TrialStage.TOGETHER
            for process in self.living:
                process.give_case(self.cases[max(tried, 1) - 1], is_trial=True)
        else:
            self.sharing = self.compare_trials() if self.stage == TrialStage.TOGETHER else [first]
            self.stage = TrialStage.CASES

    def compare_trials(self) -> list[GpuProcess]:
        """The processes that may measure at once, by their trials."""
        first = self.living[0]
        alone = first.trials[-2] if len(first.trials) > 1 else {}
        agreeing = []
        for process in self.living:
            beside = process.trials[-1] if process.trials else {}
            difference = largest_difference(alone, beside)
            times = ", ".join(
                f"{regime} {us:g} us, {alone.get(regime, math.nan):g} us" for regime, us in beside.items()
            )
            verdict = "differs" if difference > MOST_DIFFERENCE else "agrees"
            log_line(
                f"trial: {process.name} beside the others, and the first alone: {times or 'no times'}: it {verdict}"
            )
            agreeing += [process] if difference <= MOST_DIFFERENCE else []
        if first in agreeing and len(agreeing) > 1:
            log_line(f"{len(agreeing)} GPUs measure, a case on each at a time")
            return agreeing
        log_line(f"the cases are measured one after the other on {first.name}")
        return [first]

    def exit_code(self) -> int:
        """That of the worst process that was needed."""
        codes = [process.code or 0 for process in self.processes if self.is_needed(process)]
        return next((code for code in codes if code not in FINE), max(codes))


def largest_difference(alone: Mapping[str, float], beside: Mapping[str, float]) -> float:
    """The largest relative difference of two medians of one regime; infinite if they do not have the same regimes."""
    if not alone or alone.keys() != beside.keys():
        return float("inf")
    return max(abs(beside[regime] / alone[regime] - 1) for regime in alone)


def send_line(fact: Mapping[str, Any]) -> None:
    """Sends a fact of this process itself."""
    os.write(1, json.dumps(fact).encode() + b"\n")


def slot_environment(slot: GpuSlot) -> dict[str, str]:
    """The environment variables of the process in a slot. CUDA reads the first one when it begins."""
    gpu = slot.gpu if slot.gpu.startswith(("GPU-", "MIG-")) else f"GPU-{slot.gpu}"
    return {"CUDA_VISIBLE_DEVICES": gpu, SLOT: json.dumps(asdict(slot))}
