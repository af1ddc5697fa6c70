"""What a machine costs per hour in the embedded cloud. The only source is `tariff.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator.embedded.documents import load_bundled

TARIFF = Path(__file__).with_name("tariff.yaml")


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of one running machine in dollars per hour, by part. `disk` includes local disks; it is also paid while
    the machine is stopped."""

    gpu: Decimal
    machine: Decimal
    disk: Decimal
    external_ip: Decimal

    @property
    def usd_per_hour(self) -> Decimal:
        """The sum of all parts."""
        return self.gpu + self.machine + self.disk + self.external_ip


class UnknownSku(KeyError):
    """The tariff has no price for this machine type in this region."""


class Tariff:
    """The price list."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @classmethod
    def load(cls, path: Path = TARIFF) -> Tariff:
        """The price list in a file; by default the bundled one."""
        return cls(load_bundled(path))

    def sells(self, machine_type: str, region: str) -> bool:
        """Whether there is a price for a machine type in a region."""
        base, _ = self._base(machine_type)
        return region in self.document["machines"].get(base, {"regions": {}})["regions"]

    def _base(self, machine_type: str) -> tuple[str, int]:
        """(machine type whose prices apply, factor for its machine price)."""
        scaled = self.document.get("scaled", {}).get(machine_type)
        return (scaled["of"], int(scaled["times"])) if scaled else (machine_type, 1)

    def rate(
        self,
        machine_type: str,
        region: str,
        *,
        spot: bool,
        disk_type: str,
        disk_gib: int,
        external_ip: bool,
        gpu_count: int = 1,
    ) -> Rate:
        """The hourly rate of one VM with `gpu_count` GPUs. Raises `UnknownSku` if there is no price."""
        provisioning = "spot" if spot else "standard"
        if not self.sells(machine_type, region):
            raise UnknownSku(f"{machine_type} in {region}")
        base, times = self._base(machine_type)
        prices = self.document["machines"][base]["regions"][region][provisioning]
        disks = self.document["disk_gib_month"].get(disk_type)
        if disks is None:
            raise UnknownSku(f"disk type {disk_type}")
        month = Decimal(disks.get(region, disks["default"])["usd"])
        local = self.document["disk_gib_month"]["local-ssd"]
        local_month = Decimal(local.get(region, local["default"])["usd"])
        local_gib = self.document["local_ssd_gib"].get(machine_type, 0)
        address = Decimal(self.document["external_ip"][provisioning]["usd"])
        return Rate(
            gpu=Decimal(prices["gpu"]) * gpu_count,
            machine=Decimal(prices["machine"]) * times,
            disk=(month * disk_gib + local_month * local_gib) / Decimal(self.document["hours_per_month"]),
            external_ip=address if external_ip else Decimal(0),
        )
