"""The notices of a plan: where the run measures something else than was asked for, and how reliable the prices are."""

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
    """Notices about what is measured, if that is not what was asked for. `here` is the GPU of the machine on which the
    embedded cloud runs; empty: none is used."""
    notices = []
    if config.workload is not None:
        workload, cases_known = config.workload, len(config.workload.cases)
        cases = count(cases_known, "case") if cases_known else "as many cases as it defines when it runs"
        if workload.axes:
            only = ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in workload.axes.items())
            cases = (
                f"{cases_known} of {count(len(workload.grid), 'case')}, {only}"
                if workload.grid
                else f"its cases of {only}"
            )
        instead = "" if config.gpu == "cpu" or not mode.simulated else f"; no {config.gpu.upper()} is measured"
        where = f" on this machine's own {here or 'processor'}" if mode.simulated else ""
        return [f"workload {workload.name}: {cases}{where}{instead}", *workload.notes]
    if mode.simulated:
        what = f"grid '{grids.measure.name}'"
        if grids.replaced:
            what += f" in the place of '{config.measure.grid.name}'"
        instead = "" if config.gpu == "cpu" else f"; no {config.gpu.upper()} is measured"
        notices.append(f"embedded cloud: this machine's own {here or 'processor'} is measured, on {what}{instead}")
    if grids.left_out:
        notices.append(f"{config.gpu} has no {', '.join(grids.left_out)} arithmetic: left out")
    return notices


def about_age(prices: PriceSheet, margin: Decimal, now: datetime) -> list[str]:
    """The notice that the prices are old, with how much is held in addition and the remedy; none if they are not
    old."""
    if not prices.stale(now):
        return []
    days = count(prices.age_days(now.date()), "day")
    age = f"prices are from {prices.as_of}, {days} old, and spot prices change every month"
    return [f"{age}: {margin:.0%} more than these prices is held; `bench prices --refresh` gets today's from Google"]


def about_prices(config: Config, prices: PriceSheet, offers: Sequence[Offer]) -> list[str]:
    """Notices about prices whose source is not a published record."""
    notices = []
    gpu, machine = config.gpu_spec, config.machine
    spec = MachineSpec(config.machine_type, gpu.accelerator, 1 if gpu.accelerator else 0)
    sources: set[str] = set()
    for region in {offer.region for offer in offers}:
        quote = prices.quote(
            spec, region, machine.provisioning, machine.disk_gb, machine.external_ip, machine.disk_type
        )
        if quote is not None and quote.source not in prices.trusted:
            sources.add(quote.source)
    notices += [f"some prices do not come from a published table: {prices.sources[name]}" for name in sorted(sources)]
    return notices
