"""The shape of what each command prints with --json. Keys are added, never renamed or taken away; dollars are decimal
strings, times ISO 8601 in UTC. docs/schema/ is made of these, and the tests hold real output against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from orchestrator.cli.shapes_of_fleets import FLEETS
from orchestrator.cli.shapes_of_images import ImageBuilt, ImageGone, ImageJudged, Images
from orchestrator.cli.shapes_of_money import Budget, CapsSet, CostAdded, Costs, CostTakenBack, Prices, Rebuilt, Usd
from orchestrator.cli.shapes_of_pages import Profiled, SiteMade
from orchestrator.core.run.status import StatusLine

Time = str


@dataclass
class ErrorDetail:
    kind: str
    message: str
    hint: str | None
    exit_code: int


@dataclass
class Failed:
    """What any command prints instead, where an error stood in its way."""

    schema: Literal[1]
    error: ErrorDetail


@dataclass
class RunDocument:
    """A run: `launch`, `stop` and `status RUN`."""

    schema: Literal[1]
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
    vms: list[dict[str, Any]]
    phases: list[dict[str, Any]]


@dataclass
class Machine:
    name: str
    zone: str
    status: str
    machine_type: str
    labels: dict[str, str]
    run_id: str | None
    orphan: bool
    reason: str
    flags: list[str]
    created_at: Time
    deadline_at: Time | None
    usd_per_hour: Usd | None
    cost_usd: Usd | None


@dataclass
class Status:
    """Every run, and the machines alive now; a run alone is a RunDocument."""

    schema: Literal[1]
    mode: str
    prices_simulated: bool
    runs: list[StatusLine]
    instances: list[Machine] | None
    left_out: dict[str, str]


@dataclass
class Plan:
    schema: Literal[1]
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
    offers: list[dict[str, Any]]
    headroom_usd: dict[str, Usd]
    notices: list[str]
    settings: dict[str, Any]
    harness: dict[str, Any]
    fallbacks: list[dict[str, Any]]


@dataclass
class Check:
    name: str
    area: str
    level: Literal["ok", "warn", "fail", "skipped"]
    why: str
    remedy: str
    fixable: bool
    seconds: float


@dataclass
class Doctor:
    schema: Literal[1]
    mode: str
    project: str
    bucket: str
    exit_code: int
    counts: dict[str, int]
    checks: list[Check]


@dataclass
class SetUpStep:
    step: str
    text: str
    done: bool


@dataclass
class SetUp:
    schema: Literal[1]
    project: str
    bucket: str
    steps: list[SetUpStep]
    form: Literal["gcloud", "terraform"] | None = None
    text: str | None = None


@dataclass
class Fetched:
    run_id: str
    state: str
    complete: bool
    cases: int
    cases_total: int
    measurements: int
    headlines: list[str]


@dataclass
class Written:
    """The report's own document, and the files that were written."""

    files: list[str]


@dataclass
class Logs:
    schema: Literal[1]
    run_id: str
    source: str
    text: str


@dataclass
class Command:
    schema: Literal[1]
    run_id: str
    command: list[str]


@dataclass
class Cases:
    schema: Literal[1]
    run_id: str
    cases: list[str]


@dataclass
class Diagnosis:
    schema: Literal[1]
    run_id: str
    state: str
    cause: str | None
    detail: str
    remedy: str
    lines: list[str]


@dataclass
class Compared:
    schema: Literal[2]
    tolerance_percent: float
    comparisons: list[dict[str, Any]]
    without_baseline: list[str]


@dataclass
class History:
    case_id: str
    implementation: str
    relative_to: str
    points: list[dict[str, Any]]
    left_out: int
    older: bool


@dataclass
class Reaped:
    schema: Literal[1]
    mode: str
    deleted: int
    machines: list[Machine]
    failed: list[dict[str, str]]


@dataclass
class Baseline:
    run_id: str
    device: str
    git_commit: str | None
    set_at: Time
    set_by: str
    fingerprint: dict[str, Any]


@dataclass
class BaselineSet(Baseline):
    schema: Literal[1]
    name: str


@dataclass
class Baselines:
    schema: Literal[1]
    baselines: list[Baseline]


@dataclass
class BaselinesGone:
    schema: Literal[1]
    name: str
    removed: list[Baseline]


@dataclass
class Configs:
    schema: Literal[1]
    configs: list[dict[str, str]]


@dataclass
class ConfigShown:
    schema: Literal[1]
    name: str
    text: str
    values: dict[str, Any]


@dataclass
class ConfigKeys:
    schema: Literal[1]
    keys: list[dict[str, Any]]


@dataclass
class NewFile:
    schema: Literal[1]
    path: str


@dataclass
class CloudStarted:
    schema: Literal[1]
    compute: str
    storage: str
    bucket: str


@dataclass
class CloudStopped:
    schema: Literal[1]
    stopped: bool


@dataclass
class CloudStatus:
    schema: Literal[1]
    running: bool
    instances: list[dict[str, Any]]


@dataclass
class CloudBill:
    schema: Literal[1]
    usd: Usd
    rows: list[dict[str, Any]]


@dataclass
class CloudWeather:
    schema: Literal[1]
    faults: list[dict[str, Any]]


@dataclass
class Manual:
    schema: Literal[1]
    format: Literal["roff"]
    text: str


@dataclass
class SchemaShown:
    """A JSON Schema, draft 2020-12."""

    title: str


SHAPES: Final[dict[str, Any]] = {
    "baseline list": Baselines,
    "baseline rm": BaselinesGone,
    "baseline set": BaselineSet,
    "baseline show": Baselines,
    "budget": Budget,
    "budget rebuild": Rebuilt,
    "budget set": CapsSet,
    "cases": Cases,
    "cloud bill": CloudBill,
    "cloud preempt": dict[str, Any],
    "cloud start": CloudStarted,
    "cloud status": CloudStatus,
    "cloud stop": CloudStopped,
    "cloud weather": CloudWeather,
    "compare": Compared,
    "config keys": ConfigKeys,
    "config list": Configs,
    "config show": ConfigShown,
    "costs": Costs,
    "costs add": CostAdded,
    "costs rm": CostTakenBack,
    "diagnose": Diagnosis,
    "doctor": Doctor,
    "error": Failed,
    "fetch": Fetched,
    **FLEETS,
    "history": History,
    "image build": ImageBuilt,
    "image list": Images,
    "image rm": ImageGone,
    "image validate": ImageJudged,
    "init": SetUp,
    "launch": RunDocument,
    "logs": Logs,
    "man": Manual,
    "new": NewFile,
    "plan": Plan,
    "prices": Prices,
    "profile": Profiled,
    "reap": Reaped,
    "report": Written,
    "schema": SchemaShown,
    "site": SiteMade,
    "ssh": Command,
    "status": Status,
    "stop": RunDocument,
}
"""By the words that call a command; `error` is what any of them prints where it failed."""


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints."""
    made = TypeAdapter(SHAPES[command]).json_schema()
    about = f"bench {command} --json" if command != "error" else "any command with --json, where it failed"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": about}
