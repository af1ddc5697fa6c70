"""`bench status [RUN]`: runs, phases, progress, dollars; and the machines that are alive now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.cli import alive_view
from orchestrator.cli.alive_view import keep_or_stop, line, price_of, summary
from orchestrator.cli.completing import known_runs, remember
from orchestrator.cli.finding import find_run
from orchestrator.cli.options import Json, emit_json, options
from orchestrator.cli.render import SIMULATED, alive_line, diagnoses, runs_table, time_lines
from orchestrator.cli.render import live as live_view
from orchestrator.cli.screen import hung, screen
from orchestrator.cli.unread import note, raise_unread
from orchestrator.core.errors import (
    BenchError,
    CredentialsMissing,
    DocumentUnreadable,
    NotFound,
    ProviderError,
    Unavailable,
)
from orchestrator.core.foreign import sentence
from orchestrator.core.hosts import is_host
from orchestrator.core.run.fold import Run
from orchestrator.core.run.keeping import ColdStart, advise, cold_starts
from orchestrator.core.run.status import StatusLine, decode, document, status_line
from orchestrator.runs.engine import Engine
from orchestrator.runs.reap import Finding, survey
from orchestrator.runs.reconcile import is_due, reconcile
from orchestrator.wiring import Wiring


def status(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(metavar="[RUN]", help="A run id, a unique part of one, or `last`.", autocompletion=known_runs),
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many runs to list, newest first.")] = 20,
    json: Json = False,
) -> None:
    """List runs, and the machines that exist now.

    Runs that are over are also settled and closed. The machines are those that the cloud itself lists, not those that
    the runs know of.
    """
    wiring = options(ctx).wiring()
    if run:
        _one(wiring, run, json=json)
    else:
        _all(wiring, limit=limit, json=json)


def _one(wiring: Wiring, text: str, *, json: bool) -> None:
    engine = Engine(wiring.world(), find_run(wiring, text))
    state = engine.look()
    try:
        state = engine.catch_up()
    except Unavailable as exc:  # what the bucket knows can be told without the machine
        note(str(exc))
    cold = _cold(wiring, state)
    advice = advise(state, cold, wiring.clock.now())
    if json:
        told = {
            "keep_or_stop": advice.document() if advice is not None else None,
            "cold_starts": cold.document() if cold is not None else None,
        }
        emit_json({**document(state, wiring.clock.now()), **told})
        return
    console = screen()
    console.print(live_view(state, wiring.clock.now()))
    for words in time_lines(state, wiring.clock.now()):
        console.print(words, markup=False)
    if cold is not None:
        console.print(cold.text, markup=False, style="dim")
    if advice is not None and state.kept is not None:  # for no other does anybody choose
        console.print(advice.text, markup=False, soft_wrap=True)
    if state.closed is not None and not any(state.closed.detail in said for said in ("", *diagnoses(state))):
        ended = f"{state.phase.value.replace('_', ' ')}: {sentence(state.closed.detail)}"
        console.print(hung(console, ended), markup=False)


def _cold(wiring: Wiring, run: Run) -> ColdStart | None:
    """How long cold starts took in this bucket; takes one listing."""
    if run.plan is None:
        return None
    lines = [line for entry in wiring.index.list_runs() if (line := decode(entry.run_id, entry.status)) is not None]
    return cold_starts(lines, run.plan.gpu, run.plan.mode)


def _all(wiring: Wiring, *, limit: int, json: bool) -> None:
    lines, left_out, first = _lines(wiring)
    remember(wiring.home, [line.run_id for line in lines])
    try:
        findings, unasked = _alive(wiring), ""
    except BenchError as exc:
        findings, unasked = (), str(exc)
    left_out |= wiring.hosts.odd
    if json:
        runs = [asdict(line) for line in lines[-limit:]]
        advised = [(finding, keep_or_stop(finding, lines, wiring.clock.now())) for finding in findings]
        known = [
            {**alive_view.document(one), "keep_or_stop": said.document() if said else None} for one, said in advised
        ]
        machines = None if unasked else known
        emit_json(
            {
                "schema": 1,
                "mode": wiring.mode,
                "prices_simulated": wiring.mode.simulated,
                "runs": runs,
                "instances": machines,
                "left_out": left_out,
            }
        )
        raise_unread(left_out, first)
        return
    console = screen()
    if not lines:
        console.print("there are no runs yet; start one with `bench launch --gpu l4`")
    else:
        console.print(runs_table(lines[::-1][:limit], wiring.clock.now()))
        if len(lines) > limit:
            console.print(f"… and {len(lines) - limit} older runs; --limit N shows more", style="dim")
        if wiring.mode.simulated:
            console.print(f"machines of the embedded cloud, {SIMULATED}", style="dim")
    for finding in findings:
        console.print(hung(console, line(finding)), markup=False, soft_wrap=True)
        advice = keep_or_stop(finding, lines, wiring.clock.now())
        if advice is not None and finding.run is not None and finding.run.kept is not None:
            console.print(f"        {advice.text}", markup=False, soft_wrap=True, style="dim")
    if unasked:
        said = f"the cloud did not answer ({unasked}); as far as the runs know:"
        console.print(hung(console, said), style="yellow", markup=False)
        console.print(alive_line(lines))
    else:
        console.print(summary(findings), markup=False)
    raise_unread(left_out, first)


def _alive(wiring: Wiring) -> tuple[Finding, ...]:
    """Every machine that exists, with its verdict. If there is none, nothing more is loaded or read."""
    instances = wiring.alive()
    if not instances:
        return ()
    return survey(wiring.world(), instances, price_of(wiring.price_book.usable()))


def _lines(wiring: Wiring) -> tuple[list[StatusLine], dict[str, str], BenchError | None]:
    """Every run, oldest first; by object what could not be read; and the first that the cloud would not do. Finished
    runs cost nothing but the one listing; open ones are driven as far as they go now, so that one whose machine is gone
    is closed before it is shown. One that cannot be hides no other."""
    lines = []
    left_out: dict[str, str] = {}
    first: BenchError | None = None
    for entry in wiring.index.list_runs():
        line = decode(entry.run_id, entry.status)
        if line is None or not line.over:
            try:
                state = Engine(wiring.world(), entry.run_id).catch_up()
            except NotFound:
                continue
            except CredentialsMissing:
                raise
            except BenchError as exc:
                if isinstance(exc, DocumentUnreadable):
                    left_out[entry.run_id] = f"run {entry.run_id}: {exc}"
                else:
                    note(f"{entry.run_id}: {exc}")
                    if line is None or not is_host(line.vm):  # a host may well be switched off
                        first = first or ProviderError(f"some runs could not be settled: {exc}", hint=exc.hint)
                lines += [line] if line is not None else []
                continue
            line = status_line(state, wiring.clock.now())
        lines.append(line)
    try:
        _reconcile(wiring)
    except DocumentUnreadable as exc:
        left_out["ledger"] = f"{exc}; the cost of runs cannot be settled" + (f" ({exc.hint})" if exc.hint else "")
    return lines, left_out, first


def _reconcile(wiring: Wiring) -> None:
    """Releases the holds of clients that died, or counts them as spent, as far as this can be decided now."""
    if is_due(wiring.ledger.read()):
        reconcile(wiring.world())
