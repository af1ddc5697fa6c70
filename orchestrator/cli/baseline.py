"""`bench baseline`: which run stands for a name, on each device."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from orchestrator.api.finding import find_run
from orchestrator.api.results import report_of
from orchestrator.cli.options import Json, RunName, options
from orchestrator.cli.screen import Columns
from orchestrator.cli.terminal import print_answer
from orchestrator.core.baselines import Baseline, Older, checked_name, place_baseline, plain_entries, remove_devices
from orchestrator.core.errors import ConfigError, NotFound
from orchestrator.core.naming import cases_prefix
from orchestrator.core.run.status import iso_time
from orchestrator.report.comparing import run_fingerprint

app = typer.Typer(no_args_is_help=True, help="Name runs to compare others with, one for each device.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="For example: main.")]
Device = Annotated[str, typer.Option("--device", help="Only devices whose name contains this.")]


@app.command("set")
def set_(
    ctx: typer.Context,
    name: Name,
    run: RunName = "last",
    back: Annotated[bool, typer.Option("--back", help="Replace a newer run too.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Accept a run with missing cases.")] = False,
    json: Json = False,
) -> None:
    """Make a run the baseline of its device under a name.

    Does not replace a newer run unless told to: two pushes may finish in the wrong order.
    """
    checked_name(name)
    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    if not wiring.bucket.list(cases_prefix(run_id), most=1):
        raise NotFound(f"run {run_id} has no measured case in this bucket", hint="`bench status` lists the runs")
    run_report, _ = report_of(options(ctx).wiring, run_id)
    if not run_report.study.measurements:
        raise ConfigError(
            f"run {run_id} measured nothing, so it cannot be a baseline", hint=f"`bench diagnose {run_id}` says why"
        )
    if not run_report.manifest.get("complete", False) and not partial:
        raise ConfigError(
            f"run {run_id} is not complete: comparisons with it would leave out cases",
            hint=f"`bench launch --resume {run_id}` measures the rest; --partial accepts the run as it is",
        )
    device_fingerprint = run_fingerprint(run_report)
    new = Baseline(
        run_id=run_id,
        device=run_report.study.device,
        git_commit=str(device_fingerprint.get("git_commit") or ""),
        git_dirty=device_fingerprint.get("git_dirty"),
        fingerprint=device_fingerprint,
        set_at=iso_time(wiring.clock.now()),
        set_by=wiring.user,
    )
    stored = wiring.baselines.update(name, lambda there: place_baseline(there, new, back=back))
    if isinstance(stored, Older):
        raise ConfigError(
            f"{name} on {new.device} is already {stored.there.run_id}, which is newer than {run_id}",
            hint="--back sets the older run anyway",
        )
    print_answer(
        {"schema": 1, "name": name, **_document(new)}, f"{name} on {new.device} is {run_id}{_commit(new)}", json=json
    )


@app.command("list")
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List every baseline in the bucket."""
    store = options(ctx).wiring().baselines
    entries = [(name, one) for name in store.names() for _, one in sorted(store.read(name).items())]
    rows = [(name, one.device, one.run_id, _commit(one).strip(" ()"), one.set_by) for name, one in entries]
    table = Columns("name", "device", "run", "commit", "set by", rows=rows, droppable=("commit", "set by"))
    document = {"schema": 1, "baselines": [{"name": name, **_document(one)} for name, one in entries]}
    print_answer(
        document, table if rows else "there are no baselines; `bench baseline set main RUN` makes one", json=json
    )


@app.command("show")
def show(ctx: typer.Context, name: Name, device: Device = "", json: Json = False) -> None:
    """Show a baseline and the environment it was measured in."""
    store = options(ctx).wiring().baselines
    chosen = _chosen(dict(store.read(name)), name, device)
    lines = []
    for one in chosen.values():
        lines.append(f"{name} on {one.device}: {one.run_id}{_commit(one)}, set {one.set_at} by {one.set_by}")
        lines += [f"  {key.replace('_', ' ')}: {value}" for key, value in one.fingerprint.items()]
    print_answer({"schema": 1, "name": name, "baselines": [*map(_document, chosen.values())]}, *lines, json=json)


@app.command("rm")
def rm(
    ctx: typer.Context,
    name: Name,
    device: Device = "",
    broken: Annotated[bool, typer.Option("--broken", help="Also remove a baseline that cannot be read.")] = False,
    json: Json = False,
) -> None:
    """Remove a baseline. The run itself stays."""
    store = options(ctx).wiring().baselines
    if broken:
        store.clear(name)
        gone: dict[str, Baseline] = {}
    else:
        gone = _chosen(dict(store.read(name)), name, device)
        store.update(name, lambda there: remove_devices(there, frozenset(gone)))
    lines = [f"removed {name} on {one.device}; its run {one.run_id} stays" for one in gone.values()]
    removed = {"schema": 1, "name": name, "removed": [_document(one) for one in gone.values()]}
    print_answer(removed, *lines, *([f"{name} is now empty"] if broken else []), json=json)


def _chosen(there: dict[str, Baseline], name: str, device: str) -> dict[str, Baseline]:
    chosen = {key: one for key, one in sorted(there.items()) if device.lower() in one.device.lower()}
    if not chosen:
        where = f" on {device}" if device and there else ""
        raise NotFound(f"there is no baseline called {name}{where}", hint="`bench baseline list` lists them")
    return chosen


def _document(one: Baseline) -> dict[str, Any]:
    return asdict(one) | {"git_commit": one.git_commit or None, "fingerprint": plain_entries(one.fingerprint)}


def _commit(one: Baseline) -> str:
    return f" ({one.git_commit[:10]}{'+' if one.git_dirty else ''})" if one.git_commit else ""
