"""One case over many runs: where its time changed, and what changed with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.analysis.across import judge_ratio, largest_floor, quotient
from orchestrator.analysis.between import SAME_CODE, spread_of
from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.fingerprint import SOFTWARE
from orchestrator.analysis.verdicts import Noise, Verdict

CODE: Final = ("payload_sha256", "git_commit", "backend")
"""The facts that tell which code ran; `git_commit` counts only where a payload is not known."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One run's value: a median in microseconds, or a speed-up. `doubt` says why its times cannot be compared."""

    run_id: str
    fingerprint: Mapping[str, Any]
    """The run's environment, and `backend`, the kernel that ran."""
    value: Interval
    noise: Noise | None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One run in the history of a case. `change` is the verdict against the level before; None for the first run."""

    reading: Reading
    ratio: Interval | None
    change: Verdict | None
    doubt: str
    split: tuple[str, ...]
    """Which parts of the code or its libraries differ from the run before, in words."""


def history(readings: Sequence[Reading], *, relative: bool, tolerance: float = 0.0) -> tuple[HistoryPoint, ...]:
    """The runs in the order given. Each is compared with the run that began the present level; a run that is faster or
    slower begins a new level. A change of code splits the history, and is named.

    Values are speed-ups with `relative`, and microseconds otherwise. How much runs of the same code differ is estimated
    from this history. A run is not called faster or slower than a level that already has a run of the same code, and a
    run on a busy machine gets no verdict.
    """
    fit = [one for one in readings if not one.doubt]
    alike = [
        math.log(other.value.mid / one.value.mid)
        for one, other in itertools.pairwise(fit)
        if knows_payload(one) and knows_payload(other) and not differing_parts(one, other)
    ]
    spread = spread_of(alike)
    points: list[HistoryPoint] = []
    level: list[Reading] = []
    for place, one in enumerate(readings):
        parted = differing_parts(readings[place - 1], one) if place else ()
        if one.doubt or not level:
            points.append(HistoryPoint(one, None, Verdict.INCONCLUSIVE if one.doubt else None, one.doubt, parted))
            level += [] if one.doubt else [one]
            continue
        begun = level[0]
        ratio = quotient(one.value, begun.value) if relative else quotient(begun.value, one.value)
        wide = spread.widened(ratio)
        verdict = judge_ratio(wide, spread.chance(ratio), largest_floor(one.noise, begun.noise), tolerance)
        different = verdict in (Verdict.FASTER, Verdict.SLOWER)
        met = knows_payload(one) and any(not differing_parts(earlier, one) for earlier in level)
        doubt = SAME_CODE if different and met else ""
        points.append(HistoryPoint(one, wide, Verdict.INCONCLUSIVE if doubt else verdict, doubt, parted))
        level = [one] if different and not doubt else [*level, one]
    return tuple(points)


def knows_payload(one: Reading) -> bool:
    """Whether the fingerprint says which payload ran."""
    return bool(one.fingerprint.get("payload_sha256"))


def differing_parts(before: Reading, after: Reading) -> tuple[str, ...]:
    """Which parts of the code or its libraries differ between two runs, in words."""
    first, second = before.fingerprint, after.fingerprint
    code = [key for key in CODE if key != "git_commit" or not (knows_payload(before) and knows_payload(after))]
    differences = []
    for key in (*code, *SOFTWARE):
        value, other = first.get(key), second.get(key)
        if value and other and value != other:
            differences.append(f"{CAUSE_NAMES.get(key, key)} {short_digest(value)} → {short_digest(other)}")
    return tuple(differences)


CAUSE_NAMES: Final = {"payload_sha256": "payload", "git_commit": "commit", "backend": "kernel"}


def short_digest(value: object) -> str:
    """The beginning of a digest; any other value in full."""
    text = str(value)
    return text[:12] if len(text) >= 40 and " " not in text else text
