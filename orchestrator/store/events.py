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
EVENTS_OF_A_KIND: Final = 200
"""How many of one kind, if they are not about a case."""
MOST_CASES: Final = 1_000
LISTED_AT_ONCE: Final = 5_000
"""How many objects of a log are listed at most before they are told apart by their writers."""


class EventLog:
    """The log of one run, as one writer sees it. `writer` must not be in use by another process."""

    def __init__(
        self, bucket: Bucket, run_id: str, writer: str, clock: Clock, *, listed_at_once: int = LISTED_AT_ONCE
    ) -> None:
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
        self._junk: Counter[tuple[int, str]] = Counter()
        """How many objects of each attempt's machine and of each kind were read and are no events."""
        self._listed_at_once = listed_at_once
        self._crowded = False
        """Whether the log has more objects than are listed at once."""

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

        The whole prefix is listed each time, because the names of a machine whose clock is behind sort before ours. If
        there are more objects than `LISTED_AT_ONCE`, only the names of clients and of requested machines are listed,
        so that nobody hides their events behind others.
        """
        listed = self._listed()
        clients, machines = self._unread(listed)
        self._read(clients)
        if self._crowded:
            _, machines = self._unread(self._of_machines())
        self._read(self._within_bounds(machines))
        return tuple(sorted(self._events.values(), key=lambda event: event.order))

    def _listed(self) -> Sequence[ObjectEntry]:
        """The objects of the log, or those of clients if there are too many."""
        prefix = events_prefix(self.run_id)
        if not self._crowded:
            listed = self._bucket.list(prefix, most=self._listed_at_once + 1)
            if len(listed) <= self._listed_at_once:
                return listed
            self._crowded = True
        return self._bucket.list(prefix, matching=f"{prefix}*Z-client-*", most=LISTED_AT_ONCE)

    def _of_machines(self) -> list[ObjectEntry]:
        """The first objects of each machine that clients requested."""
        prefix, (attempts, most) = events_prefix(self.run_id), self._bounds()
        writers = [f"{role}-{attempt}" for attempt in sorted(attempts) for role in ("boot", "vm")]
        listings = (self._bucket.list(prefix, matching=f"{prefix}*Z-{who}-*", most=most + 1) for who in writers)
        return [entry for listing in listings for entry in listing]

    def _bounds(self) -> tuple[set[int], int]:
        """The attempts whose machines clients requested, and how many events each of them can have by the plan."""
        facts = [event.fact for event in self._events.values() if is_client(event.writer)]
        cases = max((fact.cases for fact in facts if isinstance(fact, RunPlanned)), default=0)
        requested = {1} | {fact.attempt for fact in facts if isinstance(fact, InstanceRequested | MachineTaken)}
        return requested, EVENTS_OF_A_MACHINE + EVENTS_OF_A_CASE * min(cases, MOST_CASES)

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
        to, in all and of one kind. Whoever writes more is not read further: each read costs money and time."""
        requested, most = self._bounds()
        read = self._junk + Counter((machine_of(event.writer), event.fact.kind) for event in self._events.values())
        names: list[str] = []
        self._over = set()
        for attempt, unread in machines.items():
            room = most - sum(count for (of, _), count in read.items() if of == attempt) if attempt in requested else 0
            for name in unread:
                key = attempt, _kind_of(name)
                if room > 0 and (read[key] < EVENTS_OF_A_KIND or key[1].startswith("case_")):
                    names.append(name)
                    read[key] += 1
                    room -= 1
                else:
                    self._over.add(name)
        return names

    def _read(self, names: Sequence[str]) -> None:
        for name, blob in self._bucket.read_many(names).items():
            event = decode_event(blob.data)
            if event is None or event.run_id != self.run_id or not _under_its_own_name(name, event):
                self._strange.add(name)
                parts = parse_event_object(name)
                self._junk[machine_of(parts.writer) if parts is not None else 0, _kind_of(name)] += 1
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


def _kind_of(name: str) -> str:
    parts = parse_event_object(name)
    return parts.kind if parts is not None else ""


def _under_its_own_name(name: str, event: Event) -> bool:
    """Whether the name of an object matches the event in it: permission to write is given by name."""
    named, expected = parse_event_object(name), parse_event_object(event.object_name)
    if named is None or expected is None:
        return False
    return (named.writer, named.seq, named.kind) == (expected.writer, expected.seq, expected.kind)
