"""The shapes of documents that other parts build and commands print: runs, plans, sessions, errors."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

Usd = str
Time = str
Row = dict[str, Any]
Rows = list[Row]
Engine = Literal["cloud", "slurm", "batch", "hosts"]


class Numbered(TypedDict):
    schema: Literal[1]


def shape(about: str = "", *, schema: Any = Literal[1], **fields: Any) -> type:
    """The shape of a document with these fields; `schema` is the type of its number, None where it has none."""
    numbered = {"schema": schema} if schema is not None else {}
    made: type = TypedDict("Shape", {**numbered, **fields})  # type: ignore[misc]
    made.__doc__ = about or None
    return made


class PlannedJob(TypedDict):
    gpu: str
    children: int
    machines: int
    usd_per_hour: Usd
    hold_usd: Usd
    expected_usd: Usd
    expected_hours: float


class RoomDocument(TypedDict):
    """How many machines more the quotas of a region leave room for, and the tightest of them."""

    gpu: str
    region: str
    room: int
    metric: str


class FleetPlanned(Numbered):
    engine: Engine
    children: int
    configurations: int
    repeats: int
    cases: int
    hold_usd: Usd
    expected_usd: Usd
    expected_hours: float
    wall_minutes: int
    jobs: list[PlannedJob]
    quotas: list[RoomDocument]
    notices: list[str]


class FleetAxis(TypedDict):
    """Times along an axis of the sweep: points of each device and implementation."""

    axis: str
    values: list[str]
    fixed: dict[str, str]
    timed: str
    same_cases: bool
    lines: Rows


class ErrorDetail(TypedDict):
    kind: str
    message: str
    hint: str | None
    exit_code: int


class ErrorDocument(Numbered):
    """What any command prints instead, where an error stood in its way."""

    error: ErrorDetail


class RunDocument(Numbered):
    """A run: `launch`, `stop` and `status RUN`."""

    run_id: str
    state: str
    cases_done: int
    cases_total: int
    cost_usd: Usd
    ceiling_usd: Usd
    settled: bool
    prices_simulated: bool
    config: str
    image: str
    implementations: list[str]
    measurements_per_implementation: int
    vms: Rows
    phases: Rows
    waiting: dict[str, Any] | None


class PlanDocument(Numbered):
    config: str
    gpu: str
    mode: str
    ceiling_usd: Usd
    usd_per_hour: Usd
    ttl_s: int
    attempts: int
    image: str
    cases: list[str]
    measurements_per_implementation: int
    implementations: list[str]
    offers: Rows
    headroom_usd: dict[str, Usd]
    notices: list[str]
    settings: Row
    harness: Row
    fallbacks: Rows


class BaselineDocument(TypedDict):
    run_id: str
    device: str
    git_commit: str | None
    set_at: Time
    set_by: str
    fingerprint: Row


class BaselineSet(BaselineDocument):
    schema: Literal[1]
    name: str


class VersionDocument(Numbered):
    """One version of the file. Ratios and times are null where they were not measured."""

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


class LeaderboardDocument(Numbered):
    """The versions of a session, best first."""

    versions: list[RankDocument]
    improvements: int
    cost_usd: str
    usd_per_improvement: str | None


class PlanOutline(Numbered):
    """The part of a plan that an agent needs, with the keys of `bench plan --json`."""

    gpu: str
    mode: str
    ceiling_usd: str
    usd_per_hour: str
    ttl_s: int
    cases: list[str]
    implementations: list[str]
    notices: list[str]


class BudgetLeft(Numbered):
    """Dollars as decimal strings. `simulated` says that none of them is real."""

    max_usd: str
    spent_usd: str
    held_usd: str
    left_usd: str
    simulated: bool


class ProfileText(Numbered):
    """What `bench profile --json` prints, and the same as text."""

    run_id: str
    device: str
    set: str
    profiles: list[dict[str, Any]]
    text: str


class TuneDocument(Numbered):
    """What a search came to."""

    session: str
    tried: int
    dropped: int
    left_out: int
    stopped: str
    winner: dict[str, Any] | None
    runners_up: list[dict[str, Any]]
    remembered: dict[str, Any]
    applied: dict[str, Any]


class AgentTools(Numbered):
    """The tools of `bench mcp` and what each is for."""

    tools: dict[str, str]
