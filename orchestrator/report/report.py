"""One run with what is known of how it came about, and the sentences that sum it up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from orchestrator.analysis.samples import Group
from orchestrator.analysis.study import DEFAULT, Study, false_verdicts
from orchestrator.analysis.verdicts import Verdict
from orchestrator.report.text import count, digits, percent, ratio

MOST_STOLEN: Final = 1.0
"""Per cent of the host's time that may go to others before a reader must know."""
MOST_FALSE: Final = 0.05
MOST_NOISE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """`environment`, `build` and `manifest` are the files of those names, empty where there are none."""

    study: Study
    environment: Mapping[str, Any] = field(default_factory=dict)
    build: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"Attention on {self.study.device or 'an unknown device'}"

    @property
    def cost_usd(self) -> float | None:
        cost = self.manifest.get("cost_usd")
        try:
            return None if cost is None else float(cost)
        except (TypeError, ValueError):
            return None

    @property
    def usd_per_answer(self) -> float | None:
        """What a comparison with a conclusion cost."""
        return self.cost_usd / self.study.answers if self.cost_usd is not None and self.study.answers else None

    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before any number."""
        partial: tuple[str, ...] = ()
        if not self.manifest.get("complete", True):
            partial = ("The run is not complete: some cases are missing.",)
        named = self.environment.get("device")
        if named and self.study.device and named != self.study.device:
            partial = (*partial, f"The rows name {self.study.device}, and environment.json is of another: {named}.")
        return (
            *partial,
            *self.busy(),
            *self.unsteady(),
            *self.notes,
            *self.study.notes,
            *(f"Left out: {fault}." for fault in self.study.faults),
        )

    def busy(self) -> tuple[str, ...]:
        """Whether the host had other things to do while it measured."""
        groups = [t.group for case in self.study.cases for t in case.timings if t.timed]
        said = []
        load, processors = _middle(groups, "load_1m"), self.environment.get("cpu_count")
        if isinstance(processors, int) and load > processors + 1:
            said.append(f"The host was busy with other work: a load of {load:.1f} on {count(processors, 'processor')}.")
        stolen = _mean(groups, "steal_percent")
        if stolen > MOST_STOLEN:
            said.append(f"The host gave {stolen:.1f} % of the processors' time to other machines.")
        return tuple(said)

    def unsteady(self) -> tuple[str, ...]:
        """Whether implementations differed from themselves by more than chance allows, or by more than is of use."""
        said, controls = [], self.study.controls
        wrong = false_verdicts(controls)
        if wrong > 1 and wrong > MOST_FALSE * len(controls):
            said.append(
                f"Implementations differed from themselves: the A/A control would have been called different in "
                f"{wrong} of {count(len(controls), 'case')}."
            )
        floors = sorted(one.noise.floor for one in self.study.contrasts if one.noise is not None)
        if floors and floors[len(floors) // 2] > MOST_NOISE:
            said.append(
                f"The noise is large: differences below {percent(floors[len(floors) // 2])} (median over comparisons) "
                "cannot be told from it."
            )
        return tuple(said)

    def headlines(self) -> tuple[str, ...]:
        """The result, in a sentence for each setting."""
        return tuple(words for part in self.study.parts() if (words := headline_of(part, self.prefix(part))))

    def sentences(self) -> tuple[str, ...]:
        """The rest of what can be said in words, setting by setting, and what it cost."""
        parts = self.study.parts()
        total = len(self.study.case_ids)
        said = [words for part in parts for words in sentences_of(part, total, self.prefix(part))]
        return (*said, self.money()) if self.money() else tuple(said)

    def money(self) -> str:
        """What the run cost, and each of its answers."""
        if self.usd_per_answer is None or self.cost_usd is None:
            return ""
        answers = count(self.study.answers, "answer")
        return f"The run cost ${self.cost_usd:.4f}: ${self.usd_per_answer:.6f} for each of {answers}."

    def prefix(self, part: Study) -> str:
        """What names a part where there are several."""
        return f"{part.settings[0].name}: " if len(self.study.settings) > 1 else ""


def headline_of(part: Study, prefix: str = "") -> str:
    """The result of one setting in one sentence, against the fastest baseline of each case."""
    best = [case.best for case in part.cases if case.best is not None]
    if not best:
        return ""
    words = Counter(one.verdict for one in best)
    said = ", ".join(f"{word} in {words[word]}" for word in Verdict if words[word])
    return f"{prefix}{part.subject} against the fastest baseline of each case: {said} of {count(len(best), 'case')}."


def sentences_of(part: Study, total: int, prefix: str = "") -> tuple[str, ...]:
    """What else can be said of one setting in words; the grid has `total` cases."""
    said = []
    for baseline in [DEFAULT] if DEFAULT in part.baselines else part.baselines[:1]:
        mean, cases = part.geomean(baseline)
        if cases:
            grid = f"all {cases} cases of the grid" if cases == total > 1 else f"{cases} of {count(total, 'case')}"
            said.append(f"{prefix}Geometric mean against {baseline} over {grid}: {ratio(mean)}.")
    controls = part.controls
    if controls:
        said.append(
            f"{prefix}A/A control: {controls[0].implementation} measured against itself would have been called "
            f"different in {false_verdicts(controls)} of {count(len(controls), 'case')}."
        )
    shifts = sorted(one.order_shift for one in part.contrasts if not math.isnan(one.order_shift))
    if shifts:
        middle = digits(shifts[len(shifts) // 2])
        said.append(f"{prefix}Running first instead of last changes the ratio by a factor of {middle} (median).")
    return tuple(said)


def _known(groups: Sequence[Group], sensor: str) -> list[float]:
    return [float(np.nanmean(one.sensors[sensor])) for one in groups if not np.isnan(one.sensors[sensor]).all()]


def _middle(groups: Sequence[Group], sensor: str) -> float:
    return float(np.median(known)) if (known := _known(groups, sensor)) else math.nan


def _mean(groups: Sequence[Group], sensor: str) -> float:
    return float(np.mean(known)) if (known := _known(groups, sensor)) else math.nan
