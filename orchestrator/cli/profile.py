"""`bench profile RUN --case …`: profiles a kernel with Nsight Compute on a machine of the run's kind."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from orchestrator.api.finding import LOCAL, find_run
from orchestrator.api.outcome import raise_for
from orchestrator.cli.choices import AcceptPlan, consented_plan
from orchestrator.cli.driving import Driving, follow_to_end
from orchestrator.cli.options import Json, RunName, known_cases, options
from orchestrator.cli.render import ending_lines
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.terminal import documents, emit_json, is_stdout_closed
from orchestrator.cli.watch import watching
from orchestrator.core.errors import BenchError, ConfigError, NotFound
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.text import count, parse_document
from orchestrator.report.profile import (
    NOT_ROWS,
    TORCH,
    Profiled,
    Profiles,
    figures_of,
    profile_page,
    read_profiles,
    side_by_side,
)
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import PayloadSource, RunOrder, begin_launch
from orchestrator.runs.planning import LaunchOptions
from orchestrator.runs.reconcile import after_settling_abandoned
from orchestrator.wiring import Wiring, fetch_run, launch_context, ncu_pages, new_run_id, payload_of, write_atomically

SETS = ("roofline", "full", "trace")
REPORTS = (".ncu-rep", ".ncu-rep.gz")
P = TypeVar("P", bound="documents.ProfileDocument")


def profile(
    ctx: typer.Context,
    run: RunName = "last",
    case: Annotated[
        list[str] | None,
        typer.Option("--case", help="A case's id, or a unique part of one.", autocompletion=known_cases),
    ] = None,
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", "-i", help="Profile only these; by default all of the run.")
    ] = None,
    set_: Annotated[str, typer.Option("--set", help="roofline, full (every counter), or trace.")] = SETS[0],
    accept: AcceptPlan = "",
    json: Json = False,
) -> None:
    """Show why kernels take their time: peaks, roofline, stalls.

    Without --case, shows what the run has profiled (`profile:` in its configuration). With --case, a new run profiles
    that case on the same kind of machine, within the same caps. Profiled calls never count as measurements. RUN may be
    a report of Nsight Compute (FILE.ncu-rep) if NVIDIA's package ncu-report is installed.
    """
    if set_ not in SETS:
        raise ConfigError(f"--set {set_}: expected {', '.join(SETS)}")
    if run.endswith(REPORTS):
        _of_file(Path(run), json=json)
        return
    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    if case:
        command = f"bench profile {{}} {' '.join(f'--case {shlex.quote(text)}' for text in case)}"
        replan = consented_plan(wiring, run, run_id, LaunchOptions("", None, ()), accept, command)
        plan = after_settling_abandoned(wiring.world(), replan, wiring.say)
        run_id = _profiled(wiring, run_id, plan, tuple(case), tuple(implementation or ()), set_, quiet=json)
    folder = fetch_run(wiring.bucket, Engine(wiring.world(), run_id).look(), LOCAL).folder
    profiles = read_run_profiles(run_id, folder)
    _write(profiles, folder / "profile.html", json=json)


def _write(found: Profiles, path: Path, *, json: bool) -> None:
    write_atomically(path, profile_page(found).encode())
    if json:
        emit_json(profile_document(found, documents.ProfileFiles, files=[str(path)]))
        return
    _show(found)
    typer.echo(f"wrote {path}")


def _of_file(report: Path, *, json: bool) -> None:
    """Shows a report file of Nsight Compute on this machine."""
    if not report.is_file():
        raise NotFound(f"file not found: {report}", hint="to profile a run, give its id: `bench profile RUN`")
    name = report.name.partition(".ncu-rep")[0]
    metrics, rules = ncu_pages(report)
    files = {f"{name}.metrics.csv": metrics, f"{name}.rules.csv": rules}
    row = {"case_id": name, "implementation": name, "tool": "ncu", "files": list(files)}
    profiles = read_profiles(name, {"set": "of a file", "profiles": [row]}, files, {})
    _write(profiles, report.with_name(f"{name}.profile.html"), json=json)


def _profiled(
    wiring: Wiring,
    run_id: str,
    plan: LaunchPlan,
    cases: tuple[str, ...],
    only: tuple[str, ...],
    wanted: str,
    *,
    quiet: bool,
) -> str:
    """Starts a run by `plan` that only profiles these cases, and returns its id."""
    made = only_profiling(plan, cases, only, wanted, run_id)
    with watching(quiet=quiet, now=wiring.clock.now) as watch:
        wiring.say = watch.say
        payload = _payload(wiring, run_id, made)
        new = new_run_id(wiring.clock.now(), made.label_on(wiring.here))
        order = RunOrder(new, made, payload, launch_context(wiring, made))
        world = wiring.world(made.config)
        ended = follow_to_end(
            Driving(world, new, lambda: begin_launch(world, order, say=watch.say), watch, wiring.user)
        )
    raise_for(ended)
    if ended.closed is None and ended.kept is None:
        for line in ending_lines(ended, wiring.clock.now()):
            typer.echo(line, err=True)
        raise typer.Exit(0 if is_stdout_closed() else 130)
    return new


def only_profiling(
    plan: LaunchPlan, cases: tuple[str, ...], only: tuple[str, ...], wanted: str, run_id: str
) -> LaunchPlan:
    """The plan of a run that measures nothing and profiles these cases. Raises `ConfigError` for an unknown one."""
    ids = tuple(_case_of(plan, text) for text in cases)
    for name in only:
        if name not in plan.harness["implementations"] and "*" not in plan.harness["implementations"]:
            raise ConfigError(
                f"run {run_id} has no implementation {name}", hint=_listed(plan.harness["implementations"])
            )
    asked = {"cases": list(ids), "implementations": list(only), "set": wanted}
    return replace(
        plan,
        harness={**plan.harness, "skip_cases": list(plan.cases), "profile": asked},
        offers=tuple(offer for offer in plan.offers if offer.gpu == plan.config.gpu),
        fallbacks=(),
    )


def _payload(wiring: Wiring, run_id: str, plan: LaunchPlan) -> PayloadSource:
    """What the machine will run. The path of a workload comes from the bucket, so its files are sent only if they are
    those that the run's machines had. Raises `ConfigError`."""
    payload = payload_of(plan.config)
    workload, run = plan.config.workload, Engine(wiring.world(), run_id).look()
    if workload is not None and (run.payload is None or run.payload.sha256 != payload.sha256):
        raise ConfigError(
            f"{workload.path} is not the file that {run_id} ran, so nothing is sent",
            hint="to profile the file as it is now: `bench launch FILE --set 'profile.cases=[CASE]'`",
        )
    return payload


