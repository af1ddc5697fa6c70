"""The types of what each command prints with --json: those that build a document return one, so that mypy holds the two
together. Keys are added, never renamed or taken away; dollars are decimal
strings, times ISO 8601 in UTC. docs/schema/ is made of these, and the tests hold real output against them."""

from __future__ import annotations

from typing import Any, Final, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from orchestrator.cli.session_documents import AgentTools, TuneDocument, VersionDocument
from orchestrator.core.doctor.verdicts import CheckLevel
from orchestrator.core.fleet.state import State
from orchestrator.core.run.status import StatusLine

# What the shapes of documents are made of; see `shapes`.


Usd = str
"""Dollars as a decimal string."""
Row = dict[str, Any]
Rows = list[Row]


class OutputDocument(TypedDict):
    """What a command prints has the number of its shape in it."""

    schema: Literal[1]


def shape(about: str = "", *, schema: Any = Literal[1], **fields: Any) -> type:
    """The shape of a document with these fields; `schema` is the type of its number, None where it has none."""
    numbered = {"schema": schema} if schema is not None else {}
    made: type = TypedDict("Shape", {**numbered, **fields})  # type: ignore[misc]
    made.__doc__ = about or None
    return made


# The shapes of what `bench image` prints; see `shapes`.


ImageState = Literal["valid", "unproven", "stale", "unusable"]


class ImageDocument(TypedDict):
    """What is known of a prepared image, whatever the cloud says of it today."""

    name: str
    gpu: str
    base: str
    torch: str
    driver: str
    kernel: str
    ncu: str
    archive_bytes: int
    usd_per_month: Usd
    usd_until_expiry: Usd
    created_at: str
    expires_at: str
    validated_at: str | None
    run_id: str
    requirements: list[str]


class ImageBuilt(ImageDocument):
    schema: Literal[1]


class ImageJudged(ImageBuilt):
    state: ImageState
    why: str


class ImageGone(ImageBuilt):
    cost_usd: Usd


class ImageListed(ImageDocument):
    state: ImageState
    why: str
    age_s: int
    minutes_saved: float | None


IMAGES: Final[dict[str, Any]] = {
    "image build": ImageBuilt,
    "image list": shape(images=list[ImageListed], left_out=dict[str, str], prices_simulated=bool),
    "image rm": ImageGone,
    "image validate": ImageJudged,
}


# The shapes of what `bench fleet` prints; see `shapes`.


Engine = Literal["cloud", "slurm", "batch", "hosts"]


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


class FleetPlanned(OutputDocument):
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


class FleetJob(TypedDict):
    name: str
    state: str
    running: int
    queued: int
    reason: str


class FleetChild(TypedDict):
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


class FleetSeen(OutputDocument):
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


class FleetFetched(OutputDocument):
    fleet: str
    folder: str
    children: int
    rows: int
    downloaded: int
    already_there: int
    left_out: dict[str, str]


class SqlColumn(TypedDict):
    """A column of an answer, and its type in DuckDB's words."""

    name: str
    type: str


class FleetAsked(FleetFetched):
    """What was fetched, as `fleet fetch` tells it, and the answer: rows of cells in the order of the columns."""

    columns: list[SqlColumn]
    answer: list[list[Any]]


class FleetAxis(TypedDict):
    """Times along an axis of the sweep: points of each device and implementation."""

    axis: str
    values: list[str]
    fixed: dict[str, str]
    timed: str
    same_cases: bool
    lines: Rows


class GpuCost(TypedDict):
    gpu: str
    children: int
    hours: float
    usd: Usd


class FleetCosts(OutputDocument):
    fleet: str
    gpus: list[GpuCost]
    cost_usd: Usd
    held_usd: Usd
    prices_simulated: bool


