"""The resources that only ever stand there: project, regions, zones, machine types, accelerators, images, networks."""

from __future__ import annotations

from typing import Any

from orchestrator.embedded.inventory import Accelerator, Image, Inventory, MachineType, numeric_id, region_of
from orchestrator.embedded.links import link

BORN = "2024-01-01T00:00:00.000-08:00"


class Resources:
    """Their documents, in Google's shape."""

    def __init__(self, project: str, inventory: Inventory) -> None:
        self.project = project
        self.inventory = inventory

    def _basics(self, kind: str, name: str, *at: str) -> dict[str, Any]:
        path = "/".join(("projects", self.project, *at, name))
        return {
            "kind": f"compute#{kind}",
            "id": numeric_id(path),
            "name": name,
            "creationTimestamp": BORN,
            "selfLink": link(path),
        }

    def quotas(self, region: str | None, used: dict[str, float]) -> list[dict[str, Any]]:
        """Every quota of a region, or of the project: metric, limit, usage."""
        listed = self.inventory.region_quotas if region else self.inventory.global_quotas
        metrics = [*listed, *(name.partition("/")[2] or name for name in self.inventory.overrides)]
        found = []
        for metric in dict.fromkeys(metrics):
            limit = self.inventory.limit(metric, region)
            if limit is not None:
                found.append({"metric": metric, "limit": float(limit), "usage": float(used.get(metric, 0))})
        return found

    def project_document(self, used: dict[str, float]) -> dict[str, Any]:
        number = numeric_id(self.project)[:12]
        return {
            "kind": "compute#project",
            "id": numeric_id(f"projects/{self.project}"),
            "name": self.project,
            "creationTimestamp": BORN,
            "selfLink": link("projects", self.project),
            "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAA="},
            "quotas": self.quotas(None, used),
            "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        }

    def region(self, name: str, used: dict[str, float]) -> dict[str, Any]:
        zones = [link("projects", self.project, "zones", zone) for zone in self.inventory.zones_in(name)]
        return self._basics("region", name, "regions") | {
            "description": name,
            "status": "UP",
            "zones": zones,
            "quotas": self.quotas(name, used),
        }

    def zone(self, name: str) -> dict[str, Any]:
        return self._basics("zone", name, "zones") | {
            "description": name,
            "status": "UP",
            "region": link("projects", self.project, "regions", region_of(name)),
            "availableCpuPlatforms": ["Embedded"],
        }

    def machine_type(self, machine: MachineType, zone: str) -> dict[str, Any]:
        document = self._basics("machineType", machine.name, "zones", zone, "machineTypes") | {
            "description": f"{machine.vcpus} vCPUs, {machine.memory_mb // 1024} GB RAM",
            "guestCpus": machine.vcpus,
            "memoryMb": machine.memory_mb,
            "imageSpaceGb": 0,
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
            "zone": zone,
            "isSharedCpu": False,
            "architecture": "X86_64",
        }
        if machine.bundled:
            document["accelerators"] = [{"guestAcceleratorType": machine.bundled, "guestAcceleratorCount": 1}]
        return document

    def machine_types(self, zone: str) -> list[dict[str, Any]]:
        return [self.machine_type(machine, zone) for machine in self.inventory.machine_types_in(zone)]

    def accelerator_type(self, accelerator: Accelerator, zone: str) -> dict[str, Any]:
        return self._basics("acceleratorType", accelerator.name, "zones", zone, "acceleratorTypes") | {
            "description": accelerator.description,
            "zone": link("projects", self.project, "zones", zone),
            "maximumCardsPerInstance": accelerator.most,
        }

    def accelerator_types(self, zone: str) -> list[dict[str, Any]]:
        return [self.accelerator_type(entry, zone) for entry in self.inventory.accelerators_in(zone)]

    def disk_types(self, zone: str) -> list[dict[str, Any]]:
        return [
            self._basics("diskType", name, "zones", zone, "diskTypes")
            | {
                "description": name,
                "validDiskSize": "10GB-65536GB",
                "zone": link("projects", self.project, "zones", zone),
                "defaultDiskSizeGb": "100",
            }
            for name in self.inventory.disk_types
        ]

    def image(self, image: Image) -> dict[str, Any]:
        path = f"projects/{image.project}/global/images/{image.name}"
        return {
            "kind": "compute#image",
            "id": numeric_id(path),
            "creationTimestamp": BORN,
            "name": image.name,
            "family": image.family,
            "selfLink": link(path),
            "status": "READY",
            "diskSizeGb": str(image.disk_gb),
            "archiveSizeBytes": str(image.disk_gb << 28),
            "sourceType": "RAW",
            "architecture": "X86_64",
            "labelFingerprint": "AAAAAAAAAAA=",
        }

    def networks(self) -> list[dict[str, Any]]:
        subnetworks = [
            link("projects", self.project, "regions", region, "subnetworks/default")
            for region in self.inventory.regions
        ]
        return [
            self._basics("network", "default", "global", "networks")
            | {
                "description": "Default network for the project",
                "autoCreateSubnetworks": True,
                "subnetworks": subnetworks,
                "routingConfig": {"routingMode": "REGIONAL"},
            }
        ]
