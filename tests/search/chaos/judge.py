"""The promises, judged by what the cloud itself knows: its bill, its machines, and what it was asked for.

It shares no code with what it judges: money is added up from the meter's accounts, and the ledger is read as JSON, as
anybody would who finds it in the bucket. `tests/unit/test_architecture.py` keeps it so.

What may be spent is known without any ledger: what every machine has cost, and what those that live can still cost
until the server's deadline. A launch is approved against all that others hold, and a hold is no less than what its
machines can cost; so whatever the order of events, that sum never passes the caps of those who launched.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from orchestrator.embedded.meter import Account, BillRow
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.embedded.vm import EmbeddedVm
from tests.search.chaos.deeds import Deeds

NAMES: Final = (
    "VMs alive after the last deadline",
    "VMs created without a server-side deadline",
    "VMs that no reaper would know by their labels",
    "runs whose metered cost exceeded the held ceiling",
    "windows over their cap at any instant, by the bill",
    "VMs alive under a hold that was released",
    "measurements finished on a VM and missing or altered after fetch",
    "cases measured again after a resume",
    "cases lost by one machine, beyond the one in progress",
    "runs that failed without a diagnosis",
    "runs that no client could bring to an end",
    "runs whose settled cost is not the metered one",
    "machines reaped that a live run owned",
    "things run that came from the bucket",
    "status, reap, stop or fetch that crashed or gave up",
    "objects that a host stored and may not store",
    "runs on hosts that rented a machine, or cost what no owner said",
    "runs left on a host that is there again",
    "machines that may live longer than was held for, or cost more",
    "requests whose id is not that of their retry",
)
(
    LEAKED, UNBOUNDED, UNLABELLED, OVERSPENT, OVER_CAP, RELEASED, MISSING, AGAIN, LOST, UNDIAGNOSED, UNENDED, UNSETTLED,
    REAPED, OBEYED, CRASHED, FOREIGN, RENTED, LEFT, BEYOND, REPEATED,
) = NAMES  # fmt: skip
WINDOWS: Final = ("run", "day", "month", "total")
FORMS: Final = {"day": "2026-11-21", "month": "2026-11"}
"""The part of a time in a ledger that says in which window of the kind it is."""
LEDGER: Final = "ledger/ledger.json"
CENT: Final = Decimal("0.01")
ROUNDING: Final = Decimal("0.00001")
"""Every machine is rounded to six places, up in a hold and half up in a bill."""
LATENESS: Final = timedelta(seconds=30)
"""A deadline may fire so late; it is part of what a machine can cost."""
RECENT: Final = 12
"""So many of the files that were offered last are looked for again at each moment; all of them at the end."""
GENERATIONS: Final = 20
"""More often than that no run of a scenario is resumed."""
EXPLAINS_ITSELF: Final = frozenset({"succeeded", "stopped", "refused"})


class Broken(AssertionError):
    """A promise does not hold."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


def hold(promise: str, true: bool, detail: str) -> None:
    if not true:
        raise Broken(promise, detail)


@dataclass(frozen=True, slots=True)
class Launching:
    """Somebody sets out to launch or resume a run, at a moment, under caps of their own (the bucket's among them)."""

    run_id: str
    at: datetime
    caps: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run says of itself when everything is over."""

    run_id: str
    outcome: str
    over: bool
    diagnosed: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger has of one hold."""

    held: Decimal
    settled: Decimal | None
    ttl_s: int = 0
    """The deadline of the machines that it was held for."""
    key: str = ""
    held_at: str = ""

    @property
    def run_id(self) -> str:
        return self.key.partition("+")[0]

    def in_window_of(self, other: Entry, window: str) -> bool:
        """Whether both count in one window of this kind."""
        if window == "run":
            return self.run_id == other.run_id
        return window == "total" or self.held_at[: len(FORMS[window])] == other.held_at[: len(FORMS[window])]


