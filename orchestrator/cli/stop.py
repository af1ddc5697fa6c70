"""`bench stop RUN`: end a run and delete its machine."""

from __future__ import annotations

import typer

from orchestrator.api.finding import find_run
from orchestrator.cli.options import Json, RunName, options
from orchestrator.cli.terminal import note, print_answer
from orchestrator.core.errors import DocumentUnreadable, Unavailable
from orchestrator.core.run.fold import Run
from orchestrator.core.run.status import run_document
from orchestrator.core.text import count
from orchestrator.runs.engine import Engine

PATIENCE_S = 45.0
"""How long a service that does not answer is waited for: the stop is recorded by then, and others can do the rest."""


def unsettled_error(state: Run, exc: DocumentUnreadable) -> DocumentUnreadable:
    """The message for a run whose cost cannot be written into the ledger."""
    may_exist = any(vm.open for vm in state.vms)
    machine = "its machine may still exist" if may_exist else "its machine is gone"
    return DocumentUnreadable(f"run {state.run_id}: {machine}, but its cost was not settled: {exc}", hint=exc.hint)


def stop(
    ctx: typer.Context,
    run: RunName,
    json: Json = False,
) -> None:
    """Stop a run and delete its machine.

    What it measured is kept, and its hold is settled. If the ledger cannot be read, the machine is deleted anyway, and
    the exit code is 16.
    """
    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    engine = Engine(wiring.world(), run_id)
    state = engine.look()
    already = state.over
    if not already:
        engine.request_stop(wiring.user, f"stopped by {wiring.user}")
        try:
            state = engine.follow(
                trouble=lambda exc, pause: note(f"{exc} (retry in {pause:.0f} s)"), patience_s=PATIENCE_S
            )
        except DocumentUnreadable as exc:  # the ledger's: the machine is deleted before its cost is settled
            raise unsettled_error(engine.look(), exc) from exc
        except Unavailable as exc:
            raise Unavailable(
                f"the stop of {run_id} is recorded, but it is not done: {exc}",
                hint="`bench stop` again, or any `bench status`, does the rest; a machine ends at its deadline anyway",
            ) from exc
    now, was = wiring.clock.now(), "was already over" if already else "is stopped"
    cases = f"{state.cases_done} of {count(state.cases_total, 'case')}"
    message = f"run {run_id} {was}: {state.phase.value}, ${state.cost(now):.4f}, {cases}"
    print_answer(run_document(state, now), message, json=json)
