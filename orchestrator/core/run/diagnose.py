"""Finds the cause of a failure in its errors or its log, and the remedy, with tables whose first match counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.market.catalog import launch_command
from orchestrator.core.run.events import (
    CaseChecked,
    Diagnosed,
    Event,
    Fact,
    Finished,
    InstanceCreated,
    InstanceGone,
    InstanceRejected,
    InstanceRequested,
    PhaseStarted,
    Preempted,
    VmBooted,
    VmExiting,
    ZoneExhausted,
)
from orchestrator.core.run.fold import Phase


@dataclass(frozen=True, slots=True)
class RunDiagnosis:
    """Why a run ended. `cause` is a word of docs/contracts.md, section 5, or one of the provider's causes below."""

    cause: str
    detail: str
    remedy: str
    lines: tuple[str, ...] = ()
    """If the cause is unknown: the lines of the log that a person should read."""


EXPLAINS_ITSELF: Final = frozenset({Phase.SUCCEEDED, Phase.STOPPED, Phase.REFUSED})
"""The phases of runs that need no diagnosis: a run succeeded, somebody stopped it, or it never began."""

REMEDIES: Final = {
    # --- on the machine
    "payload_checksum": "`bench launch --gpu GPU` with the options of this run starts a new one; if it fails in the "
    "same way, something changes the payload in the bucket",
    "payload_missing": "`bench launch --gpu GPU` with the options of this run uploads the payload again; check that no "
    "lifecycle rule of the bucket deletes it",
    "no_python": "use an image with python3 (the default images have it), or set environment.allow_install=true",
    "no_compiler": "use the default image: torch's own wheels contain NVRTC",
    "no_nvcc": "put /usr/local/cuda/bin on PATH; the bundled kernel needs no nvcc, because NVRTC comes with torch",
    "no_pip": "set environment.allow_install=true, or use an image with python3-venv and pip",
    "pip_managed": "install into a venv: the distribution does not let pip change the system's Python (PEP 668)",
    "no_headers": "a kernel that compiles against Python needs: apt-get install python3-dev, and pip install pybind11",
    "wrong_arch": "build for the GPU of the machine: -arch=sm_75 is T4, sm_80 A100, sm_89 L4, sm_90 H100",
    "abi_mismatch": "rebuild the extension with the torch that loads it: torch's C++ symbols change with every release",
    "out_of_memory": "measure smaller shapes (measure.grid), or use a machine with more memory",
    "no_cuda": "use an image family that includes an NVIDIA driver, and check that the machine type has a GPU",
    "torch_missing": "set environment.allow_install=true, or use an image with torch",
    "torch_without_cuda": "the torch on the machine is built without CUDA: leave environment.torch at its default",
    "driver_too_old": "use an image family with a newer driver (nvidia-580 or later), or an older environment.torch",
    "numpy_mismatch": "leave environment.torch at its default, or use an image without its own numpy",
    "disk_full": "raise machine.disk_gb",
    "container_unavailable": (
        "check the digest in machine.container, and that the machine's service account may read the registry "
        "(roles/artifactregistry.reader)"
    ),
    "clock_skew": "`bench launch --resume RUN` tries another machine; if that fails in the same way, use other zones",
    "gate_failed": "`bench logs RUN` shows which check failed and what it found",
    "build_failed": "`bench logs RUN` shows the compiler's output; kernels/README.md says how to build it by hand",
    "kernel_wrong": "`bench fetch RUN` shows which cases are wrong and why; `bench logs RUN` has what a crash printed",
    "spec_refused": "fix the file and line that the message names; `bench docs your-own-kernel` explains "
    "what a workload needs",
    "harness_crashed": "`bench logs RUN` has the traceback; `bench launch --resume RUN` measures the "
    "cases that are missing",
    "requirements_failed": "fix `requirements` or `apt` of the workload; `bench logs RUN` has pip's own output",
    "program_failed": "`bench fetch RUN` downloads program.log, which has what the program printed; run the "
    "command by hand in its folder",
    "agent_crashed": (
        "report this defect of bench with the output of `bench logs RUN`; `bench launch --resume RUN` measures "
        "what is missing"
    ),
    "phase_timeout": "raise run.phase_limits_s for that phase, or measure a smaller grid",
    "deadline": (
        "raise run.max_minutes (or the budget that shortened it), or measure a smaller grid; `bench launch "
        "--resume RUN` measures the cases that are missing"
    ),
    "preempted": (
        "`bench launch --resume RUN` measures the cases that are missing; with a higher run.attempts a run does "
        "so by itself"
    ),
    "storage_unreachable": (
        "`bench doctor` shows what is missing, `bench init` grants it: the machine's service account must be able "
        "to create objects in the bucket"
    ),
    # --- at the provider
    "quota_zero": (
        "the quota is 0, as in every new project: request 1 of GPUS_ALL_REGIONS and 1 of the GPU's own metric in "
        "the region at https://console.cloud.google.com/iam-admin/quotas; `bench doctor` has the commands"
    ),
    "quota": (
        "request more at https://console.cloud.google.com/iam-admin/quotas, or use other regions; `bench doctor` "
        "shows which have room"
    ),
    "stockout": "`bench launch --resume RUN` tries again later; or allow more zones, or set "
    "machine.provisioning=standard",
    "permission": "grant the account in use the permissions that `bench docs gce` lists; `bench doctor` "
    "shows which are missing",
    "api_disabled": "enable the Compute Engine API: gcloud services enable compute.googleapis.com, or "
    "`bench doctor --fix`",
    "credentials": "run `gcloud auth application-default login`",
    "image_gone": "set machine.image_family to one that exists: `bench doctor` names the nearest",
    "free_tier": "upgrade the billing account: accounts in the free tier cannot have GPUs",
    "billing": "link an open billing account to the project",
    "bad_request": "no zone accepts this request: check machine.* in the configuration",
    "unavailable": "the cloud did not answer; after a few minutes, `bench launch --resume RUN` tries again",
    "no_boot": (
        "the startup script printed nothing: `bench diagnose RUN` shows the lines of the serial console; check that "
        "the image has bash, curl and room on its disk, and that the network reaches storage.googleapis.com"
    ),
    "never_made": "the request was lost before a machine existed; `bench launch --resume RUN` requests one again",
    "lost": (
        "the machine disappeared without a message; `bench launch --resume RUN` measures the cases that are missing"
    ),
    "unknown": "`bench logs RUN` shows the last lines of the log; they are kept after the machine is gone",
}


