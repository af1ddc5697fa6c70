"""Compares two runs: what became faster or slower, and which differences come from the machine alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.between import SAME_CODE, case_spreads, held_back, observe_controls
from orchestrator.analysis.bootstrap import Interval, Spread
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import KERNEL, Case, Study
from orchestrator.analysis.verdicts import MARGIN, Noise, Verdict, control_noise, decide_verdict, halves_noise
from orchestrator.core.results import is_control


@dataclass(frozen=True, slots=True)
class Change:
    """One implementation on one case in one setting in two runs. A ratio over 1 means faster in the second run."""

    case_id: str
    setting: Setting
    implementation: str
    before: Interval
    after: Interval
    """`before` and `after` are in microseconds; where `relative_to` is set, they are speed-ups over it in the same
    run."""
    relative_to: str
    ratio: Interval
    p: float
    noise: Noise | None
    spread: float
    """How much two runs of the same code differ here: the standard deviation of the logarithm of their ratio."""
    verdict: Verdict
    doubt: str = ""
    """Why there is no verdict, whatever the numbers say; empty where nothing prevents one."""

    @property
    def said(self) -> str:
        return f"{self.verdict.value}: {self.doubt}" if self.doubt else self.verdict.value


@dataclass(frozen=True, slots=True)
class Footing:
    """What the environments of two runs say about comparing them."""

    steady: bool = True
    """Both runs had the same libraries."""
    doubt: str = ""
    """Why a machine's times cannot be compared; empty where they can."""
    same_code: bool = False
    """Both runs had the same code, so no change is called faster or slower."""


def find_changes(
    before: Study,
    after: Study,
    *,
    relative_to: str = "",
    implementations: Sequence[str] = (),
    tolerance: float = 0.0,
    footing: Footing = Footing(),
) -> tuple[Change, ...]:
    """What changed, for every case, setting and implementation that both runs timed. A change within `tolerance`
    (0.02 is two per cent) is called neither faster nor slower.

    Times of two runs have no common blocks, so their intervals are combined as independent ones (Zou and Donner 2008).
    They are then widened by what runs of the same code differ by (`orchestrator.analysis.between`).
    """
    pairs = tuple(match_cases(before, after))
    spread = case_spreads(observe_controls(pairs, relative_to, implementations or (KERNEL,), steady=footing.steady))
    uncorrected = []
    for case, later in pairs:
        for timing in case.timings:
            name = timing.implementation
            is_compared = name in implementations if implementations else not is_control(name)
            if is_compared and name != relative_to:
                why = footing.doubt or held_back(case, later, (name, relative_to))
                change = _change(case, later, name, relative_to, spread[case.setting, case.case_id], why)
                if change is not None:
                    uncorrected.append(change)
    corrected = holm([one.p for one in uncorrected])
    return tuple(_decided(one, p, tolerance, footing.same_code) for one, p in zip(uncorrected, corrected, strict=True))


def match_cases(before: Study, after: Study) -> Iterator[tuple[Case, Case]]:
    """Pairs of cases that both runs timed in the same way. If one run does not say whether its caches were warm and the
    other run has warm and cold, the case is left out: nothing tells which of the two to compare it with."""
    cases_before, cases_after = by_id(before), by_id(after)
    for case in before.cases:
        fitting = [one for one in cases_after.get(case.case_id, ()) if one.setting.matches(case.setting)]
        rivals = [one for one in cases_before[case.case_id] if fitting and one.setting.matches(fitting[0].setting)]
        exact = [one for one in fitting if one.setting == case.setting]
        if exact:
            yield case, exact[0]
        elif len(fitting) == len(rivals) == 1:
            yield case, fitting[0]


def by_id(study: Study) -> dict[str, list[Case]]:
    """The cases of a study by their ids, each in all its settings."""
    cases: dict[str, list[Case]] = {}
    for case in study.cases:
        cases.setdefault(case.case_id, []).append(case)
    return cases


def _change(before: Case, after: Case, name: str, relative_to: str, spread: Spread, doubt: str) -> Change | None:
    first, second = estimate_latency(before, name, relative_to), estimate_latency(after, name, relative_to)
    if first is None or second is None:
        return None
    # A smaller time is better, but a larger speed-up is.
    ratio = quotient(second, first) if relative_to else quotient(first, second)
    noise = largest_floor(floor_of(before, name), floor_of(after, name))
    return Change(
        before.case_id, before.setting, name, first, second, relative_to, spread.widened(ratio), spread.chance(ratio),
        noise, spread.size, Verdict.INCONCLUSIVE, doubt,
    )  # fmt: skip


def _decided(change: Change, p: float, tolerance: float, same_code: bool) -> Change:
    verdict = judge_ratio(change.ratio, p, change.noise, tolerance)
    doubt = change.doubt or (SAME_CODE if same_code and verdict in (Verdict.FASTER, Verdict.SLOWER) else "")
    return replace(change, p=p, verdict=Verdict.INCONCLUSIVE if doubt else verdict, doubt=doubt)


def judge_ratio(ratio: Interval, p: float, noise: Noise | None, tolerance: float) -> Verdict:
    """The verdict on a ratio of two runs. A ratio within `tolerance` of 1 is neither faster nor slower."""
    if noise is not None and tolerance > noise.floor:
        noise = replace(noise, floor=tolerance)
    return decide_verdict(ratio, p, noise, max(MARGIN, tolerance))


def largest_floor(*noises: Noise | None) -> Noise | None:
    """The largest floor; None where none is known."""
    return max((one for one in noises if one is not None), key=lambda one: one.floor, default=None)


def estimate_latency(case: Case, name: str, relative_to: str = "") -> Interval | None:
    """The median latency in microseconds, or the median speed-up over `relative_to` in the same blocks. None where it
    was not timed."""
    if relative_to:
        pairs = (*case.contrasts, *case.beside, *(one.inverse for one in case.beside))
        contrast = next((one for one in pairs if one.subject == name and one.baseline == relative_to), None)
        return contrast.paired.ratio if contrast is not None else None
    timing = case.timing(name)
    return timing.median_us if timing is not None and timing.timed else None


def floor_of(case: Case, name: str) -> Noise | None:
    """The noise floor of a case: the largest of its controls, or without controls that of the implementation's
    halves."""
    floors = [noise for one in case.controls if (noise := control_noise(one.paired)) is not None]
    timing = case.timing(name)
    if not floors and timing is not None and (halves := halves_noise(timing.group.latency_us)) is not None:
        floors = [halves]
    return max(floors, key=lambda noise: noise.floor, default=None)


def quotient(top: Interval, bottom: Interval) -> Interval:
    """`top` over `bottom`, two independent positive estimates."""
    mid = math.log(top.mid) - math.log(bottom.mid)
    low = math.hypot(math.log(top.mid / top.low), math.log(bottom.high / bottom.mid))
    high = math.hypot(math.log(top.high / top.mid), math.log(bottom.mid / bottom.low))
    return Interval(math.exp(mid - low), math.exp(mid), math.exp(mid + high))
