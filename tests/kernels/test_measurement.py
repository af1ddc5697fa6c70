"""How measurements are ordered, seeded, timed and written."""

from __future__ import annotations

import csv
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention.case import Case, Shape
from kernels.attention.interface import Unavailable
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.harness import axes, rows
from kernels.harness.clocks import NoClocks, Reading, clocks, throttle_words
from kernels.harness.columns import correctness_columns, measurement_columns
from kernels.harness.energy import Drawn
from kernels.harness.host import Host, HostReading
from kernels.harness.stopping import first_of, half_width, never, rule, spent
from kernels.harness.timers import CpuTimer, Timed, Timer, calls_for, clock_overhead_ns, timer_for, whole_turns
from kernels.harness.timing import Extent, Instruments, Measured, Sample, measure
from kernels.harness.turns import Contender
from kernels.harness.workload import Check

CASE = Case(Shape(batch=2, heads=4, kv_heads=2, seq_q=9, seq_k=11, head_dim=8, causal=True), "bfloat16")
CPU = torch.device("cpu")
ORIGIN = rows.Origin("run", "vm", "device, with a comma", "2.0")


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
    asked = {"blocks": 5, "warmup": 0, "rng": axes.order(CASE, 1), "clocks": NoClocks(), "pause": lambda _: None}
    contenders = [journal.contender(name) for name in names]
    return played(contenders, timer=journal.timer, keep=kept.append, **(asked | changes)), kept


def played(contenders: Sequence[Contender], **asked: Any) -> Measured:
    """What `measure` says, asked by the names of what it takes."""
    extent = Extent(**{field.name: asked.pop(field.name) for field in fields(Extent) if field.name in asked})
    by = Instruments(**{field.name: asked.pop(field.name) for field in fields(Instruments) if field.name in asked})
    return measure(contenders, extent, by, **asked)


def taken(journal: Journal, names: str, blocks: int, warmup: int, seed: int = 1) -> list[Sample]:
    return measured(journal, names, blocks=blocks, warmup=warmup, rng=axes.order(CASE, seed))[1]


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
        blocks=3, warmup=1, timer=journal.timer, rng=axes.order(CASE, 1), clocks=Meter(journal),
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


def test_measuring_ends_when_it_is_told_that_it_is_enough() -> None:
    seen: list[dict[str, int]] = []

    def enough(latencies: Mapping[str, Sequence[float]]) -> str:
        seen.append({name: len(times) for name, times in latencies.items()})
        return "precision" if len(seen) == 4 else ""

    done, samples = measured(Journal(), "ab", blocks=50, enough=enough)
    assert max(s.block for s in samples) == 4
    assert seen == [{"a": n, "b": n} for n in (1, 2, 3, 4)]
    assert done.stopped == "precision"
    assert measured(Journal(), "ab", blocks=3)[0].stopped == "repeats"


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
        [journal.contender(name) for name in "abc"], blocks=4, warmup="steady", timer=timer, rng=axes.order(CASE, 1),
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
def test_a_contender_that_can_no_longer_be_timed_is_left_out_and_the_others_are_measured_on(
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
        timer=lambda one: Greedy(journal, one.implementation), rng=axes.order(CASE, 1), clocks=NoClocks(),
        keep=kept.append, pause=lambda _: None, enough=rule(0.5),
    )  # fmt: skip
    refused = {"b": told} if when < 30 else {}
    assert dict(done.refused) == refused
    assert {name: len(times) for name, times in done.latencies.items()} == dict.fromkeys("ac" if refused else "abc", 12)
    assert sum(sample.implementation == "a" for sample in kept) == 12


def test_where_nothing_can_be_timed_nothing_is() -> None:
    def timer(_: Contender) -> Timer:
        raise Unavailable("no")

    done = played(
        [Journal().contender("a")], blocks=4, warmup="steady", timer=timer, rng=axes.order(CASE, 1), clocks=NoClocks(),
        keep=lambda _: pytest.fail("kept"),
    )  # fmt: skip
    assert (dict(done.latencies), done.stopped) == ({}, "repeats")


def test_the_garbage_collector_rests_while_times_are_taken_and_works_again_after() -> None:
    seen: list[bool] = []
    measured(Journal(lasts=lambda _: float(seen.append(gc.isenabled()) or 1)), "a")
    assert set(seen) == {False}
    assert gc.isenabled()


def blocks_until_enough(noise: float, relative_ci: float | None, most: int = 500) -> int | None:
    chance = random.Random(4)
    latencies: dict[str, list[float]] = {"a": [], "b": []}
    enough = rule(relative_ci)
    for block in range(1, most + 1):
        for times in latencies.values():
            times.append(10 * math.exp(chance.gauss(0, noise)))
        if enough(latencies):
            return block
    return None


