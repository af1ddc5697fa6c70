"""`bench fetch RUN`: bring a run's results here, verified; idempotent and resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.finding import LOCAL, find_run
from orchestrator.api.outcome import error_of
from orchestrator.api.results import read_report, write_files
from orchestrator.cli.completion import RunName
from orchestrator.cli.options import Json, options
from orchestrator.cli.results_view import results_view
from orchestrator.cli.screen import screen
from orchestrator.cli.terminal import emit_json
from orchestrator.cli.unread import note, raise_unread
from orchestrator.core.errors import ProviderError
from orchestrator.core.hosts import is_host
from orchestrator.report.answer import wrong_first
from orchestrator.runs.engine import Engine
from orchestrator.wiring import fetch_run


def fetch(
    ctx: typer.Context,
    run: RunName = "last",
    into: Annotated[Path, typer.Option("--into", help="The folder in which the run's folder is made.")] = LOCAL,
    check: Annotated[
        bool, typer.Option("--check", help="Exit as the run did: 7 if an implementation was wrong.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also statistics, cost, energy, every reason and note.")
    ] = False,
    json: Json = False,
) -> None:
    """Download what a run measured, and show it.

    Checks every file, assembles the CSVs, and compares. Files that are here and correct are not downloaded again. For a
    run that failed before its first case, the exit code is that of the failure; with --check it always is.
    """

    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    engine = Engine(wiring.world(), run_id)
    state = engine.look()
    try:
        if state.closed is None and state.kept is None:
            state = engine.catch_up()
        elif any(is_host(vm.zone) for vm in state.vms):
            wiring.hosts.bring_home(state.run_id)  # a host that was given up may have come back with what it stored
    except ProviderError as exc:
        if not any(is_host(vm.zone) for vm in state.vms):
            raise
        note(f"{exc}; showing what is in the bucket so far")
    fetched = fetch_run(wiring.bucket, state, into)
    report = read_report(fetched.folder)
    if fetched.cases:
        write_files(report, fetched.folder)
    if json:
        headlines = list(report.headlines())
        wrong = list(wrong_first(report.study))
        answer_fields = {"measurements": report.study.measurements, "headlines": headlines, "wrong": wrong}
        emit_json({**fetched.document(), **answer_fields})
    else:
        screen().print(results_view(fetched, report, verbose=verbose))
    error = error_of(state) if check or not fetched.cases else None
    raise_unread({**fetched.left_out, **wiring.hosts.odd}, error)
