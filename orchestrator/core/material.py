"""The objects of one run in a bucket, as bytes that are not checked yet. The page of the run is made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.run.status import StatusLine


@dataclass(frozen=True, slots=True)
class Material:
    """The objects of one run; empty if there is no such object. `body` is the state of the run as a document
    (`orchestrator.core.run.status.document`), and `cases` are the files of finished cases, by case id. `problem` says
    why the run could not be read."""

    line: StatusLine
    body: bytes = b""
    environment: bytes = b""
    build: bytes = b""
    cases: Mapping[str, bytes] = field(default_factory=dict)
    problem: str = ""
