"""What a VM knows about itself: the interface between the cloud, which makes VMs, and the machines that simulate
them.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from orchestrator.embedded.guard import new_token
from orchestrator.embedded.timeline import Timeline


@dataclass(slots=True)
class Guest:
    """One VM as seen from inside. Only `preempted` and the metadata change; `changed` is notified then."""

    id: str
    name: str
    zone: str
    project: str
    project_number: str
    machine_type: str
    image: str
    metadata: dict[str, str]
    labels: dict[str, str]
    service_account: str | None
    scopes: tuple[str, ...]
    spot: bool
    console: Console
    timeline: Timeline
    scratch: Path
    compute_url: str
    storage_url: str
    tasks: bool = False
    """Whether it waits for tasks, as a VM of the batch service does."""
    preempted: bool = False
    token: str = field(default_factory=new_token)
    """The token from its metadata server, by which the APIs know which VM sends a request."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def change_metadata(self, metadata: dict[str, str]) -> None:
        with self.changed:
            self.metadata = metadata
            self.changed.notify_all()

    def announce_preemption(self) -> None:
        with self.changed:
            self.preempted = True
            self.changed.notify_all()


class GuestMachine(Protocol):
    """Simulates the hardware and the operating system of one VM."""

    def boot(self) -> None:
        """Starts the startup script and returns at once. It is called only once."""

    def run_task(self, script: str, environment: Mapping[str, str], done: Callable[[int], None]) -> None:
        """Starts a task's script with these variables. `done` is called with its exit code, unless the machine ends
        first."""

    def end_task(self) -> None:
        """Ends the task at once; `done` is called then too. Calling it again has no effect."""

    def running(self) -> bool:
        """Whether any of its processes still runs."""

    def shut_down(self) -> None:
        """Asks all its processes to end, as an operating system does on power-off."""

    def kill(self) -> None:
        """Ends the machine. When it returns, only the serial output is left. Calling it again has no effect."""

    def strike(self, fault: str, target: str) -> bool:
        """Applies the fault `hang` or `kill` to the `harness` or the `agent`. Returns False if the target does not
        run."""


MachineFactory = Callable[[Guest], GuestMachine]


# A VM's serial port: a ring buffer of the last MiB. Positions count all bytes that were ever written.


CAPACITY = 1 << 20


class Output(NamedTuple):
    """A part of the output. If `start` is above the position asked for, the bytes between them are lost. `next` is the
    position to ask for next."""

    contents: str
    start: int
    next: int


class Console:
    """The output of one serial port. Thread-safe."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.kept = bytearray()
        self.written = 0
        self.lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self.lock:
            self.kept += data
            self.written += len(data)
            del self.kept[: max(0, len(self.kept) - self.capacity)]

    def read(self, start: int = 0) -> Output:
        """The output from byte `start` on. A negative `start` counts from the end."""
        with self.lock:
            oldest = self.written - len(self.kept)
            begin = self.written + start if start < 0 else start
            begin = min(max(begin, oldest), self.written)
            data = bytes(self.kept[begin - oldest :])
        # An incomplete character at the end of the data is left for the next call.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        contents = decoder.decode(data)
        return Output(contents, begin, begin + len(data) - len(decoder.getstate()[0]))
