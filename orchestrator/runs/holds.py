"""Holds money before a machine is asked for, and replaces each hold by what was spent: for every kind of paid work.

`Accounts` is the only way to change the ledger: after every change the alert thresholds are checked, and due alerts are
sent. No other module of `runs` authorizes, holds or settles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TypeVar

from orchestrator.core.errors import BenchError, BudgetExceeded
from orchestrator.core.ledger.alerts import Alert, about_to_say, alerts_due, mark_alerted
from orchestrator.core.ledger.budget import (
    WINDOWS,
    Caps,
    HoldRefused,
    HoldTerms,
    Ledger,
    SharedCaps,
    add_cost,
    authorize,
    hold,
    lower_caps,
    set_caps,
    take_back,
)
from orchestrator.core.ledger.budget import settle as settle_entry
from orchestrator.core.ledger.unlisted import CATEGORY, may_settle
from orchestrator.core.setup.steps import ShareCaps
from orchestrator.ports import Bucket, Clock, Notice, Notifier
from orchestrator.store.documents import LedgerStore

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Accounts:
    """The bucket's ledger as one client keeps it: under its own caps (and the bucket's, where those are lower), with
    its own ways of telling a person. Nothing of the two is ever taken from the bucket."""

    ledger: LedgerStore
    caps: Caps
    notifier: Notifier
    clock: Clock

    def change(self, change: Callable[[Ledger], Ledger | R]) -> Ledger | R:
        """Stores what `change` makes of the ledger, with the alerts that it is time for noted in it, says them, and
        notes that they are said: whoever dies in between leaves them to the next one. A
        refusal is returned and nothing is stored or said. Raises `LedgerUnreadable`, `LedgerMissing`, `Unavailable`."""
        due: tuple[Alert, ...] = ()

        def judged(ledger: Ledger) -> Ledger | R:
            nonlocal due
            wanted = change(ledger)
            if not isinstance(wanted, Ledger):
                return wanted
            now = self.clock.now()
            due = alerts_due(wanted, self.caps, now)
            return about_to_say(wanted, due, now) if due else wanted

        answer = self.ledger.update(judged)
        if isinstance(answer, Ledger):
            send_alerts(self.notifier, due)
            if due:
                return self._said(answer, due)
        return answer

    def _said(self, stored: Ledger, due: tuple[Alert, ...]) -> Ledger:
        try:
            return self.ledger.update(lambda ledger: mark_alerted(ledger, due))
        except BenchError:  # the money is in order; it is said once more, by the next one
            return stored


def send_alerts(notifier: Notifier, due: tuple[Alert, ...]) -> None:
    """Sends each alert once, to everybody who asked for alerts."""
    for alert in due:
        data = {"window": alert.window, "key": alert.key, "threshold_percent": str(alert.threshold)}
        money = {"spent_usd": str(alert.spent), "held_usd": str(alert.held), "cap_usd": str(alert.cap)}
        notifier.notify(Notice(alert.kind, alert.title, alert.text, data | money))


# --- to hold, and to give back ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The most dollars that a piece of paid work can cost."""

    key: str
    usd: Decimal
    subject: str
    """What can cost so much, in a refusal: `this run`."""
    ttl_s: int = 0
    gpu: str = ""
    note: str = ""
    pretend: bool = False
    storage: bool = False
    """Whether it is for an image's storage: that is set aside as a cost, and no cap of a run counts for it."""
    prepaid: bool = False
    """Whether another hold pays for it: then it is an entry of no dollars, which no cap refuses."""
    remedy: str = ""
    """What to do about a refusal, where raising the cap is not the first thing."""


def acquire(accounts: Accounts, request: HoldRequest) -> None:
    """Hold the dollars of a request, once however often it is called. Raise `BudgetExceeded` if they do not fit under
    every cap; then nothing has changed."""
    now = accounts.clock.now()
    _raise_refusal(accounts.change(lambda ledger: _place(ledger, accounts.caps, request, now)), request)


def check(accounts: Accounts, request: HoldRequest) -> None:
    """Raise `BudgetExceeded` if a request could not be held now. It holds nothing."""
    _raise_refusal(_place(accounts.ledger.read(), accounts.caps, request, accounts.clock.now()), request)


