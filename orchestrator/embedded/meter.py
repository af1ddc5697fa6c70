"""The billing meter: it adds up what every VM cost, independently of any client's ledger.

A VM is billed by the second, and for at least one minute, from RUNNING until it is gone. A stopped VM (TERMINATED)
still pays for its disk.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from orchestrator.embedded.documents import load_bundled, parse_stamp, utc_stamp
from orchestrator.embedded.store import Store

# What a machine costs per hour in the embedded cloud. The only source is `tariff.yaml`.


TARIFF = Path(__file__).with_name("tariff.yaml")


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of one running machine in dollars per hour, by part. `disk` includes local disks; it is also paid while
    the machine is stopped."""

    gpu: Decimal
    machine: Decimal
    disk: Decimal
    external_ip: Decimal

    @property
    def usd_per_hour(self) -> Decimal:
        """The sum of all parts."""
        return self.gpu + self.machine + self.disk + self.external_ip


class UnknownSku(KeyError):
    """The tariff has no price for this machine type in this region."""


class Tariff:
    """The price list."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @classmethod
    def load(cls, path: Path = TARIFF) -> Tariff:
        """The price list in a file; by default the bundled one."""
        return cls(load_bundled(path))

    def sells(self, machine_type: str, region: str, provisioning: str = "") -> bool:
        """Whether there is a price for a machine type in a region, as `provisioning` if that is given."""
        base, _ = self._base(machine_type)
        prices = self.document["machines"].get(base, {"regions": {}})["regions"].get(region)
        return prices is not None and (not provisioning or provisioning in prices)

    def _base(self, machine_type: str) -> tuple[str, int]:
        """(machine type whose prices apply, factor for its machine price)."""
        scaled = self.document.get("scaled", {}).get(machine_type)
        return (scaled["of"], int(scaled["times"])) if scaled else (machine_type, 1)

    def rate(
        self,
        machine_type: str,
        region: str,
        *,
        provisioning: str,
        disk_type: str,
        disk_gib: int,
        external_ip: bool,
        gpu_count: int = 1,
    ) -> Rate:
        """The hourly rate of one VM with `gpu_count` GPUs, as `spot`, `flex_start` or `standard`. Raises
        `UnknownSku` if there is no price."""
        base, times = self._base(machine_type)
        prices = self.document["machines"].get(base, {"regions": {}})["regions"].get(region, {}).get(provisioning)
        if prices is None:
            raise UnknownSku(f"{provisioning} {machine_type} in {region}")
        disks = self.document["disk_gib_month"].get(disk_type)
        if disks is None:
            raise UnknownSku(f"disk type {disk_type}")
        month = Decimal(disks.get(region, disks["default"])["usd"])
        local = self.document["disk_gib_month"]["local-ssd"]
        local_month = Decimal(local.get(region, local["default"])["usd"])
        local_gib = self.document["local_ssd_gib"].get(machine_type, 0)
        address = Decimal(self.document["external_ip"]["spot" if provisioning == "spot" else "standard"]["usd"])
        return Rate(
            gpu=Decimal(prices["gpu"]) * gpu_count,
            machine=Decimal(prices["machine"]) * times,
            disk=(month * disk_gib + local_month * local_gib) / Decimal(self.document["hours_per_month"]),
            external_ip=address if external_ip else Decimal(0),
        )


MICRODOLLAR = Decimal("0.000001")
MINIMUM_S = Decimal(60)
HOUR_S = Decimal(3600)
MONTH_S = Decimal(730) * HOUR_S
IMAGE_GIB_MONTH = Decimal("0.05")
"""The price of an image's archive in dollars per GiB and month. It is recalled, not taken from a published table."""


@dataclass(frozen=True, slots=True)
class Account:
    """The meter's record of one VM, whether it still exists or not. A VM that never ran has no `started_at` and costs
    nothing. `stopped_at` is when it stopped computing while its disk stayed."""

    vm_id: str
    run_id: str | None
    vm: str
    zone: str
    machine_type: str
    gpu: str | None
    provisioning: str
    has_deadline: bool
    rate: Rate
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    ended_at: datetime | None = None
    ended_by: str | None = None

    def seconds(self, now: datetime) -> Decimal:
        """The seconds for which the disk is billed, before the minimum applies."""
        return usage_seconds(self.started_at, self.ended_at or now)

    def usd(self, now: datetime) -> Decimal:
        """The dollars until `now`, rounded half up to six places: the sum over its parts of hourly rate times hours."""
        if self.started_at is None:
            return Decimal(0).quantize(MICRODOLLAR)
        rate = self.rate
        computing = max(usage_seconds(self.started_at, self.stopped_at or self.ended_at or now), MINIMUM_S)
        existing = max(self.seconds(now), MINIMUM_S)
        total = (rate.gpu + rate.machine + rate.external_ip) * computing / HOUR_S + rate.disk * existing / HOUR_S
        return total.quantize(MICRODOLLAR, ROUND_HALF_UP)

    def document(self) -> dict[str, Any]:
        """The account as it is stored on disk."""
        rate = self.rate
        facts = {name: value for name, value in asdict(self).items() if not name.endswith("_at")}
        return facts | {
            "rate": [str(rate.gpu), str(rate.machine), str(rate.disk), str(rate.external_ip)],
            "usage": [_optional_stamp(moment) for moment in (self.started_at, self.stopped_at, self.ended_at)],
        }

    @classmethod
    def restore(cls, document: dict[str, Any]) -> Account:
        started, stopped, ended = (text and parse_stamp(text) for text in document["usage"])
        facts = {name: value for name, value in document.items() if name != "usage"}
        rate = Rate(*(Decimal(text) for text in document["rate"]))
        return cls(**(facts | {"rate": rate, "started_at": started, "stopped_at": stopped, "ended_at": ended}))


