"""The only way to change the ledger: after every change the alert thresholds are checked, and due alerts are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from orchestrator.core.errors import BenchError
from orchestrator.core.ledger.alerts import Alert, about_to_say, alerts_due, mark_alerted
from orchestrator.core.ledger.budget import WINDOWS, Caps, Ledger, SharedCaps, set_caps
from orchestrator.core.setup.steps import ShareCaps
from orchestrator.ports import Bucket, Clock, Notice, Notifier
from orchestrator.store.ledger import LedgerStore

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
            tell(self.notifier, due)
            if due:
                return self._said(answer, due)
        return answer

    def _said(self, stored: Ledger, due: tuple[Alert, ...]) -> Ledger:
        try:
            return self.ledger.update(lambda ledger: mark_alerted(ledger, due))
        except BenchError:  # the money is in order; it is said once more, by the next one
            return stored


def tell(notifier: Notifier, due: tuple[Alert, ...]) -> None:
    """Sends each alert once, to everybody who asked for alerts."""
    for alert in due:
        data = {"window": alert.window, "key": alert.key, "threshold_percent": str(alert.threshold)}
        money = {"spent_usd": str(alert.spent), "held_usd": str(alert.held), "cap_usd": str(alert.cap)}
        notifier.notify(Notice(alert.kind, alert.title, alert.text, data | money))


# The caps that a set-up gives to a bucket: those that nobody has set yet.


@dataclass(frozen=True, slots=True)
class Sharing:
    """`accounts` are this user's, whatever bucket they are of; `by` is who this is."""

    accounts: Accounts
    by: str

    def there(self, bucket: Bucket) -> Mapping[str, str]:
        """The bucket's caps by window; none where they cannot be seen."""
        try:
            caps = LedgerStore(bucket, self.accounts.clock).read().caps
        except BenchError:
            return {}
        found = {window: caps.caps().of(window) if caps is not None else None for window in WINDOWS}
        return {window: str(cap) for window, cap in found.items() if cap is not None}

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
