"""How measurements are ordered, shuffled and begun, and what is left out of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.interface import Unavailable
from kernels.harness import axes
from kernels.harness.clocks import NoClocks
from kernels.harness.stopping import precision_rule
from kernels.harness.timers import Timed, Timer
from kernels.harness.timing import Sample
from kernels.harness.turns import Contender
from tests.kernels.measured import CASE, Journal, measured, played


def taken(journal: Journal, names: str, blocks: int, warmup: int, seed: int = 1) -> list[Sample]:
    return measured(journal, names, blocks=blocks, warmup=warmup, rng=axes.shuffle_generator(CASE, seed))[1]


@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 3))
def test_every_block_times_each_contender_once(count: int, blocks: int, warmup: int) -> None:
    names = "abcde"[:count]
    journal = Journal()
    samples = taken(journal, names, blocks, warmup)
    assert len(samples) == count * blocks
    for block in range(1, blocks + 1):
        assert sorted(s.implementation for s in samples if s.block == block) == list(names)
    assert [s.block for s in samples] == sorted(s.block for s in samples)
    for name in names:
        assert [s.repeat for s in samples if s.implementation == name] == list(range(1, blocks + 1))
        assert journal.lines.count(f"call {name}") == warmup + 3 * blocks
        assert journal.lines.count(f"time {name}") == blocks


def test_calls_are_timed_within_the_scope_of_their_own_contender_only() -> None:
    journal = Journal()
    taken(journal, "ab", blocks=5, warmup=2)
    inside: str | None = None
    for line in journal.lines:
        verb, name = line.split()
        if verb == "enter":
            assert inside is None
            inside = name
        elif verb == "leave":
            assert inside == name
            inside = None
        else:
            assert inside == name


def test_the_order_within_blocks_is_shuffled_and_comes_from_the_seed() -> None:
    def order(seed: int) -> list[str]:
        return [sample.implementation for sample in taken(Journal(), "abcd", 40, 0, seed)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    firsts = set(order(1)[::4])
    assert firsts == set("abcd")


def test_every_even_block_turns_the_order_around() -> None:
    samples = taken(Journal(), "abcd", 40, 0)
    blocks = [[s.implementation for s in samples if s.block == block] for block in range(1, 41)]
    assert all(even == odd[::-1] for odd, even in zip(blocks[::2], blocks[1::2], strict=True))
    assert [s.position for s in samples] == [1, 2, 3, 4] * 40
    assert {s.calls for s in samples} == {3}
    for name in "abcd":
        assert sum(s.position for s in samples if s.implementation == name) == 40 * 2.5


class Meter(NoClocks):
    """A counter that moves at every look, and writes down in the journal that it was looked at."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.used = journal, 0.0

    def energy_j(self) -> float:
        self.journal.lines.append("look")
        self.used += 1
        return self.used


def test_the_counter_of_energy_is_looked_at_after_the_last_sample_and_never_before() -> None:
    journal = Journal()
    kept: list[str] = []
    done = played(
        [journal.contender(name) for name in "ab"],
        blocks=3, warmup=1, timer=journal.timer, rng=axes.shuffle_generator(CASE, 1), clocks=Meter(journal),
        keep=lambda sample: kept.append(journal.lines.append("kept") or sample.implementation),
        pause=lambda _: None,
    )  # fmt: skip
    last = max(at for at, line in enumerate(journal.lines) if line == "kept")
    assert len(kept) == 6
    assert "look" not in journal.lines[:last]
    assert set(done.energy) == {"a", "b"}
    assert all(one.joules_per_call > 0 for one in done.energy.values())


def test_energy_costs_nothing_where_no_time_is_left_or_it_is_not_given() -> None:
    for changes in ({"spare_s": lambda: 0.5}, {"clocks": NoClocks()}):
        journal = Journal()
        done, samples = measured(journal, "ab", **({"clocks": Meter(journal)} | changes))
        assert done.energy == {}
        assert journal.timed == len(samples) == 10


@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 12))
def test_no_call_reads_an_input_set_before_all_others_have_been_read(sets: int, count: int, blocks: int) -> None:
    journal = Journal(sets)
    taken(journal, "abcd"[:count], blocks, 0)
    assert journal.read_sets == [number % sets for number in range(len(journal.read_sets))]


def test_what_is_timed_is_the_time_of_the_rest_that_the_timer_asks_for() -> None:
    rests: list[float] = []
    _, samples = measured(Journal(), "ab", blocks=2, pause=rests.append)
    assert rests == [sample.latency_us / 1000 for sample in samples]


def test_a_contender_that_a_regime_cannot_time_is_left_out_with_the_reason() -> None:
    journal = Journal()

    def timer(contender: Contender) -> Timer:
        if contender.implementation == "b":
            raise Unavailable("its calls cannot be captured in a graph")
        return journal.timer(contender)

    kept: list[Sample] = []
    done = played(
        [journal.contender(name) for name in "abc"], blocks=4, warmup="steady", timer=timer, rng=axes.shuffle_generator(CASE, 1),
        clocks=NoClocks(), keep=kept.append, pause=lambda _: None,
    )  # fmt: skip
    assert done.refused == {"b": "its calls cannot be captured in a graph"}
    assert {sample.implementation for sample in kept} == set(done.latencies) == {"a", "c"}
    assert measured(journal, "b", warmup=0)[0].refused == {}


@pytest.mark.parametrize("when", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("warmup", [0, "steady"])
@pytest.mark.parametrize(
    ("fails", "told"),
    [(MemoryError(), "out of memory while it was timed"), (Unavailable("cannot be hidden"), "cannot be hidden")],
)
def test_a_contender_that_can_no_longer_be_timed_is_left_out_alone(
    when: int, warmup: int | str, fails: Exception, told: str
) -> None:
    calls: list[str] = []

    class Greedy(Journal.Stopwatch):
        def __call__(self, plans: Sequence[Callable[[], torch.Tensor]]) -> Timed:
            calls.append(self.name)
            if self.name == "b" and calls.count("b") > when:
                raise fails
            return super().__call__(plans)

    journal = Journal(lasts=lambda _: 5.0)
    kept: list[Sample] = []
    done = played(
        [journal.contender(name) for name in "abc"], blocks=12, warmup=warmup,
        timer=lambda one: Greedy(journal, one.implementation), rng=axes.shuffle_generator(CASE, 1), clocks=NoClocks(),
        keep=kept.append, pause=lambda _: None, enough=precision_rule(0.5),
    )  # fmt: skip
    refused = {"b": told} if when < 30 else {}
    assert dict(done.refused) == refused
    assert {name: len(times) for name, times in done.latencies.items()} == dict.fromkeys("ac" if refused else "abc", 12)
    assert sum(sample.implementation == "a" for sample in kept) == 12


def test_where_nothing_can_be_timed_nothing_is() -> None:
    def timer(_: Contender) -> Timer:
        raise Unavailable("no")

    done = played(
        [Journal().contender("a")], blocks=4, warmup="steady", timer=timer, rng=axes.shuffle_generator(CASE, 1), clocks=NoClocks(),
        keep=lambda _: pytest.fail("kept"),
    )  # fmt: skip
    assert (dict(done.latencies), done.stopped) == ({}, "repeats")


def test_the_garbage_collector_rests_while_times_are_taken_and_works_again_after() -> None:
    seen: list[bool] = []
    measured(Journal(lasts=lambda _: float(seen.append(gc.isenabled()) or 1)), "a")
    assert set(seen) == {False}
    assert gc.isenabled()
