"""The billing meter: adds up what every VM cost, knowing nothing of anybody's ledger.

Per second with a minimum of one minute, from RUNNING until the VM is gone. A stopped VM (TERMINATED) still pays for its disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from orchestrator.embedded.documents import stamp
from orchestrator.embedded.tariff import Rate

MICRODOLLAR = Decimal("0.000001")
MINIMUM_S = Decimal(60)
HOUR_S = Decimal(3600)


@dataclass(frozen=True, slots=True)
class Usage:
    """How long one VM was used. `stopped_at` is when it stopped computing while its disk lived on."""

    started_at: datetime | None
    stopped_at: datetime | None
    ended_at: datetime | None

    def computing_s(self, now: datetime) -> Decimal:
        """Seconds of machine, GPU and address, before the minimum."""
        if self.started_at is None:
            return Decimal(0)
        return seconds(self.started_at, self.stopped_at or self.ended_at or now)

    def existing_s(self, now: datetime) -> Decimal:
        """Seconds of disk, before the minimum."""
        if self.started_at is None:
            return Decimal(0)
        return seconds(self.started_at, self.ended_at or now)


@dataclass(frozen=True, slots=True)
class BillRow:
    """What one VM cost, dead or alive. A VM that never ran has no `started_at` and costs nothing."""

    run_id: str | None
    vm: str
    zone: str
    machine_type: str
    gpu: str | None
    provisioning: str
    started_at: datetime | None
    ended_at: datetime | None
    seconds: Decimal
    usd: Decimal
    ended_by: str | None
    has_deadline: bool

    def document(self) -> dict[str, Any]:
        """The row as the control API gives it."""
        return {
            "run_id": self.run_id,
            "vm": self.vm,
            "zone": self.zone,
            "machine_type": self.machine_type,
            "gpu": self.gpu,
            "provisioning": self.provisioning,
            "started_at": stamp(self.started_at) if self.started_at else None,
            "ended_at": stamp(self.ended_at) if self.ended_at else None,
            "seconds": float(self.seconds),
            "usd": str(self.usd),
            "ended_by": self.ended_by,
            "has_deadline": self.has_deadline,
        }


@dataclass(frozen=True, slots=True)
class Bill:
    """Everything owed so far."""

    rows: tuple[BillRow, ...]

    @property
    def usd(self) -> Decimal:
        """The sum of the rows, in dollars, to six places."""
        return sum((row.usd for row in self.rows), Decimal(0)).quantize(MICRODOLLAR)

    def document(self) -> dict[str, Any]:
        """The bill as the control API gives it."""
        return {"rows": [row.document() for row in self.rows], "usd": str(self.usd)}


def seconds(start: datetime, end: datetime) -> Decimal:
    """The exact number of seconds between two moments; never negative."""
    between = max(end - start, end - end)
    return Decimal(between.days * 86400 + between.seconds) + Decimal(between.microseconds) / 1_000_000


def charge(rate: Rate, usage: Usage, now: datetime) -> Decimal:
    """Dollars, to six places, half up: the sum of each part's hourly rate times the seconds it was used."""
    if usage.started_at is None:
        return Decimal(0).quantize(MICRODOLLAR)
    computing = max(usage.computing_s(now), MINIMUM_S)
    existing = max(usage.existing_s(now), MINIMUM_S)
    total = (rate.gpu + rate.machine + rate.external_ip) * computing / HOUR_S + rate.disk * existing / HOUR_S
    return total.quantize(MICRODOLLAR, ROUND_HALF_UP)
