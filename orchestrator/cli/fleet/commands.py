"""`bench fleet`: one sweep on many machines: plan, launch, status, watch, ls, stop, resume, retry, and its results:
fetch, sql, report, costs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.finding import LOCAL, remember_fleets
from orchestrator.cli.config_keys import known_keys
from orchestrator.cli.fleet import trust
from orchestrator.cli.fleet.context import Desk, begin_fleet, configurations, find_fleet, plan_sweep
from orchestrator.cli.fleet.results import costs_document, fetch_fleet, report_fleet, sql
from orchestrator.cli.fleet.trust import Accept
from orchestrator.cli.fleet.view import (
    counts_line,
    document,
    fleets_table,
    gpus_table,
    jobs_table,
    odd_table,
    plan_document,
    plan_lines,
    quota_table,
    seen_lines,
)
from orchestrator.cli.options import FleetName, Json, group_options, known_gpus, options
from orchestrator.cli.terminal import emit_json, hanging, is_stdout_closed, print_answer
from orchestrator.core.errors import BenchError, BudgetExceeded, ConfigError, RunFailed
from orchestrator.core.fleet.batch import QUESTIONS, REQUIRED, GateVerdict
from orchestrator.core.fleet.slurm import waiting_reason
from orchestrator.core.fleet.sweep import Sweep, of_flags, parse_sweep
from orchestrator.core.ledger.unlisted import parse_dollars
from orchestrator.core.names import fleet_id
from orchestrator.core.text import clean_line, count
from orchestrator.runs.fleet.follow import FleetSighting, Follower
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.fleet.planning import FleetPlan
from orchestrator.runs.planning import LaunchOptions, read_file
from orchestrator.store.fleets import FleetRecord, list_fleets
from orchestrator.wiring import Wiring
from orchestrator.wiring.schedulers import ENGINES, check_cluster
from orchestrator.wiring.schedulers import check_batch as checked

# `bench fleet check-batch`: tests with a small job whether Google Cloud Batch keeps a fleet within its cap.


HOLD_USD = Decimal("0.05")
"Two e2-micro with their disks for a quarter of an hour cost about a tenth of it."
LASTS = timedelta(minutes=15)


def check_batch(
    ctx: typer.Context,
    region: Annotated[
        str, typer.Option("--region", help="Region to check in; by default the first with CPU machines.")
    ] = "",
    json: Json = False,
) -> None:
    """Check four behaviours of Google Cloud Batch in this project, for a few cents.

    No fleet is launched on Batch before this check has passed.
    """
    wiring = options(ctx).wiring()
    overrides = (f"regions=[{region}]",) if region else ()
    config, _ = wiring.configured(LaunchOptions("cpu", None, overrides))
    purse = _held(wiring)
    try:
        verdict = checked(wiring, config, lambda text: typer.echo(text, err=True))
    finally:
        purse.settle(HOLD_USD)  # nobody meters these machines: the whole hold counts as spent
    if json:
        emit_json({"schema": 1, **verdict.model_dump(mode="json", by_alias=True), "passed": verdict.passed})
    else:
        _show_verdict(verdict)
    if not verdict.passed:
        raise RunFailed(
            (
                f"Google Cloud Batch does not end machines on time in project {verdict.project}: a fleet there "
                "could exceed its cap"
            ),
            hint="use --engine cloud, which gives each machine its own end",
        )


def _held(wiring: Wiring) -> Purse:
    """The worst case of the check, held like a fleet's. Raises `BudgetExceeded`."""
    now = wiring.clock.now()
    record = FleetRecord(
        fleet=fleet_id(now, secrets.token_hex(2)),
        engine="batch",
        mode=wiring.mode,
        user=wiring.user,
        sweep=Sweep(engine="batch", axes={"gpu": ("cpu",)}),
        created_at=now,
        ends_at=now + LASTS,
        hold_usd=HOLD_USD,
    )
    purse = Purse(wiring.world(), record)
    purse.take(HOLD_USD)
    return purse


def _show_verdict(verdict: GateVerdict) -> None:
    for name, question in QUESTIONS.items():
        answer = verdict.answers.get(name)
        mark = "yes" if answer is not None and answer.ok else "NO" if name in REQUIRED else "no"
        typer.echo(f"{mark:>3}  {question}")
        if answer is not None:
            typer.echo(f"     {answer.seen}")
    typer.echo(f"{verdict.project}: {'fleets may run on Batch' if verdict.passed else 'fleets may not run on Batch'}")


