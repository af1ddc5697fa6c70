"""One instance: its state while it exists, and how the API and the control API show it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

from orchestrator.embedded.admission import Admitted
from orchestrator.embedded.documents import document_fingerprint, google_stamp, self_link, utc_stamp
from orchestrator.embedded.errors import OperationError, quota_exceeded, stockout_error
from orchestrator.embedded.guest import Guest, GuestMachine
from orchestrator.embedded.inventory import Inventory, region_of
from orchestrator.embedded.operations import OperationTarget
from orchestrator.embedded.timeline import Alarm
from orchestrator.embedded.weather import Fault, Weather


@dataclass(slots=True, eq=False)
class EmbeddedVm:
    """One instance. It is changed only under the fleet's lock."""

    id: str
    project: str
    admitted: Admitted
    guest: Guest
    machine: GuestMachine
    created_at: datetime
    usd_per_hour: Decimal
    insert_operation: str
    status: str = "PROVISIONING"
    labels: dict[str, str] = field(default_factory=dict)
    running_at: datetime | None = None
    stopped_at: datetime | None = None
    deadline_at: datetime | None = None
    booted: bool = False
    ending: str | None = None
    """Why it is ending; None while it is not."""
    alarms: list[Alarm] = field(default_factory=list)
    closing_operations: list[str] = field(default_factory=list)
    reserved: list[Fault] = field(default_factory=list)
    starts: int = 1

    @property
    def account(self) -> str:
        """The id of its account at the meter. Each start of a stopped VM opens a new account."""
        return self.id if self.starts == 1 else f"{self.id}-{self.starts}"

    @property
    def name(self) -> str:
        return self.admitted.name

    @property
    def zone(self) -> str:
        return self.admitted.zone

    @property
    def run_id(self) -> str | None:
        return self.labels.get("bench-run")

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    @property
    def target(self) -> OperationTarget:
        return OperationTarget(self.zone, self.path, self.id)

    def cancel_alarms(self) -> None:
        for alarm in self.alarms:
            alarm.cancel()
        self.alarms.clear()

    def summary(self, now: datetime) -> dict[str, Any]:
        """The instance as `GET /control/status` shows it."""
        return {
            "name": self.name,
            "zone": self.zone,
            "status": self.status,
            "machine_type": self.admitted.machine.name,
            "labels": dict(self.labels),
            "created_at": utc_stamp(self.created_at),
            "age_s": (now - self.created_at).total_seconds(),
            "usd_per_hour": str(self.usd_per_hour.quantize(Decimal("0.000001"))),
            "deadline_at": utc_stamp(self.deadline_at) if self.deadline_at else None,
            "has_deadline": self.admitted.has_end,
            "preemptible": self.admitted.spot,
        }

    def disk_document(self) -> dict[str, Any]:
        """The boot disk as a resource of the API."""
        at = f"projects/{self.project}/zones/{self.zone}"
        return {
            "kind": "compute#disk",
            "id": str(int(self.id) + 1),
            "creationTimestamp": google_stamp(self.created_at),
            "name": self.name,
            "sizeGb": str(self.admitted.disk_gib),
            "zone": self_link(at),
            "status": "READY",
            "selfLink": self_link(at, "disks", self.name),
            "sourceImage": self_link(
                "projects", self.admitted.image.project, "global/images", self.admitted.image.name
            ),
            "type": self_link(at, "diskTypes", self.admitted.disk_type),
            "users": [self_link(self.path)],
            "labels": dict(self.admitted.disk_labels),
            "labelFingerprint": document_fingerprint(dict(self.admitted.disk_labels)),
            "physicalBlockSizeBytes": "4096",
        }

    def document(self) -> dict[str, Any]:
        """The instance as a resource of the API."""
        admitted = self.admitted
        at = f"projects/{self.project}/zones/{self.zone}"
        document: dict[str, Any] = {
            "kind": "compute#instance",
            "id": self.id,
            "creationTimestamp": google_stamp(self.created_at),
            "name": self.name,
            "tags": {"fingerprint": document_fingerprint([])},
            "machineType": self_link(at, "machineTypes", admitted.machine.name),
            "status": self.status,
            "zone": self_link(at),
            "canIpForward": False,
            "networkInterfaces": [self._interface()],
            "disks": [self._attached_disk()],
            "metadata": {
                "kind": "compute#metadata",
                "fingerprint": document_fingerprint(dict(self.guest.metadata)),
                "items": [{"key": key, "value": value} for key, value in self.guest.metadata.items()],
            },
            "selfLink": self_link(self.path),
            "scheduling": self._scheduling(),
            "cpuPlatform": "Embedded",
            "labels": dict(self.labels),
            "labelFingerprint": document_fingerprint(self.labels),
            "startRestricted": False,
            "deletionProtection": False,
            "fingerprint": document_fingerprint([self.id, self.status, self.labels]),
        }
        if admitted.gpu:
            accelerator = self_link(at, "acceleratorTypes", admitted.gpu)
            document["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": admitted.gpu_count}]
        if admitted.service_account:
            document["serviceAccounts"] = [{"email": admitted.service_account, "scopes": list(admitted.scopes)}]
        if self.running_at:
            document["lastStartTimestamp"] = google_stamp(self.running_at)
        if self.stopped_at:
            document["lastStopTimestamp"] = google_stamp(self.stopped_at)
        # Google removes it when the VM is stopped: a stopped VM has no deadline.
        if self.deadline_at and self.status != "TERMINATED":
            document["resourceStatus"] = {"scheduling": {"terminationTimestamp": google_stamp(self.deadline_at)}}
        return document

    def _interface(self) -> dict[str, Any]:
        number = zlib.crc32(self.id.encode())
        interface: dict[str, Any] = {
            "kind": "compute#networkInterface",
            "name": "nic0",
            "network": self_link("projects", self.project, "global/networks/default"),
            "subnetwork": self_link("projects", self.project, "regions", region_of(self.zone), "subnetworks/default"),
            "networkIP": f"10.128.{number >> 8 & 255}.{number & 255}",
            "fingerprint": document_fingerprint([self.id, "nic0"]),
            "stackType": "IPV4_ONLY",
        }
        if self.admitted.external_ip:
            config: dict[str, Any] = {
                "kind": "compute#accessConfig",
                "type": "ONE_TO_ONE_NAT",
                "name": "External NAT",
                "networkTier": "PREMIUM",
            }
            if self.status != "TERMINATED":
                # An address of the block that is reserved for documentation, which no host has.
                config["natIP"] = f"203.0.113.{number & 255}"
            interface["accessConfigs"] = [config]
        return interface

    def _attached_disk(self) -> dict[str, Any]:
        return {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": "READ_WRITE",
            "source": self_link("projects", self.project, "zones", self.zone, "disks", self.name),
            "deviceName": "persistent-disk-0",
            "index": 0,
            "boot": True,
            "autoDelete": self.admitted.auto_delete,
            "interface": "SCSI",
            "diskSizeGb": str(self.admitted.disk_gib),
        }

    def _scheduling(self) -> dict[str, Any]:
        given = self.admitted.body.get("scheduling", {})
        scheduling: dict[str, Any] = {
            "onHostMaintenance": self.admitted.maintenance,
            "automaticRestart": self.admitted.automatic_restart,
            "preemptible": self.admitted.spot,
            "provisioningModel": given.get("provisioningModel", "STANDARD"),
        }
        if self.admitted.termination_action:
            scheduling["instanceTerminationAction"] = self.admitted.termination_action
        if "terminationTime" in given:
            scheduling["terminationTime"] = given["terminationTime"]
        for name in ("maxRunDuration", "preemptionNoticeDuration"):
            if name in given:
                scheduling[name] = {key: value for key, value in given[name].items() if key in ("seconds", "nanos")}
                scheduling[name]["seconds"] = str(scheduling[name].get("seconds", 0))
        return scheduling


