"""Two runs of the same code are not called different, whatever their machines did; a true change is found."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.across import find_changes
from orchestrator.analysis.between import spread_of
from orchestrator.analysis.bootstrap import Interval, Spread, normal_quantile, student_quantile
from orchestrator.analysis.history import Reading, history
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.samples import SENSORS, Group, Key
from orchestrator.analysis.study import study
from orchestrator.analysis.verdicts import Noise, NoiseSource, Verdict
from orchestrator.report.comparing import compare_reports
from orchestrator.report.report import Report
from tests.unit.report.written import csv_text, records, studied

PAIRS = 1000
WRONG = (Verdict.FASTER, Verdict.SLOWER)
NAMES = ("bench", "sdpa:default", "sdpa:flash", "sdpa:math", "bench:aa")


@dataclass(frozen=True)
class Machine:
    """What differs between runs of the same code. Sizes are relative standard deviations, unless said otherwise."""

    placement: float = 0.005
    """Of one implementation on one case: memory, clocks, neighbours."""
    slowdown: float = 0.3
    """How much slower everything is at most in one run than in another."""
    noise: float = 0.01
    episodes: float = 0.1
    """How much slower the machine is in an episode, which holds a fifth of the blocks."""
    loaded: float = 0.0
    """How often a machine is loaded: it says so, and each implementation suffers by its own measure, by a fifth."""


QUIET = Machine()
LOADED = Machine(loaded=0.4)
UNSAID = Machine(placement=0.05)
"""Loads that no sensor tells of: implementations differ by five per cent from run to run."""


def simulated(machine: Machine, rng: np.random.Generator, speed: float, cases: int, blocks: int) -> Report:
    """A run in which every true latency is 100 µs, but that of `bench`, which is 100 / speed."""
    loaded = bool(rng.random() < machine.loaded)
    shape = (cases, len(NAMES))
    truth = np.where([name.startswith("bench") for name in NAMES], 100 / speed, 100.0)
    truth = truth * np.exp(machine.placement * rng.standard_normal(shape)) * (1 + machine.slowdown * rng.random())
    if loaded:
        truth = truth * np.exp(0.2 * np.abs(rng.standard_normal(shape)))
    pace = 1 + machine.episodes * (rng.random((cases, blocks // 5)).repeat(5, axis=1) < 0.2)
    times = truth[..., None] * pace[:, None] * np.exp(machine.noise * rng.standard_normal((*shape, blocks)))
    unknown = np.full(blocks, math.nan)
    sensors = dict.fromkeys(SENSORS, unknown) | {"load_1m": np.full(blocks, 9.0 if loaded else 0.5)}
    groups = [
        Group(
            Key("run", f"case-{case}", Setting("burst", "cold"), name), "NVIDIA L4", "fa2", {}, np.arange(blocks),
            times[case, place], unknown, sensors, np.zeros(blocks, np.bool_), 0.0, "", {},
        )
        for case in range(cases) for place, name in enumerate(NAMES)
    ]  # fmt: skip
    return Report(study(groups), {"device": "NVIDIA L4", "cpu_count": 4})


def verdicts(machine: Machine, speed: float, *, pairs: int, cases: int) -> list[list[Verdict]]:
    """Of each pair of runs, `speed` times as fast in the second, the verdicts of its cases. Every run is the second of
    one pair and, where that is the same code, the first of the next."""
    rng = np.random.default_rng(7)
    found = []
    before = simulated(machine, rng, 1.0, cases, 20)
    for _ in range(pairs):
        after = simulated(machine, rng, speed, cases, 20)
        found.append([one.verdict for one in compare_reports(before, after).changes])
        before = after if speed == 1.0 else simulated(machine, rng, 1.0, cases, 20)
    return found


@pytest.mark.parametrize("machine", [LOADED, UNSAID], ids=["loaded", "loaded and nobody says so"])
def test_of_a_thousand_pairs_of_equal_runs_at_most_one_in_twenty_is_called_different(
    machine: Machine,
) -> None:
    found = verdicts(machine, 1.0, pairs=PAIRS, cases=1)
    assert len(found) == PAIRS
    assert all(len(pair) == 1 for pair in found)
    assert sum(any(one in WRONG for one in pair) for pair in found) <= 0.05 * PAIRS


def test_a_true_regression_of_five_per_cent_is_found_in_nine_of_ten() -> None:
    found = [one for pair in verdicts(QUIET, 1 / 1.05, pairs=PAIRS // 4, cases=4) for one in pair]
    assert len(found) == PAIRS
    assert sum(one is Verdict.SLOWER for one in found) >= 0.9 * len(found)
    assert Verdict.FASTER not in found


def test_a_loaded_machine_decides_nothing_and_says_why() -> None:
    busy = Machine(loaded=1.0)
    rng = np.random.default_rng(3)
    found = compare_reports(simulated(busy, rng, 1.0, 2, 30), simulated(QUIET, rng, 0.8, 2, 30)).changes
    assert {one.said for one in found} == {"inconclusive: the host of the first run was busy"}


def test_a_device_that_was_held_back_in_one_run_decides_nothing() -> None:
    cold, hot = (
        studied(csv_text(records(lengths=(128,), throttle=throttle, seed=seed)))
        for throttle, seed in (("none", 1), ("hw_thermal", 2))
    )
    assert {one.doubt for one in find_changes(cold, hot, relative_to="sdpa:default")} == {"the device was throttled"}
    assert {one.doubt for one in find_changes(cold, cold, relative_to="sdpa:default")} == {""}
    power = [studied(csv_text(records(throttle="sw_power_cap", regime="sustained", seed=n))) for n in (1, 2)]
    assert {one.doubt for one in find_changes(*power, relative_to="sdpa:default")} == {""}


def test_the_same_payload_on_the_same_libraries_is_never_called_different() -> None:
    rng = np.random.default_rng(5)
    before, after = simulated(QUIET, rng, 1.0, 2, 30), simulated(QUIET, rng, 0.8, 2, 30)
    payload = {"payload_sha256": "a" * 64}
    one, other = (Report(report.study, {**report.environment, **payload}) for report in (before, after))
    assert {found.verdict for found in compare_reports(before, after).changes} == {Verdict.SLOWER}
    assert {found.said for found in compare_reports(one, other).changes} == {
        "inconclusive: the same payload: only the machine differs"
    }
    newer = Report(after.study, {**after.environment, **payload, "driver": "580"})
    assert {found.verdict for found in compare_reports(one, newer).changes} == {Verdict.SLOWER}


@pytest.mark.parametrize("seen", [0, 1, 6, 40])
@pytest.mark.parametrize("truth", [0.01, 0.03])
def test_the_limits_hold_for_what_differs_between_runs_as_often_as_they_say(seen: int, truth: float) -> None:
    """Against the truth that the numbers were drawn from: in at least 19 of 20 draws, where enough was seen or no more
    than usual happens."""
    if truth > 0.01 and seen < 3:
        pytest.skip("nothing was seen, and more than usual happened: nobody can know")
    rng = np.random.default_rng(11)
    held = rejected = 0
    for _ in range(2000):
        spread = spread_of(truth * rng.standard_normal(seen))
        middle = math.exp(truth * rng.standard_normal())
        ratio = Interval(middle * 0.999, middle, middle * 1.001)
        held += not spread.widened(ratio).excludes(1.0)
        rejected += spread.chance(ratio) < 0.05
    assert held >= 0.935 * 2000
    assert rejected <= 0.065 * 2000


@given(st.floats(0.1, 4.0), st.floats(4.0, 200.0))
def test_a_tail_of_students_is_found_again_as_the_normal_one(z: float, free: float) -> None:
    assert normal_quantile(student_quantile(z, free), free) == pytest.approx(z, abs=1e-6)


@pytest.mark.parametrize(("free", "t"), [(3, 3.182), (6, 2.447), (30, 2.042)])
def test_a_p_value_is_that_of_the_tables(free: float, t: float) -> None:
    """A difference of the tables' 0.975 quantile of Student's distribution has a p-value of 0.05."""
    certain = Interval(math.exp(0.01 * t) * (1 - 1e-12), math.exp(0.01 * t), math.exp(0.01 * t) * (1 + 1e-12))
    assert Spread(0.01, free).chance(certain) == pytest.approx(0.05, rel=0.03)
    wide = Spread(0.01, free).widened(certain)
    assert wide.low == pytest.approx(1.0, abs=1e-3)


def test_a_spread_follows_unusual_samples_and_leans_on_the_usual_spread_elsewhere() -> None:
    assert spread_of([0.1, -0.1, 0.1, -0.1]) == Spread(0.1, 4)
    assert spread_of([]) == Spread(0.01, 4)
    assert spread_of([0.0] * 12).size == pytest.approx(0.005)


# --- histories ------------------------------------------------------------------------------------------------------


def reading(place: int, value: float, payload: str = "", backend: str = "fa2", doubt: str = "") -> Reading:
    told = {"payload_sha256": payload, "backend": backend}
    return Reading(str(place), told, Interval(value * 0.998, value, value * 1.002), NOISE, doubt)


NOISE = Noise(0.004, NoiseSource.CONTROL)


def followed(*readings: Reading) -> list[str]:
    points = history(readings, relative=False, tolerance=0.02)
    return [f"{point.change or 'first'}{f': {point.doubt}' if point.doubt else ''}" for point in points]


def test_a_history_of_one_payload_is_never_faster_or_slower_than_itself() -> None:
    """As it was seen: the same payload 3.143 times as fast, then 0.032 times."""
    found = followed(*(reading(n, value, "a" * 64) for n, value in enumerate((100, 31.8, 130, 89, 2800))))
    assert found[0] == "first"
    assert not any(words in ("faster", "slower") for words in found)


def test_a_new_payload_and_a_new_kernel_split_a_history_and_are_named() -> None:
    runs = [reading(0, 100, "a" * 64), reading(1, 100, "b" * 64), reading(2, 70, "b" * 64, "mine-c")]
    points = history(runs, relative=False, tolerance=0.02)
    assert [point.split for point in points] == [
        (), ("payload aaaaaaaaaaaa → bbbbbbbbbbbb",), ("kernel fa2 → mine-c",),
    ]  # fmt: skip
    assert points[2].change is Verdict.FASTER


def test_a_busy_machine_in_a_history_decides_nothing_and_begins_no_level() -> None:
    runs = [reading(0, 100), reading(1, 300, doubt="The host was busy"), reading(2, 100.1), reading(3, 130)]
    assert followed(*runs)[1:] == ["inconclusive: The host was busy", "inconclusive", "slower"]
    assert followed(reading(0, 300, doubt="The host was busy"), reading(1, 100))[1] == "first"


def test_repeated_runs_tell_how_much_runs_differ() -> None:
    wild = [reading(n, value, "a" * 64) for n, value in enumerate((100, 112, 95, 108, 99))]
    assert followed(*wild, reading(9, 88, "b" * 64))[-1] == "inconclusive"
    calm = [reading(n, value, "a" * 64) for n, value in enumerate((100, 100.2, 99.8, 100.1, 99.9))]
    assert followed(*calm, reading(9, 88, "b" * 64))[-1] == "faster"


def test_what_is_simulated_is_what_it_says() -> None:
    """The oracle of this file, against arithmetic of its own."""
    report = simulated(Machine(0.0, 0.0, 0.0, 0.0), np.random.default_rng(1), 1.25, 1, 30)
    (case,) = report.study.cases
    assert case.contrasts[0].paired.ratio.mid == pytest.approx(1.25)


@given(st.floats(1e-6, 300), st.floats(1, 1e6))
def test_the_normal_quantile_of_a_tail_is_what_students_quantile_was_made_from(t: float, free: float) -> None:
    found = normal_quantile(t, free)
    assert 0 < found <= t
    assert student_quantile(found, free) == pytest.approx(t, rel=1e-12)
