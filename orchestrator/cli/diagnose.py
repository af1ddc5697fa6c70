"""`bench diagnose RUN`: why a run failed, and what to do about it."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.api.finding import find_run
from orchestrator.cli.options import Json, RunName, options
from orchestrator.cli.terminal import hanging, print_answer
from orchestrator.core.run import diagnose as table
from orchestrator.core.run.diagnose import RunDiagnosis
from orchestrator.core.run.fold import Phase
from orchestrator.core.text import clean_sentence
from orchestrator.runs.engine import Engine
from orchestrator.runs.logs import live_serial, log_of


def diagnose(
    ctx: typer.Context,
    run: RunName = "last",
    json: Json = False,
) -> None:
    """Say why a run failed and what to do about it.

    If the cause is not known, it says so and shows the log lines that may explain it.
    """
    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    engine = Engine(wiring.world(), run_id)
    state, events = engine.look(), engine.log.read()
    attempt = state.vm.attempt if state.vm is not None else 0
    log = log_of(wiring.bucket, run_id, attempt) + live_serial(wiring.cloud, state.vm)
    ended = state.closed.detail if state.closed is not None else ""
    diagnosis = table.diagnose_run(facts=table.last_attempt(events), log=log, ended=ended)
    nothing = diagnosis.cause == "unknown" and (state.closed is None or state.phase in table.EXPLAINS_ITSELF)
    if state.phase is Phase.SUCCEEDED or nothing:
        unexplained = nothing and state.phase is not Phase.SUCCEEDED
        diagnosis = table.RunDiagnosis("", ended, "", table.relevant_lines(log) if unexplained else ())
    diagnosis = replace(diagnosis, remedy=table.complete_remedy(diagnosis.remedy, run_id))
    document = {
        "schema": 1,
        "run_id": run_id,
        "state": state.phase.value,
        "cause": diagnosis.cause or None,
        "detail": diagnosis.detail,
        "remedy": diagnosis.remedy,
        "lines": list(diagnosis.lines),
    }
    lines = lines_of(run_id, state.phase.value.replace("_", " "), diagnosis)
    print_answer(document, *(_folded(line) for line in lines), json=json)


def _folded(line: str) -> str:
    """What the machine or the cloud says goes on below itself; a remedy is ours, and its commands stay whole."""
    return line if line.startswith("  remedy:") else hanging(line, indent=10)


def lines_of(run_id: str, state: str, found: RunDiagnosis) -> list[str]:
    """The diagnosis as lines for a terminal."""
    if not found.cause:
        lines = [f"run {run_id} ({state}): {clean_sentence(found.detail) or 'nothing is wrong with it'}"]
    else:
        named = "the cause is not known" if found.cause == "unknown" else found.cause.replace("_", " ")
        lines = [
            f"run {run_id} ({state}): {named}",
            f"  reason: {clean_sentence(found.detail)}",
            f"  remedy: {found.remedy}",
        ]
    if found.lines:
        lines += ["log lines that may explain it:", *(f"  | {line}" for line in found.lines)]
    return lines
