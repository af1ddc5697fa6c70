"""From an error or a log to a named cause and what to do about it: a table, read from the top."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.core.events import CaseChecked, Diagnosed, Fact, Finished, InstanceRejected, VmExiting, ZoneExhausted


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why it ended so. `cause` is a word of docs/contracts.md, section 5, or one of the provider's below."""

    cause: str
    detail: str
    remedy: str


REMEDIES: Final = {
    # --- on the machine
    "payload_checksum": "launch again; if it comes back, something changes the payload in the bucket",
    "payload_missing": "launch again: the payload is uploaded anew; check that no lifecycle rule empties the bucket",
    "no_python": "choose an image with python3, such as the defaults, or allow installing",
    "no_compiler": "use the default image; torch's own wheels bring NVRTC",
    "no_cuda": "use an image whose family names an NVIDIA driver, and check that the machine type has a GPU",
    "torch_missing": "set environment.allow_install to true, or choose an image with torch",
    "torch_without_cuda": "leave environment.torch at its default; the torch on the machine is built without CUDA",
    "driver_too_old": "use an image family with a newer driver (nvidia-580 or later), or an older environment.torch",
    "numpy_mismatch": "leave environment.torch at its default, or choose an image without a numpy of its own",
    "disk_full": "raise machine.disk_gb",
    "clock_skew": "launch again, in another zone if it comes back",
    "gate_failed": "`bench logs RUN` shows which check failed and what it found",
    "build_failed": "`bench logs RUN` has the compiler's words; try it at home with `python3 -m kernels.harness build`",
    "kernel_wrong": "see correctness.csv after `bench fetch RUN`; the baselines' timings are kept",
    "harness_crashed": "`bench logs RUN` has the traceback; cases finished before it are kept",
    "agent_crashed": "`bench logs RUN`; launch again: finished cases are skipped",
    "phase_timeout": "raise run.phase_limits_s for the phase, or measure a smaller grid",
    "deadline": "raise run.max_minutes (or the budget that shortened it), or measure a smaller grid",
    "preempted": "raise run.attempts, so that another machine goes on where this one stopped",
    "storage_unreachable": "let the machine's service account create objects in the bucket; docs/gce.md has the roles",
    # --- at the provider
    "quota": "ask for more at https://console.cloud.google.com/iam-admin/quotas, or name other regions",
    "stockout": "try again later, allow more zones, or take machine.provisioning=standard",
    "permission": "give the account in use the rights that docs/gce.md lists",
    "api_disabled": "enable the Compute Engine API: gcloud services enable compute.googleapis.com",
    "credentials": "run `gcloud auth application-default login`",
    "image_gone": "set machine.image_family to one that `gcloud compute images list` names",
    "free_tier": "upgrade the billing account: accounts in the free tier cannot have GPUs",
    "billing": "link an open billing account to the project",
    "bad_request": "this is a request that no zone accepts: check machine.* in the config",
    "unavailable": "the provider did not answer; try again in a few minutes",
    "lost": "the machine vanished without a word; launch again: finished cases are skipped",
    "unknown": "`bench logs RUN` shows the last lines; they are kept after the machine is gone",
}

_PROVIDER: Final[tuple[tuple[str, str], ...]] = (
    ("free_tier", r"free tier"),
    ("billing", r"BILLING_DISABLED|billing.{0,40}(disabled|not (open|enabled|active)|closed)"),
    ("api_disabled", r"SERVICE_DISABLED|accessNotConfigured|API has not been used|API .{0,40}disabled"),
    ("stockout", r"RESOURCE_POOL_EXHAUSTED|STOCKOUT|insufficientCapacity"),
    ("stockout", r"does not have enough resources|resource_availability"),
    ("unavailable", r"RATE_?LIMIT_?EXCEEDED|RESOURCE_OPERATION_RATE_EXCEEDED"),
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
"""Codes and messages of the provider, the narrower before the wider."""

_LOG: Final[tuple[tuple[str, str], ...]] = (
    ("payload_checksum", r"sha256.{0,60}(mismatch|differs|does not match)|computed checksum did NOT match"),
    ("payload_missing", r"payloads/[0-9a-f]{64}\.tar\.gz.{0,80}\b404\b"),
    ("disk_full", r"No space left on device|Errno 28"),
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
"""What the machine's log says, the more telling before the less."""

_OUTCOMES: Final = {"preempted": "preempted", "timed_out": "deadline", "incorrect": "kernel_wrong"}


def remedy(cause: str) -> str:
    """What to do about a cause; for a word that is not known, where to look."""
    return REMEDIES.get(cause, REMEDIES["unknown"])


def diagnose(*, facts: Iterable[Fact] = (), code: str = "", message: str = "", log: str = "") -> Diagnosis:
    """The cause of an ending, from whatever is at hand: the run's facts, the provider's error, the end of its log.

    The machine's own diagnosis comes first, then the provider's refusal, then other facts, then the log, then how the
    run ended. `unknown` says so, and keeps the last line of the log.
    """
    known = tuple(facts)
    for fact in reversed(known):
        if isinstance(fact, Diagnosed) and fact.cause != "unknown":
            return Diagnosis(fact.cause, fact.detail, fact.remedy or remedy(fact.cause))
    refusals = [(code, message)] if code or message else []
    refusals += [
        (fact.code, fact.message) for fact in reversed(known) if isinstance(fact, (InstanceRejected, ZoneExhausted))
    ]
    for refused_code, words in refusals:
        if cause := _match(_PROVIDER, f"{refused_code} {words}"):
            return Diagnosis(cause, words or refused_code, remedy(cause))
    for cause, pattern in _LOG:
        if line := next((text for text in log.splitlines() if re.search(pattern, text, re.IGNORECASE)), ""):
            return Diagnosis(cause, line.strip(), remedy(cause))
    if wrong := [fact for fact in known if isinstance(fact, CaseChecked) and not fact.passed]:
        first, more = wrong[0], len(wrong) - 1
        detail = f"{first.implementation} on {first.case_id}: {first.reason or 'differs from the reference'}"
        return Diagnosis("kernel_wrong", detail + (f" (and {more} more)" if more else ""), remedy("kernel_wrong"))
    for fact in reversed(known):
        if isinstance(fact, (Finished, VmExiting)) and fact.outcome in _OUTCOMES:
            cause = _OUTCOMES[fact.outcome]
            return Diagnosis(cause, getattr(fact, "detail", ""), remedy(cause))
    said = message or code or next((text.strip() for text in reversed(log.splitlines()) if text.strip()), "")
    return Diagnosis("unknown", said or "nothing was said", remedy("unknown"))


def _match(table: Iterable[tuple[str, str]], text: str) -> str | None:
    return next((cause for cause, pattern in table if re.search(pattern, text, re.IGNORECASE)), None)
