"""Machines, and what a cloud reports about them, as data. The `Cloud` port takes and returns these types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orchestrator.core.names import NO_IMAGE, ImageUrl, MachineName, MachineType, ResourceId, Zone


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """Everything that a request for a VM needs. `max_run_s` has no default, so that no VM is requested without a
    deadline."""

    name: MachineName
    zone: Zone
    machine_type: MachineType
    accelerator: str | None
    """The accelerator type to attach, such as `nvidia-tesla-t4`; None if the machine type includes it (g2, a2, a3)."""
    accelerator_count: int
    provisioning: str
    """`SPOT` or `STANDARD`."""
    max_run_s: int
    image: ImageUrl
    """The full or partial URL of a dated image."""
    disk_gb: int
    disk_type: str
    network: str
    external_ip: bool
    service_account: str | None
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    request_id: str
    base_image: ImageUrl = NO_IMAGE
    """The image to boot from if `image` is gone; empty: none."""


@dataclass(frozen=True, slots=True)
class Instance:
    name: MachineName
    zone: Zone
    id: ResourceId
    status: str
    """Google's status: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED … An unknown status is not an error."""
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
class CloudRefusal:
    """The cloud refused to create the VM. `scope` says where not to try again now: `zone`, `region` or `all`."""

    code: str
    message: str
    scope: str
    hint: str = ""
    zones_available: tuple[Zone, ...] = ()
    stock_out: bool = False
    """Whether the reason was that no machine was left. This is remembered for later clients."""


NOT_SENT: Final = "NOT_SENT"
"""The code of a refusal for a request that certainly never left this computer."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one VM, from a zone's list of operations."""

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
    """Whether output before this text was lost: the ring buffer no longer has all that was asked for."""


@dataclass(frozen=True, slots=True)
class Quota:
    metric: str
    limit: float
    usage: float
    region: str = ""
    """Empty for a project-wide quota."""