def complete_remedy(remedy: str, run_id: str) -> str:
    """The remedy with its commands completed for this run."""
    return re.sub(r"\bRUN\b", run_id, remedy.replace("`bench launch --gpu GPU`", launch_command(run_id)))


_PROVIDER: Final[tuple[tuple[str, str], ...]] = (
    ("free_tier", r"free tier"),
    ("billing", r"BILLING_DISABLED|billing.{0,40}(disabled|not (open|enabled|active)|closed)"),
    ("api_disabled", r"SERVICE_DISABLED|accessNotConfigured|API has not been used|API .{0,40}disabled"),
    ("stockout", r"RESOURCE_POOL_EXHAUSTED|STOCKOUT|insufficientCapacity"),
    ("stockout", r"does not have enough resources|resource_availability"),
    ("unavailable", r"RATE_?LIMIT_?EXCEEDED|RESOURCE_OPERATION_RATE_EXCEEDED"),
    ("quota_zero", r"(QUOTA_?EXCEEDED|QUOTA .*exceeded).*\bLimit: 0(\.0+)?(?![\d.]*\d)"),
    ("quota", r"QUOTA_?EXCEEDED|QUOTA .*exceeded|GPUS_ALL_REGIONS"),
    ("credentials", r"DefaultCredentialsError|default credentials|invalid_grant|Reauthentication"),
    ("credentials", r"UNAUTHENTICATED|\b401\b"),
    ("permission", r"PERMISSION_DENIED|\bforbidden\b|insufficient authentication scopes"),
    ("permission", r"Required '[^']+' permission|\b403\b"),
    ("image_gone", r"images?/family/\S+|image family .{0,80}not found"),
    ("image_gone", r"resource 'projects/[^']*/images/[^']*' was not found"),
    ("preempted", r"compute\.instances\.preempted|was preempted|UNSUPPORTED_OPERATION"),
    ("bad_request", r"Invalid value for field|\b400\b"),
    ("unavailable", r"backendError|UNAVAILABLE|ConnectionError|timed out|\b50[0234]\b|\b429\b"),
)
"""Codes and messages of the provider; specific patterns come before general ones."""

