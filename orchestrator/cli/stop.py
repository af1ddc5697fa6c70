"""`bench stop RUN`: end a run and delete its machine."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Json, emit_json, options


def stop(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id, or `last`.")],
    json: Json = False,
) -> None:
    """End a run and delete its machine.

    What it measured is kept, and its hold is settled.
    """
    from orchestrator.cli.finding import find_run
    from orchestrator.core.budget import Caps
    from orchestrator.core.status import document
    from orchestrator.engine import Engine
    from orchestrator.wiring import utc_now

    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    engine = Engine(wiring.world(Caps()), run_id)
    state = engine.look()
    already = state.over
    if not already:
        engine.request_stop(wiring.user, f"stopped by {wiring.user}")
        state = engine.follow()
    if json:
        emit_json(document(state, utc_now()))
        return
    now = utc_now()
    was = "was over already" if already else "is stopped"
    cases = f"{state.cases_done} of {state.cases_total} cases"
    typer.echo(f"run {run_id} {was}: {state.phase.value}, ${state.cost(now):.4f}, {cases}")
