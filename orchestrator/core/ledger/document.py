"""The ledger as a document, `ledger/ledger.json`: holds, settlements, costs added by hand, caps, and past months."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.bounds import Amount, Count, Moment
from orchestrator.core.errors import DocumentUnreadable
from orchestrator.core.naming import generation_of

Window = Literal["run", "day", "month", "total"]
WINDOWS: Final[tuple[Window, ...]] = ("run", "day", "month", "total")
ZERO: Final = Decimal(0)


class LedgerUnreadable(DocumentUnreadable):
    """This version cannot read the ledger in the bucket. Nothing may be spent until it can."""


class LedgerMissing(LedgerUnreadable):
    """There is no ledger or only an empty one, although runs of the bucket have held money."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The most dollars that may be spent in each window; None: no cap."""

    run: Decimal | None = None
    day: Decimal | None = None
    month: Decimal | None = None
    total: Decimal | None = None

    def of(self, window: Window) -> Decimal | None:
        return {"run": self.run, "day": self.day, "month": self.month, "total": self.total}[window]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")


class SharedCaps(_Document):
    """Caps for every client of the bucket. Of these and the client's own, the lower cap counts."""

    run: Amount | None = None
    day: Amount | None = None
    month: Amount | None = None
    total: Amount | None = None
    by: str
    at: Moment

    def caps(self) -> Caps:
        return Caps(self.run, self.day, self.month, self.total)


class LedgerEntry(_Document):
    """One run: the hold that was taken before its machine was requested, and the run's cost once it is known."""

    hold_usd: Amount
    held_at: Moment
    ttl_s: Count = 0
    gpu: str = ""
    category: str = "machine"
    note: str = ""
    settled_usd: Amount | None = None
    settled_at: Moment | None = None
    attempt: Count = 0
    """The number of the last machine that a client was about to request under this hold; 0: none."""
    armed_by: str = ""
    armed_at: Moment | None = None
    caps: dict[Window, Amount] = Field(default_factory=dict)
    """The caps under which the hold was taken. A client that settles the hold checks the thresholds of these caps
    too."""
    pretend: bool = False
    """Whether the dollars are simulated ones of the embedded cloud. They are counted apart from real dollars."""

    @property
    def lasts_until(self) -> datetime:
        """The end of the time for which the hold pays. No machine can change it, because none can write to the
        ledger."""
        return self.held_at + timedelta(seconds=self.ttl_s)

    @property
    def spent(self) -> Decimal:
        return self.settled_usd if self.settled_usd is not None else ZERO

    @property
    def held(self) -> Decimal:
        return self.hold_usd if self.settled_usd is None else ZERO


class Cost(_Document):
    """A cost that is not a machine, added by hand."""

    usd: Amount
    at: Moment
    category: str
    note: str = ""
    takes_back: str = ""
    """The id of the cost that this entry takes back. Neither of the two counts, and both stay on record."""
    pretend: bool = False
    """Whether the dollars are simulated, as in `Entry`."""


class ArchivedMonth(_Document):
    """The sum of a past month's settled runs and costs."""

    usd: Amount
    runs: int
    costs: int
    days: dict[str, Amount] = Field(default_factory=dict)
    """The sum of each day (`2026-11-21`). A client whose clock is far ahead may archive days that others still
    count."""
    each: dict[str, Amount] = Field(default_factory=dict)
    """The cost of each settled run, so that it can be corrected upward later. The archives of months that are long past
    have none."""


def _hold_key(key: str) -> str:
    generation_of(key)
    return key


class Ledger(_Document):
    """The document `ledger/ledger.json`."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    runs: dict[Annotated[str, AfterValidator(_hold_key)], LedgerEntry] = Field(default_factory=dict)
    costs: dict[str, Cost] = Field(default_factory=dict)
    archive: dict[str, ArchivedMonth] = Field(default_factory=dict)
    """By month (`2026-11`)."""
    archived_before: str = ""
    """The settled entries of months before this month are only in `archive`."""
    alerts: frozenset[str] = frozenset()
    """The ids of alerts that were sent; with `@` and a time, of alerts about to be sent (`core.ledger.alerts`)."""
    caps: SharedCaps | None = None
    earlier_caps: tuple[SharedCaps, ...] = ()
    """The last twenty caps before these, oldest first."""

    @property
    def empty(self) -> bool:
        """Whether it has no entry, no cost and no archive."""
        return not (self.runs or self.costs or self.archive)

    @classmethod
    def parse(cls, data: bytes) -> Ledger:
        """The ledger in `data`. Raises `LedgerUnreadable`."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise LedgerUnreadable(
                f"the ledger cannot be read: {where}: {first['msg']}",
                hint=(
                    "a newer version of bench may have written it: use that version; otherwise `bench budget "
                    "rebuild` puts it aside and makes a new one from the events of the runs"
                ),
            ) from error

    def dump(self) -> bytes:
        """The ledger as JSON. The same ledger always gives the same bytes."""
        plain = self.model_copy(
            update={
                "runs": dict(sorted(self.runs.items())),
                "costs": dict(sorted(self.costs.items())),
                "archive": dict(sorted(self.archive.items())),
            }
        ).model_dump(mode="json", by_alias=True)
        plain["alerts"] = sorted(plain["alerts"])
        return (json.dumps(plain, indent=1) + "\n").encode()


def key_of(window: Window, at: datetime) -> str:
    """The key of the window that contains `at`: such as `2026-11-21`, `2026-11` or `total`."""
    at = at.astimezone(UTC)
    return {"day": f"{at:%Y-%m-%d}", "month": f"{at:%Y-%m}"}.get(window, window)


def counted_costs(ledger: Ledger) -> dict[str, Cost]:
    """The costs added by hand that were not taken back."""
    undone = {cost.takes_back for cost in ledger.costs.values() if cost.takes_back}
    return {name: cost for name, cost in ledger.costs.items() if not cost.takes_back and name not in undone}


def with_run(ledger: Ledger, run_id: str, entry: LedgerEntry) -> Ledger:
    return ledger.model_copy(update={"runs": {**ledger.runs, run_id: entry}})


def without_run(ledger: Ledger, run_id: str) -> Ledger:
    """The ledger without a run's entry, to find out what the run may hold anew."""
    return ledger.model_copy(update={"runs": {key: entry for key, entry in ledger.runs.items() if key != run_id}})
