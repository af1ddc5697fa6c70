"""What becomes of children that did not bring their measurements: tried again, given up with a reason, or a pause.

- A machine that was taken back or lost is nobody's fault: its child is tried again, up to `claims.ATTEMPTS` times.
- A wrong kernel is a result, and is never tried again.
- A configuration that failed on three different machines, in whichever repeats, fails for a reason of its own: the
  reason is its row, for every repeat that is not measured. Where there are fewer machines, it is one that failed on
  each of them and was tried three times.
- When four of the first twenty children that ended have failed, something is wrong with the whole: the fleet pauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.core.fleet.claims import ATTEMPTS
from orchestrator.core.fleet.state import ChildLine, FleetState
from orchestrator.core.wording import count

MACHINES: Final = 3
"""On so many different machines a configuration may fail."""
FIRST: Final = 20
TOO_MANY: Final = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done about a fleet now."""

    again: tuple[int, ...]
    """Children to be started again: those that failed or were lost, and may be tried."""
    given_up: Mapping[int, str]
    """Children for which a row with this reason stands."""
    pause: str
    """Why nothing more is started; empty: it goes on."""


def judge(state: FleetState, *, persisted: bool = False, machines: int = MACHINES) -> Verdict:
    """Applies the laws. `persisted`: a person has looked and resumed the fleet, so that its first failures do not stop
    it again. `machines`: how many there are at all."""
    failed_on: dict[str, set[str]] = {}
    tries: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for child in state.children:
        line = state.line(child)
        if line.failed_on:
            failed_on.setdefault(child.config, set()).update(line.failed_on)
            tries[child.config] = max(tries.get(child.config, 0), line.attempt)
            reasons[child.config] = line.reason or reasons.get(child.config, "")
    hopeless = {
        config
        for config, names in failed_on.items()
        if len(names) >= MACHINES or (len(names) >= machines and tries[config] >= MACHINES)
    }
    again: list[int] = []
    given_up: dict[int, str] = {}
    for child in state.open:
        line = state.line(child)
        if child.config in hopeless:
            machines_tried = count(len(failed_on[child.config]), "machine")
            given_up[child.index] = f"failed on {machines_tried}: {reasons[child.config]}"
        elif line.state in ("failed", "lost"):
            if line.attempt >= ATTEMPTS:
                given_up[child.index] = f"tried {count(line.attempt, 'time')}: {line.reason}"
            else:
                again.append(child.index)
    return Verdict(tuple(again), given_up, "" if persisted else _pause(state))


def _pause(state: FleetState) -> str:
    ended = [line for child in state.children if _has_ended(line := state.line(child))][:FIRST]
    failed = [line for line in ended if line.failed_on or line.state in ("failed", "given_up")]
    if len(failed) < TOO_MANY:
        return ""
    first = count(len(ended), "child", "children")
    return f"{len(failed)} of the first {first} failed; the last: {failed[-1].reason or 'no reason given'}"


def _has_ended(line: ChildLine) -> bool:
    return line.over or line.state == "failed" or bool(line.failed_on)
