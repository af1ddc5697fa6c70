"""Whether the project's quotas allow a machine. This is checked before any machine is requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.market.catalog import Gpu
from orchestrator.core.market.machines import Quota
from orchestrator.core.market.offers import Offer

ALL_REGIONS: Final = "GPUS_ALL_REGIONS"
QUOTA_PAGE: Final = "https://console.cloud.google.com/iam-admin/quotas"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A quota that leaves no room for one more machine. `region` is empty for the whole project."""

    metric: str
    region: str
    limit: float
    usage: float
    needs: int

    @property
    def text(self) -> str:
        where = f"in {self.region}" if self.region else "in all regions together"
        return f"quota {self.metric} {where} is {self.limit:g}, {self.usage:g} in use; this run needs {self.needs}"


def find_shortage(gpu: Gpu, offer: Offer, quotas: Iterable[Quota]) -> Shortage | None:
    """The quota that rules `offer` out, or None. A metric that is not listed rules nothing out.

    A spot machine counts against the preemptible metric if that was granted, and against the standard one if the limit
    of the preemptible metric is 0.
    """
    shorts = (_short(quota, needs) for quota, needs in counted_quotas(gpu, offer, quotas))
    return next((short for short in shorts if short is not None), None)


def quota_room(gpu: Gpu, offer: Offer, quotas: Iterable[Quota]) -> tuple[int, Quota] | None:
    """(how many more machines the quotas allow, the quota that allows fewest); None if no quota is listed."""
    rooms = [(int((quota.limit - quota.usage) // needs), quota) for quota, needs in counted_quotas(gpu, offer, quotas)]
    return min(((max(0, count), quota) for count, quota in rooms), key=lambda one: one[0], default=None)


def counted_quotas(gpu: Gpu, offer: Offer, quotas: Iterable[Quota]) -> tuple[tuple[Quota, int], ...]:
    """(quota, number) for each quota that a machine counts against, with how much of it the machine needs."""
    listed = {(quota.metric, quota.region): quota for quota in quotas}
    machine = gpu.machine(offer.machine_type)
    vcpus = machine.vcpus if machine else 1
    needed: list[tuple[Quota, int]] = []
    if gpu.accelerator:
        standard: str | None = gpu.quota_standard
        preemptible, needs = gpu.quota_preemptible, gpu.gpus_of(offer.machine_type)
        if everywhere := listed.get((ALL_REGIONS, "")):
            needed.append((everywhere, needs))
    else:
        series = offer.machine_type.partition("-")[0]
        standard, preemptible, needs = (
            ("CPUS" if series == "e2" else f"{series.upper()}_CPUS"),
            "PREEMPTIBLE_CPUS",
            vcpus,
        )
    granted = listed.get((preemptible, offer.region))
    spot = offer.provisioning == "SPOT" and granted is not None and (granted.limit > 0 or standard is None)
    regional = granted if spot else listed.get((standard or preemptible, offer.region))
    return (*needed, (regional, needs)) if regional else tuple(needed)


def _short(quota: Quota, needs: int) -> Shortage | None:
    if quota.limit - quota.usage >= needs:
        return None
    return Shortage(quota.metric, quota.region, quota.limit, quota.usage, needs)


def allowed_offers(
    gpu: Gpu, offers: Sequence[Offer], quotas: Mapping[str, Sequence[Quota]]
) -> tuple[tuple[Offer, ...], tuple[Shortage, ...]]:
    """(offers that the quotas allow, shortages that rule out the others, each once). A region that is not in `quotas`
    is allowed: its quotas were not read."""
    kept: list[Offer] = []
    shortages: dict[Shortage, None] = {}
    for offer in offers:
        short = find_shortage(gpu, offer, quotas.get(offer.region, ()))
        if short is None:
            kept.append(offer)
        else:
            shortages[short] = None
    return tuple(kept), tuple(shortages)
