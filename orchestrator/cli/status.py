"""`bench status [RUN]`: runs, phases, progress, dollars; and the machines that are alive now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Json, emit_json, options

if TYPE_CHECKING:
    from orchestrator.core.keeping import ColdStart
    from orchestrator.core.run import Run
    from orchestrator.core.status import StatusLine
    from orchestrator.reaping import Finding
    from orchestrator.wiring import Wiring


def status(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="A run id, a unique part of one, or `last`.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many runs to list, newest first.")] = 20,
    json: Json = False,
) -> None:
    """Show runs, and the machines alive now.

    Open runs are looked after: settled and closed when they are over. The machines are those that the cloud itself
    lists, whatever the runs believe.
    """
    wiring = options(ctx).wiring()
    if run:
        _one(wiring, run, json=json)
    else:
        _all(wiring, limit=limit, json=json)


def _one(wiring: Wiring, text: str, *, json: bool) -> None:
    from rich.console import Console

    from orchestrator.cli.finding import find_run
    from orchestrator.cli.render import live as live_view
    from orchestrator.core.budget import Caps
    from orchestrator.core.errors import Unavailable
    from orchestrator.core.keeping import advise
    from orchestrator.core.status import document
    from orchestrator.engine import Engine
    from orchestrator.wiring import utc_now

    engine = Engine(wiring.world(Caps()), find_run(wiring, text))
    state = engine.look()
    try:
        while not (state.over and state.settled is not None) and state.phase.value != "refused":
            state, pause = engine.step()
            if pause:
                break
    except Unavailable as exc:  # what the bucket knows can be told without the machine
        typer.echo(f"note: {exc}", err=True)
    advice = advise(state, _cold(wiring, state), utc_now())
    if json:
        emit_json({**document(state, utc_now()), "keep_or_stop": advice.document() if advice is not None else None})
        return
    console = Console(highlight=False)
    console.print(live_view(state, utc_now()))
    if advice is not None:
        console.print(advice.text, markup=False, soft_wrap=True)
    if state.closed is not None and state.closed.detail:
        console.print(state.closed.detail, markup=False)


def _cold(wiring: Wiring, run: Run) -> ColdStart | None:
    """What cold starts have taken in this bucket, by one listing; asked only where there is a machine to advise on."""
    from orchestrator.core.keeping import cold_starts
    from orchestrator.core.status import decode

    if run.plan is None or run.vm is None or not run.vm.open:
        return None
    lines = [line for entry in wiring.index.list_runs() if (line := decode(entry.run_id, entry.status)) is not None]
    return cold_starts(lines, run.plan.gpu, run.plan.mode)


def _all(wiring: Wiring, *, limit: int, json: bool) -> None:
    from rich.console import Console

    from orchestrator.cli.alive_view import document, keep_or_stop, line, summary
    from orchestrator.cli.render import alive_line, runs_table
    from orchestrator.core.errors import BenchError
    from orchestrator.wiring import utc_now

    lines = _lines(wiring)
    try:
        findings, unasked = _alive(wiring), ""
    except BenchError as exc:
        findings, unasked = (), str(exc)
    if json:
        from dataclasses import asdict

        runs = [asdict(line) for line in lines[-limit:]]
        advised = [(finding, keep_or_stop(finding, lines, utc_now())) for finding in findings]
        known = [{**document(one), "keep_or_stop": said.document() if said else None} for one, said in advised]
        machines = None if unasked else known
        emit_json({"schema": 1, "mode": wiring.mode, "runs": runs, "instances": machines})
        return
    console = Console(highlight=False, soft_wrap=False)
    if not lines:
        console.print("no runs yet; `bench launch --gpu l4` makes one")
    else:
        console.print(runs_table(lines[::-1][:limit], utc_now()))
        if len(lines) > limit:
            console.print(f"… and {len(lines) - limit} older runs (--limit)", style="dim")
    for finding in findings:
        console.print(line(finding), markup=False, soft_wrap=True)
        advice = keep_or_stop(finding, lines, utc_now())
        if advice is not None:
            console.print(f"        {advice.text}", markup=False, soft_wrap=True, style="dim")
    if unasked:
        console.print(f"the cloud could not be asked ({unasked}); by the runs' own account:", style="yellow")
        console.print(alive_line(lines))
    else:
        console.print(summary(findings), markup=False)


def _alive(wiring: Wiring) -> tuple[Finding, ...]:
    """Every machine that exists, with the verdict on it. When there is none, nothing more is loaded or read."""
    instances = wiring.alive()
    if not instances:
        return ()
    from orchestrator.cli.alive_view import price_of
    from orchestrator.core.budget import Caps
    from orchestrator.reaping import survey

    return survey(wiring.world(Caps()), instances, price_of())


def _lines(wiring: Wiring) -> list[StatusLine]:
    """Every run, oldest first. Finished runs cost nothing but the one listing; open ones are stepped once."""
    from orchestrator.core.errors import NotFound, ProviderError
    from orchestrator.core.status import decode, status_line

    lines = []
    for entry in wiring.index.list_runs():
        line = decode(entry.run_id, entry.status)
        if line is None or not line.over:
            from orchestrator.core.budget import Caps
            from orchestrator.core.hosts import is_host
            from orchestrator.engine import Engine

            try:
                state, _ = Engine(wiring.world(Caps()), entry.run_id).step()
            except NotFound:
                continue
            except ProviderError as exc:
                if line is None or not is_host(line.vm):
                    raise
                # One host that is switched off must not hide all other runs.
                typer.echo(f"{entry.run_id}: {exc}", err=True)
                lines.append(line)
                continue
            line = status_line(state, wiring.clock.now())
        lines.append(line)
    _reconcile(wiring)
    return lines


def _reconcile(wiring: Wiring) -> None:
    """Holds of clients that died: given back, or counted as spent, as far as that is known by now."""
    if any(entry.settled_usd is None for entry in wiring.ledger.read().runs.values()):
        from orchestrator.core.budget import Caps
        from orchestrator.reconcile import reconcile

        reconcile(wiring.world(Caps()))
