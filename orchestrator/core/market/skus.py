"""Reads prices from the Cloud Billing Catalog, page by page.

    GET /v1/services/6F81-5844-456A/skus?currencyCode=USD&pageSize=5000&pageToken=

A SKU has a description, a usage type, the regions in which it is sold, and a rate per unit in tiers. A first tier that
is free is shared by a whole billing account, so the price of the most expensive tier is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from pydantic import ValidationError

from orchestrator.core.market.catalog import CATALOG, Gpu
from orchestrator.core.market.offers import region_of
from orchestrator.core.market.pricing import DiskPrice, MachinePrice, PriceSheet, round_up
from orchestrator.core.rest import Api, RestAnswer, RestRequest

# The locations of buckets, and which zones can read from a bucket without charges for the distance.


CONTINENTS: Final = {
    "US": ("us-", "northamerica-"),
    "NAM4": ("us-",),
    "EU": ("europe-",),
    "EUR4": ("europe-",),
    "ASIA": ("asia-",),
    "ASIA1": ("asia-",),
}
"""Multi-regions and dual regions, and the beginnings of the names of the regions that they serve."""


def regions_near(location: str, zones: Iterable[str]) -> tuple[str, ...]:
    """The regions of `zones` that a bucket in `location` is in."""
    regions = tuple(dict.fromkeys(region_of(zone) for zone in zones))
    prefixes = CONTINENTS.get(location.upper())
    if prefixes is None:
        return tuple(region for region in regions if region == location.lower())
    return tuple(region for region in regions if region.startswith(prefixes))


def continent_of(place: str) -> str:
    """The continent of a location: `europe` for `europe-west4`, `EU` and `EUR4`."""
    serves = CONTINENTS.get(place.upper())
    word = (serves[0] if serves else place.lower()).partition("-")[0]
    return "us" if word == "northamerica" else word


COMPUTE_ENGINE: Final = "6F81-5844-456A"
PAGE_SIZE: Final = 5000
MOST_PAGES: Final = 200
NANO: Final = Decimal("1e-9")


@dataclass(frozen=True, slots=True)
class Sku:
    """One thing that is sold. `usd` is the price of one `unit` (`h`, `GiBy.h`, `GiBy.mo`)."""

    number: str
    description: str
    usage: str
    """`OnDemand`, `Preemptible`, `Commit1Yr` …"""
    regions: frozenset[str]
    unit: str
    currency: str
    usd: Decimal


@dataclass(frozen=True, slots=True)
class PricedPart:
    """One part of a machine's price: the description, usage type and unit that its SKU must have. `what` names it."""

    what: str
    description: re.Pattern[str]
    usage: str
    unit: str


FAMILIES: Final[Mapping[str, str]] = {
    "g2": "G2 Instance",
    "n1": "N1 Predefined Instance",
    "a2": "A2 Instance",
    "a3-ultragpu": "A3Ultra Instance",
    "a3": "A3 Instance",
    "e2": "E2 Instance",
    "n2": "N2 Instance",
}
GPUS: Final[Mapping[str, str]] = {
    "nvidia-l4": "Nvidia L4 GPU",
    "nvidia-tesla-t4": "Nvidia Tesla T4 GPU",
    "nvidia-tesla-a100": "Nvidia Tesla A100 GPU",
    "nvidia-h100-80gb": "Nvidia H100 80GB GPU",
    "nvidia-a100-80gb": "Nvidia Tesla A100 80GB GPU",
    "nvidia-h200-141gb": "H200 141GB GPU",
    "nvidia-b200": "A4 Nvidia B200 (1 gpu slice)",
    "nvidia-rtx-pro-6000": "RTX 6000 96GB",
}
WHOLE: Final = ("a4-", "g4-")
"""Series whose GPUs are sold with their share of the machine."""
DISKS: Final[Mapping[str, str]] = {
    "pd-balanced": "Balanced PD Capacity",
    "pd-standard": "Storage PD Capacity",
    "pd-ssd": "SSD backed PD Capacity",
    "hyperdisk-balanced": "Hyperdisk Balanced Capacity",
    "local-ssd": "SSD backed Local Storage",
}
ADDRESSES: Final[Mapping[str, str]] = {
    "standard": "External IP Charge on a Standard VM",
    "spot": "External IP Charge on a Spot Preemptible VM",
}
USAGE: Final[Mapping[str, str]] = {"standard": "OnDemand", "spot": "Preemptible", "flex_start": "OnDemand"}