app = typer.Typer(no_args_is_help=True, help="Run one sweep on many machines.")

app.command("check-batch")(check_batch)
app.command("sql")(sql)

POLL_S = 10.0
Cap = Annotated[str, typer.Option("--cap", metavar="USD", help="The most that the fleet may hold and spend.")]
Wall = Annotated[
    int, typer.Option("--wall-minutes", help="Minutes after which every machine of the fleet is gone.", min=0)
]
Detach = Annotated[bool, typer.Option("--detach", help="Return once the scheduler has accepted the fleet.")]


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options that make a sweep: a file or axes; further options override both."""

    sweep: Annotated[Path | None, typer.Argument(metavar="[SWEEP]", help="A sweep in YAML.")] = None
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="A,B", help="GPUs, if there is no sweep file.", autocompletion=known_gpus),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=A,B", help="A setting and the values to try.", autocompletion=known_keys),
    ] = None
    config: Annotated[str, typer.Option("--config", help="The configuration that every child starts from.")] = ""
    engine: Annotated[str, typer.Option("--engine", help="cloud, slurm, batch or hosts.")] = ""
    cap: Cap = ""
    parallel: Annotated[int, typer.Option("--parallel", help="How many machines may run at the same time.", min=0)] = 0
    repeats: Annotated[int, typer.Option("--repeats", help="How often each configuration is measured.", min=0)] = 0
    cases_per_child: Annotated[
        int,
        typer.Option(
            "--cases-per-child", help="Split a configuration's cases into children of N; 0: one child.", min=0
        ),
    ] = 0
    wall_minutes: Wall = 0
    host: Annotated[list[str] | None, typer.Option("--host", help="A machine of your own, for --engine hosts.")] = None

    @property
    def fields(self) -> dict[str, object]:
        """The fields of a sweep that were given."""
        names = {"cap": "cap_usd", "host": "hosts"}
        given = {key: value for key, value in asdict(self).items() if value and key not in ("sweep", "gpu", "set_")}
        return {names.get(key, key): value for key, value in given.items()}

    def asked(self) -> Sweep:
        """Raises `ConfigError`."""
        file = self.sweep
        if file is None:
            if not self.gpu:
                raise ConfigError("which machines?", hint="--gpu l4,t4 --set measure.cache=cold,warm, or a sweep file")
            return of_flags(self.gpu, self.set_ or (), self.fields)
        if self.gpu or self.set_:
            raise ConfigError("give either a sweep file or --gpu and --set, not both", hint=f"write the axes in {file}")
        text = read_file(file, "`bench docs fleets` has an example of a sweep")
        return parse_sweep(text, source=str(file), overrides=self.fields)


@app.command("plan")
@group_options
def plan(ctx: typer.Context, sweep: SweepOptions, json: Json = False) -> None:
    """Show what a fleet would do and cost, at worst and as expected. Spends nothing."""
    wiring = options(ctx).wiring()
    fleet_plan = plan_sweep(wiring, sweep.asked())
    try:
        check_cluster(wiring, fleet_plan.sweep, partial(child_seconds, wiring, fleet_plan))
    except ConfigError as exc:
        fleet_plan = replace(fleet_plan, notices=(*fleet_plan.notices, f"a launch would be refused: {exc}; {exc.hint}"))
    except BenchError:
        pass  # a plan needs no cluster
    quotas = [quota_table(fleet_plan.quotas)] if fleet_plan.quotas else []
    print_answer(lambda: plan_document(fleet_plan), jobs_table(fleet_plan), *plan_lines(fleet_plan), *quotas, json=json)


def child_seconds(wiring: Wiring, found: FleetPlan) -> int:
    """The longest time in seconds that a child of a plan for a cluster may take."""
    configured = configurations(wiring, found.sweep)
    cells = dict.fromkeys(child.cell for child in found.children)
    return max((60 * configured(cell).run.max_minutes for cell in cells), default=0)


@app.command("launch")
@group_options
def launch(ctx: typer.Context, sweep: SweepOptions, detach: Detach = False, json: Json = False) -> None:
    """Launch a sweep. Ctrl-C detaches; cases that are stored are not measured again."""
    wiring = options(ctx).wiring()
    asked = sweep.asked()
    wiring.say = _voice(json=json)
    fleet_plan = plan_sweep(wiring, asked)
    _check_detach(asked, detach=detach)
    check_cluster(wiring, asked, partial(child_seconds, wiring, fleet_plan))
    desk = begin_fleet(wiring, fleet_plan)
    for line in (desk.record.fleet, *plan_lines(fleet_plan)):
        wiring.say(line)
    _drive(desk, json=json, detach=detach)


@app.command("status")
def status(
    ctx: typer.Context,
    fleet: FleetName = "last",
    look: Annotated[
        bool, typer.Option("--look", help="Only show: do not ask the scheduler, download nothing.")
    ] = False,
    accept: Accept = "",
    json: Json = False,
) -> None:
    """Show a fleet's progress. Also downloads new results and starts what is missing."""
    desk = _desk(ctx, fleet, json=json, accept=accept)
    seen = desk.look() if look else desk.driver().step(start=desk.engine.is_detachable)
    _show(desk, seen, json=json)


