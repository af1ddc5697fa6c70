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


class AgentTools(Numbered):
    """The tools of `bench mcp` and what each is for."""

    tools: dict[str, str]