def books(data: bytes) -> dict[str, list[Entry]] | None:
    """By run, what a ledger says of it; None for what is none."""
    try:
        runs = json.loads(data)["runs"]
        found: dict[str, list[Entry]] = {}
        for key, entry in runs.items():
            settled = entry["settled_usd"]
            one = Entry(
                Decimal(entry["hold_usd"]), None if settled is None else Decimal(settled), int(entry.get("ttl_s") or 0),
                key, str(entry.get("held_at")),
            )  # fmt: skip
            found.setdefault(key.partition("+")[0], []).append(one)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return found


class Judge:
    """Watches one scenario: its runs, in its bucket, on a cloud that may have seen others before."""

    def __init__(
        self,
        cloud: EmbeddedCloud,
        bucket: str,
        runs: Iterable[str],
        told: tuple[str, str],
        hosted: Mapping[str, Decimal] | None = None,
        forged: Sequence[tuple[str, bytes]] = (),
        *,
        past: Decimal = Decimal(0),
        attempts: int = 1,
    ) -> None:
        self.cloud = cloud
        self.bucket = bucket
        self.runs = frozenset(runs)
        self.told = told
        """The startup script and the payload's sha256 that every machine must have been given: nothing else may run."""
        self.hosted = hosted or {}
        """The runs that are on machines of the user's own, with what their owner says that an hour there counts."""
        self.forged = forged
        """Name and content of all that hosts have offered so far, and that may never stand in the bucket."""
        self.past = past
        """The dollars that the bucket's runs of earlier months have cost."""
        self.attempts = attempts
        """How many machines each launch may request, and holds for."""
        self.damaged = False
        """Whether the ledger was damaged: what it says then may be less than what it said before."""
        self.asked: dict[str, int] = {}
        """For how many seconds a client last asked for each machine, by name."""
        self.looked = 0
        self.launchings: list[Launching] = []
        self.entries: dict[str, list[Entry]] = {}
        self.made_at: dict[str, datetime] = {}
        """When the cloud took up each machine, by the meter's name for it."""
        self.excused: set[str] = set()
        """Runs with a request that was on its way for longer than anybody waits for one."""
        self.generation = 0
        self.checks = 0
        self._seen: tuple[object, ...] = ()
        """All that the last check depended on."""

    # --- what there is ----------------------------------------------------------------------------------------------

    def accounts(self) -> list[Account]:
        return [one for one in self.cloud.meter.accounts.values() if one.run_id in self.runs]

    def bill(self) -> list[BillRow]:
        now = self.cloud.timeline.now()
        return [BillRow.of(account, now) for account in self.accounts()]

    def machines(self) -> list[EmbeddedVm]:
        """Those that live."""
        return [vm for vm in self.cloud.fleet.all() if vm.run_id in self.runs]

    def alive(self) -> list[str]:
        return [vm.name for vm in self.machines()]

    # --- judged at every moment -------------------------------------------------------------------------------------

    def at_every_moment(self) -> None:
        """What must hold between any two calls of any client."""
        self.checks += 1
        now, machines, accounts = self.cloud.timeline.now(), self.machines(), self.accounts()
        seen = self._all_that_is_checked(now, machines, accounts)
        if seen == self._seen:
            return  # nothing has changed since the last check, as between the answer to a call and the next call
        self._seen = ()  # of a check that fails nothing is kept
        self._read_the_ledger()
        living = {vm.account: vm for vm in machines}
        for account in accounts:
            hold(RENTED, account.run_id not in self.hosted, f"{account.vm} was rented for a run on a host")
        self._nothing_forged(self.forged[max(self.looked - RECENT, 0) :])
        self.looked = len(self.forged)
        for vm in living.values():
            self._in_order(vm, now)
        for account in accounts:
            if account.vm_id not in self.made_at and account.vm_id in living:
                self._requested_by_its_id(living[account.vm_id])
            self.made_at.setdefault(account.vm_id, now)
            hold(UNBOUNDED, account.has_deadline, account.vm)
        self._no_run_over_its_hold(accounts, now)
        worst = [(one, self._at_worst(one, living.get(one.vm_id), now)) for one in accounts]
        for one, usd in worst:
            held = [entry.held for entry in self.entries.get(one.run_id or "", ())]
            most = max(held, default=None)
            launched = [launching for launching in self.launchings if launching.run_id == one.run_id]
            each = usd * self.attempts if len(launched) == 1 else usd  # a resumption may hold for fewer
            right = most is None or each <= most + self.attempts * ROUNDING
            hold(BEYOND, right, f"{one.vm} can cost ${usd} alone, and ${each} were to be held: ${most}")
        self._no_run_beyond_its_hold(worst)
        self._no_window_over_its_cap([(one, usd) for one, usd in worst if one.run_id not in self.excused])
        self._seen = seen

    def _all_that_is_checked(
        self, now: datetime, machines: Sequence[EmbeddedVm], accounts: Sequence[Account]
    ) -> tuple[object, ...]:
        """Everything that a check looks at. Accounts are replaced when they change, and the bucket counts its changes."""
        living = [(vm.account, vm.admitted, vm.status, vm.deadline_at, dict(vm.labels)) for vm in machines]
        told = len(self.launchings), len(self.forged), dict(self.asked), set(self.excused), self.damaged
        return (now, living, list(map(id, accounts)), self.cloud.storage.store.index.total_changes, told)

    def _nothing_forged(self, offered: Iterable[tuple[str, bytes]]) -> None:
        store = self.cloud.storage.store
        for name, content in offered:
            found = store.find(self.bucket, name)
            if found is not None and found.size == len(content):
                with store.open(found) as file:
                    hold(FOREIGN, file.read() != content, name)

    def _in_order(self, vm: EmbeddedVm, now: datetime) -> None:
        admitted, entries = vm.admitted, self.entries.get(vm.run_id or "", [])
        hold(UNBOUNDED, admitted.max_run_s is not None and admitted.termination_action == "DELETE", vm.name)
        tool, bucket = vm.labels.get("bench-tool"), vm.labels.get("bench-bucket", "")
        hold(UNLABELLED, tool == "spotbench" and bucket.startswith(self.bucket), f"{vm.name}: {dict(vm.labels)}")
        runs = admitted.metadata.get("startup-script"), json.loads(admitted.metadata["bench-payload"])["sha256"]
        hold(OBEYED, runs == self.told, f"{vm.name} was told to run {runs}")
        lives_s = admitted.max_run_s
        held_for = max((entry.ttl_s for entry in entries), default=0)
        short = not held_for or lives_s is None or lives_s <= held_for
        hold(BEYOND, short, f"{vm.name} may live for {lives_s} s, held for {held_for}")
        asked = self.asked.get(vm.name)
        hold(UNBOUNDED, asked in (None, lives_s), f"{vm.name} lives for {lives_s} s, a client asked for {asked}")
        late = vm.deadline_at is not None and now > vm.deadline_at + LATENESS
        hold(LEAKED, not late, f"{vm.name} at {now}, deadline {vm.deadline_at}")
        released = bool(entries) and all(entry.settled is not None for entry in entries)
        hold(RELEASED, not released or vm.run_id in self.excused, f"{vm.name} is {vm.status}, its run is settled")

    def _at_worst(self, account: Account, vm: EmbeddedVm | None, now: datetime) -> Decimal:
        """What a machine has cost, or what it can still come to if it lives."""
        if vm is None:
            return account.usd(now)
        ends = (vm.deadline_at or now + timedelta(seconds=vm.admitted.max_run_s or 0)) + LATENESS
        return replace(account, started_at=account.started_at or now, stopped_at=None, ended_at=ends).usd(ends)

    def _no_run_over_its_hold(self, accounts: Iterable[Account], now: datetime) -> None:
        spent: Counter[str] = Counter()
        for account in accounts:
            spent[account.run_id or ""] += account.usd(now)  # type: ignore[assignment]
        for run_id, usd in spent.items():
            held = sum((entry.held for entry in self.entries.get(run_id, ())), Decimal(0))
            hold(OVERSPENT, Decimal(usd) <= held, f"{run_id} has cost ${usd}; ${held} was held")

    def _no_run_beyond_its_hold(self, worst: Iterable[tuple[Account, Decimal]]) -> None:
        """What the machines of a run have cost, and what those that live can still cost, was held."""
        totals: dict[str, list[Decimal]] = {}
        for account, usd in worst:
            totals.setdefault(account.run_id or "", []).append(usd)
        for run_id in totals.keys() - self.excused:
            held = sum((entry.held for entry in self.entries.get(run_id, ())), Decimal(0))
            total = sum(totals[run_id], Decimal(0)) - ROUNDING * len(totals[run_id])
            hold(BEYOND, total <= held, f"the machines of {run_id} can cost ${total} together, held ${held}")

    def _no_window_over_its_cap(self, worst: list[tuple[Account, Decimal]]) -> None:
        slack = ROUNDING * (1 + len(worst))
        for run_id in {account.run_id for account, _ in worst}:
            caps = [one.caps.get("run") for one in self.launchings if one.run_id == run_id]
            total = sum((usd for account, usd in worst if account.run_id == run_id), Decimal(0))
            self._within("run", highest(caps), total - slack)
        for window in WINDOWS[1:]:
            placed = [(account, usd, self._charged_to(window, account)) for account, usd in worst]
            for key in {key for *_, key in placed if key}:
                mine = [(account, usd) for account, usd, where in placed if where == key]
                cap = highest([one.caps.get(window) for one in self.launchings])
                extra = self.past - slack if window == "total" else -slack
                self._within(window, cap, sum((usd for _, usd in mine), Decimal(0)) + extra)
                for one in self.launchings:
                    self._as_approved(one, window, mine, extra)

    def _as_approved(
        self, one: Launching, window: str, machines: list[tuple[Account, Decimal]], extra: Decimal
    ) -> None:
        """Who launches under a cap that is lower than others' counts all that was there before, and itself."""
        cap, mine = one.caps.get(window), [usd for account, usd in machines if account.run_id == one.run_id]
        if cap is None or not mine or sum(other.run_id == one.run_id for other in self.launchings) > 1:
            return
        before = [usd for account, usd in machines if self.made_at[account.vm_id] < one.at]
        self._within(window, cap, sum(before, Decimal(0)) + sum(mine, Decimal(0)) + extra)

    @staticmethod
    def _within(window: str, cap: Decimal | None, total: Decimal) -> None:
        hold(OVER_CAP, cap is None or total <= cap, f"machines cost and can cost ${total} in the {window}, cap ${cap}")

    def _charged_to(self, window: str, account: Account) -> str:
        """The window in which a machine's money was held: between the first launch of its run and its request. Empty
        where midnight lies between the two, for then either is right."""
        if window == "total":
            return window
        form = "%Y-%m-%d" if window == "day" else "%Y-%m"
        begun = min((one.at for one in self.launchings if one.run_id == account.run_id), default=None)
        made = self.made_at[account.vm_id]
        return f"{made:{form}}" if begun is not None and f"{begun:{form}}" == f"{made:{form}}" else ""

    def _read_the_ledger(self) -> None:
        """As it is in the bucket now. One that cannot be read leaves what was known before."""
        store = self.cloud.storage.store
        found = store.find(self.bucket, LEDGER)
        if found is None or found.generation == self.generation:
            return
        self.generation = found.generation
        with store.open(found) as file:
            known = books(file.read())
        if known:
            if not self.damaged:
                self._every_hold_fits(known)
            self.entries = known

    def _every_hold_fits(self, books: Mapping[str, Sequence[Entry]]) -> None:
        """What is newly held fits under every cap of whoever launches, beside all that is spent and held; and what was
        settled is never settled for less."""
        before = {entry.key: entry for entries in self.entries.values() for entry in entries}
        entries = [entry for of_run in books.values() for entry in of_run]
        for entry in entries:
            was = before.get(entry.key)
            if was is not None and was.settled is not None:
                lowered = entry.settled is None or entry.settled < was.settled
                hold(UNSETTLED, not lowered, f"{entry.key} was ${was.settled}, then ${entry.settled}")
            if entry.settled is not None or (was is not None and entry.held <= was.held) or not entry.held:
                continue
            for window in WINDOWS:
                cap = highest([one.caps.get(window) for one in self.launchings if one.run_id == entry.run_id])
                shared = [other for other in entries if other.in_window_of(entry, window)]
                total = sum((other.held if other.settled is None else other.settled for other in shared), Decimal(0))
                total += self.past if window == "total" else 0
                right = cap is None or total <= cap
                hold(OVER_CAP, right, f"${entry.held} held for {entry.key} makes ${total} in the {window}, cap ${cap}")

    # --- judged of what somebody does -------------------------------------------------------------------------------

    def of_a_request(self, name: str, zone: str, kind: tuple[str, str], request_id: str) -> None:
        """A request for a machine has the id that follows from what it is for, so that a retry makes no second one.
        `kind` is the machine type and how it is paid for."""
        run_id, _, attempt = name.removeprefix("bench-").rpartition("-")
        what = f"spotbench:{run_id}/{zone}/{attempt}/insert/{kind[0]}/{kind[1]}/"
        right = {str(uuid5(NAMESPACE_URL, f"{what}{generation}")) for generation in range(GENERATIONS)}
        hold(REPEATED, request_id in right, f"{name} in {zone} was requested as {request_id}")

    def _requested_by_its_id(self, vm: EmbeddedVm) -> None:
        """The cloud has seen the request for a machine under that id too."""
        operation = self.cloud.fleet.operations.get(vm.zone, vm.insert_operation) or {}
        model = "FLEX_START" if vm.admitted.flex else "SPOT" if vm.admitted.spot else "STANDARD"
        kind = vm.admitted.machine.name, model
        self.of_a_request(vm.name, vm.zone, kind, operation.get("clientOperationId", ""))

    def of_a_survey(self, before: Iterable[str], listed: Iterable[str], neighbour: str, *, orphan: bool) -> None:
        """A reaper sees each machine that was there before it looked and still is, and leaves other buckets' alone."""
        unseen = set(before) & set(self.alive()) - set(listed)
        hold(UNLABELLED, not unseen, f"a reaper did not list {sorted(unseen)}")
        hold(REAPED, not orphan, f"{neighbour} is of another bucket")

    def of_a_reaper(self, machine: str, *, orphan: bool, owned: bool, deeds: Deeds) -> None:
        """A machine that is at work for a live run is nobody's to take."""
        busy_since = deeds.at_work.get(machine)
        busy = busy_since is not None and self.cloud.timeline.now() - busy_since < timedelta(minutes=3)
        hold(REAPED, not (orphan and busy and owned), f"{machine} was at work")

    # --- judged at the end ------------------------------------------------------------------------------------------

    def at_the_end(
        self, runs: Iterable[Ended], deeds: Deeds, fetched: Mapping[str, Mapping[str, bytes]], *, exact: bool = True
    ) -> None:
        """What must hold when every deadline has passed and somebody has looked once more. `exact` is False where
        somebody has lied about when machines ended: then what was metered is spent, and no more than was held."""
        hold(LEAKED, not self.alive(), ", ".join(self.alive()))
        self._nothing_forged(self.forged)
        for stay in deeds.stays:
            hold(OBEYED, stay.told == self.told, f"{stay.vm} was told to run {stay.told} on a host")
        for run in runs:
            hold(UNENDED, run.over, f"{run.run_id} is {run.outcome}")
            if run.outcome not in EXPLAINS_ITSELF:
                hold(UNDIAGNOSED, run.diagnosed, f"{run.run_id} {run.outcome}")
            if run.run_id in self.hosted:
                self._costs_what_its_owner_says(run.run_id, deeds)
            elif run.run_id not in self.excused:
                self._settled_as_metered(run.run_id, exact=exact)
            self._nothing_lost(run.run_id, deeds, fetched.get(run.run_id, {}))

    def _settled_as_metered(self, run_id: str, *, exact: bool) -> None:
        entries = self.entries.get(run_id, [])
        rows = [row for row in self.bill() if row.run_id == run_id]
        metered = sum((row.usd for row in rows), Decimal(0))
        for entry in entries:
            hold(UNSETTLED, entry.settled is not None, f"{run_id} still holds ${entry.held}")
        spent = sum((entry.settled or Decimal(0) for entry in entries), Decimal(0))
        # A machine that vanished without a trace is charged up to the latest it can have lived, and one that was
        # deleted before it ran, of which the operation log says the same as of one that ran for a second, the least. No
        # log says when a flex-start machine began to run: one that nobody saw is charged as long as it can have run.
        flexible = any(row.provisioning == "flex_start" for row in rows)
        unsure = not exact or flexible or any(row.ended_by == "lost" or row.started_at is None for row in rows)
        right = unsure or abs(spent - metered) < CENT / 2
        hold(UNSETTLED, right and spent >= metered - CENT / 2, f"{run_id}: ${spent} for ${metered}")

    def _costs_what_its_owner_says(self, run_id: str, deeds: Deeds) -> None:
        """No machine of a cloud, and at least the time on the host at its owner's price, at most what was held."""
        entries, rate = self.entries.get(run_id, []), self.hosted[run_id]
        there = {stay.vm for stay in deeds.stays}
        strange = sorted({vm for run, vm, _ in deeds.started if run == run_id} - there)
        hold(RENTED, not strange, f"{run_id} was measured on {strange}")
        for entry in entries:
            hold(UNSETTLED, entry.settled is not None, f"{run_id} still holds ${entry.held}")
        spent = sum((entry.settled or Decimal(0) for entry in entries), Decimal(0))
        held = sum((entry.held for entry in entries), Decimal(0))
        stays = [stay for stay in deeds.stays if stay.run == run_id and stay.ended is not None]
        seconds = sum(((stay.ended or stay.began) - stay.began).total_seconds() for stay in stays)
        least = rate * Decimal(seconds) / 3600
        hold(RENTED, least - CENT / 2 <= spent <= held, f"{run_id}: ${spent} for ${least}, ${held} held")

    def _nothing_lost(self, run_id: str, deeds: Deeds, fetched: Mapping[str, bytes]) -> None:
        stored = [(vm, case) for run, vm, case in deeds.stored if run == run_id]
        for _, case in stored:
            whole = fetched.get(case) in deeds.contents.get((run_id, case), set())
            hold(MISSING, whole, f"{run_id}: {case} is {'altered' if case in fetched else 'missing'}")
        before: set[str] = set()
        for machine in dict.fromkeys(vm for run, vm, _ in deeds.started if run == run_id):
            began = [case for run, vm, case in deeds.started if (run, vm) == (run_id, machine)]
            kept = {case for vm, case in stored if vm == machine}
            unfinished = [case for case in began if case not in kept]
            hold(LOST, len(unfinished) <= 1, f"{machine}: {began} begun, {kept} stored")
            again = before & set(began) | {case for case, times in Counter(began).items() if times > 1}
            hold(AGAIN, not again, f"{machine} measured {sorted(again)} again")
            before |= kept


def highest(caps: Iterable[Decimal | None]) -> Decimal | None:
    """The cap that no launch of several passes: the highest; None where one of them has none."""
    known = list(caps)
    return None if not known or None in known else max(cap for cap in known if cap is not None)
