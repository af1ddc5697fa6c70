"""The ledger: what runs have cost, what they may still cost, and whether one more fits under every cap.

The rule: at every instant and in every window, spent + held <= cap, as long as no run costs more than its hold and no
settled cost turns out higher. A settlement that is corrected upward records money that is already spent, so it is never
refused. The window is then over its cap by no more than the correction. An alert says so, and nothing more is held in
this window until it is within its cap again. The same holds for a cost that is added by hand.

A run's whole cost is charged to the UTC day and month in which its hold was taken. Every change is a pure function from
ledger to ledger and may be repeated. No change lowers what is known to be spent, except that a person may take back a
cost that was added by hand; both entries stay on record. So any client may make any change at any time.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from orchestrator.core.bounds import Amount, Count, Moment, StrictModel
from orchestrator.core.errors import DocumentUnreadable
from orchestrator.core.naming import generation_of, run_of

# The ledger as a document, `ledger/ledger.json`: holds, settlements, costs added by hand, caps, and past months.


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


class SharedCaps(StrictModel):
    """Caps for every client of the bucket. Of these and the client's own, the lower cap counts."""

    run: Amount | None = None
    day: Amount | None = None
    month: Amount | None = None
    total: Amount | None = None
    by: str
    at: Moment

    def caps(self) -> Caps:
        return Caps(self.run, self.day, self.month, self.total)


class LedgerEntry(StrictModel):
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


class Cost(StrictModel):
    """A cost that is not a machine, added by hand."""

    usd: Amount
    at: Moment
    category: str
    note: str = ""
    takes_back: str = ""
    """The id of the cost that this entry takes back. Neither of the two counts, and both stay on record."""
    pretend: bool = False
    """Whether the dollars are simulated, as in `Entry`."""


class ArchivedMonth(StrictModel):
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


class Ledger(StrictModel):
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


# The archive of the ledger: past months as one sum each, so that the document stays small.


GRACE: Final = timedelta(days=7)
"""A month is archived once this much of the next month has passed, so that late changes still find its last entries."""
EACH_KEPT: Final = timedelta(days=100)
"""For how long the archive knows the cost of each run: none is settled again so late, and the document stays small."""


def compact_ledger(ledger: Ledger, now: datetime) -> Ledger:
    """The ledger with the settled entries of past months replaced by one sum for each month. This changes no exposure
    of a current window. Simulated dollars of past months are dropped."""
    before = key_of("month", now - GRACE)
    if before <= ledger.archived_before:
        return ledger
    settled = {
        run_id: entry
        for run_id, entry in ledger.runs.items()
        if entry.settled_usd is not None and key_of("month", entry.held_at) < before
    }
    costs = {name: cost for name, cost in ledger.costs.items() if key_of("month", cost.at) < before}
    costs |= {name: cost for name, cost in ledger.costs.items() if cost.takes_back in costs}
    archive = dict(ledger.archive)
    additions = [(entry.held_at, entry.spent, key) for key, entry in settled.items() if not entry.pretend]
    additions += [
        (cost.at, cost.usd, "") for name, cost in counted_costs(ledger).items() if name in costs and not cost.pretend
    ]
    for at, amount, key in additions:
        month, day = key_of("month", at), key_of("day", at)
        previous = archive.get(month, ArchivedMonth(usd=ZERO, runs=0, costs=0))
        days = {**previous.days, day: previous.days.get(day, ZERO) + amount}
        archive[month] = ArchivedMonth(
            usd=previous.usd + amount,
            runs=previous.runs + bool(key),
            costs=previous.costs + (not key),
            days=dict(sorted(days.items())),
            each={**previous.each, key: amount} if key else previous.each,
        )
    oldest = key_of("month", now - EACH_KEPT)
    archive = {name: one.model_copy(update={"each": {}}) if name < oldest else one for name, one in archive.items()}
    return ledger.model_copy(
        update={
            "runs": {run_id: entry for run_id, entry in ledger.runs.items() if run_id not in settled},
            "costs": {name: cost for name, cost in ledger.costs.items() if name not in costs},
            "archive": archive,
            "archived_before": before,
            "alerts": frozenset(name for name in ledger.alerts if _is_current(name, before, settled.keys())),
        }
    )


def correct_archived(ledger: Ledger, run_id: str, actual: Decimal) -> Ledger:
    """The ledger after a run of an archived month turned out to cost more: the difference is added to its month and
    day."""
    for name, month in ledger.archive.items():
        recorded = month.each.get(run_id)
        if recorded is None or recorded >= actual:
            continue
        day = f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"
        changes = {
            "usd": month.usd + actual - recorded,
            "days": {**month.days, day: month.days.get(day, ZERO) + actual - recorded},
            "each": {**month.each, run_id: actual},
        }
        return ledger.model_copy(update={"archive": {**ledger.archive, name: month.model_copy(update=changes)}})
    return ledger


