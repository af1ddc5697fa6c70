"""Where a fleet on Google Cloud Batch may run a configuration, at which price, and on which machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from orchestrator.core.config.model import Config
from orchestrator.core.errors import NoCapacity
from orchestrator.core.fleet.batch import settings_of
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.plan.offered import priced_offers

REGIONS: Final = 3
"""How many regions a job tries, the cheapest first: a queue without an answer costs ten minutes in each."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the machines of a job may be, best first, and what a template says of them."""

    regions: tuple[str, ...]
    settings: Mapping[str, Any]
    provisioning: str


def dearest_by_region(config: Config, prices: PriceSheet) -> dict[str, Decimal]:
    """What an hour costs at most in each region, the cheapest region first: Batch chooses the zone. Raises
    `NoCapacity` where no price is known."""
    wanted, found = config.machine.provisioning.upper(), dict[str, Decimal]()
    for offer in priced_offers(config, prices):
        if offer.provisioning == wanted:
            found[offer.region] = max(found.get(offer.region, Decimal(0)), offer.usd_per_hour)
    if not found:
        raise NoCapacity(
            f"no price is known for {config.machine.provisioning} {config.machine_type} in the allowed regions",
            hint="choose other regions, or add their prices to configs/prices.yaml",
        )
    return dict(sorted(found.items(), key=lambda entry: (entry[1], entry[0])))


def by_region(config: Config, prices: PriceSheet) -> tuple[Offer, ...]:
    """One offer of each of the cheapest regions."""
    wanted = config.machine.provisioning.upper()
    found: dict[str, Offer] = {}
    for offer in sorted(priced_offers(config, prices), key=lambda one: (one.usd_per_hour, one.region)):
        if offer.provisioning == wanted:
            found.setdefault(offer.region, offer)
    return tuple(found.values())[:REGIONS]


def hourly(config: Config, prices: PriceSheet) -> Decimal:
    """The price that a fleet's hold assumes: no region that its jobs may use costs more. Raises `NoCapacity`."""
    return list(dearest_by_region(config, prices).values())[:REGIONS][-1]


def place(config: Config, prices: PriceSheet, held_at: Decimal) -> Place:
    """The regions that cost no more than the hold of the fleet assumes. Raises `NoCapacity` if there are none."""
    found = tuple(region for region, usd in dearest_by_region(config, prices).items() if usd <= held_at)
    if not found:
        raise NoCapacity(
            f"every region now costs more than ${held_at} an hour, the price that the fleet's hold assumes",
            hint="`bench fleet stop FLEET` releases the hold; `bench fleet launch` starts a new one at today's prices",
        )
    project, family = config.image_source
    settings = {
        **settings_of(config.gpu, config.machine.model_dump()),
        "image_project": project,
        "image_family": family,
    }
    return Place(found[:REGIONS], settings, config.machine.provisioning.upper())
