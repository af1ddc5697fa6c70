"""Compares two runs: whether they may be compared, what changed, and a summary in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.across import Change, Footing, changes, matched
from orchestrator.analysis.energy import Shift, shifts
from orchestrator.analysis.fingerprint import Comparability, Level, comparability, same_code, steady
from orchestrator.analysis.history import NAMES, brief
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import KERNEL, Study
from orchestrator.analysis.verdicts import Verdict
from orchestrator.core.bundled import DEFAULT
from orchestrator.core.results import is_control
from orchestrator.core.text import count
from orchestrator.report.report import Report
from orchestrator.report.text import ratio


@dataclass(frozen=True, slots=True)
class Lost:
    """A timing that the earlier run has and the later one does not, with the reason that the later run gives."""

    case_id: str
    setting: Setting
    implementation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of `after` with `before`; a ratio over 1 means faster in `after`."""

    before: Report
    after: Report
    comparable: Comparability
    relative_to: str
    """The implementation whose speed-ups are compared; empty where times are compared."""
    tolerance: float
    """A change within it (0.02 is two per cent) is called neither faster nor slower."""
    changes: tuple[Change, ...]
    lost: tuple[Lost, ...]
    energy: tuple[Shift, ...] = ()
    """The energy of the compared calls in the two runs, where both have it."""

    @property
    def refused(self) -> bool:
        return self.comparable.level is Level.REFUSED

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(dict.fromkeys(one.setting for one in self.changes))

    @property
    def implementations(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.implementation for one in self.changes))

    def of(self, verdict: Verdict) -> tuple[Change, ...]:
        """The changes with this verdict; those whose ratio is farthest from 1 come first."""
        changes = [one for one in self.changes if one.verdict is verdict]
        return tuple(sorted(changes, key=lambda one: -max(one.ratio.mid, 1 / one.ratio.mid)))

    def headline(self) -> str:
        """The result, in one sentence."""
        if self.refused:
            return f"Not comparable: {self.comparable.reasons[0]}."
        if not self.changes and not self.lost:
            return "The runs have no case, regime and implementation in common."
        words = Counter(one.verdict for one in self.changes)
        verdicts = ", ".join(f"{words[word]} {word}" for word in Verdict if words[word])
        lost = f" {count(len(self.lost), 'timing')} lost: {self._gone()}." if self.lost else ""
        return f"{count(len(self.changes), 'comparison')}{f': {verdicts}' if verdicts else ''}.{lost}"

    def _gone(self) -> str:
        reasons = Counter((one.implementation, one.reason) for one in self.lost)
        return "; ".join(f"{name} ({number}): {reason}" for (name, reason), number in reasons.items())

    @property
    def code(self) -> tuple[str, ...]:
        """The parts of the code that differ, in words: the payload, and the kernels that ran."""
        fingerprints = fingerprint(self.before), fingerprint(self.after)
        key = "payload_sha256" if all(one.get("payload_sha256") for one in fingerprints) else "git_commit"
        one, other = (brief(found.get(key) or "unknown") for found in fingerprints)
        versions = [f"{NAMES[key]} {one} → {other}"] if one != other else []
        kernels: Counter[tuple[str, str]] = Counter()
        for case, later in matched(self.before.study, self.after.study):
            for name in self.implementations:
                first, second = case.timing(name), later.timing(name)
                if first is not None and second is not None and first.backend != second.backend:
                    kernels[first.backend, second.backend] += 1
        some = [f"kernel {first} → {second} ({count(n, 'timing')})" for (first, second), n in kernels.most_common(4)]
        return (*versions, *some)

    def joules(self) -> str:
        """How the energy of a call changed, in a sentence; where not both runs have it, that it is not given. There is
        no verdict on it, as a run has only one value."""
        if not self.energy:
            return "Energy: not given by both runs."
        middle = math.exp(sum(math.log(one.ratio) for one in self.energy) / len(self.energy))
        where = count(len(self.energy), "timing")
        return f"Energy of a call: {ratio(middle)} of before (geometric mean of {where}; under 1 is less)."

    def unit(self) -> str:
        """The unit of `before` and `after`."""
        return f"times as fast as {self.relative_to} in the same run" if self.relative_to else "µs a call"


