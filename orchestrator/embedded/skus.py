"""The public price catalogue: the tariff as Cloud Billing's `services.list` and `services.skus.list` show it (v1).

It is served at the address of Compute Engine, like the other APIs of a project:

GET /v1/services?pageSize=&pageToken=                                  {"services": [...], "nextPageToken": ""} GET
/v1/services/6F81-5844-456A/skus?currencyCode=USD&pageSize=&pageToken=     {"skus": [...], "nextPageToken": ""}

A SKU has a description, a category (`usageType` OnDemand, Preemptible or Commit1Yr), the regions in which it is sold,
and a rate per `usageUnit` (`h`, `GiBy.h`, `GiBy.mo`) in tiers. A price is `units` + `nanos` / 1e9 dollars. A machine
consists of cores, GiB of memory and GPUs. The sum of their prices differs from what the meter charges by less than 1e-7
$/h. As at Google, the catalogue also has similar SKUs that a reader must not confuse with these: commitments, custom
machines, sole tenancy, reservations, regional disks, and tiers of which the first is free. Pages are shorter than
requested, which the API allows.

`serviceProviderName` and each `summary` say that the prices are simulated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from orchestrator.embedded.documents import load_bundled
from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.inventory import Inventory, InventoryMachineType
from orchestrator.embedded.lists import cut_page

NAMES = Path(__file__).with_name("skus.yaml")
COMPUTE = "6F81-5844-456A"
STORAGE = "95FF-2EF5-5EA1"
PROVIDER = "embedded cloud (simulated prices)"
NANOS = 1_000_000_000
PAGE = 100
MOST = 5000
UNITS = {
    "h": ("hour", "s", "second", 3600),
    "GiBy.h": ("gibibyte hour", "By.s", "byte second", 3600 * 2**30),
    "GiBy.mo": ("gibibyte month", "By.s", "byte second", 2592000 * 2**30),
}
Tiers = tuple[tuple[int, int], ...]
"""(amount from which the tier applies, price of a unit in nanodollars) for each tier."""


@dataclass(frozen=True, slots=True)
class Sold:
    """What is sold: its family and group, its usage type, the regions, and the unit of its price."""

    family: str
    group: str
    usage: str
    regions: tuple[str, ...]
    unit: str


class EmbeddedCatalogue:
    """Answers the two methods. It never changes."""

    def __init__(self, inventory: Inventory, names: Path = NAMES) -> None:
        self.inventory = inventory
        self.names = load_bundled(names)
        self.as_of = f"{inventory.tariff.document['as_of']}T00:00:00Z"
        self.skus = {
            COMPUTE: [*self._machines(), *self._storage(), *self._addresses()],
            STORAGE: [
                self._sku(
                    "Standard Storage US Regional",
                    Sold("Storage", "RegionalStorage", "OnDemand", ("us-central1",), "GiBy.mo"),
                    ((0, 0), (5, 20_000_000)),
                    STORAGE,
                )
            ],
        }

    def services(self, query: Mapping[str, str]) -> Document:
        """The answer of `services.list`."""
        listed = [
            {
                "name": f"services/{number}",
                "serviceId": number,
                "displayName": name,
                "businessEntityName": "businessEntities/GCP",
            }
            for number, name in self.names["services"].items()
        ]
        return sku_page("services", listed, query)

    def service_skus(self, service: str, query: Mapping[str, str]) -> Document:
        """The answer of `services.skus.list`. Raises `ApiError`: 404 for an unknown service, 400 for another
        currency."""
        if service not in self.names["services"]:
            raise ApiError(404, f"Requested service services/{service} was not found.")
        currency = query.get("currencyCode", "USD")
        if currency != "USD":
            raise ApiError(400, f"Invalid currency code: {currency}. This cloud's prices are in USD.")
        return sku_page("skus", self.skus.get(service, []), query)

    def _machines(self) -> Iterator[Document]:
        """The SKUs of vCPUs, memory and GPUs. Machine types of one family share the first two, and the last may be sold
        with the machine, which then costs nothing."""
        families: dict[tuple[str, str, str], list[tuple[InventoryMachineType, str, tuple[str, ...]]]] = {}
        for name, entry in self.inventory.tariff.document["machines"].items():
            machine = self.inventory.machine_types[name]
            for provisioning in ("standard", "spot", "flex_start"):
                if provisioning == "standard" and machine.spot_only:
                    continue
                figures: dict[tuple[str, str, str], list[str]] = {}
                for region, prices in entry["regions"].items():
                    if (price := prices.get(provisioning)) is not None:
                        place = self.names["places"].get(region, region)
                        figures.setdefault((place, price["machine"], price["gpu"]), []).append(region)
                for (place, machine_usd, gpu_usd), regions in figures.items():
                    if entry["gpu"]:
                        yield from self._gpu(entry["gpu"], provisioning, place, gpu_usd, tuple(regions))
                    if Decimal(machine_usd):
                        family = next(key for key in self.names["families"] if name.startswith(f"{key}-"))
                        sold = machine, machine_usd, tuple(regions)
                        families.setdefault((family, provisioning, place), []).append(sold)
        for (key, provisioning, place), machines in families.items():
            yield from self._parts(self.names["families"][key], provisioning, place, machines)

    def _parts(
        self,
        family: Document,
        provisioning: str,
        place: str,
        machines: list[tuple[InventoryMachineType, str, tuple[str, ...]]],
    ) -> Iterator[Document]:
        """The SKUs of a family's vCPUs and memory: prices with which each of its machine types costs what it costs."""
        core, ram = solve_prices(
            [(one.vcpus, one.memory_mb // 1024, to_nanos(usd)) for one, usd, _ in machines], Decimal(family["ratio"])
        )
        regions = tuple(dict.fromkeys(region for _, _, sold in machines for region in sold))
        usage, prefix = kind_of(provisioning)
        for part, unit, group, price in (
            ("Core", "h", family["groups"][0], core),
            ("Ram", "GiBy.h", family["groups"][1], ram),
        ):
            series = family["name"].split()[0] if provisioning == "flex_start" else family["name"]
            sold = Sold("Compute", group, usage, regions, unit)
            yield self._sku(f"{prefix}{series} {part} running in {place}", sold, ((0, price),))
            words = {"short": family["name"].split()[0], "part": part, "word": {"Core": "Cpu"}.get(part, part)}
            if provisioning == "standard":
                yield from self._similar("parts", sold, price, place=place, **words)

    def _similar(self, kind: str, sold: Sold, price: int, **words: str) -> Iterator[Document]:
        """The SKUs that a reader must not confuse with this one."""
        for entry in self.names["similar"][kind]:
            other = replace(sold, usage=entry.get("usage", sold.usage))
            yield self._sku(entry["name"].format(**words), other, ((0, price * entry["percent"] // 100),))

    def _gpu(
        self, accelerator: str, provisioning: str, place: str, usd: str, regions: tuple[str, ...]
    ) -> Iterator[Document]:
        name, price = self.names["accelerators"][accelerator], to_nanos(usd)
        usage, prefix = kind_of(provisioning)
        attached = f" attached to {prefix}VMs" if prefix else ""
        plain = f"{name}{attached} running in {place}"
        sold = Sold("Compute", "GPU", usage, regions, "h")
        yield self._sku(plain, sold, ((0, price),))
        if provisioning == "standard":
            yield from self._similar("gpus", sold, price, place=place, name=name)

    def _storage(self) -> Iterator[Document]:
        for kind, prices in self.inventory.tariff.document["disk_gib_month"].items():
            entry = self.names["disks"][kind]
            figures: dict[tuple[str, str], list[str]] = {}
            for region in self.inventory.regions:
                place = self.names["places"].get(region, region)
                figures.setdefault((place, prices.get(region, prices["default"])["usd"]), []).append(region)
            for (place, usd), regions in figures.items():
                american = place == "Americas"
                where, price = "" if american else f" in {place}", to_nanos(usd)
                free = entry.get("free_gib", 0) if american else 0
                tiers = ((0, 0), (free, price)) if free else ((0, price),)
                name = f"{entry['name']}{where}"
                sold = Sold("Storage", entry["group"], "OnDemand", tuple(regions), "GiBy.mo")
                yield self._sku(name, sold, tiers)
                yield self._sku(f"Regional {name}", sold, ((0, 2 * price),))

    def _addresses(self) -> Iterator[Document]:
        for provisioning, price in self.inventory.tariff.document["external_ip"].items():
            entry = self.names["addresses"][provisioning]
            usage, _ = kind_of(provisioning)
            usd, free = to_nanos(price["usd"]), entry["free_h"]
            tiers = ((0, 0), (free, usd)) if free else ((0, usd),)
            yield self._sku(entry["name"], Sold("Network", "IpAddress", usage, ("global",), "h"), tiers)

    def _sku(self, description: str, sold: Sold, tiers: Tiers, service: str = COMPUTE) -> Document:
        regions = sold.regions
        number = sku_id(f"{description} {regions[0]}")
        everywhere = regions == ("global",)
        return {
            "name": f"services/{service}/skus/{number}",
            "skuId": number,
            "description": description,
            "category": {
                "serviceDisplayName": self.names["services"][service],
                "resourceFamily": sold.family,
                "resourceGroup": sold.group,
                "usageType": sold.usage,
            },
            "serviceRegions": list(regions),
            "pricingInfo": [
                {
                    "summary": "simulated",
                    "pricingExpression": _rates(sold.unit, tiers),
                    "currencyConversionRate": 1,
                    "effectiveTime": self.as_of,
                }
            ],
            "serviceProviderName": PROVIDER,
            "geoTaxonomy": {
                "type": "GLOBAL" if everywhere else "REGIONAL" if len(regions) == 1 else "MULTI_REGIONAL",
                **({} if everywhere else {"regions": list(regions)}),
            },
        }


def kind_of(provisioning: str) -> tuple[str, str]:
    """(usage type, beginning of the description) of a part."""
    prefixes = {"spot": "Spot Preemptible ", "flex_start": "DWS Defined Duration "}
    return "Preemptible" if provisioning == "spot" else "OnDemand", prefixes.get(provisioning, "")


def to_nanos(usd: str) -> int:
    """Dollars as nanodollars. Raises `ValueError` if that is not a whole number."""
    amount = Decimal(usd) * NANOS
    whole_nanos = int(amount)
    if whole_nanos != amount:
        raise ValueError(f"{usd} dollars are no whole number of nanodollars")
    return whole_nanos


def solve_prices(machines: Sequence[tuple[int, int, int]], ratio: Decimal) -> tuple[int, int]:
    """(price of one core, price of one GiB) in nanodollars, from (cores, GiB, price) of one or two machine types."""
    (cores, gib, total), *others = machines
    more = next(((c, g, t) for c, g, t in others if c * gib != g * cores), None)
    if more is None:
        return split_price(total, cores, gib, ratio)
    determinant = cores * more[1] - more[0] * gib
    core = (total * more[1] - more[2] * gib) // determinant
    return core, (total - cores * core) // gib


def split_price(total: int, cores: int, gib: int, ratio: Decimal) -> tuple[int, int]:
    """(price of one core, price of one GiB) in nanodollars, so that `cores` and `gib` of them cost `total` if whole
    numbers allow it, and otherwise up to `gib` nanodollars less. A core costs about as much as `ratio` GiB."""
    about = int(total * ratio / (cores * ratio + gib))
    core = min(range(about, about + gib), key=lambda candidate: (total - cores * candidate) % gib)
    return core, (total - cores * core) // gib


def sku_id(text: str) -> str:
    """A SKU id such as `1A2B-3C4D-5E6F`, which depends only on the text."""
    digits = hashlib.sha256(text.encode()).hexdigest()[:12].upper()
    return "-".join(re.findall("....", digits))


def sku_page(key: str, items: list[Document], query: Mapping[str, str]) -> Document:
    """The requested page; its token is empty on the last page. Raises `ApiError` (400) for an invalid page."""
    token = query.get("pageToken", "")
    try:
        size = int(query.get("pageSize", "0") or 0)
        page, following = cut_page(items, min(size or PAGE, PAGE), token)
    except ValueError as exc:
        raise ApiError(400, "Request contains an invalid argument.") from exc
    if not 0 <= size <= MOST or (token and not page):
        raise ApiError(400, "Request contains an invalid argument.")
    return {key: page, "nextPageToken": "", **following}


def _rates(unit: str, tiers: Tiers) -> Document:
    """The pricing expression of a SKU with these tiers."""
    unit_text, base, base_words, factor = UNITS[unit]
    return {
        "usageUnit": unit,
        "usageUnitDescription": unit_text,
        "baseUnit": base,
        "baseUnitDescription": base_words,
        "baseUnitConversionFactor": factor,
        "displayQuantity": 1,
        "tieredRates": [
            {
                "startUsageAmount": start,
                "unitPrice": {"currencyCode": "USD", "units": str(price // NANOS), "nanos": price % NANOS},
            }
            for start, price in tiers
        ],
    }
