"""What a host answers, judged: text made harmless, numbers of a size that time has, trouble as an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.errors import BenchError, HostUnfit, NoCapacity, Unavailable
from orchestrator.core.foreign import log_text, plain
from orchestrator.core.hosts import Target

MOST: Final = 1e11
"""Above any time in seconds, and any size of a log."""


def trouble(answer: Mapping[str, Any], target: Target) -> BenchError | None:
    """What stood in the way of an operation, as an error; None when nothing did."""
    kind, path, why = answer.get("trouble"), answer.get("path") or "", answer.get("message") or "it does not say why"
    at = f" ({path})" if path else ""
    if not kind:
        return None
    if kind == "measuring":
        return NoCapacity(
            f"{target} measures for {why}; two runs at once would disturb each other",
            hint="`bench status` shows that run, and `bench stop` ends it; or wait",
        )
    if kind == "disk_full":
        hint = f"free some space there: `df -h {path or '~'}`; the cache folder may be deleted when no run is on it"
        return HostUnfit(f"the disk of {target} is full: {why}{at}", hint=hint)
    if kind == "not_writable":
        hint = f"on {target.called}: `ls -ld {path or '~/.cache'}`; set XDG_CACHE_HOME there to a folder that is yours"
        return HostUnfit(f"{target} lets nothing be written: {why}{at}", hint=hint)
    if kind == "checksum":
        return Unavailable(f"{target}: {why}{at}", hint="it is sent again")
    return HostUnfit(f"{target}: {why}{at}", hint=f"{target.entry}look at it there")


def said(answer: object) -> dict[str, Any]:
    """What a host answers, its text made harmless: of a log all lines, of all else one. Raises `HostUnfit`."""
    if not isinstance(answer, Mapping):
        raise HostUnfit("a host answers what no part of bench says", hint="`ssh` there and look at it")
    return {key: log_text(value) if key == "text" else plain(value) for key, value in answer.items()}


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
"""What a look at a host must say, and of which kind: a launch and the doctor build their verdicts on it."""
CARD: Final = ("name", "uuid_sha256", "driver", "compute_capability")


def looked(answer: object, look: str) -> dict[str, Any]:
    """The answer of a look of `LOOKS`, made harmless as in `said`, with every key that is needed. Raises `HostUnfit`
    where it lacks one, or has one of another kind: what answers there is not what was sent."""
    found = said(answer)
    odd = [key for key, kinds in LOOKS[look].items() if not isinstance(found.get(key), kinds)]
    if not odd and look == "probe":
        cards = found["gpus"]
        fit = all(isinstance(card, Mapping) and all(isinstance(card.get(k), str) for k in CARD) for card in cards)
        odd += [] if fit else ["gpus"]
        odd += [] if re.fullmatch(r"\d{1,4}\.\d{1,4}(\..*)?", found["python"]) else ["python"]
        odd += [] if all(isinstance(name, str) for name in found["missing"]) else ["missing"]
        odd += [] if 0 <= found["free_gb"] <= MOST else ["free_gb"]
    if odd:
        raise HostUnfit(
            f"a host answers what no part of bench says of itself: {', '.join(odd)}", hint="`ssh` there and look at it"
        )
    return found


def seconds(answer: Mapping[str, Any], key: str) -> float:
    """A number that a host gives, of a size that time has. Raises `HostUnfit`."""
    try:
        value = float(answer[key])
    except (KeyError, TypeError, ValueError, OverflowError):
        value = -1.0
    if not 0 <= value <= MOST:
        raise HostUnfit(f"a host answers what no part of bench says: {key}", hint="`ssh` there and look at it")
    return value
