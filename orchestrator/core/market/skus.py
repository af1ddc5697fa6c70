"""Reads prices from the Cloud Billing Catalog, page by page.

    GET /v1/services/6F81-5844-456A/skus?currencyCode=USD&pageSize=5000&pageToken=

A SKU has a description, a usage type, the regions in which it is sold, and a rate per unit in tiers. A first tier that
is free is shared by a whole billing account, so the price of the most expensive tier is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from orchestrator.core.market.offers import region_of
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
        _part(f"{name}{f' attached to {attached} VMs' if attached else ''}", r" running in .+", USAGE[way], "h")
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
        dearest = max((_usd(rate["unitPrice"]) for rate in rates), default=None)
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


def _usd(price: Mapping[str, Any]) -> Decimal:
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
