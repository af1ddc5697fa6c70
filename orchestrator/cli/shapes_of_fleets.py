"""The shapes of what `bench fleet` prints; see `shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from orchestrator.cli.shaping import Document, Row, Rows, Usd, shape
from orchestrator.core.fleet.state import State

Engine = Literal["cloud", "slurm", "batch", "hosts"]


@dataclass
class PlannedJob:
    gpu: str
    children: int
    machines: int
    usd_per_hour: Usd
    hold_usd: Usd
    expected_usd: Usd
    expected_hours: float


@dataclass
class Room:
    """How many machines more the quotas of a region leave room for, and the tightest of them."""

    gpu: str
    region: str
    room: int
    metric: str


@dataclass
class FleetPlanned(Document):
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
    quotas: list[Room]
    notices: list[str]


@dataclass
class FleetJob:
    name: str
    state: str
    running: int
    queued: int
    reason: str


@dataclass
class FleetChild:
    child: int
    run_id: str
    gpu: str
    workload: str
    settings: dict[str, str]
    repeat: int
    chunk: int
    state: State
    attempt: int
    machine: str
    device: str
    cases_done: int
    cases_total: int
    cost_usd: Usd
    seconds: int
    reason: str


@dataclass
class FleetSeen(Document):
    """A fleet: `launch`, `status`, `watch`, `stop`, `resume` and `retry`."""

    fleet: str
    engine: Engine
    mode: str
    created_at: str
    ends_at: str
    over: bool
    paused: str
    stopped: str
    counts: dict[State, int]
    hold_usd: Usd
    cost_usd: Usd
    jobs: list[FleetJob]
    children: list[FleetChild]


@dataclass
class FleetFetched(Document):
    fleet: str
    folder: str
    children: int
    rows: int
    downloaded: int
    already_there: int
    left_out: dict[str, str]


@dataclass
class SqlColumn:
    """A column of an answer, and its type in DuckDB's words."""

    name: str
    type: str


@dataclass
class FleetAsked(FleetFetched):
    """What was fetched, as `fleet fetch` tells it, and the answer: rows of cells in the order of the columns."""

    columns: list[SqlColumn]
    answer: list[list[Any]]


@dataclass
class FleetAxis:
    """Times along an axis of the sweep: points of each device and implementation."""

    axis: str
    values: list[str]
    fixed: dict[str, str]
    timed: str
    same_cases: bool
    lines: Rows


@dataclass
class GpuCost:
    gpu: str
    children: int
    hours: float
    usd: Usd


FLEETS: Final[dict[str, Any]] = {
    "fleet check-batch": shape(
        "What `check-batch` saw: an answer by name, with whether it is as it must be.",
        project=str,
        checked_at=str,
        region=str,
        answers=dict[str, Row],
        passed=bool,
    ),
    "fleet costs": shape(fleet=str, gpus=list[GpuCost], cost_usd=Usd, held_usd=Usd, prices_simulated=bool),
    "fleet fetch": FleetFetched,
    "fleet launch": FleetSeen,
    "fleet ls": shape(fleets=list[dict[str, str]]),
    "fleet plan": FleetPlanned,
    "fleet report": shape(fleet=str, configurations=Rows, axes=list[FleetAxis], files=list[str]),
    "fleet resume": FleetSeen,
    "fleet retry": FleetSeen,
    "fleet sql": FleetAsked,
    "fleet status": FleetSeen,
    "fleet stop": FleetSeen,
    "fleet watch": FleetSeen,
}
