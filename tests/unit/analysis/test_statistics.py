"""Each statistic against an oracle that is slower and plainer than it is."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from orchestrator.analysis.bootstrap import (
    Interval,
    at_least,
    autocorrelation,
    ideal_limits,
    interval_widening,
    median,
    median_interval,
    normal_scores,
    student_quantile,
)
from orchestrator.analysis.ranks import cumulative_ranks, distinct_order, holm, mid_ranks, signed_ranks
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.samples import Group, Key
from orchestrator.analysis.verdicts import (
    MARGIN,
    WIDEST_SAME,
    Noise,
    NoiseSource,
    Verdict,
    compare_pairs,
    decide_verdict,
    distance_from_one,
    halves_noise,
)

positive = st.floats(1e-3, 1e6)
ps = st.lists(st.floats(0, 1), max_size=20)


def by_enumeration(differences: list[float]) -> float:
    """The two-sided p-value of the signed-rank sum, over every assignment of signs."""
    ranks = [sorted(map(abs, differences)).index(abs(one)) + 1 for one in differences]
    observed = abs(sum(math.copysign(rank, one) for rank, one in zip(ranks, differences, strict=True)))
    sums = [abs(sum(signs)) for signs in itertools.product(*((rank, -rank) for rank in ranks))]
    return sum(one >= observed for one in sums) / len(sums)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=10, unique=True), st.data())
def test_the_signed_rank_test_is_exact(sizes: list[int], data: st.DataObject) -> None:
    differences = [size * data.draw(st.sampled_from((1.0, -1.0))) for size in sizes]
    assert signed_ranks(np.array(differences)).p == pytest.approx(by_enumeration(differences))


def test_the_normal_approximation_agrees_with_the_exact_test_where_they_meet() -> None:
    rng = np.random.default_rng(3)
    for shift in (0.0, 0.1, 0.2, 0.3):
        values = rng.normal(shift, 1, 100)
        tied = np.concatenate([values, values[:1]])
        assert signed_ranks(tied).p == pytest.approx(signed_ranks(values).p, rel=0.35, abs=0.02)


@given(st.lists(st.floats(-1e3, 1e3), max_size=150))
def test_a_test_is_symmetric_and_its_effect_lies_between_minus_one_and_one(values: list[float]) -> None:
    here, there = signed_ranks(np.array(values)), signed_ranks(-np.array(values))
    assert here.p == pytest.approx(there.p)
    assert here.effect == pytest.approx(-there.effect, abs=1e-12)
    assert 0 < here.p <= 1
    assert -1 <= here.effect <= 1


def test_differences_of_one_sign_are_the_largest_effect() -> None:
    assert signed_ranks(np.arange(1.0, 21.0)).effect == 1.0
    assert signed_ranks(np.arange(1.0, 21.0)).p == pytest.approx(2 / 2**20)
    assert signed_ranks(np.zeros(5)).p == 1.0


@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_the_distribution_of_the_rank_sum_is_one(count: int) -> None:
    whole = cumulative_ranks(count)
    assert whole[-1] == pytest.approx(1.0)
    assert whole[0] == pytest.approx(0.5**count)


def test_tied_values_share_their_mean_rank() -> None:
    ranks, ties = mid_ranks(np.array([3.0, 1.0, 3.0, 2.0]))
    assert ranks.tolist() == [3.5, 1.0, 3.5, 2.0]
    assert ties == 6.0


@given(ps)
def test_holm_never_makes_a_p_value_smaller_and_keeps_their_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    by_p = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in by_p] == sorted(adjusted)


def test_holm_multiplies_the_least_by_all_and_the_greatest_by_one() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))


@pytest.mark.parametrize("count", [7, 20, 51])
def test_the_ideal_bootstrap_is_what_resampling_comes_to(count: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.normal(100, 5, count)
    medians = np.sort(np.median(values[rng.integers(0, count, (40_000, count))], axis=1))
    ideal = ideal_limits(values)
    ordered = np.sort(values)
    gap = np.diff(ordered).max() / 2
    assert ideal[0] == pytest.approx(np.quantile(medians, 0.025), abs=gap)
    assert ideal[1] == pytest.approx(np.quantile(medians, 0.975), abs=gap)


@given(st.integers(1, 40), st.floats(0.01, 1), st.data())
def test_the_binomial_tail_is_a_sum_of_binomial_terms(count: int, chance: float, data: st.DataObject) -> None:
    least = data.draw(st.integers(0, count))
    terms = sum(math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(least, count + 1))
    assert at_least(least, count, chance) == pytest.approx(terms, rel=1e-9, abs=1e-12)


@given(st.lists(positive, min_size=1, max_size=80))
def test_an_interval_holds_its_median_and_lies_within_what_was_measured(values: list[float]) -> None:
    found = median_interval(np.array(values))
    assert found.mid == pytest.approx(float(np.median(values)))
    if len(values) < 6:
        assert not found.known
    else:
        assert min(values) <= found.low <= found.mid <= found.high <= max(values)
        assert found == median_interval(np.array(values))


def test_there_is_no_median_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        median_interval(np.array([]))


def test_an_interval_shrinks_with_the_root_of_the_number_of_blocks_in_large_runs_too() -> None:
    rng = np.random.default_rng(8)
    widths = []
    for count in (500, 2000, 8000, 32_000):
        found = [median_interval(rng.normal(size=count)) for _ in range(20)]
        widths.append(float(np.mean([one.high - one.low for one in found])) * math.sqrt(count))
    assert max(widths) / min(widths) < 1.15


def test_alike_blocks_widen_the_interval_and_the_same_blocks_shuffled_do_not() -> None:
    drifting = np.linspace(1, 2, 60)
    shuffled = np.random.default_rng(1).permutation(drifting)
    assert autocorrelation(drifting) > 0.9
    assert autocorrelation(shuffled) == 0
    together, alone = median_interval(drifting), median_interval(shuffled)
    assert (alone.low, alone.high) == ideal_limits(drifting)
    assert together.high - together.low > 2 * (alone.high - alone.low)


@pytest.mark.parametrize("alike", [0.3, 0.6, 0.9])
def test_the_likeness_of_neighbours_is_found_whatever_outliers_do(alike: float) -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal(4000)
    for i in range(1, values.size):
        values[i] = alike * values[i - 1] + math.sqrt(1 - alike**2) * values[i]
    assert autocorrelation(values) == pytest.approx(alike, abs=0.05)
    values[rng.integers(0, values.size, 40)] *= 1e6
    assert autocorrelation(values) == pytest.approx(alike, abs=0.08)


@given(st.lists(st.integers(0, 3), min_size=6, max_size=60))
def test_values_that_tie_share_their_score_and_scores_rise_with_values(values: list[int]) -> None:
    scores = normal_scores(np.array(values, dtype=np.float64))
    found = sorted(set(zip(values, scores.round(12).tolist(), strict=True)))
    assert len(found) == len(set(values))
    assert [score for _, score in found] == sorted(score for _, score in found)
    assert scores.sum() == pytest.approx(0, abs=1e-9)


def test_constant_blocks_have_no_likeness_and_no_width() -> None:
    assert autocorrelation(np.ones(50)) == 0
    assert median_interval(np.ones(50)) == Interval(1.0, 1.0, 1.0)


def test_the_median_of_alike_blocks_varies_as_much_more_as_the_limits_move_out() -> None:
    """The widening without Student's part, against medians of many simulated series."""
    rng = np.random.default_rng(4)
    many, blocks, alike = 4000, 400, 0.6
    values = rng.standard_normal((many, blocks))
    independent = np.median(values, axis=1).std()
    for i in range(1, blocks):
        values[:, i] = alike * values[:, i - 1] + math.sqrt(1 - alike**2) * values[:, i]
    assert np.median(values, axis=1).std() / independent == pytest.approx(interval_widening(alike, blocks), rel=0.05)
    assert interval_widening(0, blocks) == 1