def of_machine(machine_type: str, kind: str, way: str) -> PricedPart | None:
    """The part `Core` or `Ram` of a machine's series, for `standard`, `spot` or `flex_start` use; None for an unknown
    series."""
    family = next((name for series, name in FAMILIES.items() if machine_type.startswith(f"{series}-")), None)
    if family is None:
        return None
    unit = "h" if kind == "Core" else "GiBy.h"
    names = {"spot": f"Spot Preemptible {family}", "flex_start": f"DWS Defined Duration {family.split()[0]}"}
    return _part(f"{names.get(way, family)} {kind}", r" running in .+", USAGE[way], unit)


def of_gpu(accelerator: str, way: str) -> PricedPart | None:
    name = GPUS.get(accelerator)
    attached = {"spot": "Spot Preemptible", "flex_start": "DWS Defined Duration"}.get(way)
    return (
        _part(
            " ".join((name, *(("attached to", attached, "VMs") if attached else ()))),
            r" running in .+",
            USAGE[way],
            "h",
        )
        if name
        else None
    )


def of_disk(kind: str) -> PricedPart | None:
    name = DISKS.get(kind)
    return _part(name, r"( in .+)?", "OnDemand", "GiBy.mo") if name else None


def of_address(way: str) -> PricedPart:
    return _part(ADDRESSES[way], "", USAGE[way], "h")


def _part(name: str, rest: str, usage: str, unit: str) -> PricedPart:
    return PricedPart(f"{name} ({usage})", re.compile(re.escape(name) + rest), usage, unit)


def skus_sold(skus: Iterable[Sku], part: PricedPart, region: str) -> tuple[Sku, ...]:
    """The SKUs of this part that are sold in a region."""
    return tuple(
        sku
        for sku in skus
        if sku.usage == part.usage
        and (region in sku.regions or "global" in sku.regions)
        and part.description.fullmatch(sku.description)
    )


def parse_sku(document: Mapping[str, Any]) -> Sku | None:
    """The SKU in a document; None if the document does not have the API's form."""
    try:
        newest = max(document["pricingInfo"], key=lambda info: str(info.get("effectiveTime", "")))
        rates = newest["pricingExpression"]["tieredRates"]
        dearest = max((money_usd(rate["unitPrice"]) for rate in rates), default=None)
        if dearest is None:
            return None
        return Sku(
            number=str(document["skuId"]),
            description=str(document["description"]),
            usage=str(document["category"]["usageType"]),
            regions=frozenset(map(str, document["serviceRegions"])),
            unit=str(newest["pricingExpression"]["usageUnit"]),
            currency=str(rates[-1]["unitPrice"].get("currencyCode", "")),
            usd=dearest,
        )
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def money_usd(price: Mapping[str, Any]) -> Decimal:
    """The dollars in a price: `units` is text, and `units` and `nanos` are left out if they are 0."""
    return Decimal(int(price.get("units", 0))) + int(price.get("nanos", 0)) * NANO


@dataclass(frozen=True, slots=True)
class SkuCatalogue:
    """The SKUs of Compute Engine that could be read, and how many could not."""

    skus: tuple[Sku, ...]
    unread: int = 0


def list_skus(api: Api) -> SkuCatalogue | RestAnswer:
    """The SKUs of all pages; or the first answer that is not a page, with status 0 if the pages do not end."""
    skus: list[Sku] = []
    unread = 0
    query: dict[str, Any] = {"currencyCode": "USD", "pageSize": PAGE_SIZE}
    for _ in range(MOST_PAGES):
        answer = api.ask(RestRequest("cloudbilling", "GET", f"/v1/services/{COMPUTE_ENGINE}/skus", query))
        if not answer.good:
            return answer
        listed = answer.document.get("skus", [] if skus else None)
        if not isinstance(listed, list):
            return RestAnswer(0, trouble="it sent no list of SKUs")
        sku_list = [parse_sku(entry) if isinstance(entry, Mapping) else None for entry in listed]
        skus += [sku for sku in sku_list if sku is not None]
        unread += sku_list.count(None)
        token = answer.document.get("nextPageToken")
        if not token:
            return SkuCatalogue(tuple(skus), unread)
        if token == query.get("pageToken"):
            break
        query = {**query, "pageToken": token}
    return RestAnswer(0, trouble="its list of pages does not end")


