"""How measurements are ordered, shuffled and begun, and what is left out of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.case import DTYPE_NAMES, Case, Shape
from kernels.attention.interface import Unavailable
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.harness import axes
from kernels.harness.clocks import NoClocks
from kernels.harness.controls import COMPARABLE, Cost, slowest_launcher
from kernels.harness.regimes import case_regimes
from kernels.harness.spec import REGIMES
from kernels.harness.stopping import precision_rule
from kernels.harness.timers import Timed, Timer
from kernels.harness.timing import Sample
from kernels.harness.turns import Contender
from tests.kernels.measured import CASE, CPU, Journal, measured, played


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


# Which inputs a case has.


def drawn(case: Case, seed: int) -> Inputs:
    return AttentionProblem().inputs(case, axes.case_generator(case, CPU, seed))


def test_inputs_depend_on_seed_and_case_alone_and_are_never_zeros() -> None:
    first, again = drawn(CASE, 5), drawn(CASE, 5)
    assert torch.equal(first.q, again.q)
    assert torch.equal(first.k, again.k)
    assert not torch.equal(first.q, drawn(CASE, 6).q)
    assert (first.q.shape, first.k.shape, first.v.shape) == ((2, 4, 9, 8), (2, 2, 11, 8), (2, 2, 11, 8))
    assert first.q.dtype == torch.bfloat16
    assert not torch.equal(first.k, first.v)
    assert 0.5 < first.q.float().std().item() < 1.5


def test_a_resumed_case_has_the_inputs_it_would_have_had() -> None:
    torch.manual_seed(1)
    alone = drawn(CASE, 5).q
    drawn(Case(CASE.shape, "float32"), 5)
    assert torch.equal(drawn(CASE, 5).q, alone)


# In which regimes a case is measured.


SIZES = st.integers(1, 20_000)


@given(SIZES, SIZES, SIZES, st.sampled_from([64, 128]), st.booleans(), st.sampled_from(REGIMES))
def test_the_element_type_and_the_mask_never_choose_a_regime(
    heads: int, seq_q: int, seq_k: int, head_dim: int, causal: bool, asked: str
) -> None:
    case = Case(Shape(2, heads, heads, seq_q, seq_k, head_dim, causal), "float16")
    found = case_regimes(asked, "cuda", case)
    assert all(case_regimes(asked, "cuda", replace(case, dtype=other)) == found for other in DTYPE_NAMES)
    assert case_regimes(asked, "cuda", replace(case, shape=replace(case.shape, causal=not causal))) == found


@given(SIZES, SIZES)
def test_a_gpu_case_has_burst_and_graph_and_a_processors_burst_and_sustained(seq_q: int, seq_k: int) -> None:
    case = Case(Shape(2, 8, 8, seq_q, seq_k, 64, False), "float16")
    assert case_regimes("both", "cuda", case)[:2] == ("burst", "graph")
    assert case_regimes("both", "cpu", case) == ("burst", "sustained")
    assert case_regimes("burst+graph", "cuda", case) == ("burst", "graph")


@pytest.mark.parametrize(("seq", "heavy"), [(512, False), (1024, False), (4096, True), (16384, True)])
def test_what_a_power_limit_can_hold_back_is_also_measured_back_to_back(seq: int, heavy: bool) -> None:
    case = Case(Shape(2, 8, 8, seq, seq, 64, False), "float16")
    assert ("sustained" in case_regimes("both", "cuda", case)) == heavy
    assert case_regimes("sustained", "cuda", case) == ("sustained",)


# Which implementation gets the second control.


@given(
    st.lists(st.tuples(st.floats(1, 500), st.floats(1, 5000)), min_size=1, max_size=8, unique=True),
    st.sets(st.integers(0, 7)),
)
def test_the_second_control_is_on_the_longest_launch_among_those_of_comparable_speed(
    costs: list[tuple[float, float]], have: set[int]
) -> None:
    made = [Cost(str(n), host, whole) for n, (host, whole) in enumerate(costs)]
    chosen = slowest_launcher(made, frozenset(map(str, have)))
    least = min(one.whole_us for one in made)
    near = [one for one in made if one.whole_us <= COMPARABLE * least]
    longest = max(one.host_us for one in near)
    if chosen is None:
        assert any(one.host_us == longest and int(one.implementation) in have for one in near)
    else:
        (one,) = (one for one in made if one.implementation == chosen)
        assert one in near
        assert one.host_us == longest
        assert int(chosen) not in have
    assert slowest_launcher([], frozenset()) is None
