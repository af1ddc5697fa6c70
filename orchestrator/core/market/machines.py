"""What the core knows of machines and of what a cloud says about them. The `Cloud` port speaks in these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """Everything an insert needs. There is no way to ask for a VM without a deadline: `max_run_s` has no default."""

    name: str
    zone: str
    machine_type: str
    accelerator: str | None
    """Accelerator type to attach, e.g. `nvidia-tesla-t4`; None where the machine type brings its own (g2, a2, a3)."""
    accelerator_count: int
    provisioning: str
    """`SPOT` or `STANDARD`."""
    max_run_s: int
    image: str
    """Full or partial URL of a dated image."""
    disk_gb: int
    disk_type: str
    network: str
    external_ip: bool
    service_account: str | None
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    request_id: str
    base_image: str = ""
    """What to boot from where `image` is gone; empty: nothing else."""


@dataclass(frozen=True, slots=True)
class Instance:
    name: str
    zone: str
    id: str
    status: str
    """Google's word: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED … An unknown word is not an error."""
    machine_type: str
    labels: Mapping[str, str]
    created_at: datetime
    started_at: datetime | None
    deadline_at: datetime | None
    preemptible: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    """The insert operation is done and the VM exists."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Refusal:
    """The cloud would not make the VM. `scope` is what to leave alone now: `zone`, `region` or `all`."""

    code: str
    message: str
    scope: str
    hint: str = ""
    zones_available: tuple[str, ...] = ()
    stock_out: bool = False
    """Whether it was for want of machines, which later clients want to hear of."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of a zone's operation log about one VM."""

    kind: str
    """Google's operationType: `insert`, `delete`, `compute.instances.preempted` …"""
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    user: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class SerialChunk:
    text: str
    next: int
    lost: bool
    """True when output between the asked and the given start has left the ring buffer."""


@dataclass(frozen=True, slots=True)
class Quota:
    metric: str
    limit: float
    usage: float
    region: str = ""
    """Empty for a project-wide quota."""
