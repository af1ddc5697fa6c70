"""What the cloud has, in which zones, and how much of it one project may use. It is read from `inventory.yaml`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.embedded.documents import load_bundled
from orchestrator.embedded.meter import Tariff

INVENTORY = Path(__file__).with_name("inventory.yaml")


@dataclass(frozen=True, slots=True)
class InventoryMachineType:
    """A machine type. `bundled` is the GPU that it includes, and `attachable` are those that can be attached."""

    name: str
    vcpus: int
    memory_mb: int
    bundled: str | None = None
    attachable: Sequence[str] = ()
    spot_only: bool = False
    gpus: int = 1
    """How many of the bundled GPU it has."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU model. `metric` is its standard quota; the name of the preemptible one begins with PREEMPTIBLE_. `most` is
    how many one machine can have."""

    name: str
    description: str
    most: int
    metric: str


@dataclass(frozen=True, slots=True)
class InventoryImage:
    """A dated image of a family."""

    project: str
    family: str
    name: str
    disk_gb: int


def region_of(zone: str) -> str:
    """The region of a zone: `us-central1` for `us-central1-a`."""
    return zone.rpartition("-")[0]


def numeric_id(text: str) -> str:
    """A decimal uint64 computed from `text`, like the ids that Google gives resources."""
    data = text.encode()
    return str((zlib.crc32(data) << 31) + zlib.crc32(data[::-1]) + 1)


def spread_zones(text: str) -> tuple[str, ...]:
    """The zones in a text such as `us-east4-a/c`, which has two."""
    zones: list[str] = []
    for word in text.split():
        region, _, letters = word.rpartition("-")
        zones.extend(f"{region}-{letter}" for letter in letters.split("/"))
    return tuple(zones)


class Inventory:
    """The inventory of the cloud. `quotas` overrides limits, by `METRIC` (for every region, or for the project) or
    `region/METRIC`."""

    def __init__(self, document: dict[str, Any], tariff: Tariff, quotas: dict[str, float] | None = None) -> None:
        self.tariff = tariff
        self.by_accelerator = {name: frozenset(spread_zones(text)) for name, text in document["zones"].items()}
        self.machine_types = {
            name: InventoryMachineType(name, **entry) for name, entry in document["machine_types"].items()
        }
        self.accelerators = {name: Accelerator(name, **entry) for name, entry in document["accelerators"].items()}
        self.disk_types: tuple[str, ...] = tuple(document["disk_types"])
        self.hyperdisk_only: tuple[str, ...] = tuple(document["hyperdisk_only"])
        self.images = tuple(
            InventoryImage(project, **entry) for project, entries in document["images"].items() for entry in entries
        )
        self.own: dict[str, InventoryImage] = {}
        """Images that the project has made and that machines can boot from, by name."""
        self.global_quotas: dict[str, float] = dict(document["quotas"]["global"])
        self.region_quotas: dict[str, float] = dict(document["quotas"]["region"])
        self.overrides = dict(quotas or {})
        self._offered: dict[str, tuple[InventoryMachineType, ...]] = {}

    @classmethod
    def load(cls, tariff: Tariff, path: Path = INVENTORY, quotas: dict[str, float] | None = None) -> Inventory:
        """The inventory in a file; by default the bundled one."""
        return cls(load_bundled(path), tariff, quotas)

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """Every zone, sorted."""
        return tuple(sorted(frozenset().union(*self.by_accelerator.values())))

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """Every region, sorted."""
        return tuple(sorted({region_of(zone) for zone in self.zones}))

    def zones_in(self, region: str) -> tuple[str, ...]:
        return tuple(zone for zone in self.zones if region_of(zone) == region)

    def machine_types_in(self, zone: str) -> tuple[InventoryMachineType, ...]:
        """The machine types that are offered in a zone: those that exist there and have a price."""
        if zone not in self._offered:
            self._offered[zone] = tuple(
                machine
                for machine in self.machine_types.values()
                if self.tariff.sells(machine.name, region_of(zone)) and zone in self.standing(machine)
            )
        return self._offered[zone]

    def standing(self, machine: InventoryMachineType) -> frozenset[str]:
        """The zones in which a machine type exists, with or without a GPU."""
        if machine.bundled is not None:
            return self.by_accelerator[machine.bundled]
        return frozenset().union(*(self.by_accelerator[name] for name in ("none", *machine.attachable)))

    def accelerators_in(self, zone: str) -> tuple[Accelerator, ...]:
        return tuple(entry for name, entry in self.accelerators.items() if zone in self.by_accelerator[name])

    def limit(self, metric: str, region: str | None) -> float | None:
        """The limit of a quota; None if there is no such quota."""
        listed = self.region_quotas if region else self.global_quotas
        if region is None:
            return self.overrides.get(metric, listed[metric]) if metric in listed else None
        default = self.overrides.get(metric, listed.get(metric)) if metric not in self.global_quotas else None
        return self.overrides.get(f"{region}/{metric}", default)

    def image(self, project: str, name: str) -> InventoryImage | None:
        every = (*self.images, *self.own.values())
        return next((image for image in every if image.project == project and image.name == name), None)

    def newest(self, project: str, family: str) -> InventoryImage | None:
        """The newest image of a family, or None. Names end in their date."""
        family_images = [image for image in self.images if image.project == project and image.family == family]
        return max(family_images, key=lambda image: image.name, default=None)