@pytest.mark.parametrize(("free", "quantile"), [(3, 3.182446), (5, 2.570582), (10, 2.228139), (100, 1.983972)])
def test_students_quantile_is_that_of_the_tables(free: int, quantile: float) -> None:
    assert student_quantile(1.959964, free) == pytest.approx(quantile, rel=0.005)


@given(st.lists(st.tuples(positive, positive), min_size=6, max_size=40))
def test_the_ratio_the_other_way_round_is_the_reciprocal(pairs: list[tuple[float, float]]) -> None:
    left, right = np.array(pairs).T
    here, there = compare_pairs(left, right).ratio, compare_pairs(right, left).ratio
    assert here.mid == pytest.approx(1 / there.mid)
    assert distance_from_one(here) == pytest.approx(distance_from_one(there), rel=0.02)


CONTROL = Noise(0.02, NoiseSource.CONTROL)


@pytest.mark.parametrize(
    ("ratio", "p", "noise", "verdict"),
    [
        (Interval(1.04, 1.05, 1.06), 0.001, CONTROL, Verdict.FASTER),
        (Interval(0.90, 0.92, 0.94), 0.001, CONTROL, Verdict.SLOWER),
        (Interval(1.04, 1.05, 1.06), 0.2, CONTROL, Verdict.INCONCLUSIVE),
        (Interval(1.04, 1.05, 1.06), 0.001, None, Verdict.INCONCLUSIVE),
        (Interval(0.99, 1.05, 1.10), 0.001, CONTROL, Verdict.INCONCLUSIVE),
        (Interval(1.005, 1.01, 1.015), 0.001, CONTROL, Verdict.SAME),
        (Interval(0.995, 1.0, 1.005), 0.9, Noise(0.001, NoiseSource.CONTROL), Verdict.SAME),
        (Interval(0.97, 1.0, 1.03), 0.9, Noise(0.001, NoiseSource.CONTROL), Verdict.INCONCLUSIVE),
        (Interval(1.002, 1.004, 1.006), 0.001, Noise(0.001, NoiseSource.CONTROL), Verdict.SAME),
        (Interval(1.009, 1.012, 1.015), 0.001, Noise(0.001, NoiseSource.CONTROL), Verdict.FASTER),
        (Interval(math.nan, 1.5, math.nan), 0.03, CONTROL, Verdict.INCONCLUSIVE),
        (Interval(0.98, 1.0, 1.02), 0.9, Noise(0.2, NoiseSource.CONTROL), Verdict.SAME),
        (Interval(0.95, 1.0, 1.05), 0.9, Noise(0.2, NoiseSource.CONTROL), Verdict.INCONCLUSIVE),
    ],
)
def test_a_win_needs_interval_test_and_noise_at_once(
    ratio: Interval, p: float, noise: Noise | None, verdict: Verdict
) -> None:
    assert decide_verdict(ratio, p, noise) is verdict