def test_noisy_cases_are_measured_longer_and_by_default_all_are_measured_alike() -> None:
    calm, noisy = blocks_until_enough(0.002, 0.01), blocks_until_enough(0.05, 0.02)
    assert calm == 20
    assert noisy is not None
    assert noisy > 50
    assert noisy % 10 == 0
    assert blocks_until_enough(0.2, 0.001) is None
    assert blocks_until_enough(0.002, None) is None
    assert not rule(0.5)({})
    assert rule(0.5)({"alone": [1.0] * 20})


def test_a_long_case_is_looked_at_less_often_so_that_looking_never_outweighs_measuring() -> None:
    looked: list[int] = []

    class Series(list[float]):
        def __iter__(self) -> Iterator[float]:
            looked.append(len(self))
            return super().__iter__()

    enough, alone, chance = rule(1e-9), Series(), random.Random(2)
    for _ in range(4000):
        alone.append(1.0 + chance.random())
        assert not enough({"alone": alone})
    assert looked[:3] == [20, 30, 40]
    assert len(looked) < 120
    assert sum(looked) < 60 * 4000


def test_a_case_ends_once_its_dollars_are_spent_and_an_order_has_been_turned_around() -> None:
    now = [100.0]
    enough = spent(10, clock=lambda: now[0])
    assert enough({"a": [1.0] * 4}) == ""
    now[0] = 110.0
    assert enough({"a": [1.0] * 4}) == "dollars"
    assert enough({"a": [1.0] * 5}) == ""
    assert enough({"a": [], "b": []}) == ""
    assert spent(-5, clock=lambda: now[0])({"a": [1.0] * 2}) == "dollars"
    assert spent(None)({"a": [1.0] * 2}) == ""


def test_of_two_rules_the_one_that_stops_is_named() -> None:
    both = first_of(rule(0.5), spent(0))
    assert both({"a": [1.0] * 2}) == "dollars"
    assert both({"a": [1.0] * 20}) == "precision"
    assert first_of(never, never)({"a": [1.0] * 20}) == ""


def test_the_stopping_rules_interval_covers_the_median_as_often_as_it_says() -> None:
    chance = random.Random(6)
    covered = 0
    for _ in range(1000):
        values = [chance.gauss(0, 1) for _ in range(50)]
        covered += abs(statistics.median(values)) <= half_width(values)
    assert covered >= 940


def test_the_host_is_read_as_it_is_and_what_it_lacks_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 50 800 20 0 10 20 5 0\ncpu0 1 2 3\n")
    (tmp_path / "loadavg").write_text("1.25 0.80 0.50 2/100 999\n")
    (tmp_path / "cpuinfo").write_text("processor : 0\ncpu MHz\t\t: 2000.0\nprocessor : 1\ncpu MHz\t\t: 3000.0\n")
    host = Host(tmp_path)
    assert host.read() == HostReading(2500.0, 1.25, None)
    (tmp_path / "stat").write_text("cpu  150 0 70 810 20 0 10 40 5 0\n")
    assert host.read() == HostReading(2500.0, 1.25, 20.0)
    (tmp_path / "empty").mkdir()
    assert Host(tmp_path / "empty").read() == HostReading()


def drawn(case: Case, seed: int) -> Inputs:
    return AttentionProblem().inputs(case, axes.generator(case, CPU, seed))


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


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_the_cpu_timer_measures_the_time_of_one_call(regime: str) -> None:
    lasted: list[int] = []

    def plan() -> torch.Tensor:
        begun = time.perf_counter_ns()
        while time.perf_counter_ns() < begun + 1_000_000:
            pass
        lasted.append(time.perf_counter_ns() - begun)
        return torch.empty(0)

    contender = Journal().contender("a")
    timer = CpuTimer(regime, Contender("a", (plan,), contender.scope), overhead_us=0.5)

    def excess_us() -> float:
        """What the timer says beyond what the calls themselves say; another process may get in between."""
        lasted.clear()
        told = timer([plan] * timer.calls_made).latency_us
        timed = lasted[timer.warm :]
        return told - sum(timed) / len(timed) / 1000

    assert min(abs(excess_us()) for _ in range(10)) < 100
    assert timer([plan] * timer.calls_made).hidden is None, "there is no device beside this host"
    assert timer.overhead_us == 0.5 / (timer.calls_made - timer.warm)
    assert (timer.calls_made == 1) == (regime == "burst")
    assert timer.rest_s(1000.0) == 0


def test_a_graph_cannot_be_timed_without_cuda() -> None:
    with pytest.raises(ValueError, match="needs a CUDA device"):
        timer_for(CPU, "graph")


@given(st.floats(1e-6, 10), st.floats(0, 1e9))
def test_the_number_of_calls_fills_the_time_within_bounds(seconds: float, once_us: float) -> None:
    assert 2 <= calls_for(seconds, once_us) <= 2000


@given(st.integers(1, 5000), st.integers(1, 300))
def test_a_graph_reads_every_input_set_equally_often(calls: int, sets: int) -> None:
    made = whole_turns(calls, sets)
    assert made % sets == 0
    assert calls <= made < calls + sets


def test_the_clock_costs_less_than_a_microsecond_to_read() -> None:
    assert 0 < clock_overhead_ns() < 1000