@app.command("watch")
def watch(ctx: typer.Context, fleet: FleetName = "last", json: Json = False) -> None:
    """Follow a fleet until it ends. Ctrl-C only stops watching."""
    desk = _desk(ctx, fleet, json=json)
    _follow(desk, desk.driver(), json=json, start=desk.engine.is_detachable)


@app.command("ls")
def ls(ctx: typer.Context, json: Json = False) -> None:
    """List the fleets in the bucket."""
    wiring = options(ctx).wiring()
    rows = list_fleets(wiring.bucket)
    remember_fleets(wiring.home, [fleet for fleet, _ in rows])
    nothing = "there are no fleets yet: `bench fleet launch --gpu l4,t4` makes one"
    document = {"schema": 1, "fleets": [{"fleet": fleet, **line} for fleet, line in rows]}
    print_answer(document, fleets_table(rows) if rows else nothing, json=json)


@app.command("stop")
def stop(ctx: typer.Context, fleet: FleetName = "last", accept: Accept = "", json: Json = False) -> None:
    """Stop a fleet's machines. What is stored stays."""
    desk = _desk(ctx, fleet, json=json, accept=accept)
    _show(desk, desk.driver().stop(desk.wiring.user), json=json)


@app.command("resume")
def resume(
    ctx: typer.Context,
    fleet: FleetName = "last",
    cap: Cap = "",
    wall_minutes: Wall = 0,
    detach: Detach = False,
    accept: Accept = "",
    json: Json = False,
) -> None:
    """Measure what is missing, after a pause, a stop or a lost client."""
    desk = _desk(ctx, fleet, json=json, accept=accept).believed()
    _check_detach(desk.sweep, detach=detach)
    if cap:
        desk = desk.under(parse_dollars(cap, zero=True, option="--cap"))
    desk.driver().resume(wall=timedelta(minutes=wall_minutes) if wall_minutes else None)
    _drive(desk, json=json, detach=detach)


@app.command("retry")
def retry(
    ctx: typer.Context,
    fleet: FleetName = "last",
    failed: Annotated[bool, typer.Option("--failed", help="Also retry those that were given up.")] = False,
    json: Json = False,
) -> None:
    """Retry children that failed or were lost; with --failed, given-up ones too."""
    desk = _desk(ctx, fleet, json=json).believed()
    seen = desk.look()
    again = [line for line in seen.state.lines.values() if line.state == "given_up" and failed]
    fresh = [replace(line, state="waiting", attempt=line.attempt + 1, reason="", failed_on=()) for line in again]
    desk.store.write_over(fresh)
    desk.wiring.say(f"{count(len(fresh), 'child', 'children')} will be tried again in")
    resume(ctx, desk.record.fleet, json=json)


@app.command("fetch")
def fetch(
    ctx: typer.Context,
    fleet: FleetName = "last",
    into: Annotated[Path, typer.Option("--into", help="The folder in which the fleet's folder is made.")] = LOCAL,
    runs: Annotated[bool, typer.Option("--runs", help="Also download each child's run folder.")] = False,
    json: Json = False,
) -> None:
    """Download all rows of a fleet as one file; with --runs each child's run too."""
    desk = _desk(ctx, fleet, json=json)
    fetched_fleet = fetch_fleet(desk, into, None if runs else ())
    rows, files = count(fetched_fleet.rows, "row"), count(fetched_fleet.downloaded, "file")
    fetched = f"{count(fetched_fleet.children, 'child', 'children')}, {rows}, {files} fetched"
    print_answer(fetched_fleet.document, fetched, f"wrote {fetched_fleet.folder}", json=json)


