"""Runs against runs: what became faster or slower between two, and where in a history it did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from orchestrator.analysis.bootstrap import LEVEL, Interval
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Case, Study
from orchestrator.analysis.verdicts import MARGIN, Noise, Verdict, control_noise, decide, halves_noise
from orchestrator.core.results import is_control

LIMIT = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True, slots=True)
class Change:
    """One implementation on one case in one setting in two runs. A ratio over 1: faster in the second run."""

    case_id: str
    setting: Setting
    implementation: str
    before: Interval
    after: Interval
    """Microseconds; or, where `relative_to` is set, how many times faster than that in the same run."""
    relative_to: str
    ratio: Interval
    p: float
    noise: Noise | None
    verdict: Verdict


def changes(
    before: Study, after: Study, *, relative_to: str = "", implementations: Sequence[str] = (), tolerance: float = 0.0
) -> tuple[Change, ...]:
    """What changed, for every case, setting and implementation that both runs timed. A change within `tolerance`
    (0.02: two per cent) is no verdict of faster or slower.

    Times of two runs have no common blocks, so their intervals are combined as independent ones (Zou and Donner 2008).
    """
    found = []
    for case, other in matched(before, after):
        for timing in case.timings:
            name = timing.implementation
            wanted = name in implementations if implementations else not is_control(name)
            if wanted and name != relative_to:
                change = _change(case, other, name, relative_to)
                if change is not None:
                    found.append(change)
    corrected = holm([one.p for one in found])
    return tuple(_decided(one, p, tolerance) for one, p in zip(found, corrected, strict=True))


def matched(before: Study, after: Study) -> Iterator[tuple[Case, Case]]:
    """Cases of the two runs that were timed in the same way. Where one run does not say whether its caches were warm
    and the other has both, nothing tells which of them it is, and the case is left out."""
    own, others = by_id(before), by_id(after)
    for case in before.cases:
        fitting = [one for one in others.get(case.case_id, ()) if one.setting.matches(case.setting)]
        rivals = [one for one in own[case.case_id] if fitting and one.setting.matches(fitting[0].setting)]
        exact = [one for one in fitting if one.setting == case.setting]
        if exact:
            yield case, exact[0]
        elif len(fitting) == len(rivals) == 1:
            yield case, fitting[0]


def by_id(study: Study) -> dict[str, list[Case]]:
    """The cases of a study by their ids, each in all its settings."""
    found: dict[str, list[Case]] = {}
    for case in study.cases:
        found.setdefault(case.case_id, []).append(case)
    return found


def _change(before: Case, after: Case, name: str, relative_to: str) -> Change | None:
    first, second = estimate(before, name, relative_to), estimate(after, name, relative_to)
    if first is None or second is None:
        return None
    # Of times, less is better; of speed-ups, more is.
    ratio = quotient(second, first) if relative_to else quotient(first, second)
    noises = [noise for noise in (floor_of(before, name), floor_of(after, name)) if noise is not None]
    noise = max(noises, key=lambda one: one.floor, default=None)
    undecided = Verdict.INCONCLUSIVE
    return Change(
        before.case_id, before.setting, name, first, second, relative_to, ratio, chance(ratio), noise, undecided
    )


def _decided(change: Change, p: float, tolerance: float) -> Change:
    noise = change.noise
    if noise is not None and tolerance > noise.floor:
        noise = replace(noise, floor=tolerance)
    return replace(change, p=p, verdict=decide(change.ratio, p, noise, max(MARGIN, tolerance)))


def estimate(case: Case, name: str, relative_to: str = "") -> Interval | None:
    """The median latency, or the median ratio to `relative_to` in the same blocks; None where it was not timed."""
    if relative_to:
        contrast = next((one for one in case.contrasts if one.subject == name and one.baseline == relative_to), None)
        return contrast.paired.ratio if contrast is not None else None
    timing = case.timing(name)
    return timing.median_us if timing is not None and timing.timed else None


def floor_of(case: Case, name: str) -> Noise | None:
    """The noise of a case: its controls', or else the implementation's own halves'."""
    floors = [noise for one in case.controls if (noise := control_noise(one.paired)) is not None]
    timing = case.timing(name)
    if not floors and timing is not None and (own := halves_noise(timing.group.latency_us)) is not None:
        floors = [own]
    return max(floors, key=lambda noise: noise.floor, default=None)


def quotient(top: Interval, bottom: Interval) -> Interval:
    """`top` over `bottom`, two independent positive estimates."""
    mid = math.log(top.mid) - math.log(bottom.mid)
    low = math.hypot(math.log(top.mid / top.low), math.log(bottom.high / bottom.mid))
    high = math.hypot(math.log(top.high / top.mid), math.log(bottom.mid / bottom.low))
    return Interval(math.exp(mid - low), math.exp(mid), math.exp(mid + high))


def chance(ratio: Interval) -> float:
    """A two-sided p-value for the ratio being 1, from the limit on the side of 1; 1 where there is no interval."""
    if not ratio.known:
        return 1.0
    near = ratio.low if ratio.mid > 1 else ratio.high
    spread = abs(math.log(ratio.mid / near)) / LIMIT
    if spread == 0:
        return 0.0 if ratio.mid != 1 else 1.0
    return math.erfc(abs(math.log(ratio.mid)) / spread / math.sqrt(2))


@dataclass(frozen=True, slots=True)
class Point:
    """One run in the history of a case. `change` is the verdict against the run that began the present level."""

    run_id: str
    fingerprint: Mapping[str, object]
    value: Interval
    noise: Noise | None
    ratio: Interval | None
    change: Verdict | None


def history(
    points: Sequence[tuple[str, Mapping[str, object], Interval, Noise | None]],
    *,
    relative: bool,
    tolerance: float = 0.0,
) -> tuple[Point, ...]:
    """The runs in the order given. Each is compared with the first of the level it would belong to; faster or slower
    begins a new level. `relative` values are speed-ups, others microseconds."""
    found: list[Point] = []
    level: tuple[Interval, Noise | None] | None = None
    for run_id, fingerprint, value, noise in points:
        if level is None:
            found.append(Point(run_id, fingerprint, value, noise, None, None))
            level = value, noise
            continue
        ratio = quotient(value, level[0]) if relative else quotient(level[0], value)
        floors = [one for one in (noise, level[1]) if one is not None]
        floor = max(floors, key=lambda one: one.floor, default=None)
        if floor is not None:
            floor = replace(floor, floor=max(floor.floor, tolerance))
        verdict = decide(ratio, chance(ratio), floor, max(MARGIN, tolerance))
        found.append(Point(run_id, fingerprint, value, noise, ratio, verdict))
        if verdict in (Verdict.FASTER, Verdict.SLOWER):
            level = value, noise
    return tuple(found)
