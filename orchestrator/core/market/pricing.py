"""What a machine costs: dated prices, and the arithmetic that turns dollars into seconds and back.

Amounts are rounded so that we never spend more than computed: a ceiling is never below what can be billed, and the time
computed from dollars never costs more than these. Arithmetic is exact (fractions); results are decimals of six places.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from orchestrator.core import yamltext
from orchestrator.core.bounds import Amount, StrictModel
from orchestrator.core.errors import ConfigError

MICRO: Final = 1_000_000
BILLED_MINIMUM_S: Final = 60
"""Compute Engine bills by the second, and at least one minute."""
DEADLINE_SLACK_S: Final = 30
"""How many seconds late the action at the end of `maxRunDuration` may start."""
MAX_TTL_S: Final = 7 * 24 * 3600
"""The longest deadline: GPU machines with up to seven days may use preemptible quota."""
LOCAL_SSD: Final = "local-ssd"
STALE_DAYS: Final = 30
"""Google may change the price of a spot machine once a month."""
STALE_MARGIN: Final = Decimal("0.20")
"""The share of a price that is held in addition if the price table is older. We chose it; it is not a limit of
Google's."""


def usd(x: str | int | Decimal) -> Decimal:
    """`x` as dollars. Raises `ValueError` if it is not a finite number, or if it is a float, because floats are not
    exact."""
    if isinstance(x, (float, bool)):
        raise ValueError(f"{x!r} is not an exact amount; write it as text")
    try:
        amount = Decimal(x)
    except ArithmeticError as error:
        raise ValueError(f"{x!r} is not an amount of dollars") from error
    if not amount.is_finite():
        raise ValueError(f"{x!r} is not an amount of dollars")
    return amount


def round_up(x: Fraction | Decimal) -> Decimal:
    """`x` rounded up to six places."""
    return Decimal(math.ceil(Fraction(x) * MICRO)).scaleb(-6)


def billed_usd(usd_per_hour: Decimal, seconds: int) -> Decimal:
    """The dollars that a machine costs that existed for `seconds`: at least a minute is billed. Rounded up to six
    places."""
    return round_up(Fraction(usd_per_hour) * max(seconds, BILLED_MINIMUM_S) / 3600)


def ceiling_usd(usd_per_hour: Decimal, ttl_s: int, attempts: int) -> Decimal:
    """The most dollars that `attempts` machines with a deadline of `ttl_s` seconds can cost, including the deadline's
    slack. Each machine is rounded up separately, as in `accrued`, so that no sum of bills is above the ceiling."""
    return billed_usd(usd_per_hour, ttl_s + DEADLINE_SLACK_S) * attempts


def accrued_usd(usd_per_hour: Decimal, started: datetime, ended: datetime) -> Decimal:
    """The dollars that a machine has cost between two instants. The time is rounded up to whole seconds."""
    return billed_usd(usd_per_hour, math.ceil((ended - started).total_seconds()))


def ttl_within(dollars: Decimal, usd_per_hour: Decimal, attempts: int) -> int:
    """The longest deadline, in seconds, whose ceiling fits into `dollars`; 0 if not even a billed minute fits."""
    micro_usd_each = math.floor(Fraction(dollars) / attempts * MICRO)
    if micro_usd_each < 0:
        return 0
    if usd_per_hour == 0:
        return MAX_TTL_S
    seconds = math.floor(Fraction(micro_usd_each, MICRO) * 3600 / Fraction(usd_per_hour))
    return 0 if seconds < BILLED_MINIMUM_S else min(seconds - DEADLINE_SLACK_S, MAX_TTL_S)


@dataclass(frozen=True, slots=True)
class PricedMachine:
    """What is priced: a machine type, and the API's accelerator name and number of its GPUs, also if they are built
    in."""

    machine_type: str
    accelerator: str | None = None
    accelerator_count: int = 0


@dataclass(frozen=True, slots=True)
class Quote:
    """The parts of a price in dollars per hour, and their source. If there are several, it is the least certain one."""

    machine: Decimal
    gpu: Decimal
    disk: Decimal
    external_ip: Decimal
    source: str

    @property
    def usd_per_hour(self) -> Decimal:
        return round_up(self.machine + self.gpu + self.disk + self.external_ip)


class MachinePrice(StrictModel):
    """The price of one thing in one region in dollars per hour, on demand, as spot and as flex-start; None if it is not
    sold so, or its price is not known. `flex_source` is the source of the last one, if it has another."""

    standard: Amount | None = None
    spot: Amount | None = None
    flex_start: Amount | None = None
    source: str
    flex_source: str | None = None

    @model_validator(mode="after")
    def spot_is_not_dearer(self) -> MachinePrice:
        if self.standard is not None and self.spot is not None and self.spot > self.standard:
            raise ValueError(f"spot {self.spot} is above on-demand {self.standard}: a wrong figure, not a price")
        if self.standard is not None and self.flex_start is not None and self.flex_start > self.standard:
            raise ValueError(f"flex-start {self.flex_start} is above on-demand {self.standard}: a wrong figure")
        return self

    def under(self, provisioning: str) -> Decimal | None:
        """The price as `spot`, `flex-start` or `standard`, in any case and spelling."""
        prices = {"spot": self.spot, "flex_start": self.flex_start}
        return prices.get(provisioning.lower().replace("-", "_"), self.standard)

    def source_of(self, provisioning: str) -> str:
        flexible = provisioning.lower().startswith("flex")
        return self.flex_source if flexible and self.flex_source else self.source


class DiskPrice(StrictModel):
    """Dollars per GiB and month."""

    usd: Amount
    source: str


class Multiple(StrictModel):
    """A machine type that costs exactly `times` another of its series."""

    of: str
    times: Annotated[int, Field(ge=1)]


