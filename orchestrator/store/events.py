"""A run's event log in the bucket. Many processes append to it; nobody changes an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from orchestrator.core.errors import ProviderError, Unavailable
from orchestrator.core.naming import events_prefix, is_client, machine_of, parse_event_object
from orchestrator.core.run.events import (
    Event,
    Fact,
    InstanceRequested,
    MachineTaken,
    RunPlanned,
    decode_event,
    encode_event,
)
from orchestrator.ports import Bucket, Clock, ObjectEntry

EVENT_BYTES: Final = 256 * 1024
"""The largest size of an event in bytes; larger objects are not fetched."""
EVENTS_OF_A_MACHINE: Final = 500
EVENTS_OF_A_CASE: Final = 40
"""How many events of one machine are read at most: so many, and so many more for each case of the plan."""
MOST_CASES: Final = 1_000


class EventLog:
    """The log of one run, as one writer sees it. `writer` must not be in use by another process."""

    def __init__(self, bucket: Bucket, run_id: str, writer: str, clock: Clock) -> None:
        self.run_id = run_id
        self.writer = writer
        self._bucket = bucket
        self._clock = clock
        self._seq = 0
        self._last: datetime | None = None
        self._unsure: Event | None = None
        self._events: dict[str, Event] = {}
        self._strange: set[str] = set()
        self._over: set[str] = set()

    @property
    def undecodable(self) -> frozenset[str]:
        """The names of objects under the events prefix that are no events, or more than a machine's run can have."""
        return frozenset(self._strange | self._over)

    def append(self, fact: Fact) -> Event:
        """Stores one event, with its text made harmless, and returns the event.

        A lost answer does not lead to two events: the stored object is compared with ours, and if the same fact is
        appended again after an `Unavailable`, it is sent under the same name. Raises `Unavailable`, and `ProviderError`
        when another process writes under the same writer name.
        """
        event = self._next(fact.harmless)
        name, data = event.object_name, encode_event(event)
        self._unsure = event
        if not self._bucket.create(name, data):
            stored = self._bucket.read(name)
            if stored is None:
                raise Unavailable(
                    f"the event {name} was refused as a duplicate and then not found",
                    hint="run the same command again; if it fails again, somebody deletes objects from the bucket",
                )
            if stored.data != data:
                self._unsure = None
                raise ProviderError(
                    f"another process writes to the log of {self.run_id} as {self.writer!r}",
                    hint="give every process a writer name of its own",
                )
        self._unsure = None
        self._events[name] = event
        return event

    def read(self) -> tuple[Event, ...]:
        """All events of the run, in order. Only objects that were not seen before are fetched.

        The whole prefix is listed each time, because the names of a machine whose clock is behind sort before ours.
        """
        clients, machines = self._unread(self._bucket.list(events_prefix(self.run_id)))
        self._read(clients)
        self._read(self._within_bounds(machines))
        return tuple(sorted(self._events.values(), key=lambda event: event.order))

    def _unread(self, listed: Sequence[ObjectEntry]) -> tuple[list[str], dict[int, list[str]]]:
        """The names of events that were not read yet: those of clients, and those of each attempt's machine, in order.
        An object that is too large, or whose name is not that of a client's or machine's event, is not read."""
        clients: list[str] = []
        machines: dict[int, list[str]] = {}
        for entry in listed:
            if entry.name in self._events or entry.name in self._strange:
                continue
            parts = parse_event_object(entry.name)
            attempt = machine_of(parts.writer) if parts is not None else 0
            if parts is not None and is_client(parts.writer) and entry.size <= EVENT_BYTES:
                clients.append(entry.name)
            elif attempt and entry.size <= EVENT_BYTES:
                machines.setdefault(attempt, []).append(entry.name)
            else:
                self._strange.add(entry.name)
        return clients, machines

    def _within_bounds(self, machines: Mapping[int, Sequence[str]]) -> list[str]:
        """Of what machines have stored, the oldest of each that clients requested, as many as their plan can give rise
        to. Whoever writes more is not read further: each read costs money and time."""
        facts = [event.fact for event in self._events.values() if is_client(event.writer)]
        cases = max((fact.cases for fact in facts if isinstance(fact, RunPlanned)), default=0)
        most = EVENTS_OF_A_MACHINE + EVENTS_OF_A_CASE * min(cases, MOST_CASES)
        requested = {1} | {fact.attempt for fact in facts if isinstance(fact, InstanceRequested | MachineTaken)}
        read = Counter(machine_of(event.writer) for event in self._events.values())
        names: list[str] = []
        self._over = set()
        for attempt, unread in machines.items():
            room = max(most - read[attempt], 0) if attempt in requested else 0
            names += unread[:room]
            self._over |= set(unread[room:])
        return names

    def _read(self, names: Sequence[str]) -> None:
        for name, blob in self._bucket.read_many(names).items():
            event = decode_event(blob.data)
            if event is None or event.run_id != self.run_id or not _under_its_own_name(name, event):
                self._strange.add(name)
                continue
            self._events[name] = event
            if event.writer == self.writer:
                self._seq = max(self._seq, event.seq)

    def _next(self, fact: Fact) -> Event:
        if self._unsure is not None and self._unsure.fact == fact:
            return self._unsure
        now = self._clock.now()
        if self._last is not None and now < self._last:
            now = self._last  # if the clock was set back, an effect must not come before its cause
        self._last = now
        self._seq += 1
        return Event(run_id=self.run_id, time=now, writer=self.writer, seq=self._seq, fact=fact)


def _under_its_own_name(name: str, event: Event) -> bool:
    """Whether the name of an object matches the event in it: permission to write is given by name."""
    named, expected = parse_event_object(name), parse_event_object(event.object_name)
    if named is None or expected is None:
        return False
    return (named.writer, named.seq, named.kind) == (expected.writer, expected.seq, expected.kind)
