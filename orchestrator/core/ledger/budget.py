"""The ledger: what runs have cost, what they may still cost, and whether one more fits under every cap.

The law: at every instant and in every window, spent + held <= cap, as long as no run costs more than its hold and no
settled cost turns out higher. A settlement that is corrected upward records money that is gone, whatever was held
since, and is never refused: the window is then over its cap by no more than what was corrected, that is alerted, and
nothing more is held in it until it is within its cap again. A cost added by hand is a fact in the same way.

A run is charged, whole, to the UTC day and month in which its hold was taken. Every change is a pure function from
ledger to ledger, may be replayed, and never lowers what is known to be spent (but for a cost added by hand that a
person takes back, which stays on record); so any client may make it at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from orchestrator.core.ledger.archive import compact, corrected, is_archived
from orchestrator.core.ledger.document import (
    WINDOWS,
    ZERO,
    ArchivedMonth,
    Caps,
    Cost,
    Entry,
    Ledger,
    LedgerMissing,
    LedgerUnreadable,
    SharedCaps,
    Window,
    counted,
    key_of,
    with_run,
    without,
)
from orchestrator.core.naming import run_of

__all__ = [
    "WINDOWS", "ZERO", "Approved", "ArchivedMonth", "Caps", "Cost", "Entry", "Exposure", "Ledger", "LedgerMissing",
    "LedgerUnreadable", "Refused", "SharedCaps", "Window", "add_cost", "authorize", "binding", "compact", "counted",
    "exposure", "headroom", "hold", "key_of", "set_caps", "settle", "take_back", "with_run", "without",
]  # fmt: skip
KEPT_CAPS = 20


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
    set_by: str = ""
    """Who set the cap for the whole bucket; empty where it is the client's own."""

    @property
    def remedy(self) -> str:
        if self.set_by:
            return (
                f"{self.set_by} set this cap for the whole bucket; raise it with `bench budget set --{self.window} USD`"
            )
        key = "total_usd" if self.window == "total" else f"per_{self.window}_usd"
        return f"raise the cap with --set budget.{key}=USD, shorten the run with --set run.max_minutes=N, or wait"


def binding(ledger: Ledger, caps: Caps) -> Caps:
    """The lower of the client's own cap and the bucket's, window by window."""

    def lower(window: Window) -> Decimal | None:
        both = (caps.of(window), ledger.caps.caps().of(window) if ledger.caps else None)
        return min((cap for cap in both if cap is not None), default=None)

    return Caps(lower("run"), lower("day"), lower("month"), lower("total"))


def set_caps(ledger: Ledger, caps: SharedCaps) -> Ledger:
    """Puts caps in the place of those that are there, which stay on record."""
    earlier = (*ledger.earlier_caps, *((ledger.caps,) if ledger.caps else ()))[-KEPT_CAPS:]
    return ledger.model_copy(update={"caps": caps, "earlier_caps": earlier})


def exposure(ledger: Ledger, window: Window, now: datetime, *, run_id: str = "", pretend: bool = False) -> Exposure:
    """What is spent and held in the `window` that `now` falls into (for `run`: by `run_id`), in real dollars or in
    pretended ones."""
    if window == "run":
        mine = [entry for key, entry in ledger.runs.items() if run_id and run_of(key) == run_of(run_id)]
        return Exposure(sum((entry.spent for entry in mine), ZERO), sum((entry.held for entry in mine), ZERO))
    key = key_of(window, now)
    runs = [e for e in ledger.runs.values() if e.pretend is pretend and key_of(window, e.held_at) == key]
    spent, held = sum((entry.spent for entry in runs), ZERO), sum((entry.held for entry in runs), ZERO)
    costs = [cost for cost in counted(ledger).values() if cost.pretend is pretend]
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
) -> Approved | Refused:
    """Whether a run that can cost at most `ceiling` fits under every cap, the client's own and the bucket's. A run that
    already holds something (`run_id`) needs only the difference, in the windows of its first hold. A resumption
    (`hold_key`) is charged to the day on which it is made, and to the window `run` with all that the run cost before.
    """
    mine = ledger.runs.get(run_id)
    at, already = (mine.held_at, mine.held) if mine else (now, ZERO)
    headroom: dict[str, Decimal] = {}
    refusals: list[Refused] = []
    shared = ledger.caps.caps() if ledger.caps else Caps()
    for window in WINDOWS:
        cap = binding(ledger, caps).of(window)
        if cap is None:
            continue
        now_in = exposure(ledger, window, at, run_id=run_id, pretend=pretend)
        left = cap - (now_in.total - already) - ceiling
        headroom[window] = left
        if left < 0:
            own = cap == caps.of(window) or cap != shared.of(window)
            by = "" if own or ledger.caps is None else ledger.caps.by
            refusals.append(Refused(window, cap, now_in.spent, now_in.held, ceiling, -left, by))
    if refusals:
        return max(refusals, key=lambda refused: (refused.short_by, -WINDOWS.index(refused.window)))
    return Approved(hold=ceiling, headroom=headroom)


