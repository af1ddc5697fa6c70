"""Which of a plan's offers a run may take next, given what has happened so far."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from orchestrator.core.market.offers import Offer, blocked_by, rank
from orchestrator.core.market.pricing import ceiling
from orchestrator.core.run.events import ZoneExhausted
from orchestrator.core.run.fold import Run, Vm

SPOT = "SPOT"


def open_offers(run: Run, offers: Sequence[Offer], ttl_s: int | None = None) -> tuple[Offer, ...]:
    """The offers that a run may still try, best first.

    Offers that this attempt was refused are left out. So are offers that could cost more than is left of the hold;
    `ttl_s` is the deadline in seconds with which a machine is requested, if it is not that of the first plan.

    The GPU asked for comes before its substitutes. Once something was measured, only that GPU is left, because rows of
    two devices cannot be compared. Spot offers come before on-demand offers, until the run has had as many preemptions
    as its plan allows. Zones that the last refusal named come first. Zones in which a machine of this run is gone, or
    which had none for an earlier attempt, come last.
    """
    attempt = run.next_attempt
    facts = [fact for fact in run.exhausted if (fact.attempt, fact.generation) == (attempt, run.generation)]
    never_made = {
        (vm.zone, vm.machine_type) for vm in run.vms if vm.how == "never_made" and vm.generation == run.generation
    }
    left = [
        offer
        for offer in offers
        if (offer.zone, offer.machine_type) not in never_made and not any(_blocks(fact, offer) for fact in facts)
    ]
    last_zones = {fact.zone for fact in run.exhausted} | {vm.zone for vm in run.vms if vm.gone_at is not None}
    hints = facts[-1].zones_available if facts else ()
    order = {gpu: place for place, gpu in reversed(list(enumerate(offer.gpu for offer in offers)))}
    ranked = rank([offer for offer in left if _same_gpu(run, offer, offers)], hints=hints, last=last_zones)
    spot_first = not _on_demand_is_due(run)
    ordered = sorted(ranked, key=lambda offer: (order[offer.gpu], (offer.provisioning == SPOT) != spot_first))
    return tuple(offer for offer in ordered if _affordable(run, offer, ttl_s))


def _blocks(fact: ZoneExhausted, offer: Offer) -> bool:
    kind = fact.machine_type in ("", offer.machine_type) and fact.provisioning in ("", offer.provisioning)
    return kind and blocked_by(fact.scope, fact.zone)(offer)


def _same_gpu(run: Run, offer: Offer, offers: Sequence[Offer]) -> bool:
    if run.measurement is None or run.vm is None:
        return True
    gpus = {one.gpu for one in offers if one.machine_type == run.vm.machine_type}
    return offer.gpu in gpus or not gpus


def _on_demand_is_due(run: Run) -> bool:
    after = run.plan.on_demand_after if run.plan else None
    return after is not None and sum(1 for vm in run.vms if vm.how in ("preempted", "lost")) >= after


def _affordable(run: Run, offer: Offer, ttl_s: int | None) -> bool:
    """Whether one more machine fits into what earlier ones have left of the hold. A deadline may have been enforced
    late, and a machine that may still exist counts with all that it can cost."""
    if run.hold_usd is None or run.plan is None:
        return True
    spent = sum((_highest_cost(vm) for vm in run.vms if vm.generation == run.generation and not vm.refused), Decimal(0))
    return spent + ceiling(offer.usd_per_hour, run.plan.ttl_s if ttl_s is None else ttl_s, 1) <= run.hold_usd


def _highest_cost(vm: Vm) -> Decimal:
    """The dollars that a machine has cost, or can cost at most if it may still exist. This needs no clock."""
    return ceiling(vm.usd_per_hour, vm.max_run_s, 1) if vm.gone_at is None else vm.cost(vm.gone_at)
