"""What Compute Engine expects of spot machines, zone by zone: optional, and asked in few requests.

`advice.capacity` says how obtainable a machine is and how long it lasts; `advice.capacityHistory` how many were taken
back. Both are in preview: a project without them (403, 404, 501) is ranked by price and by its own history.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from google.cloud import compute_v1

from orchestrator.adapters.gce_calls import Calls
from orchestrator.adapters.google_errors import FOREIGN
from orchestrator.core.market.offers import Advice, Offer

ZONES: Final = 5
"""How many zones are asked about, the cheapest first."""
DAYS: Final = 7
"""How much of the preemption history counts."""


def ask(calls: Calls, offers: Sequence[Offer]) -> tuple[Advice, ...]:
    """At most two requests for each of the `ZONES` cheapest spot offers; one in all where there is no advice."""
    wanted = sorted((offer for offer in offers if offer.provisioning == "SPOT"), key=lambda o: (o.usd_per_hour, o.zone))
    if not wanted:
        return ()
    client = calls.client(compute_v1.AdviceClient)
    first, *others = wanted[:ZONES]
    try:
        probe = _of(client, calls, first)
    except FOREIGN:
        return ()

    def attempt(offer: Offer) -> Advice | None:
        try:
            return _of(client, calls, offer)
        except FOREIGN:
            return None

    if not others:
        return (probe,)
    with ThreadPoolExecutor(len(others)) as pool:
        return (probe, *(found for found in pool.map(attempt, others) if found is not None))


def _of(client: Any, calls: Calls, offer: Offer) -> Advice:
    obtainable, uptime_s = _capacity(client, calls, offer)
    return Advice(offer.zone, obtainable, uptime_s, _preemption_rate(client, calls, offer))


def _accelerators(offer: Offer) -> list[compute_v1.AcceleratorConfig]:
    if not offer.accelerator:
        return []
    return [
        compute_v1.AcceleratorConfig(
            accelerator_type=offer.accelerator,
            accelerator_count=offer.accelerator_count,
        )
    ]


def _capacity(client: Any, calls: Calls, offer: Offer) -> tuple[float | None, float | None]:
    selection = compute_v1.CapacityAdviceRequestInstanceFlexibilityPolicyInstanceSelection(
        machine_types=[offer.machine_type], guest_accelerators=_accelerators(offer)
    )
    zone = compute_v1.CapacityAdviceRequestDistributionPolicyZoneConfiguration(zone=f"zones/{offer.zone}")
    scheduling = compute_v1.CapacityAdviceRequestInstancePropertiesScheduling(provisioning_model="SPOT")
    answer: compute_v1.CapacityAdviceResponse = client.capacity(
        project=calls.project,
        region=offer.region,
        capacity_advice_request_resource=compute_v1.CapacityAdviceRequest(
            distribution_policy=compute_v1.CapacityAdviceRequestDistributionPolicy(
                zones=[zone], target_shape="ANY_SINGLE_ZONE"
            ),
            instance_flexibility_policy=compute_v1.CapacityAdviceRequestInstanceFlexibilityPolicy(
                instance_selections={"machine": selection}
            ),
            instance_properties=compute_v1.CapacityAdviceRequestInstanceProperties(scheduling=scheduling),
            size=1,
        ),
        **calls.once,
    )
    if not answer.recommendations:
        return None, None
    scores = answer.recommendations[0].scores
    uptime = str(scores.estimated_uptime).removesuffix("s")
    try:
        return float(scores.obtainability), float(uptime) if uptime else None
    except ValueError:
        return float(scores.obtainability), None


def _preemption_rate(client: Any, calls: Calls, offer: Offer) -> float | None:
    if offer.accelerator:  # there is no history of machines to which a GPU is attached
        return None
    scheduling = compute_v1.CapacityHistoryRequestInstancePropertiesScheduling(provisioning_model="SPOT")
    answer: compute_v1.CapacityHistoryResponse = client.capacity_history(
        project=calls.project,
        region=offer.region,
        capacity_history_request_resource=compute_v1.CapacityHistoryRequest(
            types=["PREEMPTION"],
            instance_properties=compute_v1.CapacityHistoryRequestInstanceProperties(
                machine_type=offer.machine_type, scheduling=scheduling
            ),
            location_policy=compute_v1.CapacityHistoryRequestLocationPolicy(location=f"zones/{offer.zone}"),
        ),
        **calls.once,
    )
    days = sorted(answer.preemption_history, key=lambda day: day.interval.start_time)[-DAYS:]
    return sum(day.preemption_rate for day in days) / len(days) if days else None
