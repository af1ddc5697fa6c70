"""The ledger: what runs have cost, what they may still cost, and whether one more fits under every cap.

The law: at every instant and in every window, spent + held <= cap, as long as no run costs more than its hold and no
settled cost turns out higher. A settlement that is corrected upward records money that is gone, whatever was held
since, and is never refused: the window is then over its cap by no more than what was corrected, that is alerted, and
nothing more is held in it until it is within its cap again. A cost added by hand is a fact in the same way.

A run is charged, whole, to the UTC day and month in which its hold was taken. Every change is a pure function from
ledger to ledger, may be replayed, and never lowers what is known to be spent; so any client may make it at any time.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.errors import BenchError
from orchestrator.core.naming import run_of

Window = Literal["run", "day", "month", "total"]
WINDOWS: Final[tuple[Window, ...]] = ("run", "day", "month", "total")
THRESHOLDS: Final = (50, 80, 100)
GRACE: Final = timedelta(days=7)
"""A month is archived once this much of the next has passed: replays of its last entries still find them."""

Amount = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
ZERO: Final = Decimal(0)


class LedgerUnreadable(BenchError):
    """The ledger in the bucket is not one that this version can read. Nothing may be spent until it is."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Dollars that may be spent in each window; None where there is no cap."""

    run: Decimal | None = None
    day: Decimal | None = None
    month: Decimal | None = None
    total: Decimal | None = None

    def of(self, window: Window) -> Decimal | None:
        return {"run": self.run, "day": self.day, "month": self.month, "total": self.total}[window]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(_Document):
    """One run: the hold taken before its machine was asked for, and what it cost once that is known."""

    hold_usd: Amount
    held_at: AwareDatetime
    ttl_s: int = 0
    gpu: str = ""
    category: str = "machine"
    note: str = ""
    settled_usd: Amount | None = None
    settled_at: AwareDatetime | None = None
    attempt: int = 0
    """The last machine that somebody set out to ask for under this hold; 0: nothing was ever asked for."""
    armed_by: str = ""
    armed_at: AwareDatetime | None = None

    @property
    def spent(self) -> Decimal:
        return self.settled_usd if self.settled_usd is not None else ZERO

    @property
    def held(self) -> Decimal:
        return self.hold_usd if self.settled_usd is None else ZERO


class Cost(_Document):
    """A cost that is not a machine, added by hand."""

    usd: Amount
    at: AwareDatetime
    category: str
    note: str = ""


class ArchivedMonth(_Document):
    """The sum of a past month's settled runs and costs."""

    usd: Amount
    runs: int
    costs: int
    days: dict[str, Amount] = Field(default_factory=dict)
    """The same by day, `2026-11-21`: a client whose clock is far ahead archives days that others still count."""


