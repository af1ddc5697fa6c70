"""The types of what sessions print: `bench watch`, `bench tune`, and the tools of `bench mcp`."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


class VersionDocument(TypedDict):
    """One version of the file. Ratios and times are null where they were not measured."""

    schema: Literal[1]
    version: int
    verdict: str
    kernel: str
    baseline: str
    time_us: float | None
    ratio: dict[str, float] | None
    reason: str
    seconds: float
    faults: dict[str, str]
    usd: str


class RankDocument(VersionDocument):
    """A version among all: its rank lies between `ranks`; `improves` says that it was better than all before it."""

    ranks: tuple[int, int]
    improves: bool


class LeaderboardDocument(TypedDict):
    """The versions of a session, best first."""

    schema: Literal[1]
    versions: list[RankDocument]
    improvements: int
    cost_usd: str
    usd_per_improvement: str | None


class PlanOutline(TypedDict):
    """The part of a plan that an agent needs, with the keys of `bench plan --json`."""

    schema: Literal[1]
    gpu: str
    mode: str
    ceiling_usd: str
    usd_per_hour: str
    ttl_s: int
    cases: list[str]
    implementations: list[str]
    notices: list[str]


class BudgetLeft(TypedDict):
    """Dollars as decimal strings. `simulated` says that none of them is real."""

    schema: Literal[1]
    max_usd: str
    spent_usd: str
    held_usd: str
    left_usd: str
    simulated: bool


class ProfileText(TypedDict):
    """What `bench profile --json` prints, and the same as text."""

    schema: Literal[1]
    run_id: str
    device: str
    set: str
    profiles: list[dict[str, Any]]
    text: str


class TuneDocument(TypedDict):
    """What a search came to."""

    schema: Literal[1]
    session: str
    tried: int
    dropped: int
    left_out: int
    stopped: str
    winner: dict[str, Any] | None
    runners_up: list[dict[str, Any]]
    remembered: dict[str, Any]
    applied: dict[str, Any]


class AgentTools(TypedDict):
    """The tools of `bench mcp` and what each is for."""

    schema: Literal[1]
    tools: dict[str, str]
