"""The resources that no request changes: project, regions, zones, machine types, accelerators, public images,
networks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from orchestrator.embedded.documents import self_link, utc_stamp
from orchestrator.embedded.errors import ApiError, Document, invalid_field
from orchestrator.embedded.inventory import (
    Accelerator,
    Inventory,
    InventoryImage,
    InventoryMachineType,
    numeric_id,
    region_of,
)
from orchestrator.embedded.vm import quota_limit
from orchestrator.embedded.weather import Weather

BORN = "2024-01-01T00:00:00.000-08:00"


class Resources:
    """Makes the documents of these resources in Google's form."""

    def __init__(self, project: str, inventory: Inventory, weather: Weather) -> None:
        self.project = project
        self.inventory = inventory
        self.weather = weather

    def _basics(self, kind: str, name: str, *at: str) -> dict[str, Any]:
        path = "/".join(("projects", self.project, *at, name))
        return {
            "kind": f"compute#{kind}",
            "id": numeric_id(path),
            "name": name,
            "creationTimestamp": BORN,
            "selfLink": self_link(path),
        }

    def quotas(self, region: str | None, used: dict[str, float]) -> list[dict[str, Any]]:
        """Metric, limit and usage of every quota of a region, or of the project if `region` is None."""
        listed = self.inventory.region_quotas if region else self.inventory.global_quotas
        metrics = [*listed, *(name.partition("/")[2] or name for name in self.inventory.overrides)]
        quota_list = []
        for metric in dict.fromkeys(metrics):
            limit = quota_limit(self.inventory, self.weather, metric, region)
            if limit is not None:
                quota_list.append({"metric": metric, "limit": float(limit), "usage": float(used.get(metric, 0))})
        return quota_list

    def project_document(self, used: dict[str, float]) -> dict[str, Any]:
        number = numeric_id(self.project)[:12]
        return {
            "kind": "compute#project",
            "id": numeric_id(f"projects/{self.project}"),
            "name": self.project,
            "creationTimestamp": BORN,
            "selfLink": self_link("projects", self.project),
            "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAA="},
            "quotas": self.quotas(None, used),
            "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        }

    def region(self, name: str, used: dict[str, float]) -> dict[str, Any]:
        zones = [self_link("projects", self.project, "zones", zone) for zone in self.inventory.zones_in(name)]
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
            "region": self_link("projects", self.project, "regions", region_of(name)),
            "availableCpuPlatforms": ["Embedded"],
        }

    def machine_type(self, machine: InventoryMachineType, zone: str) -> dict[str, Any]:
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
            bundled = {"guestAcceleratorType": machine.bundled, "guestAcceleratorCount": machine.gpus}
            document["accelerators"] = [bundled]
        return document

    def of_kind(self, kind: str, zone: str) -> list[dict[str, Any]]:
        """The machine types, accelerator types or disk types of a zone."""
        if kind == "machineTypes":
            return [self.machine_type(machine, zone) for machine in self.inventory.machine_types_in(zone)]
        if kind == "acceleratorTypes":
            return [self.accelerator_type(entry, zone) for entry in self.inventory.accelerators_in(zone)]
        return [self.disk_type(name, zone) for name in self.inventory.disk_types]

    def accelerator_type(self, accelerator: Accelerator, zone: str) -> dict[str, Any]:
        return self._basics("acceleratorType", accelerator.name, "zones", zone, "acceleratorTypes") | {
            "description": accelerator.description,
            "zone": self_link("projects", self.project, "zones", zone),
            "maximumCardsPerInstance": accelerator.most,
        }

    def disk_type(self, name: str, zone: str) -> dict[str, Any]:
        return self._basics("diskType", name, "zones", zone, "diskTypes") | {
            "description": name,
            "validDiskSize": "10GB-65536GB",
            "zone": self_link("projects", self.project, "zones", zone),
            "defaultDiskSizeGb": "100",
        }

    def image(self, image: InventoryImage) -> dict[str, Any]:
        path = f"projects/{image.project}/global/images/{image.name}"
        return {
            "kind": "compute#image",
            "id": numeric_id(path),
            "creationTimestamp": BORN,
            "name": image.name,
            "family": image.family,
            "selfLink": self_link(path),
            "status": "READY",
            "diskSizeGb": str(image.disk_gb),
            "archiveSizeBytes": str(image.disk_gb << 28),
            "sourceType": "RAW",
            "architecture": "X86_64",
            "labelFingerprint": "AAAAAAAAAAA=",
        }

    def images(self, owner: str, victim: str) -> list[dict[str, Any]]:
        """All images of a project. The weather may have moved one to another family, or deprecated it."""
        image_documents = [self.image(image) for image in self.inventory.images if image.project == owner]
        for document in image_documents:
            renamed = self.weather.holds(victim, "image_renamed", family=document["family"])
            if renamed:
                document["family"] = str(renamed.params["to"])
            deprecated = self.weather.holds(victim, "image_deprecated", family=document["family"])
            if deprecated:
                status = {"state": deprecated.params.get("state", "DEPRECATED"), "deprecated": BORN}
                if "replacement" in deprecated.params:
                    path = ("projects", owner, "global/images/family", str(deprecated.params["replacement"]))
                    status["replacement"] = self_link(*path)
                document["deprecated"] = status
        return image_documents

    def networks(self, victim: str) -> list[dict[str, Any]]:
        if self.weather.holds(victim, "network_missing", network="default"):
            return []
        return [
            self._basics("network", "default", "global", "networks")
            | {
                "description": "Default network for the project",
                "autoCreateSubnetworks": True,
                "subnetworks": [
                    self_link("projects", self.project, "regions", region, "subnetworks/default")
                    for region in self.inventory.regions
                ],
                "routingConfig": {"routingMode": "REGIONAL"},
            }
        ]

    def subnetworks(self, region: str, victim: str) -> list[dict[str, Any]]:
        """The default network's subnet in a region. Machines in it reach Google's APIs without an external address,
        unless the weather says otherwise."""
        place = self_link("projects", self.project, "regions", region)
        return [
            self._basics("subnetwork", "default", "regions", region, "subnetworks")
            | {
                "network": self_link("projects", self.project, "global/networks/default"),
                "region": place,
                "ipCidrRange": f"10.{128 + self.inventory.regions.index(region)}.0.0/20",
                "privateIpGoogleAccess": self.weather.holds(victim, "no_private_access", region=region) is None,
            }
        ]

    def routers(self, region: str, victim: str) -> list[dict[str, Any]]:
        """A router with Cloud NAT, by which a machine of the default network reaches the internet without an external
        address. There is none if the weather says so."""
        if self.weather.holds(victim, "no_nat", region=region):
            return []
        nat = {
            "name": "nat",
            "natIpAllocateOption": "AUTO_ONLY",
            "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        }
        return [
            self._basics("router", "router", "regions", region, "routers")
            | {
                "network": self_link("projects", self.project, "global/networks/default"),
                "region": self_link("projects", self.project, "regions", region),
                "nats": [nat],
            }
        ]


# Capacity advice, if it is switched on: the answers of `advice.capacity` and `advice.capacityHistory`.


Zones = Mapping[str, Mapping[str, float]]
"""The advice by zone: `obtainability` and `preemption_rate` (0 to 1), `uptime_s`, and `list_usd`. Answers leave out
missing values."""


def advise_capacity(body: Document, zones: Zones, inventory: Inventory) -> Document:
    """The answer with the most obtainable of the zones in the request. Raises `ApiError` (400) if the request is not
    complete."""
    entries = body.get("distributionPolicy", {}).get("zones", [])
    requested = [_zone(entry.get("zone", ""), inventory) for entry in entries]
    selections = body.get("instanceFlexibilityPolicy", {}).get("instanceSelections", {})
    machines = [name for chosen in selections.values() for name in chosen.get("machineTypes", [])]
    model = body.get("instanceProperties", {}).get("scheduling", {}).get("provisioningModel", "STANDARD")
    if not machines or int(body.get("size", 0)) < 1:
        raise ApiError(400, "Required field 'size' or 'instanceSelections' not specified", "required")
    if model != "SPOT":
        raise invalid_field("instanceProperties.scheduling.provisioningModel", model, "Only SPOT is advised on.")
    advised = [zone for zone in requested or list(zones) if "obtainability" in zones.get(zone, {})]
    if not advised:
        return {"recommendations": []}
    best = max(advised, key=lambda zone: (zones[zone]["obtainability"], zone))
    scores: Document = {"obtainability": zones[best]["obtainability"]}
    if "uptime_s" in zones[best]:
        scores["estimatedUptime"] = f"{zones[best]['uptime_s']:g}s"
    shard = {"zone": best, "machineType": machines[0], "instanceCount": int(body["size"]), "provisioningModel": "SPOT"}
    return {"recommendations": [{"scores": scores, "shards": [shard]}]}


def capacity_history(body: Document, zones: Zones, inventory: Inventory, now: datetime) -> Document:
    """The answer with thirty days of the zone's preemption rate, and two list prices. Raises `ApiError` (400) if the
    request is not complete, or for N1 machines with an attached GPU, which have no history."""
    properties = body.get("instanceProperties", {})
    machine = properties.get("machineType", "")
    if not machine or not body.get("types"):
        raise ApiError(400, "Required field 'types' or 'machineType' not specified", "required")
    if machine.startswith("n1-") and properties.get("guestAccelerators"):
        raise invalid_field(
            "instanceProperties.guestAccelerators", machine, "There is no history of N1 with accelerators."
        )
    zone = _zone(body.get("locationPolicy", {}).get("location", ""), inventory)
    answer: Document = {"machineType": machine, "location": f"zones/{zone}"}
    if "PREEMPTION" in body["types"] and "preemption_rate" in zones.get(zone, {}):
        rate = zones[zone]["preemption_rate"]
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        days = [midnight - timedelta(days=back) for back in range(30, 0, -1)]
        answer["preemptionHistory"] = [
            {
                "interval": {"startTime": utc_stamp(day), "endTime": utc_stamp(day + timedelta(days=1))},
                "preemptionRate": rate,
            }
            for day in days
        ]
    if "PRICE" in body["types"] and "list_usd" in zones.get(zone, {}):
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        spans = [(month - timedelta(days=61), month, 1.1), (month, now, 1.0)]
        answer["priceHistory"] = [
            {
                "interval": {"startTime": utc_stamp(begin), "endTime": utc_stamp(end)},
                "listPrice": _money(zones[zone]["list_usd"] * factor),
            }
            for begin, end, factor in spans
        ]
    return answer


def _money(usd: float) -> Document:
    nanos = round(usd * 10**9)
    return {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}


def _zone(url: str, inventory: Inventory) -> str:
    match = re.fullmatch(r"(?:.*/)?zones/([^/]+)", url)
    if not match or match[1] not in inventory.zones:
        raise invalid_field("zone", url, "The zone is not known.")
    return match[1]