def is_archived(ledger: Ledger, run_id: str) -> bool:
    """Whether a run that is not among the entries is in the archive. This is known from the date in its id."""
    digits = run_id[:6]
    return digits.isdigit() and len(digits) == 6 and f"{digits[:4]}-{digits[4:]}" < ledger.archived_before


def _is_current(alert_id: str, before: str, archived: Collection[str]) -> bool:
    window, _, window_and_share = alert_id.partition(":")
    key = window_and_share.partition(":")[0]
    if window in ("day", "month"):
        return key[:7] >= before
    return not (window == "run" and key in archived)


KEPT_CAPS = 20
"""How many earlier caps of the bucket stay on record."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """What is spent and what is held in a window, in dollars."""

    spent: Decimal
    held: Decimal

    @property
    def total(self) -> Decimal:
        return self.spent + self.held


@dataclass(frozen=True, slots=True)
class Approved:
    """The hold fits. `headroom` is what each capped window has left after it, in dollars."""

    hold: Decimal
    headroom: dict[str, Decimal]


@dataclass(frozen=True, slots=True)
class HoldRefused:
    """The hold does not fit into `window`. If several windows are too small, this is the one that lacks most."""

    window: Window
    cap: Decimal
    spent: Decimal
    held: Decimal
    needs: Decimal
    short_by: Decimal
    set_by: str = ""
    """Who set the cap for the whole bucket; empty if it is the client's own cap."""

    @property
    def remedy(self) -> str:
        if self.set_by:
            return (
                f"{self.set_by} set this cap for the whole bucket; raise it with `bench budget set --{self.window} USD`"
            )
        key = "total_usd" if self.window == "total" else f"per_{self.window}_usd"
        return f"raise the cap with --set budget.{key}=USD, shorten the run with --set run.max_minutes=N, or wait"


def lower_caps(ledger: Ledger, caps: Caps) -> Caps:
    """The lower of the client's own cap and the bucket's cap, for each window."""

    def lower(window: Window) -> Decimal | None:
        both = (caps.of(window), ledger.caps.caps().of(window) if ledger.caps else None)
        return min((cap for cap in both if cap is not None), default=None)

    return Caps(lower("run"), lower("day"), lower("month"), lower("total"))


def set_caps(ledger: Ledger, caps: SharedCaps) -> Ledger:
    """The ledger with new caps of the bucket. The earlier ones stay on record."""
    earlier = (*ledger.earlier_caps, *((ledger.caps,) if ledger.caps else ()))[-KEPT_CAPS:]
    return ledger.model_copy(update={"caps": caps, "earlier_caps": earlier})


def window_exposure(
    ledger: Ledger, window: Window, now: datetime, *, run_id: str = "", pretend: bool = False
) -> Exposure:
    """What is spent and held in the `window` that contains `now`; for the window `run`, by `run_id`. Real dollars are
    counted, or simulated ones if `pretend` is true."""
    if window == "run":
        of_run = [entry for key, entry in ledger.runs.items() if run_id and run_of(key) == run_of(run_id)]
        return Exposure(sum((entry.spent for entry in of_run), ZERO), sum((entry.held for entry in of_run), ZERO))
    key = key_of(window, now)
    runs = [e for e in ledger.runs.values() if e.pretend is pretend and key_of(window, e.held_at) == key]
    spent, held = sum((entry.spent for entry in runs), ZERO), sum((entry.held for entry in runs), ZERO)
    costs = [cost for cost in counted_costs(ledger).values() if cost.pretend is pretend]
    spent += sum((cost.usd for cost in costs if key_of(window, cost.at) == key), ZERO)
    if pretend:
        return Exposure(spent, held)
    for name, month in ledger.archive.items():
        if window == "day":
            spent += month.days.get(key, ZERO)
        elif window == "total" or name == key:
            spent += month.usd
    return Exposure(spent, held)


def authorize(
    ledger: Ledger, caps: Caps, ceiling: Decimal, now: datetime, *, run_id: str = "", pretend: bool = False
) -> Approved | HoldRefused:
    """Whether a run that can cost at most `ceiling` dollars fits under every cap of the client and of the bucket. If
    the run `run_id` already has a hold, only the difference must fit, in the windows of its first hold. A resumption
    (`hold_key`) is charged to the day on which it is made; in the window `run` it counts with all that the run cost
    before."""
    present_hold = ledger.runs.get(run_id)
    at, already = (present_hold.held_at, present_hold.held) if present_hold else (now, ZERO)
    headroom: dict[str, Decimal] = {}
    refusals: list[HoldRefused] = []
    shared = ledger.caps.caps() if ledger.caps else Caps()
    for window in WINDOWS:
        cap = lower_caps(ledger, caps).of(window)
        if cap is None:
            continue
        exposed = window_exposure(ledger, window, at, run_id=run_id, pretend=pretend)
        image_amounts = cap - (exposed.total - already) - ceiling
        headroom[window] = image_amounts
        if image_amounts < 0:
            is_own_cap = cap == caps.of(window) or cap != shared.of(window)
            set_by = "" if is_own_cap or ledger.caps is None else ledger.caps.by
            refusals.append(HoldRefused(window, cap, exposed.spent, exposed.held, ceiling, -image_amounts, set_by))
    if refusals:
        return max(refusals, key=lambda refused: (refused.short_by, -WINDOWS.index(refused.window)))
    return Approved(hold=ceiling, headroom=headroom)


