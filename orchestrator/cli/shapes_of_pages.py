"""The shapes of what commands print that make pages: `bench profile`, `bench site`; see `shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass
class ProfiledCall:
    """One implementation on one case. `tool` is null where it was not profiled, and `reason` says why."""

    case_id: str
    implementation: str
    tool: str | None
    why_not_ncu: str | None
    reason: str | None
    time_us: float | None
    intensity: float | None
    tflops: float | None
    figures: dict[str, str]
    hints: list[str]
    operations: list[dict[str, Any]]
    files: list[str]


@dataclass
class Profiled:
    schema: Literal[1]
    run_id: str
    device: str
    set: str
    profiles: list[ProfiledCall]
    files: list[str]


@dataclass
class SiteMade:
    """`index` is the page to open, `url` where --serve shows it; `published` counts pages stored in the bucket."""

    schema: Literal[1]
    folder: str
    runs: int
    live: int
    read: int
    pages: int
    written: int
    removed: int
    seconds: float
    published: int | None = None
    index: str | None = None
    url: str | None = None
