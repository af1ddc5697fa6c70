"""The types of what each command prints with --json.

What a command builds itself is a pydantic model, made of the object that it shows (`Document.of`). What other parts
build (runs, plans, reports, sessions) is described by a `TypedDict`. Keys are added, never renamed or taken away;
dollars are decimal strings, times ISO 8601 in UTC. docs/schema/ is made of these. Commands load this module when JSON
is asked for (`terminal.documents`)."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from orchestrator.cli.shapes import (
    AgentTools,
    Attribute,
    BaselineDocument,
    BaselineSet,
    Document,
    Engine,
    ErrorDocument,
    FleetAxis,
    NumberOrNull,
    OutputDocument,
    PlanDocument,
    Row,
    Rows,
    RunDocument,
    TextOrNull,
    Time,
    Usd,
    UsdPerMonth,
    shape,
)
from orchestrator.core.doctor.verdicts import CheckLevel
from orchestrator.core.fleet.state import State
from orchestrator.core.images import short_url
from orchestrator.core.run.status import StatusLine

ImageState = Literal["valid", "unproven", "stale", "unusable"]


class ImageDocument(Document):
    """What is known of a prepared image, whatever the cloud says of it today."""

    name: str
    gpu: str
    base: Annotated[str, BeforeValidator(short_url)]
    torch: str
    driver: str
    kernel: str
    ncu: str
    archive_bytes: int
    usd_per_month: Annotated[UsdPerMonth, Attribute("archive_bytes")]
    usd_until_expiry: Annotated[Usd, Attribute("usd")]
    created_at: Time
    expires_at: Time
    validated_at: Time | None
    run_id: Annotated[str, Attribute("run")]
    requirements: list[str]


class ImageBuilt(ImageDocument):
    schema_: Literal[1] = Field(alias="schema")


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


Hours = Annotated[float, BeforeValidator(lambda seconds: round(seconds / 3600, 2))]


class PlannedJob(Document):
    gpu: str
    children: int
    machines: int
    usd_per_hour: Usd
    hold_usd: Annotated[Usd, Attribute("hold")]
    expected_usd: Usd
    expected_hours: Annotated[Hours, Attribute("expected_s")]


class RoomDocument(Document):
    """How many machines more the quotas of a region leave room for, and the tightest of them."""

    gpu: str
    region: str
    room: int
    metric: str


class FleetPlanned(OutputDocument):
    engine: Annotated[Engine, Attribute("sweep.engine")]
    children: int
    configurations: int
    repeats: Annotated[int, Attribute("sweep.repeats")]
    cases: int
    hold_usd: Usd
    expected_usd: Usd
    expected_hours: Annotated[Hours, Attribute("expected_s")]
    wall_minutes: Annotated[int, Attribute("sweep.wall_minutes")]
    jobs: list[PlannedJob]
    quotas: list[RoomDocument]
    notices: list[str]


class FleetJob(Document):
    name: str
    state: str
    running: int
    queued: Annotated[int, Attribute("pending")]
    reason: str


class FleetChild(Document):
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
    cost_usd: Annotated[Usd, Attribute("usd")]
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


class SqlColumn(Document):
    """A column of an answer, and its type in DuckDB's words."""

    name: str
    type: str


class FleetAsked(FleetFetched):
    """What was fetched, as `fleet fetch` tells it, and the answer: rows of cells in the order of the columns."""

    columns: list[SqlColumn]
    answer: list[list[Any]]


class GpuCost(Document):
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


class MachineOptions(Document):
    name: Annotated[str, Attribute("instance.name")]
    zone: Annotated[str, Attribute("instance.zone")]
    status: Annotated[str, Attribute("instance.status")]
    machine_type: Annotated[str, Attribute("instance.machine_type")]
    labels: Annotated[dict[str, str], Attribute("instance.labels")]
    run_id: str | None
    orphan: bool
    reason: Annotated[str, Attribute("verdict.reason")]
    flags: list[str]
    created_at: Annotated[Time, Attribute("instance.created_at")]
    deadline_at: Annotated[Time | None, Attribute("instance.deadline_at")]
    usd_per_hour: Usd | None
    cost_usd: Usd | None


class AdvisedMachine(MachineOptions):
    """`keep_or_stop` says whether a machine of a live run is worth its price."""

    keep_or_stop: Row | None


class OpenHoldDocument(Document):
    """Dollars that are held for something that is not an open run of the list, and the command that shows or releases
    them. `settles_at`: when `bench reap --yes` may settle it, where its run or fleet has left nothing else."""

    kind: Literal["run", "fleet", "image_build", "image_storage"]
    name: str
    held_usd: Annotated[Usd, Attribute("usd")]
    held_at: Annotated[Time, Attribute("since")]
    prices_simulated: Annotated[bool, Attribute("simulated")]
    remedy: str
    settles_at: Time | None


class Status(OutputDocument):
    """Every run, the machines alive now (null: the cloud did not answer), and the holds of anything else (null: the
    ledger cannot be read); a run alone is a RunDocument."""

    mode: str
    prices_simulated: bool
    runs: list[StatusLine]
    instances: list[AdvisedMachine] | None
    holds: list[OpenHoldDocument] | None
    left_out: dict[str, str]


