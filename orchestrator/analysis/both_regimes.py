"""Finds comparisons for which burst and graph give different ratios. Both regimes time the device alone, so a reader
should see both numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.case import Case
from orchestrator.analysis.doubts import BOTH
from orchestrator.analysis.regimes import Setting

Place = tuple[Setting, str, str]
"""Setting, case id and baseline of a comparison."""


def other_ratios(cases: Sequence[Case]) -> Mapping[Place, float]:
    """The ratio in the other of the two regimes, with the same caches, for each comparison whose two intervals do not
    overlap. They may differ for these reasons: a burst includes what a single launch costs the device, for both
    implementations alike, and runs on a chip that has rested; in a graph the power limit slows long calls."""
    ratios = {
        (case.setting, case.case_id, one.baseline): one.ratio
        for case in cases
        if case.setting.regime in BOTH
        for one in case.contrasts
        if one.ratio.known
    }
    in_other_regime = {}
    for (setting, case_id, baseline), ratio in ratios.items():
        (regime,) = (one for one in BOTH if one != setting.regime)
        other = ratios.get((Setting(regime, setting.cache), case_id, baseline), ratio)
        if min(ratio.high, other.high) < max(ratio.low, other.low):
            in_other_regime[setting, case_id, baseline] = other.mid
    return in_other_regime
