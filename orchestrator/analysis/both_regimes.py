"""Where burst and graph give two ratios: both time the device alone, so that each is worth a look at the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.case import Case
from orchestrator.analysis.doubts import BOTH
from orchestrator.analysis.regimes import Setting

Place = tuple[Setting, str, str]
"""A setting, a case, a baseline."""


def other_ratios(cases: Sequence[Case]) -> Mapping[Place, float]:
    """The ratio in the other of the two regimes, with the same caches, for each comparison where the two intervals do
    not meet. A burst has what a single launch costs the device, for both implementations alike, and a chip that has
    rested; in a graph power limits long calls."""
    found = {
        (case.setting, case.case_id, one.baseline): one.ratio
        for case in cases
        if case.setting.regime in BOTH
        for one in case.contrasts
        if one.ratio.known
    }
    told = {}
    for (setting, case_id, baseline), ratio in found.items():
        (regime,) = (one for one in BOTH if one != setting.regime)
        other = found.get((Setting(regime, setting.cache), case_id, baseline), ratio)
        if min(ratio.high, other.high) < max(ratio.low, other.low):
            told[setting, case_id, baseline] = other.mid
    return told
