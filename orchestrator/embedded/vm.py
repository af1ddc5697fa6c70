"""One instance: its state while it exists, and how the API and the control API show it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from orchestrator.embedded.admission import Admitted
from orchestrator.embedded.documents import google_stamp, utc_stamp
from orchestrator.embedded.guest import Guest, GuestMachine
from orchestrator.embedded.inventory import region_of
from orchestrator.embedded.links import document_fingerprint, self_link
from orchestrator.embedded.operations import OperationTarget
from orchestrator.embedded.timeline import Alarm
from orchestrator.embedded.weather import Fault


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