def _case_of(plan: LaunchPlan, text: str) -> str:
    matching_cases = [one for one in plan.cases if one == text] or [one for one in plan.cases if text in one]
    if len(matching_cases) == 1 or not plan.cases:
        return matching_cases[0] if matching_cases else text
    what = f"matches {count(len(matching_cases), 'case')}" if matching_cases else "matches no case of this run"
    raise ConfigError(f"--case {text} {what}", hint=f"its cases: {_listed(matching_cases or plan.cases)}")


def _listed(names: Any) -> str:
    shown = [str(one) for one in names]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


def read_run_profiles(run_id: str, folder: Path) -> Profiles:
    """Raises `NotFound` if the run has profiled nothing."""
    try:
        summary = parse_document((folder / "profile" / "summary.json").read_bytes())
    except (OSError, ValueError) as exc:
        raise NotFound(
            f"run {run_id} has no profile",
            hint=(
                f"`bench profile {run_id} --case CASE` makes one; so does `profile: {{cases: [CASE]}}` in the "
                "configuration"
            ),
        ) from exc
    texts, tables = {}, {}
    for path in sorted((folder / "profile").iterdir()):
        name = f"profile/{path.name}"
        stem = name.partition(".ncu-rep")[0]
        # ncu writes the figures to a file beside the report when it makes one
        if path.name.endswith(REPORTS) and not (folder / f"{stem}.metrics.csv").is_file():
            texts[f"{stem}.metrics.csv"], texts[f"{stem}.rules.csv"] = _by_package(path)
        if path.suffix == ".csv":
            texts[name] = path.read_text(encoding="utf-8", errors="replace")
        elif path.name.endswith(".table.json"):
            tables[name] = _table(path)
    return read_profiles(run_id, summary, texts, tables)


def _by_package(report: Path) -> tuple[str, str]:
    """The pages of a report that came without them; nothing where NVIDIA's package is not there to read it."""
    try:
        return ncu_pages(report)
    except BenchError:
        return "", ""


def _table(path: Path) -> Mapping[str, Any]:
    try:
        return parse_document(path.read_bytes())
    except (OSError, ValueError):
        return {}


def _show(found: Profiles) -> None:
    console = screen()
    for case_id in found.cases:
        profiles = found.of(case_id)
        console.print(Text.assemble((case_id, "bold"), "  ", (found.device, "dim")))
        heads, rows = side_by_side(profiles)
        if rows:
            table = Columns()
            for head in heads:
                table.add_column(head, overflow="fold")
            for row in rows:
                table.add_row(*map(Text, row))
            console.print(table)
        for one in profiles:
            for words in _said(one):
                console.print(words, soft_wrap=True)
    console.print(NOT_ROWS, style="dim")


def _said(one: Profiled) -> list[str]:
    if one.reason:
        return [f"{one.implementation}: not profiled: {one.reason}"]
    hint_lines = [
        f"{one.implementation}: {hint.rule}: {hint.text}" for kernel in one.kernels for hint in kernel.hints[:3]
    ]
    if one.operations:
        hint_lines.append(f"{one.implementation}, {TORCH} ({one.why_not_ncu or 'no counters'}):")
        hint_lines += [
            f"  {row.get('name', '')!s:<60.60}  {row.get('cpu_us', '')!s:>12} µs" for row in one.operations[:6]
        ]
    return hint_lines


def profile_lines(found: Profiles) -> list[str]:
    """The profiles as lines of text: for each case its figures and what stands out."""
    lines = []
    for case_id in found.cases:
        heads, rows = side_by_side(found.of(case_id))
        lines += [f"{case_id}  {found.device}", *("  ".join(row) for row in ([heads] if rows else []) + rows)]
        lines += [text for one in found.of(case_id) for text in _said(one)]
    return lines


def profile_document(found: Profiles, kind: type[P], **more: Any) -> P:
    """The profiles as JSON; `more` are the further fields of `kind`."""
    profiles = [
        documents.ProfiledCall.of(
            one,
            figures=dict(figures_of(one)),
            hints=[hint.text for kernel in one.kernels for hint in kernel.hints],
            operations=[dict(row) for row in one.operations],
        )
        for one in found.profiles
    ]
    return kind.of(found, schema=1, profiles=profiles, **more)
