"""`bench cases RUN|FOLDER`: the ids of the cases that were measured, as `bench history --case` takes them."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.api.finding import find_run
from orchestrator.api.results import read_report
from orchestrator.cli.options import Json, RunOrFolder, options
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import NotFound
from orchestrator.core.host_answers import RUN_FILES
from orchestrator.core.naming import cases_prefix


def cases(
    ctx: typer.Context,
    run: RunOrFolder = "last",
    json: Json = False,
) -> None:
    """List the ids of the cases that a run measured."""
    if Path(run).exists():
        name, case_ids = run, list(read_report(Path(run)).study.case_ids)
    else:
        wiring = options(ctx).wiring()
        name = find_run(wiring, run)
        prefix = cases_prefix(name)
        stored = (entry.name.removeprefix(prefix) for entry in wiring.bucket.list(prefix, most=RUN_FILES))
        case_ids = sorted(case.removesuffix(".csv") for case in stored)
    if not case_ids and not json:
        raise NotFound(f"run {name} has measured no case yet", hint=f"`bench status {name}` shows its progress")
    print_answer({"schema": 1, "run_id": name, "cases": case_ids}, *case_ids, json=json)
