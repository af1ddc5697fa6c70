"""Shows the machines that exist now, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING

from orchestrator.cli.render import usd
from orchestrator.core.errors import BenchError
from orchestrator.core.ledger.budget import Ledger
from orchestrator.core.ledger.unlisted import OpenHold, is_due, stored_amounts, unlisted_holds, unlisted_runs
from orchestrator.core.market.catalog import carrier_of
from orchestrator.core.market.machines import Instance
from orchestrator.core.market.offers import region_of
from orchestrator.core.market.pricing import PricedMachine, PriceSheet
from orchestrator.core.names import is_fleet_id
from orchestrator.core.run.status import KeepAdvice, StatusLine, advise_keeping, cold_starts, iso_time
from orchestrator.core.text import clean_line
from orchestrator.wiring import Wiring

if TYPE_CHECKING:
    from orchestrator.cli.documents import MachineOptions, OpenHoldDocument
    from orchestrator.runs.reap import MachineFinding, PriceOf

# Shows what the ledger holds for something that is not an open run of the list, as lines and as JSON.


def holds_of(wiring: Wiring, ledger: Ledger, lines: Sequence[StatusLine]) -> tuple[OpenHold, ...]:
    """The holds that the list of runs does not show. Raises `Unavailable`. Where all is settled and there is no image,
    nothing is loaded or read."""
    if not is_due(ledger) and not stored_amounts(ledger):
        return ()
    open_runs = frozenset(line.run_id for line in lines if not line.over)
    known_holds = wiring.known_holds(ledger, open_runs)
    fleets = {name for name in unlisted_runs(ledger, open_runs) - known_holds.lost if is_fleet_id(name)}
    foreign = frozenset(name for name in fleets if not _believed(wiring, name))
    return unlisted_holds(ledger, replace(known_holds, foreign=foreign), wiring.policy.insert_limit_s)


def _believed(wiring: Wiring, fleet: str) -> bool:
    """Whether this client acts on a fleet; it can only show one that it did not launch, or whose documents are odd."""
    trust = import_module("orchestrator.cli.fleet.trust")  # only where there is a fleet
    store = trust.FleetStore(wiring.bucket, wiring.clock, fleet)
    try:
        store.record()
        store.children()
    except BenchError:
        return False
    return bool(trust.is_trusted(wiring, store))


def hold_line(hold: OpenHold) -> str:
    """One line: how much, since when, for what, and the command that shows or releases it."""
    name = clean_line(hold.name)
    what, then = {
        "run": (f"run {name}", "shows it"),
        "fleet": (name, "shows it, and settles what is over"),
        "image_build": (f"the build of image {name}", "says what it waits for"),
        "image_storage": (f"storing image {name}", "deletes it and releases the rest"),
    }[hold.kind]
    if not hold.readable:
        what, then = f"{what}, whose record cannot be read", "says why"
    if hold.settles_at is not None:
        what += ", whose events are gone" if hold.kind == "run" else ", whose record is gone"
        then = f"deletes what is left of it, and settles this from {_reached(hold.settles_at)} on"
    simulated = " (simulated)" if hold.simulated else ""
    return (
        f"{usd(hold.usd)}{simulated} held since {iso_time(hold.since)} for {what}: `{clean_line(hold.remedy)}` {then}"
    )


def hold_document(hold: OpenHold) -> OpenHoldDocument:
    return {
        "kind": hold.kind,
        "name": hold.name,
        "held_usd": str(hold.usd),
        "held_at": iso_time(hold.since),
        "prices_simulated": hold.simulated,
        "remedy": hold.remedy,
        "settles_at": _reached(hold.settles_at) if hold.settles_at is not None else None,
    }


def _reached(at: datetime) -> str:
    """The first whole second at which a moment is reached."""
    return iso_time(at + timedelta(microseconds=999_999))


USUAL_DISK_GB = 60


def price_of(sheet: PriceSheet) -> PriceOf:
    """The price of an hour of a machine whose run is not known, by its type and region, with the usual disk."""

    def price(instance: Instance) -> Decimal | None:
        gpu = carrier_of(instance.machine_type)
        accelerator = gpu.accelerator if gpu is not None else None
        spec = PricedMachine(instance.machine_type, accelerator, gpu.gpus_of(instance.machine_type) if gpu else 0)
        provisioning = "spot" if instance.preemptible else "standard"
        return sheet.hourly(spec, region_of(instance.zone), provisioning, USUAL_DISK_GB, external_ip=True)

    return price


def rate(findings: Sequence[MachineFinding]) -> Decimal:
    """Dollars per hour of all machines together; machines without a known price are left out."""
    return sum((one.usd_per_hour for one in findings if one.usd_per_hour is not None), Decimal(0))


def summary(findings: Sequence[MachineFinding]) -> str:
    orphans = sum(1 for one in findings if one.orphan)
    unknown = sum(1 for one in findings if one.usd_per_hour is None)
    text = f"VMs alive now: {len(findings)}, ${rate(findings):.2f}/h"
    if unknown:
        text += f" and {unknown} of unknown price"
    return text + (f"; no live run owns {orphans} of them: `bench reap --yes` deletes those" if orphans else "")


def line(finding: MachineFinding) -> str:
    instance = finding.instance
    cost = f"${finding.cost_usd:.2f} so far" if finding.cost_usd is not None else "cost unknown"
    hourly = f"${finding.usd_per_hour:.2f}/h" if finding.usd_per_hour is not None else "$?/h"
    verdict = "orphan" if finding.orphan else "in use"
    odd = f"  [{', '.join(finding.flags)}]" if finding.flags else ""
    where = f"{instance.zone}/{instance.name}"
    return f"{verdict:<6}  {where}  {instance.status}  {hourly}  {cost}{odd}  {finding.verdict.reason}"


def keep_or_stop(finding: MachineFinding, lines: Sequence[StatusLine], now: datetime) -> KeepAdvice | None:
    """Whether a machine of a live run is worth its price; None for any other."""
    run = finding.run
    if finding.orphan or run is None or run.plan is None or run.vm is None or run.vm.name != finding.instance.name:
        return None
    return advise_keeping(run, cold_starts(lines, run.plan.gpu, run.plan.mode), now)


def document(finding: MachineFinding) -> MachineOptions:
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
        "created_at": iso_time(instance.created_at),
        "deadline_at": iso_time(instance.deadline_at) if instance.deadline_at else None,
        "usd_per_hour": str(finding.usd_per_hour) if finding.usd_per_hour is not None else None,
        "cost_usd": str(finding.cost_usd) if finding.cost_usd is not None else None,
    }