_LOG: Final[tuple[tuple[str, str], ...]] = (
    ("payload_checksum", r"sha256.{0,60}(mismatch|differs|does not match)|computed checksum did NOT match"),
    ("payload_missing", r"payloads/[0-9a-f]{64}\.tar\.gz.{0,80}\b404\b"),
    ("disk_full", r"No space left on device|Errno 28"),
    ("out_of_memory", r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|Out of memory: Killed process"),
    ("out_of_memory", r"invoked oom-killer|std::bad_alloc"),
    ("phase_timeout", r"took longer than the phase may|launch timed out and was terminated|\bXid\b.{0,60}: 8,"),
    ("phase_timeout", r"blocked for more than \d+ seconds|soft lockup"),
    ("pip_managed", r"externally-managed-environment"),
    ("no_pip", r"No module named '?pip\b|\bpip3?: (command )?not found|ensurepip is not available"),
    ("no_headers", r"(Python|pybind11/\w+)\.h: No such file|No module named '?pybind11"),
    ("abi_mismatch", r"undefined symbol: _ZN\d*K?\d*(c10|2at|3c10|5torch)"),
    ("wrong_arch", r"no kernel image is available|CUDA_ERROR_NO_BINARY_FOR_GPU|Unsupported gpu architecture"),
    ("wrong_arch", r"invalid value for --gpu-architecture"),
    ("no_nvcc", r"\bnvcc: (command )?not found|CUDA_HOME environment variable is not set"),
    ("driver_too_old", r"driver .{0,60}too old|driver version is insufficient|UNSUPPORTED_PTX_VERSION"),
    ("torch_without_cuda", r"Torch not compiled with CUDA enabled"),
    ("numpy_mismatch", r"compiled using NumPy 1\.x|numpy\.dtype size changed|_ARRAY_API not found"),
    ("torch_missing", r"No module named '?torch\b"),
    ("no_cuda", r"No CUDA GPUs are available|no NVIDIA driver|NVIDIA-SMI has failed"),
    ("no_cuda", r"libcuda\.so.{0,60}(cannot open|not found)"),
    ("no_python", r"python3: (command )?not found"),
    ("build_failed", r"NVRTC_ERROR_COMPILATION|nvrtc: error|ptxas (fatal|error)"),
    ("build_failed", r"\.(cu|cuh|cpp|h)\b.{0,20}: (fatal )?error\b"),
    ("storage_unreachable", r"(upload|storage\.googleapis\.com|/storage/v1/).{0,120}(refused|timed out|failed)"),
    ("storage_unreachable", r"(storage\.googleapis\.com|/storage/v1/).{0,120}\b(403|404|5\d\d)\b"),
    ("deadline", r"maxRunDuration|watchdog.{0,40}(deadline|fired)"),
    ("harness_crashed", r"Traceback \(most recent call last\)|Segmentation fault|CUDA error|SIGSEGV|core dumped"),
)
"""Patterns in the machine's log; specific ones come before general ones."""

_OUTCOMES: Final = {"preempted": "preempted", "timed_out": "deadline", "incorrect": "kernel_wrong"}
OF_MACHINES: Final = (VmBooted, PhaseStarted, Preempted, Finished, VmExiting)
"""Facts that show that a machine has started."""
_GONE: Final = {"preempted": "preempted", "deadline": "deadline", "lost": "lost", "never_made": "never_made"}

_TELLING: Final = re.compile(
    r"error|fail|fatal|exception|traceback|denied|cannot|could not|killed|refused|timed? ?out|not found|panic|NVRM",
    re.IGNORECASE,
)
LINES: Final = 12


def remedy_for(cause: str) -> str:
    """The remedy for a cause; for an unknown cause, where to look."""
    return REMEDIES.get(cause, REMEDIES["unknown"])


def diagnose_run(*, facts: Iterable[Fact] = (), log: str = "", ended: str = "") -> RunDiagnosis:
    """The cause for which a run ended, from its facts and the end of its log. `ended` is the recorded reason, if there
    is one; it becomes the detail if only the end of the machine is known.

    The remedy comes from this client's table, because anybody may write to the bucket. For the cause, the machine's own
    diagnosis comes first, then the provider's refusal, then the log, then other facts, then how the machine ended. If
    the cause is `unknown`, the diagnosis has the lines of the log that a person should read.
    """
    all_facts = tuple(facts)
    for fact in reversed(all_facts):
        if isinstance(fact, Diagnosed) and fact.cause != "unknown":
            return RunDiagnosis(fact.cause, fact.detail, remedy_for(fact.cause))
    return _refused(all_facts) or _from_log(log) or _from_facts(all_facts, ended) or _unknown(all_facts, log)


def last_attempt(events: Sequence[Event]) -> tuple[Fact, ...]:
    """The facts that explain how a run ended: those since its last machine was requested; and, if that was not made,
    every refusal before it. Facts about earlier machines are left out."""
    begin = max((i for i, event in enumerate(events) if isinstance(event.fact, InstanceRequested)), default=0)
    recent = tuple(event.fact for event in events[begin:])
    if any(isinstance(fact, InstanceCreated) for fact in recent):
        return recent
    refusals = (ZoneExhausted, InstanceRejected)
    return tuple(event.fact for event in events[:begin] if isinstance(event.fact, refusals)) + recent


def wants_diagnosis(outcome: Phase, events: Sequence[Event]) -> bool:
    """Whether a run that ends as `outcome` needs a diagnosis and has none yet."""
    diagnosed = any(isinstance(fact, Diagnosed) for fact in last_attempt(events))
    return outcome not in EXPLAINS_ITSELF and not diagnosed


def relevant_lines(log: str) -> tuple[str, ...]:
    """The lines of a log without a known cause that a person should read, in their order: the last ones that look like
    errors, and the last ones of all."""
    lines = [line.rstrip() for line in log.splitlines()]
    not_empty = [index for index, line in enumerate(lines) if line.strip()]
    suspicious = [index for index in not_empty if _TELLING.search(lines[index])]
    chosen = sorted({*suspicious[-(LINES - 4) :], *not_empty[-4:]})
    return tuple(lines[index] for index in chosen)


def _refusals(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    """(code, message) of each refusal of a machine, last first; none if a machine was made."""
    if any(isinstance(fact, InstanceCreated) for fact in facts):
        return []
    refusals = (fact for fact in reversed(facts) if isinstance(fact, (InstanceRejected, ZoneExhausted)))
    return [(fact.code, fact.message) for fact in refusals]


def _refused(facts: Sequence[Fact]) -> RunDiagnosis | None:
    for code, words in _refusals(facts):
        text = f"{code} {words}"
        if cause := next((one for one, pattern in _PROVIDER if re.search(pattern, text, re.IGNORECASE)), None):
            return RunDiagnosis(cause, words or code, remedy_for(cause))
    return None


def _from_log(log: str) -> RunDiagnosis | None:
    for cause, pattern in _LOG:
        if line := next((text for text in log.splitlines() if re.search(pattern, text, re.IGNORECASE)), ""):
            return RunDiagnosis(cause, line.strip(), remedy_for(cause))
    return None


def _from_facts(facts: Sequence[Fact], ended: str) -> RunDiagnosis | None:
    if wrong := [fact for fact in facts if isinstance(fact, CaseChecked) and not fact.passed]:
        first, more_wrong = wrong[0], len(wrong) - 1
        detail = f"{first.implementation} on {first.case_id}: {first.reason or 'differs from the reference'}"
        return RunDiagnosis(
            "kernel_wrong", detail + (f" (and {more_wrong} more)" if more_wrong else ""), remedy_for("kernel_wrong")
        )
    for fact in reversed(facts):
        if isinstance(fact, (Finished, VmExiting)) and fact.outcome in _OUTCOMES:
            cause = _OUTCOMES[fact.outcome]
            return RunDiagnosis(cause, getattr(fact, "detail", ""), remedy_for(cause))
    return _vanished(facts, ended)


def _vanished(facts: Sequence[Fact], ended: str) -> RunDiagnosis | None:
    """The diagnosis from how a machine ended, if the machine itself wrote nothing about it; None if that shows
    nothing."""
    gone = next((fact for fact in reversed(facts) if isinstance(fact, InstanceGone)), None)
    if gone is None:
        return None
    if cause := _GONE.get(gone.how):
        return RunDiagnosis(cause, ended or f"{gone.vm}: {gone.how.replace('_', ' ')}", remedy_for(cause))
    was_made = any(isinstance(fact, InstanceCreated) for fact in facts)
    if was_made and not any(isinstance(fact, OF_MACHINES) for fact in facts):
        return RunDiagnosis("no_boot", ended or f"{gone.vm} sent nothing", remedy_for("no_boot"))
    return None


def _unknown(facts: Sequence[Fact], log: str) -> RunDiagnosis:
    refusal = next((words or code for code, words in _refusals(facts)), "")
    machine_detail = next(
        (fact.detail for fact in reversed(facts) if isinstance(fact, (Finished, Diagnosed)) and fact.detail), ""
    )
    lines = relevant_lines(log)
    return RunDiagnosis(
        "unknown",
        refusal or machine_detail or (lines[-1].strip() if lines else "there is no message"),
        remedy_for("unknown"),
        lines,
    )