@dataclass(frozen=True, slots=True)
class BillRow:
    """What one VM has cost."""

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

    @classmethod
    def of(cls, account: Account, now: datetime) -> BillRow:
        facts = {name: getattr(account, name) for name in cls.__slots__ if name not in ("seconds", "usd")}
        return cls(**facts, seconds=account.seconds(now), usd=account.usd(now))

    def document(self) -> dict[str, Any]:
        """The row as the control API shows it."""
        return asdict(self) | {
            "started_at": _optional_stamp(self.started_at),
            "ended_at": _optional_stamp(self.ended_at),
            "seconds": float(self.seconds),
            "usd": str(self.usd),
        }


@dataclass(frozen=True, slots=True)
class ImageRow:
    """What one of the project's own images has cost: its archive is billed from READY until the image is deleted."""

    image_id: str
    name: str
    run_id: str | None
    bytes: int
    made_at: datetime
    gone_at: datetime | None

    def usd(self, now: datetime) -> Decimal:
        """The dollars until `now`, to six places."""
        months = usage_seconds(self.made_at, self.gone_at or now) / MONTH_S
        return (IMAGE_GIB_MONTH * Decimal(self.bytes) / 2**30 * months).quantize(MICRODOLLAR, ROUND_HALF_UP)

    def document(self, now: datetime) -> dict[str, Any]:
        """The row as the control API shows it."""
        return self.kept() | {"usd": str(self.usd(now))}

    def kept(self) -> dict[str, Any]:
        """The row as it is stored on disk."""
        return asdict(self) | {"made_at": utc_stamp(self.made_at), "gone_at": _optional_stamp(self.gone_at)}

    @classmethod
    def restore(cls, document: dict[str, Any]) -> ImageRow:
        gone, made = document["gone_at"], parse_stamp(document["made_at"])
        return cls(**(document | {"made_at": made, "gone_at": gone and parse_stamp(gone)}))


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill until now."""

    rows: tuple[BillRow, ...]
    now: datetime
    images: tuple[ImageRow, ...] = ()

    @property
    def usd(self) -> Decimal:
        """The dollars of all machines and images, to six places."""
        machines = sum((row.usd for row in self.rows), Decimal(0))
        return sum((image.usd(self.now) for image in self.images), machines).quantize(MICRODOLLAR)

    def document(self) -> dict[str, Any]:
        """The bill as the control API shows it."""
        return {
            "simulated": True,
            "rows": [row.document() for row in self.rows],
            "images": [image.document(self.now) for image in self.images],
            "usd": str(self.usd),
        }


def _optional_stamp(moment: datetime | None) -> str | None:
    return utc_stamp(moment) if moment else None


def usage_seconds(start: datetime | None, end: datetime) -> Decimal:
    """The exact number of seconds from `start` to `end`; 0 if `end` is earlier or there was no start."""
    between = max(end - start, end - end) if start else end - end
    return Decimal(between.days * 86400 + between.seconds) + Decimal(between.microseconds) / 1_000_000


class Meter:
    """Has an account for every VM that ever existed. Thread-safe. Every change is on disk before the call returns, or
    as soon as the disk has room."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.images = {one.image_id: one for one in map(ImageRow.restore, store.all("image-account"))}
        self.accounts = {
            account.vm_id: account for account in (Account.restore(document) for document in store.all("account"))
        }

    def open(self, account: Account) -> None:
        with self.lock:
            self._keep(account)

    def started(self, vm_id: str, now: datetime) -> None:
        """Notes that the VM is RUNNING: it is billed from now on."""
        self._change(vm_id, started_at=now)

    def stopped(self, vm_id: str, now: datetime, by: str) -> None:
        """Notes that the VM is TERMINATED: from now on only its disk is billed."""
        self._change(vm_id, by, stopped_at=now)

    def ended(self, vm_id: str, now: datetime, by: str) -> None:
        """Notes that the VM is gone. If it was stopped before, the reason for that stays."""
        self._change(vm_id, self.accounts[vm_id].ended_by or by, ended_at=now)

    def _change(self, vm_id: str, by: str | None = None, **moments: Any) -> None:
        with self.lock:
            account = self.accounts[vm_id]
            self._keep(replace(account, **moments, ended_by=by or account.ended_by))

    def write_off(self, last_seen: datetime, by: str) -> None:
        """Ends every open account at `last_seen`, the last sign of life before a crash."""
        with self.lock:
            for account in list(self.accounts.values()):
                if account.ended_at is None:
                    moment = max(last_seen, account.stopped_at or account.started_at or last_seen)
                    self._keep(replace(account, ended_at=moment, ended_by=by))

    def bill(self, now: datetime) -> Bill:
        with self.lock:
            return Bill(
                tuple(BillRow.of(account, now) for account in self.accounts.values()), now, tuple(self.images.values())
            )

    def image_made(self, image_id: str, name: str, run_id: str | None, size: int, now: datetime) -> None:
        """Notes that an image is READY: its archive of `size` bytes is billed from now on."""
        with self.lock:
            self._keep_image(ImageRow(image_id, name, run_id, size, now, None))

    def image_gone(self, image_id: str, now: datetime) -> None:
        """Notes that an image is gone. An image that was never READY has cost nothing. Calling it again has no
        effect."""
        with self.lock:
            row = self.images.get(image_id)
            if row is not None and row.gone_at is None:
                self._keep_image(replace(row, gone_at=now))

    def _keep_image(self, row: ImageRow) -> None:
        self.images[row.image_id] = row
        self.store.owe("image-account", row.image_id, row.kept())

    def _keep(self, account: Account) -> None:
        self.accounts[account.vm_id] = account
        self.store.owe("account", account.vm_id, account.document())
