"""The agent's side of the run's event log."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from datetime import datetime, timedelta, timezone
from pathlib import Path

from startup.agent.clock import AgentClock, Patience, iso_time, name_stamp
from startup.agent.storage import AgentStorage, StorageError

FOREVER_S = 1e9
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def writer_name(attempt: int, instance_id: str, boot_id: str) -> str:
    """`vm-<attempt>-<8 hex digits>`, for this machine since it booted. So two machines that work for one run, or one
    machine that has booted twice, never use the same writer name."""
    tag = hashlib.sha256(f"{instance_id} {boot_id}".encode()).hexdigest()[:8]
    return f"vm-{attempt}-{tag}"


def boot_id() -> str:
    """The kernel's id of this boot; empty where it is not known."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class EventWriter:
    """Appends events in order, from a thread of its own, so that an unreachable bucket delays the log but not the run.

    Each event is first a file in `directory`/pending, and is moved to `directory` when the bucket has it. So the
    bootstrap can deliver events that the agent could not deliver before it died, and a rebooted VM continues the
    numbering.
    """

    def __init__(self, run_id: str, writer: str, directory: Path, storage: AgentStorage, clock: AgentClock) -> None:
        self.run_id = run_id
        self.writer = writer
        self.directory = directory
        self.pending = directory / "pending"
        self.storage = storage
        self.clock = clock
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self.pending.mkdir(parents=True, exist_ok=True)
        self.queue = deque((path.name, path.read_bytes()) for path in sorted(self.pending.glob("*.json")))
        self.seq = max((event_sequence(path.name) for path in directory.glob("**/*.json")), default=0)
        self.last = datetime.fromtimestamp(0, timezone.utc)  # noqa: UP017
        self.thread = threading.Thread(target=self.deliver, name="events", daemon=True)

    def start(self) -> None:
        if self.thread.ident is None:
            self.thread.start()

    def append(self, kind: str, **data: object) -> str:
        """Queues an event and returns its object's name. Never waits for the bucket, never raises."""
        with self.changed:
            self.seq += 1
            # Names sort by time, so an event is always later than the one before it, whatever the clock did between.
            self.last = max(self.clock.now(), self.last + timedelta(microseconds=1))
            name = f"{name_stamp(self.last)}-{self.writer}-{self.seq:06d}-{kind}.json"
            event = {
                "schema": 1,
                "run_id": self.run_id,
                "kind": kind,
                "time": iso_time(self.last),
                "writer": self.writer,
                "seq": self.seq,
                "data": data,
            }
            body = json.dumps(event).encode()
            self.keep(name, body)
            self.queue.append((name, body))
            self.changed.notify_all()
        return name

    def flush(self, patience: Patience) -> bool:
        """Waits until the bucket has every event; False when it does not before the patience is used up."""
        with self.changed:
            while self.queue:
                # Short waits: an interrupt of the patience does not notify this condition.
                if patience.left() <= 0:
                    return False
                self.changed.wait(min(0.2, patience.left()))
            return True

    def close(self) -> None:
        """Stops delivering; what is pending stays in its files."""
        self.closing.set()
        with self.changed:
            self.changed.notify_all()
        if self.thread.is_alive():
            self.thread.join(timeout=self.storage.timing.request_timeout_s)

    def deliver(self) -> None:
        while True:
            with self.changed:
                while not self.queue and not self.closing.is_set():
                    self.changed.wait()
                if self.closing.is_set():
                    return
                name, body = self.queue[0]
            if self.store(name, body):
                with self.changed:
                    self.queue.popleft()
                    self.changed.notify_all()
            else:
                self.closing.wait(self.storage.timing.retry_max_s)

    def keep(self, name: str, body: bytes) -> None:
        try:
            unfinished = self.pending / (name + ".tmp")
            unfinished.write_bytes(body)
            unfinished.rename(self.pending / name)
        except OSError:
            pass  # A full disk costs the copy, not the event: that is in memory.

    def store(self, name: str, body: bytes) -> bool:
        """Stores one event in the bucket. False when it was refused, or when the writer is closing."""
        patience = Patience(self.clock, FOREVER_S, self.closing)
        try:
            self.storage.create(f"runs/{self.run_id}/events/{name}", body, "application/json", patience)
        except StorageError:
            return False
        try:
            (self.pending / name).rename(self.directory / name)
        except OSError:
            pass  # The copy could not be kept; the bucket has the event.
        return True


def event_sequence(name: str) -> int:
    """The number in an event's name; 0 for any other file."""
    parts = name.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0