def headroom(ledger: Ledger, caps: Caps, now: datetime, *, pretend: bool = False) -> tuple[Decimal, Window] | None:
    """(the most dollars that a new run may hold, the window that limits it); None if no window has a cap."""
    caps_in_force = lower_caps(ledger, caps)
    headroom_usd = [
        (cap - window_exposure(ledger, window, now, pretend=pretend).total, window)
        for window in WINDOWS
        if (cap := caps_in_force.of(window)) is not None
    ]
    return min(headroom_usd, key=lambda pair: (pair[0], WINDOWS.index(pair[1]))) if headroom_usd else None


@dataclass(frozen=True, slots=True)
class HoldTerms:
    """What a hold is for, and the caps under which it is taken."""

    gpu: str = ""
    note: str = ""
    caps: Caps | None = None
    pretend: bool = False


def hold(
    ledger: Ledger, run_id: str, ceiling: Decimal, ttl_s: int, now: datetime, terms: HoldTerms = HoldTerms()
) -> Ledger:
    """The ledger with a hold of `ceiling` dollars. A second hold for the same run raises the first and never lowers it;
    a hold for a settled run changes nothing. A hold is possible even if a client whose clock is ahead has archived the
    present month."""
    entry = ledger.runs.get(run_id)
    if entry is None:
        if "+" not in run_id and is_archived(ledger, run_id) and key_of("month", now) >= ledger.archived_before:
            return ledger
        caps = terms.caps
        under = {window: cap for window in WINDOWS[1:] if caps and (cap := caps.of(window)) is not None}
        entry = LedgerEntry(
            hold_usd=ceiling, held_at=now, ttl_s=ttl_s, gpu=terms.gpu, note=terms.note, caps=under,
            pretend=terms.pretend,
        )  # fmt: skip
    elif entry.settled_usd is None:
        hold_usd, ttl_s = max(entry.hold_usd, ceiling), max(entry.ttl_s, ttl_s)
        entry = entry.model_copy(update={"hold_usd": hold_usd, "ttl_s": ttl_s})
    return compact_ledger(with_run(ledger, run_id, entry), now)


def settle(ledger: Ledger, run_id: str, actual: Decimal, now: datetime) -> Ledger:
    """The ledger with the hold replaced by `actual`, the dollars that the run cost. Of two settlements the higher one
    stays, in whichever order they come and whatever is held by others then, because that money is spent. A run without
    a hold gets an entry with a hold of 0, so that its cost is never lost."""
    entry = ledger.runs.get(run_id)
    if entry is None:
        if is_archived(ledger, run_id):
            return correct_archived(ledger, run_id, actual)
        entry = LedgerEntry(hold_usd=ZERO, held_at=now, note="settled without a hold")
    if entry.settled_usd is not None and entry.settled_usd >= actual:
        return ledger
    return compact_ledger(
        with_run(ledger, run_id, entry.model_copy(update={"settled_usd": actual, "settled_at": now})), now
    )


def add_cost(
    ledger: Ledger,
    category: str,
    usd: Decimal,
    note: str,
    now: datetime,
    id: str,  # noqa: A002
    *,
    pretend: bool = False,
) -> Ledger:
    """The ledger with a cost that is not a machine. A second cost with the same `id` changes nothing."""
    if id in ledger.costs:
        return ledger
    cost = Cost(usd=usd, at=now, category=category, note=note, pretend=pretend)
    return compact_ledger(ledger.model_copy(update={"costs": {**ledger.costs, id: cost}}), now)


def take_back(ledger: Ledger, cost_id: str, note: str, now: datetime, id: str) -> Ledger | None:  # noqa: A002
    """The ledger with an entry that takes back a cost that was added by hand. A second one changes nothing. None if
    there is no such cost, or if it is archived."""
    cost = ledger.costs.get(cost_id)
    if cost is None or cost.takes_back:
        return None
    if cost_id not in counted_costs(ledger):
        return ledger
    entry = Cost(usd=cost.usd, at=now, category=cost.category, note=note, takes_back=cost_id, pretend=cost.pretend)
    return ledger.model_copy(update={"costs": {**ledger.costs, id: entry}})
