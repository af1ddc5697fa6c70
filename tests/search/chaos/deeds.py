"""What the machines of a scenario have done, on the cloud's side of the world, whether or not anybody heard of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime


@dataclass
class Stay:
    """A run on a machine of the user's own."""

    run: str
    vm: str
    began: datetime
    told: tuple[str, str]
    """The startup script and the payload's sha256 that it was given."""
    ended: datetime | None = None


@dataclass
class Deeds:
    started: list[tuple[str, str, str]] = field(default_factory=list)
    """(run, machine, case), in order."""
    stored: list[tuple[str, str, str]] = field(default_factory=list)
    contents: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    """By run and case, every content that a machine has tried to store."""
    lent: list[tuple[str, str]] = field(default_factory=list)
    """(run, machine) of each run that a kept machine of another one took up."""
    at_work: dict[str, datetime] = field(default_factory=dict)
    """When each machine last took up a case."""
    stays: list[Stay] = field(default_factory=list)
    forged: list[tuple[str, bytes]] = field(default_factory=list)
    """Name and content of what a host has offered that is not its to store."""
    hosts: Counter[str] = field(default_factory=Counter)
    """How often each kind of weather struck a host."""
