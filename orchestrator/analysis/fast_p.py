"""KernelBench's measure: of all problems, the share that a kernel solves rightly and more than p times as fast as
PyTorch in eager mode."""

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
    """One kernel in one setting, over `problems`: for each of `THRESHOLDS`, how many it solves so fast. At 0 it is how
    many are right."""

    implementation: str
    setting: Setting
    problems: int
    solved: tuple[int, ...]

    def share(self, at: int) -> float:
        """The measure at the threshold of that place."""
        return self.solved[at] / self.problems if self.problems else 0.0


def fast_p(study: Study) -> tuple[FastP, ...]:
    """The measure of each kernel of a run in KernelBench's form, whose first baseline is `eager`; nothing of others.
    Where there is no kernel, it is that of `compiled`: problems alone compare PyTorch's two ways. A problem that a
    kernel was wrong on, or not timed on, is one that it did not solve."""
    found = []
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
            found.append(FastP(name, part.settings[0], len(part.cases), solved))
    return tuple(found)
