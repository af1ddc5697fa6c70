"""Machines, and what a cloud reports about them, as data. The `Cloud` port takes and returns these types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orchestrator.core.market.catalog import Gpu
from orchestrator.core.market.offers import Offer
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
    """`SPOT`, `FLEX_START` or `STANDARD`."""
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
    queue_s: int = 0
    """How many seconds a flex-start machine may wait for capacity, in the state PENDING and at no cost."""


@dataclass(frozen=True, slots=True)
class Instance:
    name: MachineName
    zone: Zone
    id: ResourceId
    status: str
    """Google's status: PENDING (a flex-start machine in the queue), PROVISIONING, STAGING, RUNNING, STOPPING,
    TERMINATED … An unknown status is not an error."""
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


# Whether the project's quotas allow a machine. This is checked before any machine is requested.


ALL_REGIONS: Final = "GPUS_ALL_REGIONS"
QUOTA_PAGE: Final = "https://console.cloud.google.com/iam-admin/quotas"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A quota that leaves no room for one more machine. `region` is empty for the whole project."""

    metric: str
    region: str
    limit: float
    usage: float
    needs: int

    @property
    def text(self) -> str:
        where = f"in {self.region}" if self.region else "in all regions together"
        return f"quota {self.metric} {where} is {self.limit:g}, {self.usage:g} in use; this run needs {self.needs}"


def find_shortage(gpu: Gpu, offer: Offer, quotas: Iterable[Quota]) -> Shortage | None:
    """The quota that rules `offer` out, or None. A metric that is not listed rules nothing out.

    A spot or flex-start machine counts against the preemptible metric if that was granted, and against the standard one
    if the limit of the preemptible metric is 0.
    """
    shorts = (_short(quota, needs) for quota, needs in counted_quotas(gpu, offer, quotas))
    return next((short for short in shorts if short is not None), None)


def quota_room(gpu: Gpu, offer: Offer, quotas: Iterable[Quota]) -> tuple[int, Quota] | None:
    """(how many more machines the quotas allow, the quota that allows fewest); None if no quota is listed."""
    rooms = [(int((quota.limit - quota.usage) // needs), quota) for quota, needs in counted_quotas(gpu, offer, quotas)]
    return min(((max(0, count), quota) for count, quota in rooms), key=lambda one: one[0], default=None)


def counted_quotas(gpu: Gpu, offer: Offer, quotas: Iterable[Quota]) -> tuple[tuple[Quota, int], ...]:
    """(quota, number) for each quota that a machine counts against, with how much of it the machine needs."""
    listed = {(quota.metric, quota.region): quota for quota in quotas}
    machine = gpu.machine(offer.machine_type)
    vcpus = machine.vcpus if machine else 1
    needed: list[tuple[Quota, int]] = []
    if gpu.accelerator:
        standard: str | None = gpu.quota_standard
        preemptible, needs = gpu.quota_preemptible, gpu.gpus_of(offer.machine_type)
        if everywhere := listed.get((ALL_REGIONS, "")):
            needed.append((everywhere, needs))
    else:
        series = offer.machine_type.partition("-")[0]
        standard, preemptible, needs = (
            ("CPUS" if series == "e2" else f"{series.upper()}_CPUS"),
            "PREEMPTIBLE_CPUS",
            vcpus,
        )
    granted = listed.get((preemptible, offer.region))
    spot = offer.provisioning != "STANDARD" and granted is not None and (granted.limit > 0 or standard is None)
    regional = granted if spot else listed.get((standard or preemptible, offer.region))
    return (*needed, (regional, needs)) if regional else tuple(needed)


def _short(quota: Quota, needs: int) -> Shortage | None:
    if quota.limit - quota.usage >= needs:
        return None
    return Shortage(quota.metric, quota.region, quota.limit, quota.usage, needs)


def allowed_offers(
    gpu: Gpu, offers: Sequence[Offer], quotas: Mapping[str, Sequence[Quota]]
) -> tuple[tuple[Offer, ...], tuple[Shortage, ...]]:
    """(offers that the quotas allow, shortages that rule out the others, each once). A region that is not in `quotas`
    is allowed: its quotas were not read."""
    kept: list[Offer] = []
    shortages: dict[Shortage, None] = {}
    for offer in offers:
        short = find_shortage(gpu, offer, quotas.get(offer.region, ()))
        if short is None:
            kept.append(offer)
        else:
            shortages[short] = None
    return tuple(kept), tuple(shortages)
