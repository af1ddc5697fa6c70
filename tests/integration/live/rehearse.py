"""One rehearsal: money held, every assumption looked at, nothing left, the verdict written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

from orchestrator.core.doctor.project import Rehearsal, RehearsalFinding
from tests.integration.live.assumptions import LOOKS, Look, looked
from tests.integration.live.place import Place

Say = Callable[[str], None]


def rehearse(
    place: Place, cap: Decimal, say: Say = lambda _: None, looks: Mapping[Look, tuple[str, ...]] = LOOKS
) -> Rehearsal:
    """Looks at everything and stores the verdict. Raises `BudgetExceeded` before anything is asked for."""
    worst = place.hold(cap)
    say(f"{place.project}, {place.zone}: at most ${worst} (cap ${cap})")
    findings: list[RehearsalFinding] = []
    try:
        for look, names in looks.items():
            for finding in looked(place, look, names):
                findings.append(finding)
                say(f"{finding.state:<8}  {finding.name:<16}  {finding.detail}")
    finally:
        place.clean()
        cost = place.settle()
    made = Rehearsal(project=place.project, at=place.clock.now(), findings=tuple(findings), usd_at_most=str(cost))
    place.bucket.create(made.object, made.dump())
    say(f"at most ${cost} spent; gs://{place.bucket.name}/{made.object} has the verdict, and `bench doctor` shows it")
    return made
