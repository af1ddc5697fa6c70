"""Makes a new price table from the Cloud Billing Catalog. Each figure of the old table is found there or reported
missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Final

from pydantic import ValidationError

from orchestrator.core.market import skus
from orchestrator.core.market.catalog import CATALOG, Gpu
from orchestrator.core.market.pricing import DiskPrice, MachinePrice, PriceSheet, round_up
from orchestrator.core.market.skus import PricedPart, Sku, SkuCatalogue

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
        sold_skus = skus.skus_sold(self.skus, part, region)
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
    addresses = {way: search.figure(skus.of_address(way), "global", wanted=True) for way in WAYS}
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
        if name.startswith(skus.WHOLE):
            assert gpu.accelerator is not None, "its price is that of its GPUs"
            sold = search.figure(skus.of_gpu(gpu.accelerator, way), region, wanted=wanted)
            return None if sold is None else Decimal(0)
        core = search.figure(skus.of_machine(name, "Core", way), region, wanted=wanted)
        ram = search.figure(skus.of_machine(name, "Ram", way), region, wanted=wanted)
        if core is None or ram is None:
            return None
        return round_up(Fraction(core) * shape.vcpus + Fraction(ram) * Fraction(shape.memory_gb))

    return costs


def _card(accelerator: str) -> Costs:
    def costs(search: _Search, region: str, way: str, wanted: bool) -> Decimal | None:
        usd = search.figure(skus.of_gpu(accelerator, way), region, wanted=wanted)
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
    figures = [search.figure(skus.of_disk(kind), region, wanted=True) for region in regions]
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
