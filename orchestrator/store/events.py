"""A run's event log in the bucket. Many processes append to it; nobody changes an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from orchestrator.core.errors import ProviderError, Unavailable
from orchestrator.core.naming import EventName, events_prefix, is_client, machine_of, parse_event_object
from orchestrator.core.run.events import (
    OTHER,
    ChildFinished,
    Event,
    EventBounds,
    Fact,
    InstanceRequested,
    MachineTaken,
    RunPlanned,
    counted_kind,
    decode_event,
    encode_event,
)
from orchestrator.ports import Bucket, Clock, ObjectEntry

EVENT_BYTES: Final = 256 * 1024
"""The largest size of an event in bytes; larger objects are not fetched."""
BYTES_OF_A_MACHINE: Final = 16 * 1024 * 1024
"""How many bytes of one machine's events are read at most."""
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
        self._read_of: Counter[tuple[int, str]] = Counter()
        """How many objects of each attempt's machine and of each kind were read, events or not."""
        self._bytes_of: Counter[int] = Counter()
        """How many bytes of each attempt's machine were read."""
        self._parts: dict[str, EventName | None] = {}
        """The parts of each listed name."""
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
        self._read([entry.name for entry in clients])
        if self._crowded:
            _, machines = self._unread(self._of_machines())
        self._read(self._within_bounds(machines) if machines or self._over else [])
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
        prefix, (attempts, bounds) = events_prefix(self.run_id), self._bounds()
        writers = [f"{role}-{attempt}" for attempt in sorted(attempts) for role in ("boot", "vm")]
        most = bounds.total + 1
        listings = (self._bucket.list(prefix, matching=f"{prefix}*Z-{who}-*", most=most) for who in writers)
        return [entry for listing in listings for entry in listing]

    def _bounds(self) -> tuple[set[int], EventBounds]:
        """The attempts whose machines clients requested, and how many events each of them can have by the plan."""
        facts = [event.fact for event in self._events.values() if is_client(event.writer)]
        plans = [fact for fact in facts if isinstance(fact, RunPlanned)]
        plans += [fact.plan for fact in facts if isinstance(fact, ChildFinished)]
        cases = max((plan.cases for plan in plans), default=0)
        implementations = max((len(plan.implementations) for plan in plans), default=0)
        requested = {1} | {fact.attempt for fact in facts if isinstance(fact, InstanceRequested | MachineTaken)}
        return requested, EventBounds(cases, implementations)

    def _unread(self, listed: Sequence[ObjectEntry]) -> tuple[list[ObjectEntry], dict[int, list[ObjectEntry]]]:
        """The events that were not read yet: those of clients, and those of each attempt's machine, in order. An object
        that is too large, or whose name is not that of a client's or machine's event, is not read."""
        clients: list[ObjectEntry] = []
        machines: dict[int, list[ObjectEntry]] = {}
        for entry in listed:
            if entry.name in self._events or entry.name in self._strange:
                continue
            if entry.name not in self._parts:
                self._parts[entry.name] = parse_event_object(entry.name)
            parts = self._parts[entry.name]
            attempt = machine_of(parts.writer) if parts is not None else 0
            if parts is not None and is_client(parts.writer) and entry.size <= EVENT_BYTES:
                clients.append(entry)
            elif attempt and entry.size <= EVENT_BYTES:
                machines.setdefault(attempt, []).append(entry)
            else:
                self._strange.add(entry.name)
        return clients, machines

    def _within_bounds(self, machines: Mapping[int, Sequence[ObjectEntry]]) -> list[str]:
        """Of what machines have stored, the oldest of each that clients requested, as many of each kind as their plan
        can give rise to. Whoever writes more is not read further: each read costs money and time."""
        requested, bounds = self._bounds()
        read, size = self._read_of.copy(), self._bytes_of.copy()
        names: list[str] = []
        self._over = set()
        for attempt, unread in machines.items():
            for entry in unread:
                key = attempt, self._kind_of(entry.name)
                room = BYTES_OF_A_MACHINE - size[attempt]
                if attempt in requested and read[key] < bounds.most(key[1]) and entry.size <= room:
                    names.append(entry.name)
                    read[key] += 1
                    size[attempt] += entry.size
                else:
                    self._over.add(entry.name)
        return names

    def _kind_of(self, name: str) -> str:
        parts = self._parts[name]
        return counted_kind(parts.kind) if parts is not None else OTHER

    def _read(self, names: Sequence[str]) -> None:
        for name, blob in self._bucket.read_many(names).items():
            parts = self._parts[name]
            attempt = machine_of(parts.writer) if parts is not None else 0
            self._read_of[attempt, self._kind_of(name)] += 1
            self._bytes_of[attempt] += len(blob.data)
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


def refuse_taken(bucket: Bucket, prefix: str, *, ours: str = "") -> None:
    """Raise `ProviderError` if an object lies below `prefix`, beside `ours`. The machines of other runs may write below
    any name: what they stored before a run was planned would count as its events and results."""
    others = [entry.name for entry in bucket.list(prefix, most=2) if entry.name != ours]
    if others:
        raise ProviderError(
            f"{others[0]} was stored before anything of that name was launched",
            hint="run the same command again: it takes another name; and look at who writes to the bucket",
        )
