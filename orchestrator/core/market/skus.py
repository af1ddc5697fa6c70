"""What the Cloud Billing Catalog says: its pages asked for, and each of its SKUs as a price or as nothing.

    GET /v1/services/6F81-5844-456A/skus?currencyCode=USD&pageSize=5000&pageToken=

A SKU has a description, a usage type, the regions it is sold in, and a rate per unit in tiers. What the first tier
gives away is given to a whole billing account, so the dearest tier is the price.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from orchestrator.core.rest import Answer, Api, Request

COMPUTE_ENGINE: Final = "6F81-5844-456A"
PAGE_SIZE: Final = 5000
MOST_PAGES: Final = 200
NANO: Final = Decimal("1e-9")


@dataclass(frozen=True, slots=True)
class Sku:
    """One thing that is sold. `usd` is what one `unit` (`h`, `GiBy.h`, `GiBy.mo`) costs."""

    number: str
    description: str
    usage: str
    """`OnDemand`, `Preemptible`, `Commit1Yr` …"""
    regions: frozenset[str]
    unit: str
    currency: str
    usd: Decimal


@dataclass(frozen=True, slots=True)
class Part:
    """What a description must be for a thing that a machine is made of; `unit` is what it is sold by."""

    what: str
    description: re.Pattern[str]
    usage: str
    unit: str


FAMILIES: Final[Mapping[str, str]] = {
    "g2": "G2 Instance",
    "n1": "N1 Predefined Instance",
    "a2": "A2 Instance",
    "a3": "A3 Instance",
    "e2": "E2 Instance",
    "n2": "N2 Instance",
}
GPUS: Final[Mapping[str, str]] = {
    "nvidia-l4": "Nvidia L4 GPU",
    "nvidia-tesla-t4": "Nvidia Tesla T4 GPU",
    "nvidia-tesla-a100": "Nvidia Tesla A100 GPU",
    "nvidia-h100-80gb": "Nvidia H100 80GB GPU",
}
DISKS: Final[Mapping[str, str]] = {
    "pd-balanced": "Balanced PD Capacity",
    "pd-standard": "Storage PD Capacity",
    "pd-ssd": "SSD backed PD Capacity",
    "local-ssd": "SSD backed Local Storage",
}
ADDRESSES: Final[Mapping[str, str]] = {
    "standard": "External IP Charge on a Standard VM",
    "spot": "External IP Charge on a Spot Preemptible VM",
}
USAGE: Final[Mapping[str, str]] = {"standard": "OnDemand", "spot": "Preemptible"}


def of_machine(machine_type: str, kind: str, way: str) -> Part | None:
    """The `Core` or `Ram` of a machine's series, `standard` or `spot`; None for a series that is not known."""
    family = FAMILIES.get(machine_type.partition("-")[0])
    if family is None:
        return None
    before = "Spot Preemptible " if way == "spot" else ""
    unit = "h" if kind == "Core" else "GiBy.h"
    return _part(f"{before}{family} {kind}", r" running in .+", USAGE[way], unit)


def of_gpu(accelerator: str, way: str) -> Part | None:
    name = GPUS.get(accelerator)
    attached = " attached to Spot Preemptible VMs" if way == "spot" else ""
    return _part(f"{name}{attached}", r" running in .+", USAGE[way], "h") if name else None


def of_disk(kind: str) -> Part | None:
    name = DISKS.get(kind)
    return _part(name, r"( in .+)?", "OnDemand", "GiBy.mo") if name else None


def of_address(way: str) -> Part:
    return _part(ADDRESSES[way], "", USAGE[way], "h")


def _part(name: str, rest: str, usage: str, unit: str) -> Part:
    return Part(f"{name} ({usage})", re.compile(re.escape(name) + rest), usage, unit)


def sold(skus: Iterable[Sku], part: Part, region: str) -> tuple[Sku, ...]:
    """The SKUs that are this part in a region."""
    return tuple(
        sku
        for sku in skus
        if sku.usage == part.usage
        and (region in sku.regions or "global" in sku.regions)
        and part.description.fullmatch(sku.description)
    )


def read(document: Mapping[str, Any]) -> Sku | None:
    """The SKU of a document, or None for one that is not as the API describes them."""
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
    """`units` is text and left out where it is 0; so is `nanos`."""
    return Decimal(int(price.get("units", 0))) + int(price.get("nanos", 0)) * NANO


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every SKU of Compute Engine that could be read, and how many could not."""

    skus: tuple[Sku, ...]
    unread: int = 0


def catalogue(api: Api) -> Catalogue | Answer:
    """All pages; or the first answer that is none, status 0 for pages that do not end."""
    skus: list[Sku] = []
    unread = 0
    query: dict[str, Any] = {"currencyCode": "USD", "pageSize": PAGE_SIZE}
    for _ in range(MOST_PAGES):
        answer = api.ask(Request("cloudbilling", "GET", f"/v1/services/{COMPUTE_ENGINE}/skus", query))
        if not answer.good:
            return answer
        listed = answer.document.get("skus", [] if skus else None)
        if not isinstance(listed, list):
            return Answer(0, trouble="it sent no list of SKUs")
        found = [read(entry) if isinstance(entry, Mapping) else None for entry in listed]
        skus += [sku for sku in found if sku is not None]
        unread += found.count(None)
        token = answer.document.get("nextPageToken")
        if not token:
            return Catalogue(tuple(skus), unread)
        if token == query.get("pageToken"):
            break
        query = {**query, "pageToken": token}
    return Answer(0, trouble="its list of pages does not end")
