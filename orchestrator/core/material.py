"""What a bucket holds of one run, as bytes that nobody has judged yet: what a page of it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.run.status import StatusLine


@dataclass(frozen=True, slots=True)
class Material:
    """`body` is the fold of the run's events as a document (`orchestrator.core.run.status.document`); `cases` are the
    files of finished cases, by case id. Empty where there is none. `problem`: why the run could not be read."""

    line: StatusLine
    body: bytes = b""
    environment: bytes = b""
    build: bytes = b""
    cases: Mapping[str, bytes] = field(default_factory=dict)
    problem: str = ""
