"""Decides which files may be fetched from the spool of a host: only objects of the run that the host was given.

The client stores them with its own rights, which cover the whole bucket. So a host may only provide events, cases and
artifacts of that one run, under names that our machines use, and of limited size and number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.names import CaseId
from orchestrator.core.naming import parse_event_object, run_prefix
from orchestrator.core.text import clean_line

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