FLEETS: Final[dict[str, Any]] = {
    "fleet check-batch": shape(
        "What `check-batch` saw: an answer by name, with whether it is as it must be.",
        project=str,
        checked_at=str,
        region=str,
        answers=dict[str, Row],
        passed=bool,
    ),
    "fleet costs": FleetCosts,
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


Time = str


class ErrorDetail(TypedDict):
    kind: str
    message: str
    hint: str | None
    exit_code: int


class ErrorDocument(OutputDocument):
    """What any command prints instead, where an error stood in its way."""

    error: ErrorDetail


class RunDocument(OutputDocument):
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


class MachineOptions(TypedDict):
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


class OpenHoldDocument(TypedDict):
    """Dollars that are held for something that is not an open run of the list, and the command that shows or releases
    them. `settles_at`: when `bench reap --yes` may settle it, where its run or fleet has left nothing else."""

    kind: Literal["run", "fleet", "image_build", "image_storage"]
    name: str
    held_usd: Usd
    held_at: Time
    prices_simulated: bool
    remedy: str
    settles_at: Time | None


class Status(OutputDocument):
    """Every run, the machines alive now (null: the cloud did not answer), and the holds of anything else (null: the
    ledger cannot be read); a run alone is a RunDocument."""

    mode: str
    prices_simulated: bool
    runs: list[StatusLine]
    instances: list[MachineOptions] | None
    holds: list[OpenHoldDocument] | None
    left_out: dict[str, str]


class PlanDocument(OutputDocument):
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


class CheckDocument(TypedDict):
    name: str
    area: str
    level: CheckLevel
    why: str
    remedy: str
    fixable: bool
    seconds: float


class DoctorDocument(OutputDocument):
    mode: str
    project: str
    bucket: str
    exit_code: int
    counts: dict[str, int]
    checks: list[CheckDocument]


class ReapedHold(TypedDict):
    hold: str
    why: str


class ReapFailed(TypedDict):
    what: str
    why: str


class ReapedImage(TypedDict):
    name: str
    status: str
    why: str


class ReapDocument(OutputDocument):
    mode: str
    deleted: int
    machines: list[MachineOptions]
    images: list[ReapedImage]
    images_deleted: list[str]
    settled: list[ReapedHold]
    failed: list[ReapFailed]


class SetUpStep(TypedDict):
    step: str
    text: str
    done: bool


class SetUp(OutputDocument):
    project: str
    bucket: str
    steps: list[SetUpStep]
    form: NotRequired[Literal["gcloud", "terraform"] | None]
    text: NotRequired[str | None]


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


class ProfiledCall(TypedDict):
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


class ProfileDocument(OutputDocument):
    run_id: str
    device: str
    set: str
    profiles: list[ProfiledCall]


class ProfileFiles(ProfileDocument):
    files: list[str]


class SiteMade(OutputDocument):
    """`index` is the page to open, `url` where --serve shows it; `published` counts pages stored in the bucket."""

    folder: str
    runs: int
    live: int
    read: int
    pages: int
    written: int
    removed: int
    seconds: float
    published: NotRequired[int | None]
    index: NotRequired[str | None]
    url: NotRequired[str | None]


class WindowDocument(TypedDict):
    key: str
    spent_usd: Usd
    held_usd: Usd


class CappedWindow(WindowDocument):
    window: str
    cap_usd: Usd | None
    left_usd: Usd | None


class BudgetDocument(OutputDocument):
    config: str
    windows: list[CappedWindow]
    practice_windows: list[CappedWindow] | None
    caps_of_the_bucket: dict[str, str | None] | None
    alerts_at_percent: list[int]
    alerted: list[str]


class BudgetWithPrices(BudgetDocument):
    prices_simulated: bool


class LedgerRun(TypedDict):
    run_id: str
    gpu: str
    held_at: Time
    hold_usd: Usd
    settled_usd: Usd | None


class LedgerCost(TypedDict):
    """`takes_back` names the cost that this one cancels."""

    id: str
    category: str
    usd: Usd
    note: str
    at: Time
    takes_back: str


class CostsDocument(OutputDocument):
    runs: list[LedgerRun]
    costs: list[LedgerCost]
    older: int
    windows: dict[str, WindowDocument]
    practice_windows: dict[str, WindowDocument] | None


class CostsWithPrices(CostsDocument):
    prices_simulated: bool


BASELINES: Final = shape(baselines=list[BaselineDocument])

SHAPES: Final[dict[str, Any]] = {
    "baseline list": BASELINES,
    "baseline rm": shape(name=str, removed=list[BaselineDocument]),
    "baseline set": BaselineSet,
    "baseline show": BASELINES,
    "budget": BudgetWithPrices,
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
    "costs": CostsWithPrices,
    "costs add": shape(id=str, category=str, usd=Usd, note=str),
    "costs rm": shape(id=str, takes_back=str, usd=Usd, note=str),
    "demo": RunDocument,
    "diagnose": shape(run_id=str, state=str, cause=str | None, detail=str, remedy=str, lines=list[str]),
    "docs": shape(pages=list[str], text=str),
    "doctor": DoctorDocument,
    "error": ErrorDocument,
    "fetch": shape(
        schema=None,
        run_id=str,
        state=str,
        complete=bool,
        cases=int,
        cases_total=int,
        measurements=int,
        headlines=list[str],
        wrong=list[str],
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
    "mcp": AgentTools,
    "new": shape(path=str),
    "plan": PlanDocument,
    "prices": shape(
        currency=str, as_of=str, age_days=int, stale=bool, sources=dict[str, str], trusted=list[str], prices=Rows
    ),
    "profile": ProfileFiles,
    "reap": ReapDocument,
    "report": shape("The report's own document, and the files that were written.", schema=None, files=list[str]),
    "schema": shape("A JSON Schema, draft 2020-12.", schema=None, title=str),
    "site": SiteMade,
    "ssh": shape(run_id=str, command=list[str]),
    "status": Status | RunDocument,
    "stop": RunDocument,
    "tune": TuneDocument,
    "watch": VersionDocument,
}  # fmt: skip
"""By the words that call a command; `error` is what any of them prints where it failed."""


def schema_of(command: str) -> Row:
    """The JSON Schema of what a command prints."""
    made = TypeAdapter(SHAPES[command]).json_schema()
    about = f"bench {command} --json" if command != "error" else "any command with --json, where it failed"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": about}