def settle(accounts: Accounts, key: str, usd: Decimal, attempt: int, insert_limit_s: float) -> Ledger | None:
    """Replace a hold by the dollars that were spent. None if a machine may have been asked for after number `attempt`,
    the last one that the caller knows of; then nothing has changed."""
    now = accounts.clock.now()

    def change(ledger: Ledger) -> Ledger | None:
        return settle_entry(ledger, key, usd, now) if may_settle(ledger, key, attempt, now, insert_limit_s) else None

    return accounts.change(change)


def settle_shares(accounts: Accounts, shares: Mapping[str, Decimal]) -> None:
    """Replace several holds by what was spent under each, at once. The caller knows that no machine is left."""
    now = accounts.clock.now()

    def change(ledger: Ledger) -> Ledger:
        for key, usd in shares.items():
            ledger = settle_entry(ledger, key, usd, now)
        return ledger

    accounts.change(change)


def release_storage(accounts: Accounts, key: str, note: str) -> None:
    """Give back what is set aside for an image's storage."""
    now = accounts.clock.now()
    accounts.change(lambda ledger: take_back(ledger, key, note, now, f"{key}-back") or ledger)


def settle_storage(accounts: Accounts, old: str, new: str, usd: Decimal, note: str) -> None:
    """Replace what is set aside for an image's storage under `old` by a cost under `new`, once."""
    now = accounts.clock.now()

    def change(ledger: Ledger) -> Ledger:
        before = ledger.costs.get(old)
        base = take_back(ledger, old, note, now, f"{old}-back") or ledger
        return add_cost(base, CATEGORY, usd, note, now, new, pretend=before is not None and before.pretend)

    accounts.change(change)


def _place(ledger: Ledger, caps: Caps, request: HoldRequest, now: datetime) -> Ledger | HoldRefused:
    caps = replace(caps, run=None) if request.storage else caps
    verdict = authorize(ledger, caps, request.usd, now, run_id=request.key, pretend=request.pretend)
    if isinstance(verdict, HoldRefused) and not request.prepaid:
        return verdict
    if request.storage:
        return add_cost(ledger, CATEGORY, request.usd, request.note, now, request.key, pretend=request.pretend)
    under = None if request.prepaid else lower_caps(ledger, caps)
    terms = HoldTerms(request.gpu, request.note, under, request.pretend)
    return hold(ledger, request.key, request.usd, request.ttl_s, now, terms)


def _raise_refusal(answer: Ledger | HoldRefused, request: HoldRequest) -> None:
    if isinstance(answer, HoldRefused):
        raise BudgetExceeded(
            f"{request.subject} can cost up to ${answer.needs}, which is ${answer.short_by} more than the cap of "
            f"${answer.cap} for {answer.window} leaves (${answer.spent} spent, ${answer.held} held by other runs)",
            hint=request.remedy or answer.remedy,
        )


# --- the caps that a set-up gives to a bucket: those that nobody has set yet ------------------------------------------


@dataclass(frozen=True, slots=True)
class CapSharing:
    """`accounts` are this user's, whatever bucket they are of; `by` is who this is."""

    accounts: Accounts
    by: str

    def there(self, bucket: Bucket) -> Mapping[str, str]:
        """The bucket's caps by window; none where they cannot be seen."""
        try:
            caps = LedgerStore(bucket, self.accounts.clock).read().caps
        except BenchError:
            return {}
        cap_by_window = {window: caps.caps().of(window) if caps is not None else None for window in WINDOWS}
        return {window: str(cap) for window, cap in cap_by_window.items() if cap is not None}

    def share(self, bucket: Bucket, step: ShareCaps) -> None:
        """Sets what the step names and nobody has set: a cap that is there is changed by `bench budget set` alone.
        Raises `LedgerUnreadable`, `LedgerMissing`, `PermissionDenied`, `Unavailable`."""
        here = replace(self.accounts, ledger=LedgerStore(bucket, self.accounts.clock))
        now = self.accounts.clock.now()

        def change(ledger: Ledger) -> Ledger:
            there = {window: ledger.caps.caps().of(window) if ledger.caps else None for window in WINDOWS}
            new = {window: usd for window, usd in step.caps if there[window] is None}
            if not new:
                return ledger
            return set_caps(ledger, SharedCaps.model_validate({**there, **new, "by": self.by, "at": now}))

        here.change(change)
