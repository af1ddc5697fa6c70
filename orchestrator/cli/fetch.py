"""`bench fetch RUN`: bring a run's results here, verified; idempotent and resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, emit_json, options


def fetch(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id, a unique part of one, or `last`.")] = "last",
    into: Annotated[Path, typer.Option("--into", help="The folder that gets a folder for the run.")] = Path(
        "results/local"
    ),
    json: Json = False,
) -> None:
    """Download what a run measured, and show it.

    Checks every file, assembles the CSVs, and compares. What is here and right is not fetched again.
    """
    from rich.console import Console

    from orchestrator.adapters.fetch import fetch_run
    from orchestrator.cli.finding import find_run
    from orchestrator.cli.reading import read_report, write_files
    from orchestrator.cli.results_view import results_view
    from orchestrator.core.budget import Caps
    from orchestrator.core.errors import ProviderError
    from orchestrator.core.hosts import is_host
    from orchestrator.engine import Engine

    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    engine = Engine(wiring.world(Caps()), run_id)
    state = engine.look()
    if state.plan is not None and state.plan.grid not in ("", run_id):
        engine = Engine(wiring.world(Caps()), state.plan.grid)
        state = engine.look()
    try:
        if state.closed is None and state.kept is None:
            state, _ = engine.step()
        elif any(is_host(vm.zone) for vm in state.vms):
            wiring.hosts.bring_home(state.run_id)  # a host that was given up may have come back with what it stored
    except ProviderError as exc:
        if not any(is_host(vm.zone) for vm in state.vms):
            raise
        typer.echo(f"{exc}; this is what is in the bucket so far", err=True)
    fetched = fetch_run(wiring.bucket, state, into)
    if fetched.cases:
        write_files(read_report(fetched.folder), fetched.folder)
    if json:
        emit_json(fetched.document())
        return
    console = Console(highlight=False)
    console.print(results_view(fetched))
