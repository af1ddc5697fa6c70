"""A warm-up ends when nothing moves any more, and no later than it may."""

from __future__ import annotations

import itertools
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.clocks import NoClocks, Reading
from kernels.harness.warming import MOST_WINDOWS, WINDOW_BLOCKS, Window, is_steady, medians_agree
from tests.kernels.measured import Journal, measured

TIMES = st.lists(st.floats(1, 1e6), min_size=WINDOW_BLOCKS, max_size=WINDOW_BLOCKS)


@given(TIMES)
def test_a_window_agrees_with_itself_and_with_its_order_turned_around(times: list[float]) -> None:
    assert medians_agree(times, times)
    assert medians_agree(times, times[::-1])


@given(st.floats(1, 1e6), st.floats(1.03, 10))
def test_without_noise_three_per_cent_are_a_movement(time: float, factor: float) -> None:
    assert not medians_agree([time] * 4, [time * factor] * 4)
    assert not medians_agree([time * factor] * 4, [time] * 4)


def test_what_moves_no_farther_than_its_noise_has_settled() -> None:
    chance = random.Random(5)
    windows = [[10 * math.exp(chance.gauss(0, 0.2)) for _ in range(WINDOW_BLOCKS)] for _ in range(2000)]
    agreed = sum(medians_agree(a, b) for a, b in itertools.pairwise(windows))
    assert agreed > 0.7 * len(windows)


def test_clocks_that_still_move_are_not_steady_though_times_are() -> None:
    times = {"a": [1.0] * 4}
    assert is_steady(Window(times, [1980.0] * 4), Window(times, [1970.0] * 4))
    assert not is_steady(Window(times, [1980.0] * 4), Window(times, [1900.0] * 4))
    assert is_steady(Window(times, []), Window(times, [1900.0] * 4))
    assert not is_steady(Window(times, []), Window({"a": [1.0, 1.5, 1.5, 1.5]}, []))


def test_a_warm_up_lasts_until_times_stand_still_and_none_of_it_is_kept() -> None:
    cooling = Journal(lasts=lambda before: 100 + 500 * math.exp(-before / 12))
    done, kept = measured(cooling, "ab", warmup="steady", blocks=6)
    assert done.warming.ended == "steady"
    assert max(sample.latency_us for sample in kept) < 103
    assert [sample.block for sample in kept] == [block for block in range(1, 7) for _ in "ab"]
    blocks = done.warming.calls["a"] // 3
    assert blocks % WINDOW_BLOCKS == 0
    assert cooling.lines.count("time a") == blocks + 6
    assert done.warming.calls == {"a": 3 * blocks, "b": 3 * blocks}


def test_what_stands_still_from_the_start_is_warmed_for_two_windows() -> None:
    done, _ = measured(Journal(lasts=lambda _: 5.0), "a", warmup="steady")
    assert done.warming.calls == {"a": 2 * WINDOW_BLOCKS * 3}


def test_what_never_settles_is_measured_once_its_time_is_up_and_said_to_be_unsettled() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    restless = Journal(lasts=lambda before: 2.0 ** (before % 40))
    done, kept = measured(restless, "a", warmup="steady", clock=clock, warmup_limit_s=5.0)
    assert done.warming.ended == "limit"
    assert len(kept) == 5
    assert done.warming.calls["a"] == 3 * WINDOW_BLOCKS * 5
    endless = measured(Journal(lasts=lambda before: 2.0 ** (before % 40)), "a", warmup="steady", warmup_limit_s=1e9)
    assert endless[0].warming.calls["a"] == 3 * WINDOW_BLOCKS * MOST_WINDOWS


def test_a_chip_whose_clock_still_falls_is_not_warm() -> None:
    class Falling(NoClocks):
        mhz = 2100.0

        def read(self) -> Reading:
            self.mhz = max(1500.0, self.mhz - 10)
            return Reading(sm_clock_mhz=self.mhz)

    clocks = Falling()
    done, _ = measured(Journal(lasts=lambda _: 5.0), "a", warmup="steady", clocks=clocks, blocks=1)
    assert done.warming.ended == "steady"
    assert clocks.mhz == 1500.0


def test_a_fixed_warm_up_calls_each_implementation_on_the_input_sets_in_turn() -> None:
    journal = Journal(sets=3)
    done, _ = measured(journal, "ab", warmup=5, blocks=1)
    assert (done.warming.ended, done.warming.calls) == ("fixed", {"a": 5, "b": 5})
    assert journal.read_sets[:10] == [0, 1, 2, 0, 1] * 2
