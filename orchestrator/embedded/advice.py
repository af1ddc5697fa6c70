"""Capacity advice, if it is switched on: the answers of `advice.capacity` and `advice.capacityHistory`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from orchestrator.embedded.documents import utc_stamp
from orchestrator.embedded.errors import ApiError, Document, invalid_field
from orchestrator.embedded.inventory import Inventory

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
