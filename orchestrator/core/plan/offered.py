"""The offers that a run may take: those that have a price, cost no more than the limit that was set, and fit a
quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.config.model import Config
from orchestrator.core.market import machines
from orchestrator.core.market.machines import Quota
from orchestrator.core.market.offers import FLEX_START, Offer, model_of, region_of
from orchestrator.core.market.pricing import PricedMachine, PriceSheet
from orchestrator.core.names import MachineType, Region, Zone
from orchestrator.core.text import count


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """Why there is no plan. `kind` is `budget`, `quota` or `offers`; `detail` has the figures, as text."""

    kind: str
    message: str
    hint: str
    detail: dict[str, str] = field(default_factory=dict)


def allowed_offers(
    config: Config, prices: PriceSheet, quotas: Mapping[str, Sequence[Quota]] | None
) -> tuple[tuple[Offer, ...], list[str]] | PlanRefused:
    """(offers that prices, limits and quotas allow, notices about the others), or why there is none."""
    if (refusal := _too_few_gpus(config)) is not None:
        return refusal
    notices = _about_machine(config)
    offers, unpriced = _offers(config, prices)
    if unpriced and (config.zones or config.regions):
        notices.append(f"left out, no price known: {', '.join(unpriced)}")
    if not offers:
        return PlanRefused(
            "offers",
            f"no price is known for {config.machine.provisioning} {config.machine_type} "
            f"in {_listed(sorted({region_of(zone) for zone in config.allowed_zones()}))}",
            "`bench prices --refresh` reads today's prices; or choose spot, or other zones"
            if config.machine.provisioning == "flex-start"
            else "choose other zones, or add their prices to configs/prices.yaml",
        )
    offers, too_dear = _cheap_enough(config, offers)
    notices += too_dear
    if not offers:
        return PlanRefused(
            "offers", too_dear[0], "raise --max-price (placement.max_usd_per_hour), or allow other regions"
        )
    if quotas is not None:
        offers, short = machines.allowed_offers(config.gpu_spec, offers, quotas)
        if not offers:
            return _quota_refused(short)
        notices += [f"left out for lack of quota: {shortage.text}" for shortage in short]
    if any(offer.provisioning == FLEX_START for offer in offers):
        later = ", later for the rest of the wait (2 h at most)" if config.placement.wait_minutes else ""
        text = f"flex-start: a request waits in Google's queue for 90 s in each zone{later}"
        notices.append(f"{text}; waiting costs nothing, and the machine is not preempted")
    return offers, notices


def _too_few_gpus(config: Config) -> PlanRefused | None:
    """Why the machine has too few GPUs for a program that needs several at once; None if it has enough."""
    gpu, wanted = config.gpu_spec, config.workload.gpus if config.workload is not None else 0
    has = gpu.gpus_of(config.machine_type)
    if config.workload is None or wanted <= has:
        return None
    larger = next((size.name for size in gpu.machine_types if gpu.accelerator and size.gpus >= wanted), "")
    return PlanRefused(
        "offers",
        f"{config.workload.name} needs {count(wanted, 'GPU')}, and {config.machine_type} has {has or 'none'}",
        f"choose a larger one: --set machine.type={larger}" if larger else "choose another GPU, such as --gpu h200",
    )


def _about_machine(config: Config) -> list[str]:
    """What one person cannot buy of this GPU, or must buy with it."""
    gpu, notices = config.gpu_spec, []
    if gpu.quota_standard is None and config.placement.on_demand_after is not None:
        asked = f"only {config.machine.provisioning} is requested"
        notices.append(f"Google sells {config.machine_type} on demand to no single person: {asked}")
    if (gpus := gpu.gpus_of(config.machine_type)) > 1:
        fewer = "" if gpu.gpus_of(gpu.default_machine) == 1 else ", and Google sells no smaller machine with it"
        wanted = config.workload.gpus if config.workload is not None else 0
        use = (
            f"the program needs {wanted} at once"
            if wanted
            else "a run pays for all and measures a case on each at a time"
        )
        each = f"has {count(gpus, 'GPU')}: {use}"
        notices.append(f"{config.machine_type} {each}{fewer}")
    return notices


def priced_offers(config: Config, prices: PriceSheet) -> tuple[Offer, ...]:
    """Every offer with a price, in no particular order. Advice is requested for these."""
    return _offers(config, prices)[0]


def _offers(config: Config, prices: PriceSheet) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """(an offer for each allowed zone with a price, the zones without a price)."""
    gpu, machine = config.gpu_spec, config.machine
    count = gpu.gpus_of(config.machine_type)
    spec = PricedMachine(config.machine_type, gpu.accelerator, count)
    offers: list[Offer] = []
    unpriced: list[str] = []
    for zone in config.allowed_zones():
        region = region_of(zone)
        for model in _models(config):
            hourly = prices.hourly(spec, region, model, machine.disk_gb, machine.external_ip, config.disk_type)
            if hourly is None:
                unpriced += [zone] if model == machine.provisioning else []
                continue
            offers.append(
                Offer(
                    gpu=gpu.name,
                    region=Region(region),
                    zone=Zone(zone),
                    machine_type=MachineType(config.machine_type),
                    accelerator=gpu.accelerator if gpu.attached else None,
                    accelerator_count=count if gpu.attached else 0,
                    provisioning=model_of(model),
                    usd_per_hour=hourly,
                )
            )
    return tuple(offers), tuple(unpriced)


def _cheap_enough(config: Config, offers: tuple[Offer, ...]) -> tuple[tuple[Offer, ...], list[str]]:
    most = config.placement.max_usd_per_hour
    kept = tuple(offer for offer in offers if most is None or offer.usd_per_hour <= most)
    if len(kept) == len(offers):
        return offers, []
    cheapest = min(offer.usd_per_hour for offer in offers)
    return kept, [
        f"{len(offers) - len(kept)} of {len(offers)} offers cost more than ${most}/h (the cheapest costs ${cheapest})"
    ]


def _models(config: Config) -> tuple[str, ...]:
    """The provisioning models to offer: the one asked for; beside spot also flex-start, if the launch waits for
    capacity and it is sold; and on demand, if that is allowed and sold."""
    model, gpu, placement = config.machine.provisioning, config.gpu_spec, config.placement
    queue = ("flex-start",) if model == "spot" and placement.wait_minutes and gpu.is_sold("flex-start") else ()
    wider = model != "standard" and placement.on_demand_after is not None and gpu.is_sold("standard")
    return (model, *queue, *(("standard",) if wider else ()))


def _quota_refused(short: Sequence[machines.Shortage]) -> PlanRefused:
    worst = short[0]
    suffix = f" (and {len(short) - 1} more like it)" if len(short) > 1 else ""
    return PlanRefused(
        "quota",
        worst.text + suffix,
        (
            f"request a higher {worst.metric} at {machines.QUOTA_PAGE}?metric={worst.metric}, or use other "
            "regions; `bench doctor` shows which have room"
        ),
        {
            "metric": worst.metric,
            "region": worst.region,
            "limit": f"{worst.limit:g}",
            "usage": f"{worst.usage:g}",
            "needs": str(worst.needs),
        },
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {count(len(names) - 4, 'more region')}" if len(names) > 4 else "")