class PriceSheet(StrictModel):
    """Every price known on one date (`configs/prices.yaml`). Regions are keys; if a key is missing, the price is not
    known."""

    schema_: Literal[1] = Field(alias="schema")
    currency: Literal["USD"]
    as_of: date
    sources: dict[str, str]
    trusted: tuple[str, ...] = ()
    """The sources that are published records. A notice names every other source that is used."""
    hours_per_month: Annotated[Decimal, Field(gt=0)] = Decimal(730)
    disk_gib_month: dict[str, DiskPrice]
    local_ssd_gib: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """By machine type: the GiB of local disk that it includes. They are paid for separately, at the price
    `LOCAL_SSD`."""
    external_ip: MachinePrice
    accelerators: dict[str, dict[str, MachinePrice]]
    machines: dict[str, dict[str, MachinePrice]]
    multiples: dict[str, Multiple] = Field(default_factory=dict)

    @model_validator(mode="after")
    def sources_are_named(self) -> PriceSheet:
        used = {self.external_ip.source, *(disk.source for disk in self.disk_gib_month.values()), *self.trusted}
        for table in (self.accelerators, self.machines):
            prices = [price for regions in table.values() for price in regions.values()]
            used |= {price.source for price in prices} | {price.flex_source for price in prices if price.flex_source}
        if unknown := sorted(used - self.sources.keys()):
            raise ValueError(f"sources that are not explained: {', '.join(unknown)}")
        if unknown := sorted({multiple.of for multiple in self.multiples.values()} - self.machines.keys()):
            raise ValueError(f"multiples of machines without a price: {', '.join(unknown)}")
        return self

    @classmethod
    @functools.lru_cache(maxsize=16)  # a process reads the same table many times, and nothing changes a sheet
    def parse(cls, text: str, *, source: str = "prices.yaml") -> PriceSheet:
        """The sheet in YAML `text`. Raises `ConfigError` with every problem, one on each line."""
        document = yamltext.read_yaml(text)
        problems = [(line, key, what) for line, key, what in document.problems]
        sheet: PriceSheet | None = None
        if not problems:
            try:
                sheet = cls.model_validate(document.data)
            except ValidationError as error:
                for item in error.errors():
                    path = tuple(item["loc"])
                    what = item["msg"].removeprefix("Value error, ")
                    problems.append((document.line(path), yamltext.dotted_path(path), what))
        if sheet is None or problems:
            lines = [f"{source}:{line}: {key + ': ' if key else ''}{what}" for line, key, what in problems]
            raise ConfigError("\n".join(lines), hint="configs/README.md says how to write a price sheet")
        return sheet

    def dump_yaml(self) -> str:
        """The sheet as YAML, from which `parse` reads the same sheet."""
        return yaml.safe_dump(_plain(self.model_dump(by_alias=True, exclude_none=True)), sort_keys=False)

    def quote(
        self,
        machine: PricedMachine,
        region: str,
        provisioning: str,
        disk_gb: int,
        external_ip: bool,
        disk_type: str = "pd-balanced",
    ) -> Quote | None:
        """The price of a machine with its disks and address; None if the price of any part is not known."""
        multiple = self.multiples.get(machine.machine_type, Multiple(of=machine.machine_type, times=1))
        host = self.machines.get(multiple.of, {}).get(region)
        host_usd = host.under(provisioning) if host else None
        scratch_gib = self.local_ssd_gib.get(machine.machine_type, 0)
        scratch = self.disk_gib_month.get(LOCAL_SSD) if scratch_gib else DiskPrice(usd=Decimal(0), source="")
        disk = self.disk_gib_month.get(disk_type)
        # No public page says at which of the two prices of addresses a flex-start machine has one: the higher is taken.
        address = self.external_ip.under("spot" if provisioning.lower() == "spot" else "standard")
        if host is None or host_usd is None or disk is None or scratch is None or (external_ip and address is None):
            return None
        sources = [host.source_of(provisioning), disk.source, *([self.external_ip.source] if external_ip else [])]
        gpu_usd = Decimal(0)
        if machine.accelerator:
            gpu = self.accelerators.get(machine.accelerator, {}).get(region)
            usd_each = gpu.under(provisioning) if gpu else None
            if gpu is None or usd_each is None:
                return None
            gpu_usd = usd_each * machine.accelerator_count
            sources.insert(0, gpu.source_of(provisioning))
        return Quote(
            machine=host_usd * multiple.times,
            gpu=gpu_usd,
            disk=round_up(
                (Fraction(disk.usd) * disk_gb + Fraction(scratch.usd) * scratch_gib) / Fraction(self.hours_per_month)
            ),
            external_ip=address if external_ip and address is not None else Decimal(0),
            source=next((name for name in sources[:2] if name not in self.trusted), sources[0]),
        )

    def hourly(
        self,
        machine: PricedMachine,
        region: str,
        provisioning: str,
        disk_gb: int,
        external_ip: bool,
        disk_type: str = "pd-balanced",
    ) -> Decimal | None:
        """The price of a machine with its boot disk and address in dollars per hour, rounded up; None if not known."""
        quote = self.quote(machine, region, provisioning, disk_gb, external_ip, disk_type)
        return quote.usd_per_hour if quote else None

    def age_days(self, today: date) -> int:
        return (today - self.as_of).days

    def stale(self, as_of: date) -> bool:
        """Whether the sheet is more than 30 days old on the day `as_of`."""
        return self.age_days(as_of.date() if isinstance(as_of, datetime) else as_of) > STALE_DAYS

    def margin(self, as_of: date) -> Decimal:
        """The share of each price that is held in addition on the day `as_of`: 0 while the sheet is not stale."""
        return STALE_MARGIN if self.stale(as_of) else Decimal(0)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, (Decimal, date)) else value