@given(positive, positive, positive, st.floats(0, 1), st.floats(0, 0.5))
def test_swapping_the_two_swaps_the_verdict(a: float, b: float, c: float, p: float, floor: float) -> None:
    low, mid, high = sorted((a, b, c))
    noise = Noise(floor, NoiseSource.CONTROL)
    swapped = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    here = decide_verdict(Interval(low, mid, high), p, noise)
    there = decide_verdict(Interval(1 / high, 1 / mid, 1 / low), p, noise)
    near_a_limit = any(
        math.isclose(abs(math.log(end)), limit, rel_tol=1e-9, abs_tol=1e-12)
        for end in (low, mid, high)
        for limit in (math.log1p(floor), math.log1p(MARGIN), math.log1p(WIDEST_SAME), 0.0)
    )
    assert near_a_limit or there is swapped.get(here, here)


def test_two_measurements_say_nothing_of_noise() -> None:
    assert halves_noise(np.array([1.0])) is None
    assert halves_noise(np.array([1.0, 2.0, 1.5, 1.2])) is None
    noise = halves_noise(np.linspace(1.0, 1.1, 40))
    assert noise is not None
    assert noise.source is NoiseSource.HALVES


@given(st.lists(st.floats() | st.sampled_from([-0.0, 1.0, 2.0]), min_size=1, max_size=30))
def test_a_median_is_numpys(values: list[float]) -> None:
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        assert repr(median(np.array(values))) == repr(float(np.median(values)))


@given(st.sets(st.integers(0, 30)).map(sorted), st.sets(st.integers(0, 30)).map(sorted), st.booleans())
def test_the_blocks_that_two_share_are_found_in_each_by_block(one: list[int], other: list[int], turned: bool) -> None:
    own, its = np.array(one, np.int64), np.array(other[::-1] if turned else other, np.int64)
    for mine, others in ((own, its), (own, own), (its, its)):
        left, right = of_blocks(mine).shared(of_blocks(others))
        assert mine[left].tolist() == others[right].tolist() == sorted(set(mine.tolist()) & set(others.tolist()))


def of_blocks(blocks: NDArray[np.int64]) -> Group:
    unknown = np.full(blocks.size, math.nan)
    key = Key("run", "case", Setting("burst", "cold"), "bench")
    return Group(key, "L4", "fa2", {}, blocks, unknown, unknown, {}, np.zeros(blocks.size, np.bool_), 0.0, "", {})


@given(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=20))
def test_ranks_are_the_same_where_no_two_values_are_and_where_some_are(values: list[float]) -> None:
    """By definition: how many are less, and the middle of those that are the same."""
    array = np.array(values)
    ranks, _ = mid_ranks(array)
    assert ranks.tolist() == [(array < one).sum() + ((array == one).sum() + 1) / 2 for one in array]
    order = distinct_order(array)
    assert (order is None) == (len(set(values)) < len(values))
    assert order is None or array[order].tolist() == sorted(values)
