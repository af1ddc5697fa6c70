"""The shape of what each command prints with --json. Keys are added, never renamed or taken away; dollars are decimal
strings, times ISO 8601 in UTC. docs/schema/ is made of these, and the tests hold real output against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from orchestrator.cli.shapes_of_fleets import FLEETS
from orchestrator.cli.shapes_of_images import IMAGES
from orchestrator.cli.shaping import Document, Row, Rows, Usd, shape
from orchestrator.core.run.status import StatusLine

Time = str


@dataclass
class ErrorDetail:
    kind: str
    message: str
    hint: str | None
    exit_code: int


@dataclass
class RunDocument(Document):
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
class OpenHold:
    """Dollars that are held for something that is not an open run of the list, and the command that shows or releases
    them. `settles_at`: when `bench reap --yes` may settle it, where its run or fleet has left nothing else."""

    kind: Literal["run", "fleet", "image_build", "image_storage"]
    name: str
    held_usd: Usd
    held_at: Time
    prices_simulated: bool
    remedy: str
    settles_at: Time | None


@dataclass
class Status(Document):
    """Every run, the machines alive now (null: the cloud did not answer), and the holds of anything else (null: the
    ledger cannot be read); a run alone is a RunDocument."""

    mode: str
    prices_simulated: bool
    runs: list[StatusLine]
    instances: list[Machine] | None
    holds: list[OpenHold] | None
    left_out: dict[str, str]


@dataclass
class Plan(Document):
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
class SetUpStep:
    step: str
    text: str
    done: bool


@dataclass
class SetUp(Document):
    project: str
    bucket: str
    steps: list[SetUpStep]
    form: Literal["gcloud", "terraform"] | None = None
    text: str | None = None


@dataclass
class Baseline:
    run_id: str
    device: str
    git_commit: str | None
    set_at: Time
    set_by: str
    fingerprint: Row


@dataclass
class BaselineSet(Baseline):
    schema: Literal[1]
    name: str


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
    operations: Rows
    files: list[str]


@dataclass
class SiteMade(Document):
    """`index` is the page to open, `url` where --serve shows it; `published` counts pages stored in the bucket."""

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


@dataclass
class Window:
    key: str
    spent_usd: Usd
    held_usd: Usd


BASELINES: Final = shape(baselines=list[Baseline])

SHAPES: Final[dict[str, Any]] = {
    "baseline list": BASELINES,
    "baseline rm": shape(name=str, removed=list[Baseline]),
    "baseline set": BaselineSet,
    "baseline show": BASELINES,
    "budget": shape(
        config=str,
        windows=Rows,
        caps_of_the_bucket=Row | None,
        alerts_at_percent=list[int],
        alerted=list[str],
        prices_simulated=bool,
    ),
    "budget rebuild": shape(added=list[str], put_aside=str | None),
    "budget set": shape(caps=Row | None),
    "cases": shape(run_id=str, cases=list[str]),
    "cloud bill": shape(usd=Usd, rows=Rows),
    "cloud preempt": Row,
    "cloud start": shape(compute=str, storage=str, bucket=str),
    "cloud status": shape(running=bool, instances=Rows),
    "cloud stop": shape(stopped=bool),
    "cloud weather": shape(faults=Rows),
    "compare": shape(schema=Literal[2], tolerance_percent=float, comparisons=Rows, without_baseline=list[str]),
    "config keys": shape(keys=Rows),
    "config list": shape(configs=list[dict[str, str]]),
    "config show": shape(name=str, text=str, values=Row),
    "costs": shape(runs=Rows, costs=Rows, older=int, windows=dict[str, Window], prices_simulated=bool),
    "costs add": shape(id=str, category=str, usd=Usd, note=str),
    "costs rm": shape(id=str, takes_back=str, usd=Usd, note=str),
    "diagnose": shape(run_id=str, state=str, cause=str | None, detail=str, remedy=str, lines=list[str]),
    "doctor": shape(mode=str, project=str, bucket=str, exit_code=int, counts=dict[str, int], checks=list[Check]),
    "error": shape("What any command prints instead, where an error stood in its way.", error=ErrorDetail),
    "fetch": shape(
        schema=None,
        run_id=str,
        state=str,
        complete=bool,
        cases=int,
        cases_total=int,
        measurements=int,
        headlines=list[str],
    ),
    **FLEETS,
    "history": shape(
        schema=None, case_id=str, implementation=str, relative_to=str | None, points=Rows, left_out=int, older=bool
    ),
    **IMAGES,
    "init": SetUp,
    "launch": RunDocument,
    "logs": shape(run_id=str, source=str, text=str),
    "man": shape(format=Literal["roff"], text=str),
    "new": shape(path=str),
    "plan": Plan,
    "prices": shape(
        currency=str, as_of=str, age_days=int, stale=bool, sources=dict[str, str], trusted=list[str], prices=Rows
    ),
    "profile": shape(run_id=str, device=str, set=str, profiles=list[ProfiledCall], files=list[str]),
    "reap": shape(
        mode=str,
        deleted=int,
        machines=list[Machine],
        settled=list[dict[str, str]],
        failed=list[dict[str, str]],
    ),
    "report": shape("The report's own document, and the files that were written.", schema=None, files=list[str]),
    "schema": shape("A JSON Schema, draft 2020-12.", schema=None, title=str),
    "site": SiteMade,
    "ssh": shape(run_id=str, command=list[str]),
    "status": Status | RunDocument,
    "stop": RunDocument,
}
"""By the words that call a command; `error` is what any of them prints where it failed."""


def schema_of(command: str) -> Row:
    """The JSON Schema of what a command prints."""
    made = TypeAdapter(SHAPES[command]).json_schema()
    about = f"bench {command} --json" if command != "error" else "any command with --json, where it failed"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": about}
