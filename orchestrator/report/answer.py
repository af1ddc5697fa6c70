"""The answer of a run: what is wrong, a row for each kernel and case, and the places of the kernels. Every screen, page
and table that a person reads first shows this."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.case import Case, Contrast
from orchestrator.analysis.study import Study
from orchestrator.core.results import is_control
from orchestrator.core.text import count
from orchestrator.report.text import UNKNOWN, WorkRate, format_digits, rate

WRONG: Final = ("wrong", "untrusted")
"""The kinds of failures of an implementation that gave a wrong answer, or whose times cannot be believed."""
HERE: Final = "unavailable"
"""The kind of a failure that is not the implementation's: it cannot run on this machine."""
FAILURES: Final[Mapping[str, str]] = {
    "wrong": "WRONG",
    "untrusted": "NOT TRUSTED",
    "hung": "HUNG",
    "crashed": "CRASHED",
    "memory": "OUT OF MEMORY",
    "raised": "RAISED AN ERROR",
    "failed": "FAILED",
    HERE: "cannot run here",
}
"""How each kind is called, the gravest first."""
FAULTS: Final = tuple(kind for kind in FAILURES if kind != HERE)
VERBS: Final[Mapping[str, str]] = {"wrong": "is ", "untrusted": "is ", "memory": "ran "}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an implementation was not timed in some cases. `reasons` has each reason with the cases that it concerns."""

    implementation: str
    kind: str
    reasons: Mapping[str, Sequence[str]]
    total: int
    """The number of cases of the run."""

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case for cases in self.reasons.values() for case in cases))

    @property
    def badge(self) -> str:
        """What the implementation is called: `WRONG`."""
        return FAILURES.get(self.kind, self.kind)

    @property
    def where(self) -> str:
        """`in 1 of 4 cases: max abs error 3`; further reasons are counted."""
        first, *other_reasons = self.reasons
        and_others = f" (and {count(len(other_reasons), 'other reason')})" if other_reasons else ""
        return f"in {len(self.cases)} of {count(self.total, 'case')}: {first}{and_others}"

    @property
    def text(self) -> str:
        """`mine is WRONG in 1 of 4 cases: max abs error 3`."""
        return f"{self.implementation} {VERBS.get(self.kind, '')}{self.badge} {self.where}"

    @property
    def is_wrong(self) -> bool:
        return self.kind in WRONG


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One kernel on one case in one setting, beside the fastest baseline. `verdict` is a word of `FAILURES` where the
    kernel has no time, and `why` says why there is no comparison."""

    case: Case
    kernel: str
    us: float
    baseline: str
    baseline_us: float
    contrast: Contrast | None
    rate: WorkRate
    verdict: str
    style: str
    why: str = ""
    modes: str = ""

    @property
    def difference(self) -> float:
        """How far the ratio is from 1, as a logarithm; infinite for what is wrong, so that it is shown first."""
        if self.contrast is None:
            return math.inf if self.style == "wrong" else -1.0
        return abs(math.log(self.contrast.ratio.mid))


