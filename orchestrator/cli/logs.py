"""`bench logs RUN`: what the machine says, from the bucket or from its serial port."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.api.finding import find_run
from orchestrator.cli.options import Json, RunName, options
from orchestrator.cli.terminal import emit_json, is_stdout_closed
from orchestrator.core.errors import Unavailable
from orchestrator.runs.engine import Engine
from orchestrator.runs.logs import LogTail


def logs(
    ctx: typer.Context,
    run: RunName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until the run is over.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a run's log.

    Needs no SSH for a rented machine; a host of your own is reached as the launch reached it.
    """
    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    engine = Engine(wiring.world(), run_id)
    tail = LogTail(wiring.bucket, wiring.cloud, run_id)
    state = engine.look()
    text = tail.more(state)
    if json:
        emit_json({"schema": 1, "run_id": run_id, "source": tail.source, "text": text})
        return
    sys.stdout.write(text)
    if not text:
        typer.echo(f"run {run_id} has no log yet ({state.phase.value})", err=True)
    while follow and state.closed is None and not is_stdout_closed():
        try:
            state, pause = engine.step()
        except Unavailable:  # a host that is out of reach for a while; the bucket's own word still comes
            pause = 2.0
        sys.stdout.write(tail.more(state))
        sys.stdout.flush()
        if pause:
            wiring.clock.sleep(max(pause, 1.0))
    if follow:
        sys.stdout.write(tail.more(state))