def compared(
    before: Report,
    after: Report,
    *,
    relative_to: str = "",
    absolute: bool = False,
    implementations: Sequence[str] = (),
    tolerance: float = 0.02,
    across_devices: bool = False,
) -> Comparison:
    """Compares `after` with `before`. Speed-ups over PyTorch's default are compared where both runs have it, or times
    with `absolute`. Without `implementations` only the kernel is compared; where one run lacks it, all
    implementations."""

    def both(name: str) -> bool:
        return all(name in (report.study.subject, *report.study.baselines) for report in (before, after))

    for ordinal, report in (("first", before), ("second", after)):
        if not report.study.cases:
            nothing = Comparability(Level.REFUSED, (f"the {ordinal} run measured nothing",))
            return Comparison(before, after, nothing, relative_to, tolerance, (), ())
    comparable = comparability(fingerprint(before), fingerprint(after), across_devices=across_devices)
    comparable = with_caveats(comparable, before, after)
    names = tuple(implementations) or ((KERNEL,) if both(KERNEL) else ())
    common = [name for name in before.study.baselines if both(name) and name not in names]
    base = relative_to or next((name for name in (DEFAULT, *common) if name in common and not absolute), "")
    changed: tuple[Change, ...] = ()
    lost_timings: tuple[Lost, ...] = ()
    energy: tuple[Shift, ...] = ()
    if comparable.level is not Level.REFUSED:
        fingerprints = fingerprint(before), fingerprint(after)
        busy = [ordinal for ordinal, one in (("first", before), ("second", after)) if one.busy()]
        changed = changes(
            before.study,
            after.study,
            relative_to=base,
            implementations=names,
            tolerance=tolerance,
            footing=Footing(
                steady=steady(*fingerprints),
                doubt=f"the host of the {' and the '.join(busy)} run was busy" if busy else "",
                same_code=same_code(*fingerprints),
            ),
        )
        lost_timings = lost(before.study, after.study, names)
        energy = tuple(one for one in shifts(before.study, after.study) if not names or one.implementation in names)
    return Comparison(before, after, comparable, base, tolerance, changed, lost_timings, energy)


def lost(before: Study, after: Study, implementations: Sequence[str] = ()) -> tuple[Lost, ...]:
    """The timings that the earlier run has and the later run gave up, for example after a wrong answer. Controls are
    left out."""
    return tuple(
        Lost(case.case_id, case.setting, timing.implementation, now.skipped)
        for case, other in matched(before, after)
        for timing in case.timings
        if timing.timed
        and not is_control(timing.implementation)
        and (not implementations or timing.implementation in implementations)
        and (now := other.timing(timing.implementation)) is not None
        and not now.timed
    )


def apart(before: Study, after: Study) -> tuple[str, ...]:
    """Which cases of the earlier run have no counterpart in the later one, in sentences."""
    sentences = []
    missing = set(before.case_ids) - set(after.case_ids)
    if missing:
        sentences.append(
            f"{len(missing)} of {count(len(before.case_ids), 'case')} of the first run are not in the second"
        )
    matched_ids = {case.case_id for case, _ in matched(before, after)}
    otherwise = [name for name in before.case_ids if name in after.case_ids and name not in matched_ids]
    if otherwise:
        sentences.append(f"{count(len(otherwise), 'case')} timed in other regimes or caches, not compared")
    return tuple(sentences)


def with_caveats(comparable: Comparability, before: Report, after: Report) -> Comparability:
    """`comparable` with the warnings of the two runs added: a busy host, implementations that differ from
    themselves."""
    warnings = [
        f"{which} run: {words[:1].lower()}{words[1:].rstrip('.')}"
        for which, report in (("first", before), ("second", after))
        for words in (*report.busy(), *report.unsteady())
    ]
    warnings = [*apart(before.study, after.study), *warnings]
    if not warnings:
        return comparable
    level = Level.CAVEAT if comparable.level is Level.COMPARABLE else comparable.level
    return Comparability(level, (*comparable.reasons, *warnings))


def fingerprint(report: Report) -> dict[str, Any]:
    """Everything known about how a run was measured (`orchestrator.analysis.fingerprint`)."""
    vms = report.manifest.get("vms")
    last = vms[-1] if isinstance(vms, list) and vms and isinstance(vms[-1], dict) else {}
    known: dict[str, Any] = dict(report.environment)
    # The rows name the device that ran. A file beside them may come from another machine.
    known["device"] = report.study.device or known.get("device")
    known["regimes"] = tuple(dict.fromkeys(one.regime for one in report.study.settings if one.regime))
    elsewhere = {
        "compiler": report.build.get("compiler_version"),
        "image": report.manifest.get("image"),
        "payload_sha256": report.manifest.get("payload_sha256"),
        "zone": last.get("zone"),
        "machine_type": last.get("machine_type"),
    }
    return known | {key: value for key, value in elsewhere.items() if not known.get(key)}
