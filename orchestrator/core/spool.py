"""What may be brought home from the spool of a machine that somebody owns: the objects of the run that it was given.

The client stores them with its own rights, which reach the whole bucket. So the host has a say in nothing but the
events, cases and artifacts of that one run: names that a machine of ours gives, of bounded size and number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.foreign import words
from orchestrator.core.naming import parse_event_object, run_prefix

EVENT_BYTES: Final = 256 * 1024
CASE_BYTES: Final = 64 * 1024 * 1024
ARTIFACT_BYTES: Final = 64 * 1024 * 1024
RUN_BYTES: Final = 2 * 1024**3
RUN_FILES: Final = 50_000
"""A campaign has a few hundred cases, and a dozen events for each."""

_CASE = re.compile(r"cases/[A-Za-z0-9][A-Za-z0-9._+-]{0,199}\.csv")
_ARTIFACT = re.compile(r"artifacts(?:/[A-Za-z0-9][A-Za-z0-9._+-]{0,99}){1,4}")
_MACHINES_OWN = re.compile(r"(?:vm|boot)(?:-[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class Spooled:
    """One object that may be brought home."""

    name: str
    size: int
    changed: int
    limit: int
    """Bytes that it may have, whatever the host says its size is."""
    grows: bool
    """Whether it is stored again when it has changed; what does not grow is created once."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """What a host has offered: what may come, and in words what may not, and why."""

    taken: tuple[Spooled, ...]
    refused: tuple[str, ...]


def sort(run_id: str, files: Iterable[Any]) -> Sorted:
    """Judges what a host says is in the spool of `run_id`: `(name, size, time of change)` each. Cases come before the
    events that tell of them."""
    taken: dict[str, Spooled] = {}
    refused: list[str] = []
    room = RUN_BYTES
    for file in files:
        one = _read(run_id, file)
        if isinstance(one, str):
            refused.append(one)
        elif one.size > one.limit:
            refused.append(f"{one.name}: {one.size} bytes; at most {one.limit} are accepted")
        elif one.size > room or len(taken) >= RUN_FILES:
            refused.append(f"{one.name}: the run has stored more than any run of bench stores")
        else:
            room -= one.size
            taken[one.name] = one
    return Sorted(tuple(sorted(taken.values(), key=lambda one: ("/events/" in one.name, one.name))), tuple(refused))


def _read(run_id: str, file: Any) -> Spooled | str:
    """One line of the answer, or why it is refused."""
    try:
        name, size, changed = file
    except (TypeError, ValueError):
        return f"{words(repr(file), 80)}: not a file"
    if not isinstance(name, str) or not all(type(number) is int and number >= 0 for number in (size, changed)):
        return f"{words(repr(name), 200)}: not a file"
    home = run_prefix(run_id)
    tail = name.removeprefix(home)
    if not name.startswith(home):
        return f"{words(name, 200)}: it belongs to another run"
    event = parse_event_object(name)
    if event is not None and name == event.object(run_id) and _MACHINES_OWN.fullmatch(event.writer):
        return Spooled(name, size, changed, EVENT_BYTES, grows=False)
    if _CASE.fullmatch(tail):
        return Spooled(name, size, changed, CASE_BYTES, grows=False)
    if _ARTIFACT.fullmatch(tail) and ".." not in tail:
        return Spooled(name, size, changed, ARTIFACT_BYTES, grows=True)
    return f"{words(name, 200)}: not an event, case or artifact"
