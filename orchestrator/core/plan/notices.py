"""The notices of a plan: what is measured instead of what was asked for, and how far the prices can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from orchestrator.core.config.model import Config, EffectiveGrids
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import MachineSpec, PriceSheet
from orchestrator.core.mode import Mode
from orchestrator.core.wording import count


def about_grids(config: Config, mode: Mode, grids: EffectiveGrids, here: str) -> list[str]:
    """What is measured where it is not what was asked for. `here` is the GPU that the embedded cloud really has."""
    said = []
    if config.workload is not None:
        own, known = config.workload, len(config.workload.cases)
        cases = count(known, "case") if known else "as many cases as it defines when it runs"
        if own.axes:
            only = ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in own.axes.items())
            cases = f"{known} of {count(len(own.grid), 'case')}, {only}" if own.grid else f"its cases of {only}"
        instead = "" if config.gpu == "cpu" or not mode.simulated else f"; no {config.gpu.upper()} is measured"
        where = f" on this machine's own {here or 'processor'}" if mode.simulated else ""
        return [f"workload {own.name}: {cases}{where}{instead}"]
    if mode.simulated:
        what = f"grid '{grids.measure.name}'"
        if grids.replaced:
            what += f" in the place of '{config.measure.grid.name}'"
        instead = "" if config.gpu == "cpu" else f"; no {config.gpu.upper()} is measured"
        said.append(f"embedded cloud: this machine's own {here or 'processor'} is measured, on {what}{instead}")
    if grids.left_out:
        said.append(f"{config.gpu} has no {', '.join(grids.left_out)} arithmetic: left out")
    return said


def about_age(prices: PriceSheet, margin: Decimal, now: datetime) -> list[str]:
    """That the prices are old, how much is held on top of them, and what helps."""
    if not prices.stale(now):
        return []
    days = count(prices.age_days(now.date()), "day")
    age = f"prices are from {prices.as_of}, {days} old, and spot prices change every month"
    return [f"{age}: {margin:.0%} more than these prices is held; `bench prices --refresh` gets today's from Google"]


def about_prices(config: Config, prices: PriceSheet, offers: Sequence[Offer]) -> list[str]:
    """Which prices are from no record."""
    said = []
    gpu, machine = config.gpu_spec, config.machine
    spec = MachineSpec(config.machine_type, gpu.accelerator, 1 if gpu.accelerator else 0)
    sources: set[str] = set()
    for region in {offer.region for offer in offers}:
        quote = prices.quote(
            spec, region, machine.provisioning, machine.disk_gb, machine.external_ip, machine.disk_type
        )
        if quote is not None and quote.source not in prices.trusted:
            sources.add(quote.source)
    said += [f"some prices do not come from a published table: {prices.sources[name]}" for name in sorted(sources)]
    return said