# Why a valid request for an instance fails: no machine is left, or a quota of the project is too small.


def quota_usage(
    vms: Iterable[EmbeddedVm], inventory: Inventory, weather: Weather, region: str | None
) -> dict[str, float]:
    """How much of each quota is used, by metric, in a region or in the project (None). A stopped VM uses only its disk
    and counts as an instance."""
    total: dict[str, float] = {}
    for vm in vms:
        stopped = vm.status == "TERMINATED"
        if region is None:
            amounts = {} if stopped else project_wide(vm.admitted)
        elif region_of(vm.zone) == region:
            amounts = vm.admitted.usage(inventory, partial(quota_limit, inventory, weather))
        else:
            continue
        for metric, amount in amounts.items():
            if not stopped or metric.endswith("_GB") or metric == "INSTANCES":
                total[metric] = total.get(metric, 0) + amount
    return total


def project_wide(admitted: Admitted) -> dict[str, float]:
    """How much of the quotas of the whole project a VM uses."""
    return {"GPUS_ALL_REGIONS": admitted.gpu_count, "CPUS_ALL_REGIONS": admitted.machine.vcpus}


def quota_limit(inventory: Inventory, weather: Weather, metric: str, region: str | None) -> float | None:
    """The limit of a quota, as far as the weather does not lower it; None if there is no such quota."""
    listed = inventory.limit(metric, region)
    lowered = weather.holds(metric, "quota_limit", metric=metric, region=region or "") if listed is not None else None
    return listed if lowered is None else float(lowered.params.get("limit", 0))


def over_quota(
    admitted: Admitted, vms: list[EmbeddedVm], inventory: Inventory, weather: Weather
) -> OperationError | None:
    """The operation's error for the first quota that the instance would exceed; None if it exceeds none."""
    region = region_of(admitted.zone)
    of_region = admitted.usage(inventory, partial(quota_limit, inventory, weather))
    for place, wanted in ((region, of_region), (None, project_wide(admitted))):
        in_use = quota_usage(vms, inventory, weather, place)
        for metric, amount in wanted.items():
            listed = quota_limit(inventory, weather, metric, place)
            if listed is None and admitted.gpu and metric.endswith(inventory.accelerators[admitted.gpu].metric):
                continue  # the lists of Compute Engine lack this GPU
            limit = listed or 0
            if in_use.get(metric, 0) + amount > limit:
                return quota_exceeded(metric, limit, place)
    return None


def foul_weather(admitted: Admitted, project: str, weather: Weather) -> OperationError | None:
    """The operation's error for the fault that hits this request; None if there is none. The fault is used up."""
    fault = weather.take(admitted.name, lambda fault: fault_refuses(fault, admitted))
    if fault is None:
        return None
    if fault.kind == "stockout":
        available = fault.params.get("zones_available")
        return stockout_error(project, admitted.zone, admitted.machine.name, admitted.attachment, available)
    project_quota = bool(fault.params.get("global"))
    limit = float(fault.params.get("limit", 0))
    return quota_exceeded(fault.params["metric"], limit, None if project_quota else region_of(admitted.zone))


def fault_refuses(fault: Fault, admitted: Admitted) -> bool:
    """Whether a fault hits this request."""
    params = fault.params
    if fault.kind not in ("stockout", "quota") or params.get("zone", admitted.zone) != admitted.zone:
        return False
    if params.get("region", region_of(admitted.zone)) != region_of(admitted.zone):
        return False
    return bool(params.get("machine_type", admitted.machine.name) == admitted.machine.name)
