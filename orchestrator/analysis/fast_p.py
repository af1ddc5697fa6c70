"""KernelBench's measure fast_p: the share of all problems that a kernel solves correctly and more than p times as fast
as PyTorch in eager mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Study

EAGER: Final = "eager"
BASELINES: Final = (EAGER, "compiled")
THRESHOLDS: Final = (0.0, 1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class FastP:
    """One kernel in one setting over `problems` problems: for each of `THRESHOLDS`, how many it solves more than that
    many times as fast. At threshold 0 that is how many it solves correctly."""

    implementation: str
    setting: Setting
    problems: int
    solved: tuple[int, ...]

    def share(self, at: int) -> float:
        """The share of problems, 0 to 1, at the threshold with index `at`."""
        return self.solved[at] / self.problems if self.problems else 0.0


def fast_p(study: Study) -> tuple[FastP, ...]:
    """The measure of each kernel of a run in KernelBench's form, in which the baseline is `eager`; empty for other
    runs. Without a kernel it is the measure of `compiled`, as such a run compares PyTorch's two modes. A problem on
    which a kernel was wrong or was not timed counts as not solved."""
    shares = []
    for part in study.parts():
        timings = [timing for case in part.cases for timing in case.timings]
        if not any(one.implementation == EAGER and one.backend == f"baseline_{EAGER}" for one in timings):
            continue
        names = dict.fromkeys(one.implementation for one in timings if ":" not in one.implementation)
        kernels = [one for one in names if one not in BASELINES]
        for name in kernels or [one for one in names if one != EAGER]:
            ratios = []
            for case in part.cases:
                medians = {one.implementation: one.median_us.mid for one in case.timings if one.timed}
                if EAGER in medians and name in medians:
                    ratios.append(medians[EAGER] / medians[name])
            solved = tuple(sum(1 for ratio in ratios if ratio > p) for p in THRESHOLDS)
            shares.append(FastP(name, part.settings[0], len(part.cases), solved))
    return tuple(shares)
