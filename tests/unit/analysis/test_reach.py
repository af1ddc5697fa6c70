"""How often the verdicts are wrong, over thousands of simulated runs whose truth is known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from orchestrator.analysis.bootstrap import median_interval
from orchestrator.analysis.verdicts import Verdict, compare_pairs, control_noise, decide_verdict, halves_noise
from tests.unit.analysis.simulated import CALM, ROUGH, Latencies, Trouble, runs

RUNS = 1000
WRONG = (Verdict.FASTER, Verdict.SLOWER)


def verdicts(latencies: Latencies, *, control: bool) -> Counter[Verdict]:
    """The word for each run [subject, baseline, subject again]."""
    found: Counter[Verdict] = Counter()
    for subject, baseline, twin in latencies:
        pair = compare_pairs(subject, baseline)
        noise = control_noise(compare_pairs(subject, twin)) if control else halves_noise(subject)
        found[decide_verdict(pair.ratio, pair.test.p, noise)] += 1
    return found


@pytest.mark.parametrize(
    ("trouble", "control"),
    [
        pytest.param(CALM, True, id="calm"),
        pytest.param(ROUGH, True, id="rough"),
        pytest.param(ROUGH, False, id="rough, without a control"),
        pytest.param(Trouble(noise=0.05, drift=0.5), True, id="noise and drift"),
        pytest.param(Trouble(throttling=0.5), True, id="throttling"),
        pytest.param(Trouble(outliers=0.2), True, id="outliers"),
    ],
)
def test_an_implementation_is_hardly_ever_faster_or_slower_than_itself(trouble: Trouble, control: bool) -> None:
    found = verdicts(runs(RUNS, 50, (1.0, 1.0, 1.0), trouble, seed=1), control=control)
    wrong = sum(found[word] for word in WRONG)
    assert wrong <= 0.05 * RUNS


@pytest.mark.parametrize("speed", [1.03, 1 / 1.03], ids=["faster", "slower"])
def test_three_per_cent_are_found_in_noise_of_one_per_cent_by_fifty_repeats(speed: float) -> None:
    found = verdicts(runs(RUNS, 50, (speed, 1.0, speed), CALM, seed=2), control=True)
    assert found[Verdict.FASTER if speed > 1 else Verdict.SLOWER] >= 0.95 * RUNS


def test_three_per_cent_are_found_under_drift_throttling_and_outliers_too() -> None:
    found = verdicts(runs(RUNS, 50, (1.03, 1.0, 1.03), ROUGH, seed=3), control=True)
    assert found[Verdict.FASTER] >= 0.95 * RUNS
    assert found[Verdict.SLOWER] == 0


@pytest.mark.parametrize("blocks", [20, 50, 51])
@pytest.mark.parametrize("trouble", [CALM, ROUGH], ids=["calm", "rough"])
def test_the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says(blocks: int, trouble: Trouble) -> None:
    truth, many = 1.25, 2000
    covered = 0
    for subject, baseline in runs(many, blocks, (truth, 1.0), trouble, seed=blocks):
        ratio = compare_pairs(subject, baseline).ratio
        covered += ratio.low <= truth <= ratio.high
    assert 0.93 <= covered / many <= 0.97


@pytest.mark.parametrize("alike", [0.3, 0.6])
@pytest.mark.parametrize("blocks", [50, 51, 200])
def test_where_neighbouring_blocks_are_alike_the_interval_covers_as_stated(blocks: int, alike: float) -> None:
    many = 2000
    covered = sum(median_interval(row).excludes(0) is False for row in alike_series(many, blocks, alike, seed=5))
    assert 0.93 <= covered / many <= 0.97


@pytest.mark.parametrize("blocks", [50, 200])
def test_where_blocks_share_slow_effects_the_interval_claims_no_more_than_is_known(blocks: int) -> None:
    """A moving average of six: not the series that the widening is made for. It may be too wide, never too narrow."""
    noise = np.random.default_rng(6).standard_normal((2000, blocks + 5))
    sums = np.cumsum(np.pad(noise, ((0, 0), (1, 0))), axis=1)
    covered = sum(median_interval(row).excludes(0) is False for row in sums[:, 6:] - sums[:, :-6])
    assert covered / 2000 >= 0.93


def alike_series(many: int, blocks: int, alike: float, seed: int) -> Latencies:
    """Series [many, blocks] around 0 in which a block correlates with the one before it."""
    values = np.random.default_rng(seed).standard_normal((many, blocks))
    for i in range(1, blocks):
        values[:, i] = alike * values[:, i - 1] + np.sqrt(1 - alike**2) * values[:, i]
    return values


@pytest.mark.parametrize("alike", [0.3, 0.6])
def test_no_implementation_beats_itself_where_neighbouring_blocks_are_alike(alike: float) -> None:
    """Each implementation has slow noise of its own, which no pairing takes away."""
    slow = [100 * np.exp(0.01 * alike_series(RUNS, 50, alike, seed)) for seed in (11, 12, 13)]
    found = verdicts(np.stack(slow, axis=1), control=True)
    assert sum(found[word] for word in WRONG) <= 0.05 * RUNS