def headroom(ledger: Ledger, caps: Caps, now: datetime, *, pretend: bool = False) -> tuple[Decimal, Window] | None:
    """The most that a new run may hold, and the window that says so; None when nothing is capped."""
    both = binding(ledger, caps)
    left = [
        (cap - exposure(ledger, window, now, pretend=pretend).total, window)
        for window in WINDOWS
        if (cap := both.of(window)) is not None
    ]
    return min(left, key=lambda pair: (pair[0], WINDOWS.index(pair[1]))) if left else None


@dataclass(frozen=True, slots=True)
class HoldTerms:
    """What a hold is for, and the caps that it was taken under."""

    gpu: str = ""
    note: str = ""
    caps: Caps | None = None
    pretend: bool = False


def hold(
    ledger: Ledger, run_id: str, ceiling: Decimal, ttl_s: int, now: datetime, terms: HoldTerms = HoldTerms()
) -> Ledger:
    """Takes a hold. A second hold for the same run raises the first, and never lowers it; one for a run that is
    settled changes nothing. That months were archived by a client whose clock is ahead keeps nobody from a hold."""
    entry = ledger.runs.get(run_id)
    if entry is None:
        if "+" not in run_id and is_archived(ledger, run_id) and key_of("month", now) >= ledger.archived_before:
            return ledger
        caps = terms.caps
        under = {window: cap for window in WINDOWS[1:] if caps and (cap := caps.of(window)) is not None}
        entry = Entry(
            hold_usd=ceiling, held_at=now, ttl_s=ttl_s, gpu=terms.gpu, note=terms.note, caps=under,
            pretend=terms.pretend,
        )  # fmt: skip
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
        if is_archived(ledger, run_id):
            return corrected(ledger, run_id, actual)
        entry = Entry(hold_usd=ZERO, held_at=now, note="settled without a hold")
    if entry.settled_usd is not None and entry.settled_usd >= actual:
        return ledger
    return compact(with_run(ledger, run_id, entry.model_copy(update={"settled_usd": actual, "settled_at": now})), now)


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
    """Records a cost that is not a machine. The same `id` again changes nothing."""
    if id in ledger.costs:
        return ledger
    cost = Cost(usd=usd, at=now, category=category, note=note, pretend=pretend)
    return compact(ledger.model_copy(update={"costs": {**ledger.costs, id: cost}}), now)


def take_back(ledger: Ledger, cost_id: str, note: str, now: datetime, id: str) -> Ledger | None:  # noqa: A002
    """Undoes a cost that was added by hand, by an entry that says so. The same again changes nothing; None when there
    is no such cost, or when it is archived."""
    cost = ledger.costs.get(cost_id)
    if cost is None or cost.takes_back:
        return None
    if cost_id not in counted(ledger):
        return ledger
    entry = Cost(usd=cost.usd, at=now, category=cost.category, note=note, takes_back=cost_id, pretend=cost.pretend)
    return ledger.model_copy(update={"costs": {**ledger.costs, id: entry}})
