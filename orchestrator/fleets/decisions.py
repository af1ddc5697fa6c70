"""What is decided about a fleet on a scheduler, as changes of its `Control`, and its line in the list of fleets.

Each is applied by compare-and-swap to what stands there then, which others may have changed in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from orchestrator.core.fleet.state import FleetState
from orchestrator.core.fleet.sweep import Sweep
from orchestrator.store.fleets import Control, FleetRecord, JobRecord


def cap_of(sweep: Sweep) -> str:
    """The beginning of the reason of a pause that a higher cap of the fleet ends."""
    return f"the fleet's cap of ${sweep.cap_usd}"


def with_jobs(control: Control, jobs: Sequence[JobRecord], generation: int) -> Control:
    """Jobs are about to be asked for under the hold of `generation`. As it was where the fleet has been stopped, paused
    or held anew in the meantime; without those whose number is taken."""
    if control.stopped or control.paused or control.generation != generation:
        return control
    there = {job.number for job in control.jobs}
    return control.model_copy(update={"jobs": (*control.jobs, *(job for job in jobs if job.number not in there))})


def ended(control: Control, **why: str) -> Control:
    """Stops all jobs; `resume` starts new ones."""
    return control.model_copy(update={**why, "cancelled": following(control)})


def resumed(control: Control) -> Control:
    """The fleet continues under its present hold."""
    return control.model_copy(update={"paused": "", "stopped": "", "persisted": True})


def held_anew(control: Control, generation: int, held_at: datetime, ends_at: datetime) -> Control:
    """It goes on under the hold of `generation`, which is taken next. As it was where that hold has been given back or
    overtaken."""
    if control.generation >= generation:
        return control
    number = following(control)
    fresh = {"generation": generation, "held_at": held_at, "ends_at": ends_at, "first_job": number, "cancelled": number}
    return resumed(control).model_copy(update=fresh)


def unheld(control: Control, generation: int, why: str) -> Control:
    """The hold of `generation` could not be taken. As it was where others have decided something about it since."""
    return ended(control, paused=control.paused or why) if control.generation == generation else control


def following(control: Control) -> int:
    """The number of the next job."""
    return max((job.number + 1 for job in control.jobs), default=0)


def summary(record: FleetRecord, state: FleetState, control: Control) -> dict[str, str]:
    """The line of a fleet in the list of fleets."""
    counts = state.counts
    now = "stopped" if control.stopped else "paused" if control.paused else "open"
    return {
        "state": "over" if state.over else now,
        "engine": record.engine,
        "user": record.user,
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "children": str(len(state.children)),
        "stored": str(counts["stored"] + counts["wrong"]),
        "given_up": str(counts["given_up"]),
        "hold_usd": str(record.hold_usd),
        "usd": str(state.usd),
    }
