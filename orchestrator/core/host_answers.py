"""Checks what a host answers: control characters are removed, numbers must be plausible, trouble becomes an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.errors import BenchError, HostUnfit, NoCapacity, Unavailable
from orchestrator.core.hosts import HostTarget
from orchestrator.core.text import clean_value, log_text

LOOK: Final = "`bench doctor --host HOST` checks that machine"
"""The hint for trouble with a host, if it is not known which host it is."""
MOST: Final = 1e11
"""Above any time in seconds, and any size of a log."""


def answer_error(answer: Mapping[str, Any], target: HostTarget) -> BenchError | None:
    """The error that a host reported for an operation; None if it reported none."""
    kind, path, why = answer.get("trouble"), answer.get("path") or "", answer.get("message") or "it gave no reason"
    at = f" ({path})" if path else ""
    if not kind:
        return None
    if kind == "measuring":
        return busy_error(target, why)
    if kind == "disk_full":
        hint = (
            f"free some space on {target.called}: `df -h {path or '~'}` shows how much there is; the cache folder may "
            "be deleted while no run is there"
        )
        return HostUnfit(f"the disk of {target} is full: {why}{at}", hint=hint)
    if kind == "not_writable":
        hint = (
            f"on {target.called}: `ls -ld {path or '~/.cache'}` shows its owner; set XDG_CACHE_HOME there to a folder "
            "that you may write to"
        )
        return HostUnfit(f"bench may not write on {target}: {why}{at}", hint=hint)
    if kind == "checksum":
        return Unavailable(f"{target}: {why}{at}", hint="bench sends it again by itself")
    return HostUnfit(f"{target}: {why}{at}", hint=look_at(target))


def busy_error(target: HostTarget, other: str) -> NoCapacity:
    """The error for a host that measures `other` at the moment."""
    return NoCapacity(
        f"{target} is busy with {other}; two runs at once would disturb each other",
        hint="wait until that run is over, or end it: `bench status` lists it, `bench stop RUN` ends it",
    )


def look_at(target: HostTarget) -> str:
    """The hint for trouble with a host."""
    return LOOK.replace("HOST", str(target))


def clean_answer(answer: object) -> dict[str, Any]:
    """A host's answer without control characters: a log whole, one line of any other text. Raises `HostUnfit`."""
    if not isinstance(answer, Mapping):
        raise HostUnfit("a host gave an answer that bench does not know", hint=LOOK)
    return {key: log_text(value) if key == "text" else clean_value(value) for key, value in answer.items()}


WORDS: Final = (str,)
NUMBER: Final = (int, float)
LOOKS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "probe": {
        **dict.fromkeys(("platform", "python", "executable", "os", "machine", "cpu", "cache"), WORDS),
        **dict.fromkeys(("compiler", "busy", "no_gpu"), WORDS),
        "free_gb": NUMBER,
        "missing": (list,),
        "gpus": (list,),
    },
    "packages": {**dict.fromkeys(("torch", "cuda", "error", "compiles"), WORDS), "usable": (bool,), "pythons": (list,)},
}
"""The keys that a probe and a validation of a host must have, with their types: a launch and the doctor read them."""
CARD: Final = ("name", "uuid_sha256", "driver", "compute_capability")


def validate_answer(answer: object, look: str) -> dict[str, Any]:
    """The answer to an operation of `LOOKS`, cleaned as in `said`, with every key that it must have. Raises `HostUnfit`
    if a key is missing or has another type: then the programme there is not the one that was sent."""
    cleaned = clean_answer(answer)
    odd = [key for key, kinds in LOOKS[look].items() if not isinstance(cleaned.get(key), kinds)]
    if not odd and look == "probe":
        cards = cleaned["gpus"]
        fit = all(isinstance(card, Mapping) and all(isinstance(card.get(k), str) for k in CARD) for card in cards)
        odd += [] if fit else ["gpus"]
        odd += [] if re.fullmatch(r"\d{1,4}\.\d{1,4}(\..*)?", cleaned["python"]) else ["python"]
        odd += [] if all(isinstance(name, str) for name in cleaned["missing"]) else ["missing"]
        odd += [] if 0 <= cleaned["free_gb"] <= MOST else ["free_gb"]
    if odd:
        raise HostUnfit(f"a host gave an answer about itself that bench does not know: {', '.join(odd)}", hint=LOOK)
    return cleaned


def answer_seconds(answer: Mapping[str, Any], key: str) -> float:
    """A time in seconds, or the size of a log, from a host's answer. Raises `HostUnfit` if it is not plausible."""
    try:
        value = float(answer[key])
    except (KeyError, TypeError, ValueError, OverflowError):
        value = -1.0
    if not 0 <= value <= MOST:
        raise HostUnfit(f"a host gave an answer that bench does not know: {key}", hint=LOOK)
    return value