# Makes a new price table from the Cloud Billing Catalog. Each figure of the old table is found there or reported
# missing.


WAYS: Final = ("standard", "spot")
SOURCE: Final = "billing-catalog"


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A new table; the figures that it lacks; and (old, new) for each figure that changed."""

    sheet: PriceSheet
    left_out: tuple[str, ...]
    changed: Mapping[str, tuple[Decimal, Decimal]]


@dataclass(frozen=True, slots=True)
class NotRefreshed:
    """Why there is no new table: one reason for each figure that was not found."""

    problems: tuple[str, ...]


@dataclass
class _Search:
    skus: tuple[Sku, ...]
    problems: list[str] = field(default_factory=list)
    """Problems with figures that the old table has."""
    silent: list[str] = field(default_factory=list)
    """Problems with figures that the old table does not have either. They are not reported."""

    def figure(self, part: PricedPart | None, region: str, *, wanted: bool) -> Decimal | None:
        """The price of a part in a region; None if it is not known. The reason is then added to the problems; `wanted`
        says whether the old table has this figure."""
        notes = self.problems if wanted else self.silent
        if part is None:
            return None
        sold_skus = skus_sold(self.skus, part, region)
        prices = {sku.usd for sku in sold_skus}
        where = f"{part.what} in {region}"
        if not sold_skus:
            notes.append(f"{where}: no SKU")
        elif len(prices) > 1:
            notes.append(
                f"{where}: {len(sold_skus)} SKUs match, at {' and '.join(f'${usd}' for usd in sorted(prices))}"
            )
        elif wrong := next((sku for sku in sold_skus if sku.currency != "USD"), None):
            notes.append(f"{where}: the price is in {wrong.currency or 'no currency'}, not USD")
        elif wrong := next((sku for sku in sold_skus if sku.unit != part.unit), None):
            notes.append(f"{where}: sold by {wrong.unit}, not by {part.unit}")
        elif prices == {Decimal(0)}:
            notes.append(f"{where}: the price is 0, which cannot be right")
        else:
            return prices.pop()
        return None


def refresh_prices(
    old: PriceSheet, found: SkuCatalogue, *, now: datetime, whose: str, leave_out: bool
) -> Refreshed | NotRefreshed:
    """The table of today. It has each region of our machine catalog in which the billing catalogue has a price for all
    parts of a machine. A figure of `old` that is not found is a problem, unless `leave_out` allows to leave it out.
    `whose` names the billing catalogue. The price of a disk is that in the most expensive of these regions."""
    search = _Search(found.skus)
    machines = {
        name: _regions(search, old.machines.get(name, {}), gpu, _machine(name, gpu)) for name, gpu in _types(old)
    }
    cards = {
        gpu.accelerator: _regions(search, old.accelerators.get(gpu.accelerator, {}), gpu, _card(gpu.accelerator))
        for gpu in CATALOG
        if gpu.accelerator
    }
    places = sorted({region for table in machines.values() for region in table})
    disks = {kind: usd for kind in old.disk_gib_month if (usd := _disk(search, kind, places)) is not None}
    addresses = {way: search.figure(of_address(way), "global", wanted=True) for way in WAYS}
    if None in addresses.values() or not disks or not places:
        return NotRefreshed((*search.problems, *(() if places else ("no machine has a price",))))
    if search.problems and not leave_out:
        return NotRefreshed(tuple(search.problems))
    try:
        sheet = PriceSheet.model_validate(
            {
                "schema": 1,
                "currency": "USD",
                "as_of": now.date(),
                "sources": {SOURCE: f"{whose}, {len(found.skus)} SKUs read at {now:%Y-%m-%dT%H:%MZ}"},
                "trusted": (SOURCE,),
                "hours_per_month": old.hours_per_month,
                "disk_gib_month": {kind: DiskPrice(usd=usd, source=SOURCE) for kind, usd in disks.items()},
                "local_ssd_gib": old.local_ssd_gib,
                "external_ip": {**addresses, "source": SOURCE},
                "accelerators": cards,
                "machines": machines,
                "multiples": {name: m for name, m in old.multiples.items() if m.of in machines},
            }
        )
    except ValidationError as error:
        return NotRefreshed(tuple(item["msg"].removeprefix("Value error, ") for item in error.errors()))
    return Refreshed(sheet, tuple(search.problems), dict(_changes(old, sheet)))


def _types(old: PriceSheet) -> Iterator[tuple[str, Gpu]]:
    """(machine type, its GPU) for each machine type with its own price. A multiple of another type has none."""
    for gpu in CATALOG:
        for machine in gpu.machine_types:
            if machine.name not in old.multiples:
                yield machine.name, gpu


Costs = Callable[[_Search, str, str, bool], Decimal | None]
"""Dollars per hour for (search, region, `standard` or `spot`, whether the old table has this figure)."""


def _machine(name: str, gpu: Gpu) -> Costs:
    shape = gpu.machine(name)
    assert shape is not None, "its own machine type"

    def costs(search: _Search, region: str, way: str, wanted: bool) -> Decimal | None:
        if name.startswith(WHOLE):
            assert gpu.accelerator is not None, "its price is that of its GPUs"
            sold = search.figure(of_gpu(gpu.accelerator, way), region, wanted=wanted)
            return None if sold is None else Decimal(0)
        core = search.figure(of_machine(name, "Core", way), region, wanted=wanted)
        ram = search.figure(of_machine(name, "Ram", way), region, wanted=wanted)
        if core is None or ram is None:
            return None
        return round_up(Fraction(core) * shape.vcpus + Fraction(ram) * Fraction(shape.memory_gb))

    return costs


def _card(accelerator: str) -> Costs:
    def costs(search: _Search, region: str, way: str, wanted: bool) -> Decimal | None:
        usd = search.figure(of_gpu(accelerator, way), region, wanted=wanted)
        return None if usd is None else round_up(usd)

    return costs


def _regions(search: _Search, old: Mapping[str, MachinePrice], gpu: Gpu, costs: Costs) -> dict[str, MachinePrice]:
    table: dict[str, MachinePrice] = {}
    for region in dict.fromkeys((*old, *gpu.regions)):
        before = old.get(region)
        figures: dict[str, Decimal] = {}
        for way in (*WAYS, "flex_start"):
            if not gpu.is_sold(way.replace("_", "-")):
                continue  # even if the catalogue has a price
            usd = costs(search, region, way, before is not None and before.under(way) is not None)
            if usd is not None:
                figures[way] = usd
        if "standard" in figures and figures.get("flex_start", Decimal(0)) > figures["standard"]:
            search.silent.append(f"{gpu.title} in {region}: flex-start ${figures.pop('flex_start')} is above on-demand")
        if figures.get("spot", Decimal(0)) > figures.get("standard", figures.get("spot", Decimal(0))):
            notes = search.problems if before else search.silent
            notes.append(f"{gpu.title} in {region}: spot ${figures['spot']} is above on-demand ${figures['standard']}")
        elif figures:
            table[region] = MachinePrice.model_validate({**figures, "source": SOURCE})
    return table


def _disk(search: _Search, kind: str, regions: Iterable[str]) -> Decimal | None:
    figures = [search.figure(of_disk(kind), region, wanted=True) for region in regions]
    prices = [usd for usd in figures if usd is not None]
    return max(prices) if prices and len(prices) == len(figures) else None


def _changes(old: PriceSheet, new: PriceSheet) -> Iterator[tuple[str, tuple[Decimal, Decimal]]]:
    for before, after in ((old.machines, new.machines), (old.accelerators, new.accelerators)):
        for name, regions in after.items():
            for region, price in regions.items():
                old_price = before.get(name, {}).get(region)
                for way in (*WAYS, "flex_start"):
                    old_usd, new_usd = old_price.under(way) if old_price else None, price.under(way)
                    if old_usd is not None and new_usd is not None and old_usd != new_usd:
                        yield f"{name} {region} {way}", (old_usd, new_usd)
