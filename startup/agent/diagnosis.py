"""The ways a run can end, and the named causes of failures."""

from __future__ import annotations

from dataclasses import dataclass

REMEDIES = {
    "container_unavailable": (
        "check the digest in machine.container, and that the VM's service account may read that registry"
    ),
    "clock_skew": "use another image, or let the VM reach a time server",
    "build_failed": "`bench logs RUN` shows the compiler's output; kernels/README.md says how to build it by hand",
    "disk_full": "raise machine.disk_gb",
    "driver_too_old": "use an image with a newer NVIDIA driver, or an older environment.torch",
    "deadline": (
        "raise run.max_minutes, or measure a smaller grid; `bench launch --resume RUN` measures the cases that "
        "are missing"
    ),
    "gate_failed": "`bench logs RUN` shows the last lines; they are kept after the machine is gone",
    "harness_crashed": (
        "`bench logs RUN` has the traceback; `bench launch --resume RUN` measures the cases that are missing"
    ),
    "kernel_wrong": "`bench fetch RUN` shows which cases are wrong and why; `bench logs RUN` has what a crash printed",
    "no_compiler": "use an image with NVRTC (torch's own wheels bring it), nvcc or a C++ compiler",
    "no_cuda": "use an image with an NVIDIA driver, and check that the machine type has a GPU",
    "numpy_mismatch": "use an image whose numpy fits its torch, or set environment.allow_install=true",
    "phase_timeout": "raise run.phase_limits_s for that phase, or measure a smaller grid",
    "preempted": "`bench launch --resume RUN` measures the cases that are missing",
    "requirements_failed": "fix `requirements` or `apt` of the workload; artifacts/log.txt has pip's own output",
    "program_failed": "read artifacts/program.log and program.out; run the command by hand in its folder",
    "spec_refused": (
        "fix the file and line that the message names; `bench docs your-own-kernel` explains what a workload needs"
    ),
    "storage_unreachable": "check that the bucket exists and that the VM's service account may read and create objects",
    "torch_missing": "use an image with torch, or set environment.allow_install=true",
    "torch_without_cuda": "use an image whose torch is built for CUDA, or set environment.allow_install=true",
    "agent_crashed": "report this defect of the agent with the output of `bench logs RUN`",
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
