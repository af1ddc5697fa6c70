"""A device that fails a process before it has answered once may have failed by itself: it is tried in another process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from kernels.harness.answers import write_answer
from kernels.harness.arena import Arena
from kernels.harness.hands import AnswerLimits, Hand
from kernels.harness.own import OwnCase
from kernels.harness.processes import Answered
from tests.kernels.played_worker import PlayedWorker

CASE = OwnCase({"n": 1}, "n1")
RIGHT = {"passed": True, "max_abs_error": 0.0, "limit": 1.0, "reason": "", "bytes": 4}


class Played(PlayedWorker):
    """A process that answers everything, but for the checks that `fails` names by their number."""

    checks = 0

    def __init__(self, fails: tuple[int, ...], *, sticky: bool) -> None:
        self.fails, self.sticky = fails, sticky

    def ask(self, op: str, _limit_s: float, /, **_: Any) -> dict[str, Any]:
        if op == "check":
            Played.checks += 1
            if Played.checks in self.fails:
                raise Answered("raised", "raised AcceleratorError", sticky=self.sticky)
        return {"judge": RIGHT, "bind": {"set_bytes": 4}}.get(op, {"tree": 0, "files": []})

    def end(self) -> None: ...


def arena(*fails: int, sticky: bool = True) -> Arena:
    Played.checks = 0

    def start(_name: str = "") -> Any:
        return Played(fails, sticky=sticky)

    return Arena(
        torch.device("cpu"), 1, "cold", 5, AnswerLimits(1.0), start, Hand("", start, AnswerLimits(1.0)), ("a",)
    )


def test_a_process_whose_device_fails_before_it_ever_answered_is_tried_once_more() -> None:
    field = arena(1)
    outcome = field.outcome("a", CASE, 1, 2)
    assert outcome.bound is not None
    assert Played.checks == 2


def test_there_is_no_third_try_and_none_after_an_answer_or_a_fault_of_its_own() -> None:
    twice = arena(1, 2).outcome("a", CASE, 1, 2)
    assert (twice.wrong, Played.checks) == (True, 2)
    field = arena(2)
    assert field.outcome("a", CASE, 1, 2).bound is not None
    assert (field.outcome("a", CASE, 1, 2).wrong, Played.checks) == (True, 2)
    assert (arena(1, sticky=False).outcome("a", CASE, 1, 2).wrong, Played.checks) == (True, 1)


def test_nothing_but_the_answer_itself_holds_its_memory(tmp_path: Path) -> None:
    """Answers of gigabytes cannot wait for the garbage collector."""
    storage = torch.ones(8)
    told = write_answer({"a": [storage, storage]}, str(tmp_path))
    assert told["tree"] == {"map": {"a": {"list": [0, 1]}}}
    assert sys.getrefcount(storage) == 2
