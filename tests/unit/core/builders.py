"""Builders with defaults: a test names only what it is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from orchestrator.core.market.machines import Instance, Operation
from orchestrator.core.market.offers import Offer, region_of
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Run, replay

RUN = "20261121-040506-l4-7f3a"
VM = f"bench-{RUN}-1"
ZONE = "us-central1-a"
T0 = datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC)
RATE = Decimal("0.3612")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


class Log:
    """Collects events with a sequence number for each writer."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self._seq: dict[str, int] = {}

    def add(self, seconds: float, fact: ev.Fact, writer: str = "client-abc123") -> Log:
        self._seq[writer] = self._seq.get(writer, 0) + 1
        self.events.append(ev.Event(run_id=RUN, time=at(seconds), writer=writer, seq=self._seq[writer], fact=fact))
        return self

    def vm(self, seconds: float, fact: ev.Fact) -> Log:
        return self.add(seconds, fact, "vm-1")


def replayed(log: Log) -> Run:
    """The run that its events tell of."""
    return replay(log.events)


def planned(**changes: Any) -> ev.RunPlanned:
    facts: dict[str, Any] = {
        "gpu": "l4",
        "config": "l4",
        "user": "ada",
        "mode": "gce",
        "ceiling_usd": Decimal("0.18"),
        "ttl_s": 1800,
        "attempts": 1,
        "cases": 2,
        "measurements_per_implementation": 100,
    }
    return ev.RunPlanned(**(facts | changes))


def requested(zone: str = ZONE, attempt: int = 1, request_id: str = "") -> ev.InstanceRequested:
    return ev.InstanceRequested(
        attempt=attempt,
        vm=f"bench-{RUN}-{attempt}",
        zone=zone,
        machine_type="g2-standard-4",
        provisioning="SPOT",
        usd_per_hour=RATE,
        max_run_s=1800,
        request_id=request_id or f"{zone}-{attempt}",
    )


def created(seconds: float, zone: str = ZONE, attempt: int = 1) -> ev.InstanceCreated:
    return ev.InstanceCreated(
        attempt=attempt,
        vm=f"bench-{RUN}-{attempt}",
        zone=zone,
        instance_id="4711",
        started_at=at(seconds),
        deadline_at=at(seconds + 1800),
    )


def gone(seconds: float, how: str = "deleted", attempt: int = 1) -> ev.InstanceGone:
    return ev.InstanceGone(attempt=attempt, vm=f"bench-{RUN}-{attempt}", ended_at=at(seconds), how=how)


def measured(case_id: str, index: int = 1, of: int = 2) -> ev.CaseMeasured:
    return ev.CaseMeasured(case_id=case_id, index=index, of=of, rows=50, seconds=1.0, median_us={"bench": 10.0})


def running() -> Log:
    """A run whose machine is there and has said that it booted."""
    log = Log().add(0, planned()).add(1, ev.BudgetHeld(hold_usd=Decimal("0.18"))).add(2, requested())
    return log.add(5, created(4)).vm(10, ev.VmBooted(vm=VM, zone=ZONE, attempt=1))


def offer(zone: str = ZONE, usd_per_hour: Decimal = RATE) -> Offer:
    return Offer("l4", region_of(zone), zone, "g2-standard-4", None, 0, "SPOT", usd_per_hour)


def instance(status: str = "RUNNING", started: float | None = 4) -> Instance:
    begun = None if started is None else at(started)
    return Instance(VM, ZONE, "4711", status, "g2-standard-4", {}, at(3), begun, at(1804), True)


def operation(kind: str, ended: float | None, message: str = "", status: str = "DONE") -> Operation:
    begun, over = (None, None) if ended is None else (at(ended - 1), at(ended))
    return Operation(kind, status, begun, over, message=message)
