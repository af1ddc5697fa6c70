"""The promises, asserted against the embedded cloud's own meter and list of machines; our ledger is what is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal

from orchestrator.core.ledger.budget import WINDOWS, Caps, Entry, Ledger, exposure
from orchestrator.core.market.machines import Instance
from orchestrator.core.naming import run_of
from orchestrator.core.run.diagnose import EXPLAINS_ITSELF
from orchestrator.core.run.fold import Run
from orchestrator.embedded.meter import BillRow
from orchestrator.embedded.server import EmbeddedCloud
from tests.chaos.guests import Deeds

NAMES = (
    "VMs alive after the last deadline",
    "VMs created without a server-side deadline",
    "runs whose metered cost exceeded the held ceiling",
    "windows over their cap at any instant",
    "VMs alive under a hold that was released",
    "measurements finished on a VM and missing after fetch",
    "cases measured again after a resume",
    "cases lost by one machine, beyond the one in progress",
    "runs that failed without a diagnosis",
    "runs that no client could bring to an end",
    "runs whose settled cost is not the metered one",
    "machines reaped that a live run owned",
)
(
    LEAKED, UNBOUNDED, OVERSPENT, OVER_CAP, RELEASED, MISSING, AGAIN, LOST, UNDIAGNOSED, UNENDED, UNSETTLED, REAPED,
) = NAMES  # fmt: skip
CENT = Decimal("0.01")
LATENESS = timedelta(seconds=30)
"""A deadline may fire so late."""


class Broken(AssertionError):
    """A promise does not hold."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


def hold(promise: str, true: bool, detail: str) -> None:
    if not true:
        raise Broken(promise, detail)


