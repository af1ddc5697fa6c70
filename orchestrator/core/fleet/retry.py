"""Decides about children without measurements: they are tried again, given up with a reason, or the fleet pauses.

- A child whose machine was preempted or lost is tried again, up to `claims.ATTEMPTS` times.
- A wrong kernel is a result, and is never tried again.
- A configuration that failed on three different machines, in any of its repeats, is given up. Every repeat that is not
  measured gets a row with the reason. If there are fewer machines, it is given up once it failed on each of them and
  was tried three times.
- If four of the first twenty children that ended have failed, the fleet pauses: the cause is probably common to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.core.fleet.claims import ATTEMPTS
from orchestrator.core.fleet.state import ChildLine, FleetState
from orchestrator.core.wording import count

MACHINES: Final = 3
"""A configuration that failed on this many different machines is given up."""
FIRST: Final = 20
TOO_MANY: Final = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a fleet must do now."""

    again: tuple[int, ...]
    """The indexes of children to start again: they failed or were lost, and have attempts left."""
    given_up: Mapping[int, str]
    """The reason for each child that is given up, by index. The reason becomes its row."""
    pause: str
    """Why nothing more is started; empty: the fleet goes on."""


def judge(state: FleetState, *, persisted: bool = False, machines: int = MACHINES) -> Verdict:
    """Applies the rules above. `persisted`: a person has resumed the fleet after a pause, so that its first failures do
    not stop it again. `machines`: the number of machines that exist."""
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