@app.command("report")
def report(
    ctx: typer.Context,
    fleet: FleetName = "last",
    into: Annotated[Path, typer.Option("--into", help="Where `fetch` puts fleets.")] = LOCAL,
    json: Json = False,
) -> None:
    """Write one report of all GPUs: times, cost per answer, speed per dollar."""
    desk = _desk(ctx, fleet, json=json)
    written, fleet_document = report_fleet(desk, into)
    print_answer(
        {**fleet_document, "files": [str(path) for path in written]}, *(f"wrote {path}" for path in written), json=json
    )


@app.command("costs")
def costs(ctx: typer.Context, fleet: FleetName = "last", json: Json = False) -> None:
    """Show what a fleet has cost, by GPU, and what is held for it."""
    document = costs_document(_desk(ctx, fleet, json=json))
    rows = [
        f"{row.gpu}  {count(row.children, 'child', 'children')}  {row.hours} h of machines  ${row.usd}"
        for row in document.gpus
    ]
    about = ["prices of the embedded cloud are simulated: no dollar was spent"] if document.prices_simulated else []
    print_answer(document, *rows, f"total ${document.cost_usd}; held ${document.held_usd}", *about, json=json)


def _desk(ctx: typer.Context, fleet: str, *, json: bool, accept: str = "") -> Desk:
    """The fleet of that name. Messages go to standard error if the answer goes to standard output."""
    wiring = options(ctx).wiring()
    wiring.say = _voice(json=json)
    desk = Desk.of(wiring, find_fleet(wiring, fleet))
    trust.accept(wiring, desk.store, accept)
    return desk


def _voice(*, json: bool) -> Callable[[str], None]:
    return lambda text: typer.echo(hanging(text, err=json), err=json)


def _check_detach(sweep: Sweep, *, detach: bool) -> None:
    if detach and not ENGINES[sweep.engine].is_detachable:
        raise ConfigError(
            f"--detach is not possible with engine {sweep.engine}: this command starts its children",
            hint="Ctrl-C loses nothing: `bench fleet resume FLEET` continues",
        )


def _drive(desk: Desk, *, json: bool, detach: bool = False) -> None:
    """Follows the fleet until it ends or until Ctrl-C, then prints its state and exits with the code of its outcome."""
    driver = desk.believed().driver()
    if detach:
        _show(desk, driver.step(), json=json)
        return
    try:
        _follow(desk, driver, json=json)
    except BudgetExceeded:
        _show(desk, desk.look(), json=json)
        raise


def _follow(desk: Desk, driver: Follower, *, json: bool, start: bool = True) -> None:
    shown = ""

    def show(seen: FleetSighting) -> bool:
        nonlocal shown
        reasons = dict.fromkeys(job.reason for job in seen.jobs if job.pending and not job.running and job.reason)
        line = counts_line(seen.state) + "".join(f"; {waiting_reason(clean_line(one, 80))}" for one in reasons)
        if line != shown:
            desk.wiring.say(line)
            shown = line
        return not is_stdout_closed()

    try:
        seen = driver.follow(POLL_S if desk.record.mode != "embedded" else 2.0, show, start=start)
    except KeyboardInterrupt:
        if start and not desk.engine.is_detachable:
            raise
        desk.wiring.say(f"detached; `bench fleet watch {desk.record.fleet}` shows it again")
        return
    if not seen.over and is_stdout_closed():
        typer.echo(f"output closed; `bench fleet watch {desk.record.fleet}` shows it again", err=True)
        return
    _end(desk, seen, json=json)


def _end(desk: Desk, seen: FleetSighting, *, json: bool) -> None:
    _show(desk, seen, json=json)
    counts, fleet = seen.state.counts, desk.record.fleet
    if not seen.state.over:
        raise RunFailed(
            f"{len(seen.state.open)} of {count(len(seen.state.children), 'child', 'children')} not measured",
            hint=f"`bench fleet resume {fleet}` continues",
        )
    if counts["given_up"]:
        raise RunFailed(
            f"{count(counts['given_up'], 'child was', 'children were')} given up",
            hint=f"`bench fleet retry --failed {fleet}` tries them again",
        )


def _show(desk: Desk, seen: FleetSighting, *, json: bool) -> None:
    lines = map(hanging, seen_lines(desk.record, seen))
    tables = [gpus_table(seen.state), *filter(None, [odd_table(seen.state)])]
    print_answer(lambda: document(desk.record, seen), *lines, *tables, json=json)