class Ledger(_Document):
    """The document `ledger/ledger.json`."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    runs: dict[str, Entry] = Field(default_factory=dict)
    costs: dict[str, Cost] = Field(default_factory=dict)
    archive: dict[str, ArchivedMonth] = Field(default_factory=dict)
    """By month, `2026-11`."""
    archived_before: str = ""
    """Settled entries of months before this one are in `archive` only."""
    alerts: frozenset[str] = frozenset()
    """Alerts already sent, `window:key:threshold`, with `over` for the threshold of an overcommitted window."""

    @classmethod
    def parse(cls, data: bytes) -> Ledger:
        """Raises `LedgerUnreadable`."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise LedgerUnreadable(
                f"the ledger cannot be read: {where}: {first['msg']}",
                hint="a newer version of bench may have written it; otherwise restore an older generation of "
                "ledger/ledger.json in the bucket",
            ) from error

    def dump(self) -> bytes:
        """JSON, the same bytes for the same ledger."""
        plain = self.model_copy(
            update={
                "runs": dict(sorted(self.runs.items())),
                "costs": dict(sorted(self.costs.items())),
                "archive": dict(sorted(self.archive.items())),
            }
        ).model_dump(mode="json", by_alias=True)
        plain["alerts"] = sorted(plain["alerts"])
        return (json.dumps(plain, indent=1) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a window has cost, and what it may still cost."""

    spent: Decimal
    held: Decimal

    @property
    def total(self) -> Decimal:
        return self.spent + self.held


@dataclass(frozen=True, slots=True)
class Approved:
    """The hold fits. `headroom` is what each capped window has left after it."""

    hold: Decimal
    headroom: dict[str, Decimal]


@dataclass(frozen=True, slots=True)
class Refused:
    """The hold does not fit into `window` (the one that is short by most)."""

    window: Window
    cap: Decimal
    spent: Decimal
    held: Decimal
    needs: Decimal
    short_by: Decimal


@dataclass(frozen=True, slots=True)
class Alert:
    """A threshold that a window's spending has reached, a window in which more is spent and held than its cap, or a run
    that cost more than its hold."""

    kind: str
    """`budget`, `overcommit` or `overspend`."""
    window: Window
    key: str
    """The day, month, `total`, or run id."""
    threshold: int
    """Percent of `cap`."""
    spent: Decimal
    held: Decimal
    cap: Decimal
    """Dollars; for an overspend, the hold."""

    @property
    def id(self) -> str:
        return f"{self.window}:{self.key}:{'over' if self.kind == 'overcommit' else self.threshold}"

    @property
    def title(self) -> str:
        if self.kind == "overspend":
            return f"run {self.key} cost more than was held for it"
        what = f"the budget for {self.key if self.window != 'total' else 'everything'}"
        if self.kind == "overcommit":
            return f"{what} may be passed by runs that are not over"
        return f"{self.threshold} % of {what} is spent"

    @property
    def text(self) -> str:
        if self.kind == "overspend":
            return f"It cost ${self.spent}; ${self.cap} was held. Compare configs/prices.yaml with the bill."
        if self.kind == "overcommit":
            return (
                f"${self.spent} is spent and ${self.held} is held: more than ${self.cap}. A cost came to light, or the "
                "cap was lowered, after the money had been held. Nothing more fits until it is within the cap again."
            )
        return f"${self.spent} of ${self.cap} is spent, and ${self.held} more is held for runs that are not over."


def key_of(window: Window, at: datetime) -> str:
    """The name of the window that `at` falls into: `2026-11-21`, `2026-11`, `total`."""
    at = at.astimezone(UTC)
    return {"day": f"{at:%Y-%m-%d}", "month": f"{at:%Y-%m}"}.get(window, window)


def exposure(ledger: Ledger, window: Window, now: datetime, *, run_id: str = "") -> Exposure:
    """What is spent and held in the `window` that `now` falls into (for `run`: by `run_id`)."""
    if window == "run":
        mine = [entry for key, entry in ledger.runs.items() if run_id and run_of(key) == run_of(run_id)]
        return Exposure(sum((entry.spent for entry in mine), ZERO), sum((entry.held for entry in mine), ZERO))
    key = key_of(window, now)
    runs = [entry for entry in ledger.runs.values() if key_of(window, entry.held_at) == key]
    costs = [cost.usd for cost in ledger.costs.values() if key_of(window, cost.at) == key]
    archived = [
        month.usd for name, month in ledger.archive.items() if window == "total" or (window == "month" and name == key)
    ]
    if window == "day":
        archived = [month.days.get(key, ZERO) for month in ledger.archive.values()]
    spent = sum((entry.spent for entry in runs), ZERO) + sum(costs, ZERO) + sum(archived, ZERO)
    return Exposure(spent=spent, held=sum((entry.held for entry in runs), ZERO))


def authorize(ledger: Ledger, caps: Caps, ceiling: Decimal, now: datetime, *, run_id: str = "") -> Approved | Refused:
    """Whether a run that can cost at most `ceiling` fits under every cap. A run that already holds something
    (`run_id`) needs only the difference, in the windows of its first hold. A resumption (`hold_key`) is charged to the
    day on which it is made, and to the window `run` with all that the run cost before."""
    mine = ledger.runs.get(run_id)
    at, already = (mine.held_at, mine.held) if mine else (now, ZERO)
    headroom: dict[str, Decimal] = {}
    refusals: list[Refused] = []
    for window in WINDOWS:
        cap = caps.of(window)
        if cap is None:
            continue
        now_in = exposure(ledger, window, at, run_id=run_id)
        left = cap - (now_in.total - already) - ceiling
        headroom[window] = left
        if left < 0:
            refusals.append(Refused(window, cap, now_in.spent, now_in.held, ceiling, -left))
    if refusals:
        return max(refusals, key=lambda refused: (refused.short_by, -WINDOWS.index(refused.window)))
    return Approved(hold=ceiling, headroom=headroom)


def headroom(ledger: Ledger, caps: Caps, now: datetime) -> tuple[Decimal, Window] | None:
    """The most that a new run may hold, and the window that says so; None when nothing is capped."""
    left = [
        (cap - exposure(ledger, window, now).total, window)
        for window in WINDOWS
        if (cap := caps.of(window)) is not None
    ]
    return min(left, key=lambda pair: (pair[0], WINDOWS.index(pair[1]))) if left else None


def hold(
    ledger: Ledger, run_id: str, ceiling: Decimal, ttl_s: int, now: datetime, gpu: str = "", *, note: str = ""
) -> Ledger:
    """Takes a hold. A second hold for the same run raises the first, and never lowers it; one for a run that is
    settled changes nothing. That months were archived by a client whose clock is ahead keeps nobody from a hold."""
    entry = ledger.runs.get(run_id)
    if entry is None:
        if "+" not in run_id and _is_archived(ledger, run_id) and key_of("month", now) >= ledger.archived_before:
            return ledger
        entry = Entry(hold_usd=ceiling, held_at=now, ttl_s=ttl_s, gpu=gpu, note=note)
    elif entry.settled_usd is None:
        hold_usd, ttl_s = max(entry.hold_usd, ceiling), max(entry.ttl_s, ttl_s)
        entry = entry.model_copy(update={"hold_usd": hold_usd, "ttl_s": ttl_s})
    return compact(with_run(ledger, run_id, entry), now)


def settle(ledger: Ledger, run_id: str, actual: Decimal, now: datetime) -> Ledger:
    """Replaces the hold by what the run cost. Of two settlements the dearer stands, in whatever order they come, and
    whatever others hold by then: it is money that is gone. A run without a hold is recorded as one of nothing, so that
    its cost is never lost."""
    entry = ledger.runs.get(run_id)
    if entry is None:
        if _is_archived(ledger, run_id):
            return ledger
        entry = Entry(hold_usd=ZERO, held_at=now, note="settled without a hold")
    if entry.settled_usd is not None and entry.settled_usd >= actual:
        return ledger
    return compact(with_run(ledger, run_id, entry.model_copy(update={"settled_usd": actual, "settled_at": now})), now)


def release(ledger: Ledger, run_id: str, now: datetime) -> Ledger:
    """Gives a hold back because no machine was ever made. A run already settled stays as it is."""
    return settle(ledger, run_id, ZERO, now) if run_id in ledger.runs else ledger


def add_cost(ledger: Ledger, category: str, usd: Decimal, note: str, now: datetime, id: str) -> Ledger:  # noqa: A002
    """Records a cost that is not a machine. The same `id` again changes nothing."""
    if id in ledger.costs:
        return ledger
    cost = Cost(usd=usd, at=now, category=category, note=note)
    return compact(ledger.model_copy(update={"costs": {**ledger.costs, id: cost}}), now)


def alerts_due(ledger: Ledger, caps: Caps, now: datetime) -> tuple[Alert, ...]:
    """What should be said now and has not been: for each window the highest threshold that its spending has reached,
    and whether what is held on top passes its cap; and each run that cost more than its hold."""
    due: list[Alert] = []
    for window in WINDOWS[1:]:
        cap = caps.of(window)
        if cap is None:
            continue
        seen = exposure(ledger, window, now)
        reached = [threshold for threshold in THRESHOLDS if seen.spent > 0 and seen.spent * 100 >= cap * threshold]
        if reached:
            due.append(Alert("budget", window, key_of(window, now), reached[-1], seen.spent, seen.held, cap))
        if seen.spent < cap < seen.total:  # from the cap on, the threshold of 100 % says it
            due.append(Alert("overcommit", window, key_of(window, now), 100, seen.spent, seen.held, cap))
    for run_id, entry in sorted(ledger.runs.items()):
        if entry.spent > entry.hold_usd:
            due.append(Alert("overspend", "run", run_id, 100, entry.spent, ZERO, entry.hold_usd))
    return tuple(alert for alert in due if alert.id not in ledger.alerts)


def mark_alerted(ledger: Ledger, alerts: tuple[Alert, ...]) -> Ledger:
    """Remembers that these were sent; the thresholds below them need no saying any more."""
    below = {
        f"{alert.window}:{alert.key}:{threshold}"
        for alert in alerts
        for threshold in THRESHOLDS
        if alert.kind == "budget" and threshold < alert.threshold
    }
    said = {alert.id for alert in alerts} | below
    return ledger.model_copy(update={"alerts": ledger.alerts | said})


def compact(ledger: Ledger, now: datetime) -> Ledger:
    """Folds the settled entries of past months into one sum a month. No exposure of a current window changes."""
    before = key_of("month", now - GRACE)
    if before <= ledger.archived_before:
        return ledger
    done = {
        run_id: entry
        for run_id, entry in ledger.runs.items()
        if entry.settled_usd is not None and key_of("month", entry.held_at) < before
    }
    costs = {name: cost for name, cost in ledger.costs.items() if key_of("month", cost.at) < before}
    archive = dict(ledger.archive)
    additions = [(entry.held_at, entry.spent, 1, 0) for entry in done.values()]
    additions += [(cost.at, cost.usd, 0, 1) for cost in costs.values()]
    for at, amount, runs, extra in additions:
        month, day = key_of("month", at), key_of("day", at)
        old = archive.get(month, ArchivedMonth(usd=ZERO, runs=0, costs=0))
        days = {**old.days, day: old.days.get(day, ZERO) + amount}
        archive[month] = ArchivedMonth(
            usd=old.usd + amount, runs=old.runs + runs, costs=old.costs + extra, days=dict(sorted(days.items()))
        )
    return ledger.model_copy(
        update={
            "runs": {run_id: entry for run_id, entry in ledger.runs.items() if run_id not in done},
            "costs": {name: cost for name, cost in ledger.costs.items() if name not in costs},
            "archive": archive,
            "archived_before": before,
            "alerts": frozenset(name for name in ledger.alerts if _is_current(name, before, done.keys())),
        }
    )


def _is_archived(ledger: Ledger, run_id: str) -> bool:
    """Whether a run that is not listed was settled and folded away: its id starts with its date."""
    digits = run_id[:6]
    return digits.isdigit() and len(digits) == 6 and f"{digits[:4]}-{digits[4:]}" < ledger.archived_before


def _is_current(alert_id: str, before: str, archived: Collection[str]) -> bool:
    window, key, _ = alert_id.split(":")
    if window in ("day", "month"):
        return key[:7] >= before
    return not (window == "run" and key in archived)


def with_run(ledger: Ledger, run_id: str, entry: Entry) -> Ledger:
    return ledger.model_copy(update={"runs": {**ledger.runs, run_id: entry}})
