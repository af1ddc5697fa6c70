"""Candidates of a session and what a machine says about them. What comes from a machine is checked and bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.errors import ConfigError
from orchestrator.core.names import CaseId
from orchestrator.core.results import ResultsUnreadable
from orchestrator.core.text import clean_line

MOST_BYTES: Final = 1 << 20
"""The most that the files of a candidate may have together."""
MOST_CASES: Final = 1_000
MOST_NAMES: Final = 200
"""The most cases, kernels and baselines of a verdict."""
ROWS_BYTES: Final = 64 << 20
"""The most bytes that are read of all rows of a candidate."""
UNSEEN_S: Final = 30.0
"""How long the first candidate of a session is assumed to take, in seconds."""
END_S: Final = 90.0
"""The time before a machine's deadline in which it stores what it has, and takes no new candidate."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One version of a workload. `files` are by their places in a payload, and `path` is the workload's."""

    label: str
    path: str
    files: Mapping[str, bytes]
    beat: Mapping[str, float] = field(default_factory=dict)
    """In a race, by case: the ratio to the first baseline below which it is dropped."""

    def document(self, number: int) -> bytes:
        """The object in the bucket. Raises `ConfigError` for files that are too large."""
        size = sum(map(len, self.files.values()))
        if size > MOST_BYTES:
            raise ConfigError(
                f"{self.label} and the files beside it have {size >> 10} KiB; a candidate may have "
                f"{MOST_BYTES >> 10} KiB",
                hint="move what the kernel does not need to another folder, or use `bench launch`",
            )
        files = {name: data.hex() for name, data in sorted(self.files.items())}
        return json.dumps(
            {"schema": 1, "number": number, "path": self.path, "files": files, "beat": dict(self.beat)}
        ).encode()


CLOSING: Final = json.dumps({"schema": 1, "closes": True}).encode()
"""Stored in the place of a candidate, it ends the session."""

Name = Annotated[str, Field(max_length=200)]


class _FromMachine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class CandidateCase(_FromMachine):
    """One measured case of a candidate; `file` holds its rows."""

    case_id: CaseId
    file: Annotated[str, Field(pattern=r"^case-[0-9]{1,5}\.csv$")]
    skipped: dict[Name, Annotated[str, Field(max_length=1000)]] = {}
    stopped: dict[Name, Name] = {}


class CandidateVerdict(_FromMachine):
    """What a machine says about a candidate. `reason` is why it could not be judged at all."""

    number: int
    reason: Annotated[str, Field(max_length=1000)] = ""
    kernels: Annotated[tuple[Name, ...], Field(max_length=MOST_NAMES)] = ()
    baselines: Annotated[tuple[Name, ...], Field(max_length=MOST_NAMES)] = ()
    cases: Annotated[tuple[CandidateCase, ...], Field(max_length=MOST_CASES)] = ()
    seconds: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    def fault(self, kernel: str) -> str:
        """Why a kernel was not timed in a case; empty where it was timed in all."""
        return next((clean_line(case.skipped[kernel], 400) for case in self.cases if kernel in case.skipped), "")

    @property
    def dropped(self) -> bool:
        """Whether it lost a race, so that it was not measured further."""
        return any("race" in case.stopped.values() for case in self.cases)


def parse_verdict(data: bytes, number: int) -> CandidateVerdict:
    """The verdict in an object. Raises `ResultsUnreadable`."""
    try:
        verdict = CandidateVerdict.model_validate_json(data)
    except ValidationError as exc:
        raise ResultsUnreadable(
            f"the verdict on candidate {number} cannot be read: {exc.error_count()} faults"
        ) from exc
    if verdict.number != number:
        raise ResultsUnreadable(f"the verdict on candidate {number} is about candidate {verdict.number}")
    return verdict


def time_refusal(deadline: datetime, now: datetime, taken_s: Sequence[float]) -> str:
    """Why there is no time for one more candidate before the machine's deadline, which its hold pays for; empty where
    there is. `taken_s` has the seconds that earlier candidates took."""
    needed = timedelta(seconds=END_S + 1.5 * max(taken_s, default=UNSEEN_S))
    if now + needed <= deadline:
        return ""
    seconds = max(0.0, (deadline - now).total_seconds())
    needed_s = needed.total_seconds()
    return f"{seconds:.0f} s are left of what the hold pays for, and one more candidate needs {needed_s:.0f} s"


def session_settings(harness: Mapping[str, Any], idle_s: float) -> dict[str, Any]:
    """The harness's part of a run spec, for a session."""
    return {**harness, "implementations": ["*"], "session": {"idle_s": idle_s}}
