"""Checks what a host answers: control characters are removed, numbers must be plausible, trouble becomes an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.errors import BenchError, HostUnfit, NoCapacity, Unavailable
from orchestrator.core.hosts import HostTarget
from orchestrator.core.names import CaseId
from orchestrator.core.naming import parse_event_object, run_prefix
from orchestrator.core.text import clean_line, clean_value, log_text

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


# Decides which files may be fetched from the spool of a host: only objects of the run that the host was given. The
# client stores them with its own rights, which cover the whole bucket. So a host may only provide events, cases and
# artifacts of that one run, under names that our machines use, and of limited size and number.


EVENT_BYTES: Final = 256 * 1024
CASE_BYTES: Final = 64 * 1024 * 1024
ARTIFACT_BYTES: Final = 64 * 1024 * 1024
RUN_BYTES: Final = 2 * 1024**3
RUN_FILES: Final = 50_000
"""The most files of a run. A large run has a few hundred cases, and a dozen events for each."""

_CASE = re.compile(rf"cases/{CaseId.FORM}\.csv")
_ARTIFACT = re.compile(r"artifacts(?:/[A-Za-z0-9][A-Za-z0-9._+-]{0,99}){1,4}")
_MACHINES_OWN = re.compile(r"(?:vm|boot)(?:-[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class Spooled:
    """One object that may be fetched. `size` is in bytes; `changed` is the time of its last change as the host reports
    it."""

    name: str
    size: int
    changed: int
    limit: int
    """The most bytes that are read, whatever size the host reports."""
    grows: bool
    """Whether it is stored again when it has changed. Other objects are created once."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """The files that a host offers: those that may be fetched, and the name of each other file with the reason."""

    taken: tuple[Spooled, ...]
    refused: tuple[str, ...]


def sort_spool(run_id: str, files: Iterable[Any]) -> Sorted:
    """Judges the files that a host lists in the spool of `run_id`, each as (name, size, time of change). In the result,
    cases come before the events that refer to them."""
    taken: dict[str, Spooled] = {}
    refused: list[str] = []
    room = RUN_BYTES
    for file in files:
        spooled_file = _read(run_id, file)
        if isinstance(spooled_file, str):
            refused.append(spooled_file)
        elif spooled_file.size > spooled_file.limit:
            refused.append(f"{spooled_file.name}: {spooled_file.size} bytes; at most {spooled_file.limit} are accepted")
        elif spooled_file.size > room or len(taken) >= RUN_FILES:
            refused.append(f"{spooled_file.name}: the run has stored more than any run of bench stores")
        else:
            room -= spooled_file.size
            taken[spooled_file.name] = spooled_file
    return Sorted(
        tuple(sorted(taken.values(), key=lambda spooled_file: ("/events/" in spooled_file.name, spooled_file.name))),
        tuple(refused),
    )


def _read(run_id: str, file: Any) -> Spooled | str:
    """One file of the host's list, or the reason why it is refused."""
    try:
        name, size, changed = file
    except (TypeError, ValueError):
        return f"{clean_line(repr(file), 80)}: not a file"
    if not isinstance(name, str) or not all(type(number) is int and number >= 0 for number in (size, changed)):
        return f"{clean_line(repr(name), 200)}: not a file"
    prefix = run_prefix(run_id)
    tail = name.removeprefix(prefix)
    if not name.startswith(prefix):
        return f"{clean_line(name, 200)}: it belongs to another run"
    event = parse_event_object(name)
    if event is not None and name == event.object(run_id) and _MACHINES_OWN.fullmatch(event.writer):
        return Spooled(name, size, changed, EVENT_BYTES, grows=False)
    if _CASE.fullmatch(tail):
        return Spooled(name, size, changed, CASE_BYTES, grows=False)
    if _ARTIFACT.fullmatch(tail) and ".." not in tail:
        return Spooled(name, size, changed, ARTIFACT_BYTES, grows=True)
    return f"{clean_line(name, 200)}: not an event, case or artifact"
