"""How often the verdicts are wrong, over thousands of simulated runs whose truth is known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from orchestrator.analysis.bootstrap import median_interval
from orchestrator.analysis.verdicts import Verdict, control_noise, decide, halves_noise, paired
from tests.analysis.simulated import CALM, ROUGH, Latencies, Trouble, runs

RUNS = 1000
WRONG = (Verdict.FASTER, Verdict.SLOWER)


def verdicts(latencies: Latencies, *, control: bool) -> Counter[Verdict]:
    """The word for each run [subject, baseline, subject again]."""
    found: Counter[Verdict] = Counter()
    for subject, baseline, twin in latencies:
        pair = paired(subject, baseline)
        noise = control_noise(paired(subject, twin)) if control else halves_noise(subject)
        found[decide(pair.ratio, pair.test.p, noise)] += 1
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
        ratio = paired(subject, baseline).ratio
        covered += ratio.low <= truth <= ratio.high
    assert 0.93 <= covered / many <= 0.97


def test_where_neighbouring_blocks_are_alike_they_are_resampled_together() -> None:
    """Resampling each alone would claim far more than is known; runs of blocks come near what is promised."""
    rng = np.random.default_rng(5)
    many, blocks, alike = 400, 150, 0.4
    values = rng.standard_normal((many, blocks))
    for i in range(1, blocks):
        values[:, i] = alike * values[:, i - 1] + np.sqrt(1 - alike**2) * values[:, i]
    limits = [median_interval(row) for row in values]
    covered = sum(one.low <= 0 <= one.high for one in limits) / many
    assert covered >= 0.90
