"""Runs held against one: what changed, whether they may be compared at all, and what that comes to."""

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
from orchestrator.core.bundled.names import DEFAULT
from orchestrator.core.results import is_control
from orchestrator.core.wording import count
from orchestrator.report.report import Report
from orchestrator.report.text import ratio


@dataclass(frozen=True, slots=True)
class Lost:
    """What was timed before and is not any more, with the reason that the later run gives."""

    case_id: str
    setting: Setting
    implementation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """`after` held against `before`; a ratio over 1 is faster in `after`."""

    before: Report
    after: Report
    comparable: Comparability
    relative_to: str
    """Speed-ups over this one are compared; times where it is empty."""
    tolerance: float
    """A change within it (0.02: two per cent) is no verdict of faster or slower."""
    changes: tuple[Change, ...]
    lost: tuple[Lost, ...]
    energy: tuple[Shift, ...] = ()
    """What the calls that are compared took in either run, where both have it."""

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
        """The changes with this verdict, those that are farthest from 1 first."""
        found = [one for one in self.changes if one.verdict is verdict]
        return tuple(sorted(found, key=lambda one: -max(one.ratio.mid, 1 / one.ratio.mid)))

    def headline(self) -> str:
        """What it comes to, in one sentence."""
        if self.refused:
            return f"Not comparable: {self.comparable.reasons[0]}."
        if not self.changes and not self.lost:
            return "The runs have no case, regime and implementation in common."
        words = Counter(one.verdict for one in self.changes)
        said = ", ".join(f"{words[word]} {word}" for word in Verdict if words[word])
        gone = f" {count(len(self.lost), 'timing')} lost: {self._gone()}." if self.lost else ""
        return f"{count(len(self.changes), 'comparison')}{f': {said}' if said else ''}.{gone}"

    def _gone(self) -> str:
        reasons = Counter((one.implementation, one.reason) for one in self.lost)
        return "; ".join(f"{name} ({number}): {reason}" for (name, reason), number in reasons.items())

    @property
    def code(self) -> tuple[str, ...]:
        """What of the code differs, named: the payload, and the kernels that ran."""
        prints = fingerprint(self.before), fingerprint(self.after)
        key = "payload_sha256" if all(one.get("payload_sha256") for one in prints) else "git_commit"
        one, other = (brief(found.get(key) or "unknown") for found in prints)
        said = [f"{NAMES[key]} {one} → {other}"] if one != other else []
        kernels: Counter[tuple[str, str]] = Counter()
        for case, later in matched(self.before.study, self.after.study):
            for name in self.implementations:
                first, second = case.timing(name), later.timing(name)
                if first is not None and second is not None and first.backend != second.backend:
                    kernels[first.backend, second.backend] += 1
        some = [f"kernel {first} → {second} ({count(n, 'timing')})" for (first, second), n in kernels.most_common(4)]
        return (*said, *some)

    def joules(self) -> str:
        """What became of the energy of a call, in a sentence; or that it is not given where not both runs have it. It
        is no verdict: a run has one figure for it."""
        if not self.energy:
            return "Energy: not given by both runs."
        middle = math.exp(sum(math.log(one.ratio) for one in self.energy) / len(self.energy))
        where = count(len(self.energy), "timing")
        return f"Energy of a call: {ratio(middle)} of before (geometric mean of {where}; under 1 is less)."

    def unit(self) -> str:
        """What stands under `before` and `after`."""
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
    """`after` held against `before`. Speed-ups over PyTorch's default are compared where both runs have it, unless
    `absolute`; the kernel's where both have that, or else every implementation's."""

    def both(name: str) -> bool:
        return all(name in (report.study.subject, *report.study.baselines) for report in (before, after))

    for which, report in (("first", before), ("second", after)):
        if not report.study.cases:
            nothing = Comparability(Level.REFUSED, (f"the {which} run measured nothing",))
            return Comparison(before, after, nothing, relative_to, tolerance, (), ())
    found = comparability(fingerprint(before), fingerprint(after), across_devices=across_devices)
    found = with_caveats(found, before, after)
    wanted = tuple(implementations) or ((KERNEL,) if both(KERNEL) else ())
    common = [name for name in before.study.baselines if both(name) and name not in wanted]
    base = relative_to or next((name for name in (DEFAULT, *common) if name in common and not absolute), "")
    made: tuple[Change, ...] = ()
    gone: tuple[Lost, ...] = ()
    energy: tuple[Shift, ...] = ()
    if found.level is not Level.REFUSED:
        prints = fingerprint(before), fingerprint(after)
        busy = [which for which, one in (("first", before), ("second", after)) if one.busy()]
        made = changes(
            before.study,
            after.study,
            relative_to=base,
            implementations=wanted,
            tolerance=tolerance,
            footing=Footing(
                steady=steady(*prints),
                doubt=f"the host of the {' and the '.join(busy)} run was busy" if busy else "",
                same_code=same_code(*prints),
            ),
        )
        gone = lost(before.study, after.study, wanted)
        energy = tuple(one for one in shifts(before.study, after.study) if not wanted or one.implementation in wanted)
    return Comparison(before, after, found, base, tolerance, made, gone, energy)


def lost(before: Study, after: Study, implementations: Sequence[str] = ()) -> tuple[Lost, ...]:
    """Timings that the later run has given up, a wrong answer first among the reasons. Controls are no results."""
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
    """What of the earlier run has no counterpart in the later one, in words."""
    said = []
    missing = set(before.case_ids) - set(after.case_ids)
    if missing:
        said.append(f"{len(missing)} of {count(len(before.case_ids), 'case')} of the first run are not in the second")
    met = {case.case_id for case, _ in matched(before, after)}
    otherwise = [name for name in before.case_ids if name in after.case_ids and name not in met]
    if otherwise:
        said.append(f"{count(len(otherwise), 'case')} timed in other regimes or caches, not compared")
    return tuple(said)


def with_caveats(found: Comparability, before: Report, after: Report) -> Comparability:
    """The same with what the two runs themselves warn of: a busy host, implementations that differ from themselves."""
    said = [
        f"{which} run: {words[:1].lower()}{words[1:].rstrip('.')}"
        for which, report in (("first", before), ("second", after))
        for words in (*report.busy(), *report.unsteady())
    ]
    said = [*apart(before.study, after.study), *said]
    if not said:
        return found
    level = Level.CAVEAT if found.level is Level.COMPARABLE else found.level
    return Comparability(level, (*found.reasons, *said))


def fingerprint(report: Report) -> dict[str, Any]:
    """All that is known of how a run was measured (`orchestrator.analysis.fingerprint`)."""
    vms = report.manifest.get("vms")
    last = vms[-1] if isinstance(vms, list) and vms and isinstance(vms[-1], dict) else {}
    known: dict[str, Any] = dict(report.environment)
    # What ran is what the rows name, whatever file of another machine lies beside them.
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
