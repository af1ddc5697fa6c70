"""One run with what is known of how it came about, and the sentences that sum it up."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis.study import DEFAULT, Study, false_verdicts
from orchestrator.analysis.verdicts import Verdict
from orchestrator.report.text import count, digits, ratio


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
        partial = () if self.manifest.get("complete", True) else ("The run is not complete: some cases are missing.",)
        return (
            *partial,
            *self._busy(),
            *self.notes,
            *self.study.notes,
            *(f"Left out: {fault}." for fault in self.study.faults),
        )

    def _busy(self) -> tuple[str, ...]:
        """Whether the host had other things to do."""
        groups = [t.group for case in self.study.cases for t in case.timings if t.timed]
        loads = [float(load) for group in groups for load in group.sensors["load_1m"] if not math.isnan(load)]
        processors = self.environment.get("cpu_count")
        if not loads or not isinstance(processors, int) or (load := statistics.median(loads)) <= processors + 1:
            return ()
        return (f"The host was busy with other work: a load of {load:.1f} on {count(processors, 'processor')}.",)

    def headline(self) -> str:
        """The result in one sentence, against the fastest baseline of each case."""
        best = [case.best for case in self.study.cases if case.best is not None]
        if not best:
            return ""
        words = Counter(one.verdict for one in best)
        said = ", ".join(f"{word} in {words[word]}" for word in Verdict if words[word])
        return f"{self.study.subject} against the fastest baseline of each case: {said} of {count(len(best), 'case')}."

    def sentences(self) -> tuple[str, ...]:
        """The rest of what can be said in words."""
        said = []
        for baseline in [DEFAULT] if DEFAULT in self.study.baselines else self.study.baselines[:1]:
            mean, cases = self.study.geomean(baseline)
            if cases:
                said.append(
                    f"Geometric mean against {baseline} over all {count(cases, 'case')} of the grid: {ratio(mean)}."
                )
        controls = self.study.controls
        if controls:
            wrong = false_verdicts(controls)
            said.append(
                f"A/A control: {controls[0].implementation} measured against itself would have been called different "
                f"in {wrong} of {count(len(controls), 'case')}."
            )
        shifts = sorted(one.order_shift for one in self.study.contrasts if not math.isnan(one.order_shift))
        if shifts:
            middle = shifts[len(shifts) // 2]
            said.append(
                f"Running first instead of last changes the ratio by a factor of {digits(middle)} (median over cases)."
            )
        if self.usd_per_answer is not None and self.cost_usd is not None:
            answers = count(self.study.answers, "answer")
            said.append(f"The run cost ${self.cost_usd:.4f}: ${self.usd_per_answer:.6f} for each of {answers}.")
        return tuple(said)