@given(st.integers(0, 2**40 - 1))
def test_every_throttle_bit_is_told_but_idleness(bits: int) -> None:
    words = throttle_words(bits)
    assert "gpu_idle" not in words
    assert (words == "none") == (bits & ~1 == 0)
    assert ("sw_power_cap" in words) == bool(bits & 4)
    assert ("0x" in words) == (bits >> 9 != 0)


def test_a_cpu_has_no_sm_clock() -> None:
    assert clocks(CPU).read() == Reading(None, None, None, None, "")


def sample(reading: Reading) -> Sample:
    return Sample("bench", 3, 3, 12.34567, reading, "2026-11-21T04:05:06.000001Z", 2, 4, HostReading(2450.5, 0.25, 0))


def setting(**changes: Any) -> rows.Setting:
    usual = rows.Setting(
        implementation="bench", backend="cpu", check=Check(True, 0.0, 1.0, ""), regime="burst", cache="cold",
        input_sets=17, warmup_calls=24, warmed="steady", stopped="repeats", timer_overhead_us=0.05,
        peak_memory_bytes=None,
    )  # fmt: skip
    return replace(usual, **changes)


def test_what_is_not_known_is_empty_and_never_zero() -> None:
    row = rows.measured(ORIGIN, CASE, setting(), rows.of_sample(sample(Reading())))
    assert {row[c] for c in ("sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle")} == {""}
    assert row["max_abs_error"] == "0"
    later = ("position", "calls", "cpu_mhz", "load_1m", "steal_percent")
    assert [row[c] for c in later] == ["2", "4", "2450.5", "0.25", "0"]
    assert [row[c] for c in ("joules_per_call", "energy_s")] == ["", ""]
    fed = rows.measured(ORIGIN, CASE, setting(energy=Drawn(0.0123456, 0.61)), rows.of_sample(sample(Reading())))
    assert [fed[c] for c in ("joules_per_call", "energy_s")] == ["0.0123456", "0.610"]
    newest = ("regime", "cache", "input_sets", "warmup_calls", "warmed", "stopped", "timer_overhead_us")
    assert [row[c] for c in newest] == ["burst", "cold", "17", "24", "steady", "repeats", "0.05"]
    assert row["peak_memory_bytes"] == ""
    hiding = ("host_us", "cover", "hidden", "cover_us")
    assert [row[c] for c in hiding] == ["", "", "", ""]
    covered = rows.of_sample(replace(sample(Reading()), host_us=41.26, cover="gate", hidden=True, cover_us=100.04))
    assert [covered[c] for c in hiding] == ["41.3", "gate", "true", "100.0"]
    assert row["latency_us"] == "12.346"
    known = rows.of_sample(sample(Reading(0.0, 10251, 71.5, 40, "none")))
    known_row = rows.measured(ORIGIN, CASE, setting(peak_memory_bytes=0), known)
    assert [known_row[c] for c in ("sm_clock_mhz", "mem_clock_mhz", "power_w", "throttle", "peak_memory_bytes")] == [
        "0",
        "10251",
        "71.5",
        "none",
        "0",
    ]


def test_every_row_has_only_columns_of_the_file() -> None:
    check = Check(False, math.nan, 0.01, "NaN")
    for row in (
        rows.measured(ORIGIN, CASE, setting(check=check), rows.of_sample(sample(Reading()))),
        rows.skipped(ORIGIN, CASE, "burst", "bench", "NaN", check),
    ):
        assert set(row) <= set(measurement_columns(CASE.axes))
        assert row["max_abs_error"] == ""
    assert set(rows.checked(CASE, "bench", check, "NaN")) == set(correctness_columns(CASE.axes))


@settings(deadline=None, max_examples=30)
@given(count=st.integers(0, 40), throttle=st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20))
def test_a_spool_gives_back_what_it_was_given(
    tmp_path_factory: pytest.TempPathFactory, count: int, throttle: str
) -> None:
    kept = [replace(sample(Reading(throttle=throttle)), block=number) for number in range(count)]
    with rows.Spool(tmp_path_factory.getbasetemp() / "spool") as spool:
        for one in kept:
            spool.keep(one)
        assert list(spool.cells()) == [rows.of_sample(one) for one in kept]
    assert list((tmp_path_factory.getbasetemp() / "spool").iterdir()) == []


@settings(deadline=None, max_examples=30)
@given(reason=st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=50))
def test_reasons_survive_the_file_whatever_they_contain(tmp_path_factory: pytest.TempPathFactory, reason: str) -> None:
    path = tmp_path_factory.getbasetemp() / "reasons.csv"
    rows.write_csv(path, measurement_columns(CASE.axes), [rows.skipped(ORIGIN, CASE, "burst", "bench", reason, None)])
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["skipped"] == reason
    assert row["device"] == "device, with a comma"


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "file"
    rows.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        rows.write_text(path, "\ud800")
    with pytest.raises(ValueError, match="not in fieldnames"):
        rows.write_csv(path, ("a",), ({"a": "1"}, {"b": "2"}))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
