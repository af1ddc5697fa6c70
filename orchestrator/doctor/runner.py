"""Runs many checks at the same time: each as soon as the checks that it needs are done, and none beyond its limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.core.doctor.verdicts import Check, Result, Verdict, crashed, skipped, too_slow
from orchestrator.core.errors import BenchError


@dataclass(frozen=True, slots=True)
class Task:
    """A check, and the function that collects its facts and judges them."""

    check: Check
    make: Callable[[], Verdict]


def examine(tasks: Sequence[Task], report: Callable[[Result], None] = lambda _result: None) -> tuple[Result, ...]:
    """The results in the order of `tasks`; `report` gets each one as soon as it is there.

    A check that takes too long is abandoned: its thread ends with the program.
    """
    done: dict[str, Result] = {}
    running: dict[str, tuple[Task, float]] = {}
    waiting = {task.check.name: task for task in tasks}
    answers: queue.Queue[tuple[str, Verdict]] = queue.Queue()

    def finish(check: Check, verdict: Verdict, seconds: float) -> None:
        done[check.name] = Result(check, verdict, seconds)
        report(done[check.name])

    while waiting or running:
        for name, task in list(waiting.items()):
            if all(need in done or need not in waiting | running for need in task.check.needs):
                del waiting[name]
                reason = skipped(done, (need for need in task.check.needs if need in done))
                if reason is not None:
                    finish(task.check, reason, 0.0)
                    continue
                running[name] = (task, time.monotonic())
                threading.Thread(target=_make, args=(task, answers), name=f"check-{name}", daemon=True).start()
        if not running:
            continue  # those that were skipped may be what others wait for
        patience = min(begun + task.check.limit_s for task, begun in running.values()) - time.monotonic()
        try:
            name, verdict = answers.get(timeout=max(patience, 0.0))
        except queue.Empty:
            now = time.monotonic()
            for name, (task, begun) in list(running.items()):
                if now >= begun + task.check.limit_s:
                    del running[name]
                    finish(task.check, too_slow(task.check), now - begun)
            continue
        if name in running:
            task, begun = running.pop(name)
            finish(task.check, verdict, time.monotonic() - begun)
    return tuple(done[task.check.name] for task in tasks)


def _make(task: Task, answers: queue.Queue[tuple[str, Verdict]]) -> None:
    try:
        verdict = task.make()
    except BenchError as exc:
        verdict = crashed(str(exc))
    except Exception as exc:
        verdict = crashed(f"{type(exc).__name__}: {exc}")
    answers.put((task.check.name, verdict))
