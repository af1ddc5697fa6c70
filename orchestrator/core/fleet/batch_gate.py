"""Decides whether fleets may use Google Cloud Batch: the limits on cost depend on how Batch behaves in a real project.
Pure.

`bench fleet check-batch` observes four behaviours for a few cents and stores its verdict in the bucket, where no
machine can write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.text import clean_line

QUESTIONS: Final = {
    "limits": "machines carry the template's terminationTime, and are deleted at it",
    "end": "no machine is made after that time",
    "bound": "there are never more machines than the job's parallelism, also while one is preempted",
    "recreate": "a machine that deletes itself is made again, and its task ends with 50006",
}
REQUIRED: Final = ("limits", "end", "bound")
"""The behaviours without which a fleet could cost more than it holds. The fourth is only reported, because no child of
ours deletes its machine."""


@dataclass(frozen=True, slots=True)
class GatePace:
    """The durations of a check, in seconds."""

    end_s: float = 480.0
    """From the creation of the template to the absolute end of its machines."""
    late_s: float = 60.0
    """A machine that lives this long past its end is late: Google may begin 30 s late, and a deletion takes time."""
    quiet_s: float = 180.0
    """For this long after the end no machine may be created."""
    poll_s: float = 5.0
    step_s: float = 20.0
    run_s: int = 900


@dataclass(frozen=True, slots=True)
class GateSite:
    """Where a check runs, and with which machines."""

    project: str
    region: str
    machine_type: str
    image: str
    network: str = "global/networks/default"
    service_account: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    compute: str = ""
    """The URL of the embedded cloud; empty on Google."""


class GateAnswer(BaseModel):
    """What a check saw of one question."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")

    ok: bool
    seen: str = ""


class GateVerdict(BaseModel):
    """The result of a check in a project."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", populate_by_name=True)

    schema_: Literal[1] = Field(default=1, alias="schema")
    project: str
    checked_at: datetime
    region: str = ""
    answers: dict[str, GateAnswer] = Field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(name in self.answers and self.answers[name].ok for name in REQUIRED)

    def dump(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()


def parse_gate(data: bytes | None) -> GateVerdict | None:
    """The verdict in a document; None if there is no document or it is not valid."""
    try:
        return GateVerdict.model_validate_json(data) if data is not None else None
    except ValidationError:
        return None


def gate_refusal(project: str, verdict: GateVerdict | None) -> str:
    """Why no fleet may be launched on Batch in a project; empty if one may."""
    if verdict is None or verdict.project != project:
        return f"Google Cloud Batch has not been checked in project {project}"
    if verdict.passed:
        return ""
    bad = [name for name in REQUIRED if name not in verdict.answers or not verdict.answers[name].ok]
    seen = verdict.answers.get(bad[0])
    detail = f": {clean_line(seen.seen, 200)}" if seen is not None and seen.seen else ""
    return (
        f"Google Cloud Batch cannot keep a fleet within its cap in project {project}, as it was seen on "
        f"{verdict.checked_at:%Y-%m-%d}: not true that {QUESTIONS[bad[0]]}{detail}"
    )