class Judge:
    """Watches one scenario: its runs, in its bucket, on a cloud that may have seen others before."""

    def __init__(self, cloud: EmbeddedCloud, caps: Caps) -> None:
        self.cloud = cloud
        self.caps = caps
        self.ledger = Ledger()
        self.runs: set[str] = set()
        self.checks = 0

    def bill(self) -> list[BillRow]:
        now = self.cloud.timeline.now()
        accounts = [one for one in self.cloud.meter.accounts.values() if one.run_id in self.runs]
        return [account.row(now) for account in accounts]

    def at_every_moment(self) -> None:
        """What must hold between any two calls of any client."""
        self.checks += 1
        rows = self.bill()
        for row in rows:
            hold(UNBOUNDED, row.has_deadline, row.vm)
        self._no_run_over_its_hold(rows)
        total = sum((row.usd for row in rows), Decimal(0))
        for window in WINDOWS[1:]:
            cap = self.caps.of(window)
            hold(OVER_CAP, cap is None or total <= cap, f"the meter says ${total} in the {window}; the cap is ${cap}")
        self._none_past_its_deadline()
        self._none_under_a_released_hold()

    def when_the_ledger_changes(self, ledger: Ledger) -> None:
        """What must hold of each ledger that anybody ever stores."""
        self.ledger = ledger
        for window in WINDOWS[1:]:
            cap = self.caps.of(window)
            seen = exposure(ledger, window, self.cloud.timeline.now())
            hold(
                OVER_CAP, cap is None or seen.total <= cap, f"${seen.spent} + ${seen.held} in the {window}, cap ${cap}"
            )
        self._none_under_a_released_hold()

    def at_the_end(self, runs: Iterable[Run], deeds: Deeds, fetched: dict[str, set[str]]) -> None:
        """What must hold when every deadline has passed and somebody has looked once more."""
        hold(LEAKED, not self.alive(), ", ".join(self.alive()))
        for run in runs:
            hold(UNENDED, run.over, f"{run.run_id} is {run.phase.value}")
            if run.phase not in EXPLAINS_ITSELF:
                hold(UNDIAGNOSED, bool(run.diagnoses), f"{run.run_id} {run.phase.value}")
            self._settled_as_metered(run)
            self._nothing_lost(run, deeds, fetched.get(run.run_id, set()))

    def of_a_reaper(self, orphan: bool, instance: Instance, live: Run | None, deeds: Deeds) -> None:
        """A machine that is at work for a live run is nobody's to take."""
        busy_since = deeds.at_work.get(instance.name)
        busy = busy_since is not None and self.cloud.timeline.now() - busy_since < timedelta(minutes=3)
        owned = live is not None and live.vm is not None and live.vm.name == instance.name and not live.finished
        hold(REAPED, not (orphan and busy and owned), f"{instance.name} was at work")

    def entries(self, run_id: str) -> list[Entry]:
        """What the ledger has of a run: one entry, and one more for each time that it was resumed after its end."""
        return [entry for key, entry in self.ledger.runs.items() if run_of(key) == run_id]

    def alive(self) -> list[str]:
        return [vm.name for vm in self.cloud.fleet.all() if vm.run_id in self.runs]

    def _no_run_over_its_hold(self, rows: Iterable[BillRow]) -> None:
        spent: Counter[str] = Counter()
        for row in rows:
            spent[row.run_id or ""] += row.usd  # type: ignore[assignment]
        for run_id, usd in spent.items():
            held = sum((entry.hold_usd for entry in self.entries(run_id)), Decimal(0))
            hold(OVERSPENT, Decimal(usd) <= held, f"{run_id} has cost ${usd}; ${held} was held")

    def _none_past_its_deadline(self) -> None:
        now = self.cloud.timeline.now()
        for vm in self.cloud.fleet.all():
            late = vm.deadline_at is not None and now > vm.deadline_at + LATENESS
            hold(LEAKED, vm.run_id not in self.runs or not late, f"{vm.name} at {now}, deadline {vm.deadline_at}")

    def _none_under_a_released_hold(self) -> None:
        for vm in self.cloud.fleet.all():
            entries = self.entries(vm.run_id or "")
            settled = bool(entries) and all(entry.settled_usd is not None for entry in entries)
            hold(RELEASED, not settled, f"{vm.name} is {vm.status}, and its run is settled")

    def _settled_as_metered(self, run: Run) -> None:
        entries = self.entries(run.run_id)
        metered = sum((row.usd for row in self.bill() if row.run_id == run.run_id), Decimal(0))
        for entry in entries:
            hold(UNSETTLED, entry.settled_usd is not None, f"{run.run_id} still holds ${entry.hold_usd}")
        spent = sum((entry.spent for entry in entries), Decimal(0))
        # A machine that vanished without a trace is charged up to the latest it can have lived, and one that was deleted
        # before it ran, of which the operation log says the same as of one that ran for a second, the least charge.
        unsure = any(vm.how == "lost" for vm in run.vms) or any(
            row.started_at is None for row in self.bill() if row.run_id == run.run_id
        )
        exact = unsure or abs(spent - metered) < CENT / 2
        hold(UNSETTLED, exact and spent >= metered - CENT / 2, f"{run.run_id}: ${spent} for ${metered}")

    def _nothing_lost(self, run: Run, deeds: Deeds, fetched: set[str]) -> None:
        stored = [(vm, case) for run_id, vm, case in deeds.stored if run_id == run.run_id]
        gone = {case for _, case in stored} - fetched
        hold(MISSING, not gone, f"{run.run_id}: {sorted(gone)}")
        before: set[str] = set()
        machines = dict.fromkeys(vm for _, vm in [(c, v) for r, v, c in deeds.started if r == run.run_id])
        for machine in machines:
            began = [case for r, vm, case in deeds.started if (r, vm) == (run.run_id, machine)]
            kept = {case for vm, case in stored if vm == machine}
            hold(
                LOST, len([case for case in began if case not in kept]) <= 1, f"{machine}: {began} begun, {kept} stored"
            )
            again = before & set(began)
            hold(AGAIN, not again, f"{machine} measured {sorted(again)} again")
            before |= kept
