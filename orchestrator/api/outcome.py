"""How a run that is over becomes an exit code."""

from __future__ import annotations

import shlex
import sys
from typing import Final

from orchestrator.core.errors import (
    BenchError,
    BudgetExceeded,
    KernelIncorrect,
    NoCapacity,
    ProviderError,
    RunFailed,
    RunPreempted,
    RunStopped,
)
from orchestrator.core.run.diagnose import complete_remedy, remedy_for
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.text import clean_sentence, count

ERRORS: dict[Phase, type[BenchError]] = {
    Phase.INCORRECT: KernelIncorrect,
    Phase.FAILED: RunFailed,
    Phase.PREEMPTED: RunPreempted,
    Phase.STOPPED: RunStopped,
    Phase.EXPIRED: RunStopped,
    Phase.NO_CAPACITY: NoCapacity,
    Phase.REFUSED: BudgetExceeded,
}


def error_of(run: Run) -> BenchError | None:
    """The error that stands for the outcome of a run that is closed or whose machine is kept; None if it succeeded or
    goes on."""
    if run.kept is not None and run.kept.outcome == "incorrect":
        return KernelIncorrect(f"run {run.run_id} incorrect: {clean_sentence(run.kept.detail)}", hint=_hint(run))
    if run.closed is None or run.phase is Phase.SUCCEEDED:
        return None
    kind = ProviderError if run.rejected is not None else ERRORS[run.phase]
    detail = f": {clean_sentence(run.closed.detail)}" if run.closed.detail else ""
    return kind(f"run {run.run_id} {run.phase.value.replace('_', ' ')}{detail}", hint=_hint(run))


INSTALL: Final = (
    f"the embedded cloud's VMs use the python that runs bench: {shlex.quote(sys.executable)} -m pip install"
)
EMBEDDED_REMEDIES = {
    "torch_missing": f"{INSTALL} torch numpy",
    "numpy_mismatch": f"{INSTALL} --upgrade numpy",
    "no_compiler": "the embedded cloud's VMs use this machine's compiler: sudo apt-get install g++",
    "build_failed": "the embedded cloud's VMs use this machine's compiler; `bench logs RUN` shows its messages",
}
"""Remedies for the embedded cloud, where the software is that of this machine and no image can be chosen."""


def _hint(run: Run) -> str:
    embedded = run.simulated
    causes = [fact.cause for fact in run.diagnoses if fact.cause in EMBEDDED_REMEDIES]
    if embedded and causes:
        return complete_remedy(EMBEDDED_REMEDIES[causes[-1]], run.run_id)
    if run.rejected is not None and run.rejected.hint:
        return run.rejected.hint
    remedies = [remedy_for(fact.cause) for fact in run.diagnoses]
    if remedies:
        return complete_remedy(remedies[-1], run.run_id)
    if run.phase is Phase.NO_CAPACITY:
        return f"`bench launch --resume {run.run_id}` tries again later; or allow more zones or regions"
    if not run.vms and run.guest_of is None:
        return f"`bench launch --resume {run.run_id}` asks for a machine again"
    kept = f"`bench fetch {run.run_id}` downloads the {count(run.cases_done, 'measured case')}"
    return kept if run.cases_done else f"`bench logs {run.run_id}` shows the machine's log"


def raise_for(run: Run) -> None:
    error = error_of(run)
    if error is not None:
        raise error