def failures(study: Study, kinds: Iterable[str] = FAILURES) -> tuple[Failure, ...]:
    """The failures of a run by implementation and kind: the gravest kind first, then in the order of definition."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for case in study.cases:
        for timing in case.timings:
            if timing.skipped and not is_control(timing.implementation):
                key = timing.implementation, timing.group.fault
                found.setdefault(key, {}).setdefault(timing.skipped, {})[case.case_id] = None
    order, names, total = list(FAILURES), list(study.names), len(study.case_ids)
    return tuple(
        Failure(name, kind, {reason: tuple(cases) for reason, cases in reasons.items()}, total)
        for (name, kind), reasons in sorted(
            found.items(), key=lambda item: (order.index(item[0][1]), names.index(item[0][0]))
        )
        if kind in kinds
    )


def wrong_first(study: Study) -> tuple[str, ...]:
    """A sentence for each implementation that was wrong, hung, crashed or failed, the gravest first. What cannot run
    here is not among them."""
    return tuple(one.text for one in failures(study, FAULTS))


def rows_of(study: Study) -> tuple[AnswerRow, ...]:
    """A row for each kernel and case in the first setting in which the case was timed: wrong ones first, then by case,
    kernels in the order of definition."""
    first: dict[str, Case] = {}
    for case in study.cases:
        timed = any(one.timed for one in case.timings)
        if case.case_id not in first or (timed and not any(one.timed for one in first[case.case_id].timings)):
            first[case.case_id] = case
    rows = [_row(first[case_id], kernel) for case_id in study.case_ids for kernel in study.kernels]
    kept = [one for one in rows if one is not None]
    return (*(one for one in kept if one.style == "wrong"), *(one for one in kept if one.style != "wrong"))


def _row(case: Case, kernel: str) -> AnswerRow | None:
    timing, contrast = case.timing(kernel), case.against_fastest(kernel)
    if timing is None:
        return None
    baselines = [one for one in case.timings if one.timed and one.implementation != kernel]
    rival = case.timing(contrast.baseline) if contrast is not None else None
    if timing.skipped:
        kind = timing.group.fault
        style = "unavailable" if kind == HERE else "wrong"
        return AnswerRow(case, kernel, math.nan, "", math.nan, None, rate(case, timing),
                         FAILURES.get(kind, kind), style,
                   timing.skipped)  # fmt: skip
    why = "" if contrast is not None else "no baseline was timed" if not baselines else "no block in common"
    return AnswerRow(
        case, kernel, timing.median_us.mid,
        contrast.baseline if contrast is not None else "", rival.median_us.mid if rival is not None else math.nan,
        contrast, rate(case, timing),
        contrast.verdict.value if contrast is not None else UNKNOWN,
        contrast.verdict.value if contrast is not None else "", why or (contrast.doubt if contrast is not None else ""),
        timing.modes_text,
    )  # fmt: skip


def doubts_in_words(rows: Sequence[AnswerRow], study: Study) -> list[str]:
    """A sentence for each reason against verdicts, with the verdicts that another regime has on the same comparisons:
    `no verdict in 2 rows: below the timer's resolution; in graph: faster in 2`."""
    without_doubt: dict[tuple[str, str, str], list[Contrast]] = {}
    for contrast in study.contrasts:
        if not contrast.doubt:
            pair = contrast.case_id, contrast.subject, contrast.baseline
            without_doubt.setdefault(pair, []).append(contrast)
    doubtful: dict[str, list[Contrast]] = {}
    for row in rows:
        if row.contrast is not None and row.contrast.doubt:
            doubtful.setdefault(row.contrast.doubt, []).append(row.contrast)
    sentences = []
    for doubt, contrasts in doubtful.items():
        decided = [
            each for one in contrasts for each in without_doubt.get((one.case_id, one.subject, one.baseline), ())
        ]
        verdicts = Counter((contrast.setting.regime, contrast.verdict.value) for contrast in decided)
        elsewhere = "".join(f"; in {regime}: {verdict} in {times}" for (regime, verdict), times in verdicts.items())
        sentences.append(f"no verdict in {count(len(contrasts), 'row')}: {doubt}{elsewhere}")
    return sentences


def largest(rows: Sequence[AnswerRow], most: int) -> tuple[tuple[AnswerRow, ...], int]:
    """At most `most` rows, in their order, and how many are not among them: the wrong ones and the largest differences
    are kept."""
    if len(rows) <= most:
        return tuple(rows), 0
    kept = sorted(range(len(rows)), key=lambda place: -rows[place].difference)[:most]
    return tuple(rows[place] for place in sorted(kept)), len(rows) - most


def microseconds(us: float) -> str:
    """A time with its unit: `12.3 µs`, `4.56 ms`, `1.2 s`."""
    for limit, unit in ((1e3, "µs"), (1e6, "ms")):
        if us < limit:
            return f"{format_digits(us * 1e3 / limit)} {unit}"
    return UNKNOWN if math.isnan(us) else f"{format_digits(us / 1e6)} s"