class CheckDocument(Document):
    name: Annotated[str, Attribute("check.name")]
    area: Annotated[str, Attribute("check.area")]
    level: Annotated[CheckLevel, Attribute("verdict.level")]
    why: Annotated[str, Attribute("verdict.why")]
    remedy: Annotated[str, Attribute("verdict.remedy")]
    fixable: Annotated[bool, BeforeValidator(bool), Attribute("verdict.steps")]
    seconds: Annotated[float, BeforeValidator(lambda seconds: round(seconds, 3))]


class DoctorDocument(OutputDocument):
    mode: str
    project: str
    bucket: str
    exit_code: int
    counts: dict[str, int]
    checks: list[CheckDocument]
    host: str | None = None


class ReapedHold(Document):
    hold: Annotated[str, Attribute("key")]
    why: Annotated[str, Attribute("what")]


class ReapFailed(Document):
    what: str
    why: Annotated[str, BeforeValidator(str), Attribute("error")]


class ReapedImage(Document):
    name: Annotated[str, Attribute("image.name")]
    status: Annotated[str, Attribute("image.status")]
    why: str


class ReapDocument(OutputDocument):
    mode: str
    deleted: int
    machines: list[MachineOptions]
    images: list[ReapedImage]
    images_deleted: list[str]
    settled: list[ReapedHold]
    failed: list[ReapFailed]


class SetUpStep(Document):
    step: str
    text: str
    done: bool


class SetUp(OutputDocument):
    project: str
    bucket: str
    steps: list[SetUpStep]
    form: Literal["gcloud", "terraform"] | None = None
    text: str | None = None


class ProfiledCall(Document):
    """One implementation on one case. `tool` is null where it was not profiled, and `reason` says why."""

    case_id: str
    implementation: str
    tool: TextOrNull
    why_not_ncu: TextOrNull
    reason: TextOrNull
    time_us: NumberOrNull
    intensity: NumberOrNull
    tflops: NumberOrNull
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
    published: int | None = None
    index: str | None = None
    url: str | None = None


class WindowDocument(Document):
    key: str
    spent_usd: Annotated[Usd, Attribute("spent")]
    held_usd: Annotated[Usd, Attribute("held")]


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
    prices_simulated: bool


class LedgerRun(Document):
    run_id: str
    gpu: str
    held_at: Time
    hold_usd: Usd
    settled_usd: Usd | None


class LedgerCost(Document):
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
    prices_simulated: bool


class VersionDocument(OutputDocument):
    """One version of the file. Ratios and times are null where they were not measured."""

    version: int
    verdict: str
    kernel: str
    baseline: str
    time_us: float | None
    ratio: Annotated[
        dict[str, float] | None, BeforeValidator(lambda ratio: asdict(ratio) if is_dataclass(ratio) else ratio)
    ]
    reason: str
    seconds: float
    faults: dict[str, str]
    usd: Usd


class RankDocument(VersionDocument):
    """A version among all: its rank lies between `ranks`; `improves` says that it was better than all before it."""

    ranks: tuple[int, int]
    improves: bool


def _ranked(rank: Any) -> Any:
    if isinstance(rank, dict):
        return rank
    return RankDocument.of(rank.line, schema=1, ranks=(rank.first, rank.last), improves=rank.improves)


class LeaderboardDocument(OutputDocument):
    """The versions of a session, best first."""

    versions: Annotated[
        list[RankDocument], BeforeValidator(lambda ranks: [*map(_ranked, ranks)]), Attribute("standings")
    ]
    improvements: int
    cost_usd: Usd
    usd_per_improvement: Usd | None


Version = Annotated[VersionDocument | None, BeforeValidator(lambda line: line and VersionDocument.of(line, schema=1))]


class TrialDocument(Document):
    """One combination of parameters: its line in the search, and the one to publish, from fresh samples."""

    values: dict[str, Any]
    search: Annotated[Version, Attribute("line")]
    published: Annotated[Version, Attribute("again")]


Trials = Annotated[list[TrialDocument], BeforeValidator(lambda trials: [TrialDocument.of(one) for one in trials])]


class TuneDocument(OutputDocument):
    """What a search came to."""

    session: str
    tried: int
    dropped: int
    left_out: int
    stopped: str
    winner: Annotated[TrialDocument | None, BeforeValidator(lambda trial: trial and TrialDocument.of(trial))]
    runners_up: Trials
    remembered: dict[str, Any]
    applied: dict[str, Any]


BASELINES: Final = shape(baselines=list[BaselineDocument])

SHAPES: Final[dict[str, Any]] = {
    "baseline list": BASELINES,
    "baseline rm": shape(name=str, removed=list[BaselineDocument]),
    "baseline set": BaselineSet,
    "baseline show": BASELINES,
    "budget": BudgetDocument,
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
    "costs": CostsDocument,
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
        currency=str, as_of=str, age_days=int, stale=bool, sources=dict[str, str], trusted=list[str], prices=Rows,
        history=Rows,
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
