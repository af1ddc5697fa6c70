"""The ways a run can end, and the named causes of failures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """A cause from the contract's list, and what it looked like here. What to do about it, each client says itself."""

    cause: str
    detail: str


@dataclass(frozen=True)
class Ending:
    """How a run ended; `outcome` is one of the contract's, `exit_code` is what the agent exits with."""

    outcome: str
    exit_code: int
    detail: str = ""
    diagnosis: Diagnosis | None = None


class Halt(Exception):
    """Ends what the run is doing; the run then finishes with `ending`."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.outcome + ": " + ending.detail)
        self.ending = ending


class RebootNeeded(Exception):
    """Ends what the run is doing until the machine has been rebooted; then the run begins anew."""


def halt_for(cause: str, detail: str, exit_code: int = 1) -> Halt:
    """The Halt for a run that cannot go on, for a named cause."""
    return Halt(Ending("failed", exit_code, detail, Diagnosis(cause, detail)))


def timed_out(detail: str) -> Halt:
    """The Halt for a phase that took longer than its limit. Its exit code is 124, as that of timeout(1)."""
    return Halt(Ending("timed_out", 124, detail, Diagnosis("phase_timeout", detail)))
