"""What a bucket has about one run, as bytes that are not checked yet; the page of the run is made from them."""

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
