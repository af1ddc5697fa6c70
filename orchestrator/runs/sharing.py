"""The caps that a set-up gives to a bucket: those that nobody has set yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.core.errors import BenchError
from orchestrator.core.ledger.budget import WINDOWS, Ledger, SharedCaps, set_caps
from orchestrator.core.setup.steps import ShareCaps
from orchestrator.ports import Bucket
from orchestrator.runs.accounts import Accounts
from orchestrator.store.ledger import LedgerStore


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
