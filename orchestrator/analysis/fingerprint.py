"""Whether two runs can be compared, judged by what is recorded of their environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class ComparabilityLevel(StrEnum):
    COMPARABLE = "comparable"
    CAVEAT = "comparable with a caveat"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Comparability:
    """`reasons` are sentences: those that refuse first, then the caveats."""

    level: ComparabilityLevel
    reasons: tuple[str, ...]


Fingerprint = Mapping[str, Any]
"""Everything known of a run's environment: environment.json, with `image`, `zone` and `machine_type` of its manifest,
`compiler` of its build, and `regimes` (a sequence) of its rows. Unknown is None or absent."""

DECISIVE: Final = ("device", "device_kind", "compute_capability")
DECISIVE_ON_A_CPU: Final = ("cpu_count", "threads")
MATTERS: Final = (
    "device_uuid_sha256", "driver", "cuda", "torch", "cudnn", "nvrtc", "compiler", "numpy", "power_limit_w", "ecc",
    "mig", "sm_clock_max_mhz", "cpu", "cpu_count", "threads", "os", "kernel", "python", "image", "container", "zone",
    "machine_type",
)  # fmt: skip
SOFTWARE: Final = ("driver", "cuda", "torch", "cudnn", "nvrtc", "compiler")
"""The parts of a run's code beside its payload."""
CHIP: Final = "device_uuid_sha256"
NAMES: Final = {
    CHIP: "chip",
    "power_limit_w": "power limit",
    "sm_clock_max_mhz": "highest clock",
    "machine_type": "machine type",
    "cpu_count": "number of processors",
    "compute_capability": "compute capability",
    "device_kind": "kind of device",
}


def compare_fingerprints(first: Fingerprint, second: Fingerprint, *, across_devices: bool = False) -> Comparability:
    """How far the times of two runs may be compared. With `across_devices` a difference of devices is a caveat and no
    longer a reason to refuse, because devices are what is compared."""
    decisive = DECISIVE + (DECISIVE_ON_A_CPU if first.get("device_kind") == "cpu" else ())
    refused: list[str] = []
    caveats: list[str] = []
    for key in decisive:
        value, other = first.get(key), second.get(key)
        if value != other:
            difference = _differ(key, value, other)
            (caveats if across_devices else refused).append(difference)
    regimes = _regimes(first, second)
    (refused if regimes.startswith("no regime") else caveats).extend([regimes] if regimes else [])
    for key in MATTERS:
        value, other = first.get(key), second.get(key)
        implied = key == CHIP and first.get("device") != second.get(
            "device"
        )  # a device of another kind is always another chip
        if key not in decisive and value != other and not implied:
            caveats.append(_differ(key, value, other))
    payloads, commits = ([run.get(key) for run in (first, second)] for key in ("payload_sha256", "git_commit"))
    if all(payloads) and payloads[0] != payloads[1] and commits[0] == commits[1]:
        caveats.append("the kernels or the harness differ although the commit is the same")
    for ordinal, run in (("first", first), ("second", second)):
        if run.get("git_dirty"):
            caveats.append(f"the {ordinal} run's kernels have uncommitted changes")
    if refused:
        return Comparability(ComparabilityLevel.REFUSED, (*refused, *caveats))
    return Comparability(ComparabilityLevel.CAVEAT if caveats else ComparabilityLevel.COMPARABLE, tuple(caveats))


def has_same_libraries(first: Fingerprint, second: Fingerprint) -> bool:
    """Whether two runs had the same libraries, so that their baselines were the same code."""
    return all(first.get(key) == second.get(key) for key in SOFTWARE)


def same_code(first: Fingerprint, second: Fingerprint) -> bool:
    """Whether two runs are known to have run the same payload on the same libraries."""
    payloads = [run.get("payload_sha256") for run in (first, second)]
    return bool(payloads[0]) and payloads[0] == payloads[1] and has_same_libraries(first, second)


def _regimes(first: Fingerprint, second: Fingerprint) -> str:
    """A sentence on how the regimes of the two runs differ; empty where they are the same."""
    regimes, other = (tuple(run.get("regimes") or ()) for run in (first, second))
    if set(regimes) == set(other):
        return ""
    both = [name for name in regimes if name in other]
    if not both:
        return f"no regime is in both: {_shown(', '.join(regimes))} and {_shown(', '.join(other))}"
    return f"only {' and '.join(both)} is in both runs; the rest is not compared"


def _differ(key: str, one: Any, other: Any) -> str:
    name = NAMES.get(key, key.replace("_", " "))
    if key == CHIP:
        return "another chip of the same kind" if one and other else f"{name} is known for one run only"
    return f"{name} differs: {_shown(one)} and {_shown(other)}"


def _shown(value: Any) -> str:
    return "unknown" if value is None or value == "" else str(value)
