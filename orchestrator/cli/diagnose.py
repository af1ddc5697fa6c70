"""`bench diagnose RUN`: why a run failed, and what to do about it."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.api.finding import find_run
from orchestrator.cli.completion import RunName
from orchestrator.cli.options import Json, options
from orchestrator.cli.terminal import answer, hanging
from orchestrator.core.run import diagnose as table
from orchestrator.core.run.diagnose import Diagnosis
from orchestrator.core.run.fold import Phase
from orchestrator.core.text import sentence
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
    found = table.diagnose(facts=table.last_attempt(events), log=log, ended=ended)
    nothing = found.cause == "unknown" and (state.closed is None or state.phase in table.EXPLAINS_ITSELF)
    if state.phase is Phase.SUCCEEDED or nothing:
        unexplained = nothing and state.phase is not Phase.SUCCEEDED
        found = table.Diagnosis("", ended, "", table.matters(log) if unexplained else ())
    found = replace(found, remedy=table.pasted(found.remedy, run_id))
    told = {
        "schema": 1,
        "run_id": run_id,
        "state": state.phase.value,
        "cause": found.cause or None,
        "detail": found.detail,
        "remedy": found.remedy,
        "lines": list(found.lines),
    }
    lines = lines_of(run_id, state.phase.value.replace("_", " "), found)
    answer(told, *(_folded(line) for line in lines), json=json)


def _folded(line: str) -> str:
    """What the machine or the cloud says goes on below itself; a remedy is ours, and its commands stay whole."""
    return line if line.startswith("  remedy:") else hanging(line, indent=10)


def lines_of(run_id: str, state: str, found: Diagnosis) -> list[str]:
    """The diagnosis as lines for a terminal."""
    if not found.cause:
        said = [f"run {run_id} ({state}): {sentence(found.detail) or 'nothing is wrong with it'}"]
    else:
        named = "the cause is not known" if found.cause == "unknown" else found.cause.replace("_", " ")
        said = [f"run {run_id} ({state}): {named}", f"  reason: {sentence(found.detail)}", f"  remedy: {found.remedy}"]
    if found.lines:
        said += ["log lines that may explain it:", *(f"  | {line}" for line in found.lines)]
    return said
