"""Who is faster on inputs that it has seen before is not trusted; who was only slowed down in turns is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from kernels.harness.arena import Arena
from kernels.harness.hands import AnswerLimits, Hand
from kernels.harness.own import OwnCase
from kernels.harness.remembering import remembering_fault

SLOW, FAST = 1900.0, 550.0


class Played:
    """An implementation's process whose samples take what `lasts` says of how often its inputs were seen, and of how
    many samples there were before. With `learns` it is a processor that knows scaled inputs again."""

    def __init__(
        self, lasts: Callable[[int, int], float], *, learns: bool = False, has_floats: bool = True, keeps: int = 1000
    ) -> None:
        self.lasts, self.learns, self.has_floats, self.keeps = lasts, learns, has_floats, keeps
        self.seen, self.inputs, self.samples = dict[tuple[int, float], int](), (0, 1.0), 0
        self.walls: list[tuple[float, float, float]] = []

    def ask(self, op: str, **given: Any) -> dict[str, Any]:
        if op == "renew":
            is_scaled = self.has_floats and not self.learns and given.get("scale") is not None
            self.inputs = given["seed"], given["scale"] if is_scaled else 1.0
            return {"scaled": self.has_floats}
        if op == "sample":
            before = self.seen.pop(self.inputs, 0)
            self.seen[self.inputs] = before + 1
            for forgotten in list(self.seen)[: -self.keeps]:
                del self.seen[forgotten]
            self.samples += 1
            return {"timed": {"latency_us": self.lasts(before, self.samples - 1)}}
        return {}

    def round_trip_s(self) -> float:
        return 0.0


def judged(lasts: Callable[[int, int], float], device: str = "cpu", **options: Any) -> str:
    return remembering_fault(cast(Hand, Played(lasts, **options)), torch.device(device))


@pytest.mark.parametrize("keeps", [1, 1000])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_answers_kept_by_their_inputs_are_found_out(device: str, keeps: int) -> None:
    fault = judged(lambda seen, _: FAST if seen else SLOW, device, keeps=keeps)
    assert fault.startswith("untrusted: 3.45 times as fast on inputs")


def test_a_processor_that_learns_the_branches_of_its_inputs_accuses_nobody() -> None:
    """On a GPU nothing is learned from one launch to the next, so there it would be no excuse."""
    learned = {"lasts": lambda seen, _: 100.0 / (1 + 0.1 * min(seen, 3)), "learns": True}
    assert judged(**learned) == ""
    assert judged(**learned, device="cuda").startswith("untrusted: ")


@pytest.mark.parametrize(("times", "is_trusted"), [(1.3, True), (3.0, False)])
def test_without_numbers_to_scale_only_what_no_processor_learns_accuses(times: float, *, is_trusted: bool) -> None:
    fault = judged(lambda seen, _: FAST if seen else FAST * times, learns=True, has_floats=False)
    assert (fault == "") is is_trusted


@pytest.mark.parametrize("first", [0, 1])
def test_a_machine_that_slows_every_other_call_accuses_nobody(first: int) -> None:
    assert judged(lambda _, place: SLOW if place % 2 == first else FAST) == ""


@pytest.mark.parametrize("period", [2, 3, 4, 5])
def test_nor_does_one_that_is_busy_for_a_while_in_turns(period: int) -> None:
    assert judged(lambda _, place: SLOW if place // period % 2 == 0 else FAST) == ""


def test_an_even_machine_accuses_nobody() -> None:
    noise = itertools.cycle((0.98, 1.0, 1.03))
    assert judged(lambda _, __: FAST * next(noise)) == ""


@pytest.mark.parametrize("saved_us", [0.0, 0.2])
@pytest.mark.parametrize("call_us", [3.0, 50.0, 5000.0])
def test_a_memo_is_found_at_any_duration_and_noise_accuses_nobody(call_us: float, saved_us: float) -> None:
    """The memo saves a fifth of a call; the samples differ by 3 % at random."""
    chance = random.Random(7)
    verdicts = [
        judged(lambda seen, _: call_us * (1 - saved_us * bool(seen)) * chance.gauss(1, 0.03)) for _ in range(40)
    ]
    assert [bool(verdict) for verdict in verdicts] == [saved_us > 0] * 40


def test_a_baseline_is_asked_what_it_remembers_until_it_was_judged_in_full() -> None:
    remembering = Played(lambda seen, _: FAST if seen else SLOW)
    limits = AnswerLimits(None)
    arena = Arena(torch.device("cpu"), 1, "cold", 4, limits, pytest.fail, Hand("", pytest.fail, limits), ("torch",))
    for name in ("torch", "mine"):
        arena.hands[name] = cast(Hand, remembering)
    case = OwnCase({"n": 1}, "n1")
    assert all(arena.afterthoughts(name, case).startswith("untrusted: ") for name in ("torch", "mine"))
    arena.repeated_baselines.add("torch")
    remembering.seen.clear()
    assert arena.afterthoughts("torch", case) == ""
    assert arena.afterthoughts("mine", case).startswith("untrusted: ")
