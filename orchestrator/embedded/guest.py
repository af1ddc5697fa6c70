"""What one VM knows of itself: the seam between the cloud, which makes VMs, and the machines that stand in for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.embedded.console import Console
from orchestrator.embedded.guard import new_token
from orchestrator.embedded.timeline import Timeline


@dataclass(slots=True)
class Guest:
    """One VM seen from within. Only `preempted` and the metadata ever change; `changed` is notified when they do."""

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
    """Whether it waits for tasks, as the VMs of a batch service do."""
    preempted: bool = False
    token: str = field(default_factory=new_token)
    """What the metadata server gives out; the APIs know by it which VM speaks."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def change_metadata(self, metadata: dict[str, str]) -> None:
        with self.changed:
            self.metadata = metadata
            self.changed.notify_all()

    def announce_preemption(self) -> None:
        with self.changed:
            self.preempted = True
            self.changed.notify_all()


class Machine(Protocol):
    """Stands in for the hardware and the operating system of one VM."""

    def boot(self) -> None:
        """Run the startup script, once. Returns at once."""

    def run_task(self, script: str, environment: Mapping[str, str], done: Callable[[int], None]) -> None:
        """Run a task's script with these variables; `done` hears its exit code, unless the machine ends first."""

    def end_task(self) -> None:
        """Idempotent: end the task at once; `done` hears of that as well."""

    def running(self) -> bool:
        """Whether anything still runs in it."""

    def shut_down(self) -> None:
        """Ask everything in it to end, as an operating system does that is told to power off."""

    def kill(self) -> None:
        """Idempotent. When it returns nothing of the machine is left, but for its serial output."""

    def strike(self, fault: str, target: str) -> bool:
        """`hang` or `kill` the `harness` or the `agent`; False while there is none to strike."""


MachineFactory = Callable[[Guest], Machine]
