"""The ways a run can end, and the named causes of those it should not end in."""

from __future__ import annotations

from dataclasses import dataclass

REMEDIES = {
    "container_unavailable": "check machine.container, and that the VM's service account may read that registry",
    "clock_skew": "choose another image, or let the VM reach a time server",
    "build_failed": "`bench logs RUN` has the compiler's words; kernels/README.md says how to build it by hand",
    "disk_full": "ask for a larger boot disk",
    "driver_too_old": "choose an image with a newer NVIDIA driver, or ask for an older torch",
    "deadline": "give the run more time or ask for fewer cases; a relaunch skips the cases that are finished",
    "gate_failed": "`bench logs RUN` shows the last lines; they are kept after the machine is gone",
    "harness_crashed": "`bench logs RUN` has the traceback; `bench launch --resume RUN` skips finished cases",
    "kernel_wrong": "`bench fetch RUN` says on which cases and why; `bench logs RUN` has what a crash printed",
    "no_compiler": "choose an image with NVRTC (torch's own wheels bring it), nvcc or a C++ compiler",
    "no_cuda": "choose an image with an NVIDIA driver and check that the VM has an accelerator",
    "numpy_mismatch": "choose an image whose numpy fits its torch, or allow installing",
    "phase_timeout": "raise this phase's limit, or ask for less in it",
    "preempted": "relaunch: finished cases are kept and skipped",
    "requirements_failed": "mend `requirements` or `apt` of the workload; artifacts/log.txt has pip's own words",
    "program_failed": "read artifacts/program.log and program.out; run the command alone in its folder",
    "spec_refused": "mend what the words name, by file and line; docs/your-own-kernel.md says what a workload has",
    "storage_unreachable": "check that the bucket exists and that the VM's service account may read and create objects",
    "torch_missing": "choose an image with torch, or allow installing",
    "torch_without_cuda": "choose an image whose torch is built for CUDA, or allow installing",
    "agent_crashed": "this is a defect of the agent: report it with what `bench logs RUN` prints",
    "unknown": "`bench logs RUN` shows the last lines; they are kept after the machine is gone",
}


@dataclass(frozen=True)
class Diagnosis:
    """A cause from the contract's list, what it looked like here, and what to do about it."""

    cause: str
    detail: str

    @property
    def remedy(self) -> str:
        return REMEDIES.get(self.cause, REMEDIES["unknown"])


@dataclass(frozen=True)
class Ending:
    """How a run ended; `outcome` is one of the contract's, `exit_code` is what the agent exits with."""

    outcome: str
    exit_code: int
    detail: str = ""
    diagnosis: Diagnosis | None = None


class Halt(Exception):
    """Leaves whatever the run is doing for its finish."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.outcome + ": " + ending.detail)
        self.ending = ending


def failed(cause: str, detail: str, exit_code: int = 1) -> Halt:
    """The run cannot go on, for a reason with a name."""
    return Halt(Ending("failed", exit_code, detail, Diagnosis(cause, detail)))


def timed_out(detail: str) -> Halt:
    """A phase took longer than it may; 124 is what timeout(1) exits with."""
    return Halt(Ending("timed_out", 124, detail, Diagnosis("phase_timeout", detail)))
