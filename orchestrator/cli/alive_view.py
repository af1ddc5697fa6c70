"""Shows the machines that exist now, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from orchestrator.core.market.catalog import carrier_of
from orchestrator.core.market.machines import Instance
from orchestrator.core.market.offers import region_of
from orchestrator.core.market.pricing import MachineSpec, PriceSheet
from orchestrator.core.run.keeping import Advice, advise, cold_starts
from orchestrator.core.run.status import StatusLine, iso
from orchestrator.runs.reap import Finding, PriceOf

USUAL_DISK_GB = 60


def price_of(sheet: PriceSheet) -> PriceOf:
    """The price of an hour of a machine whose run is not known, by its type and region, with the usual disk."""

    def price(instance: Instance) -> Decimal | None:
        gpu = carrier_of(instance.machine_type)
        accelerator = gpu.accelerator if gpu is not None else None
        spec = MachineSpec(instance.machine_type, accelerator, 1 if accelerator else 0)
        provisioning = "spot" if instance.preemptible else "standard"
        return sheet.hourly(spec, region_of(instance.zone), provisioning, USUAL_DISK_GB, external_ip=True)

    return price


def rate(findings: Sequence[Finding]) -> Decimal:
    """Dollars per hour of all machines together; machines without a known price are left out."""
    return sum((one.usd_per_hour for one in findings if one.usd_per_hour is not None), Decimal(0))


def summary(findings: Sequence[Finding]) -> str:
    orphans = sum(1 for one in findings if one.orphan)
    unknown = sum(1 for one in findings if one.usd_per_hour is None)
    text = f"VMs alive now: {len(findings)}, ${rate(findings):.2f}/h"
    if unknown:
        text += f" and {unknown} of unknown price"
    return text + (f"; no live run owns {orphans} of them: `bench reap --yes` deletes those" if orphans else "")


def line(finding: Finding) -> str:
    instance = finding.instance
    cost = f"${finding.cost_usd:.2f} so far" if finding.cost_usd is not None else "cost unknown"
    hourly = f"${finding.usd_per_hour:.2f}/h" if finding.usd_per_hour is not None else "$?/h"
    verdict = "orphan" if finding.orphan else "in use"
    odd = f"  [{', '.join(finding.flags)}]" if finding.flags else ""
    where = f"{instance.zone}/{instance.name}"
    return f"{verdict:<6}  {where}  {instance.status}  {hourly}  {cost}{odd}  {finding.verdict.reason}"


def keep_or_stop(finding: Finding, lines: Sequence[StatusLine], now: datetime) -> Advice | None:
    """Whether a machine of a live run is worth its price; None for any other."""
    run = finding.run
    if finding.orphan or run is None or run.plan is None or run.vm is None or run.vm.name != finding.instance.name:
        return None
    return advise(run, cold_starts(lines, run.plan.gpu, run.plan.mode), now)


def document(finding: Finding) -> dict[str, Any]:
    instance = finding.instance
    return {
        "name": instance.name,
        "zone": instance.zone,
        "status": instance.status,
        "machine_type": instance.machine_type,
        "labels": dict(instance.labels),
        "run_id": finding.run_id,
        "orphan": finding.orphan,
        "reason": finding.verdict.reason,
        "flags": list(finding.flags),
        "created_at": iso(instance.created_at),
        "deadline_at": iso(instance.deadline_at) if instance.deadline_at else None,
        "usd_per_hour": str(finding.usd_per_hour) if finding.usd_per_hour is not None else None,
        "cost_usd": str(finding.cost_usd) if finding.cost_usd is not None else None,
    }
