"""Observes a run, decides, acts and records, until the run is over. All decisions are in `core.run.decide`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid4, uuid5

from orchestrator.core.errors import (
    BenchError,
    BudgetExceeded,
    LocalError,
    NotFound,
    PermissionDenied,
    StillThere,
    Unavailable,
)
from orchestrator.core.host_answers import RUN_FILES
from orchestrator.core.hosts import is_host
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.ledger.unlisted import NotArmed, arm_request
from orchestrator.core.market.machines import NOT_SENT, CloudRefusal, Instance, InstanceRequest
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.names import Zone
from orchestrator.core.naming import attempt_of, cases_prefix, hold_key, instance_name
from orchestrator.core.run import decide as do
from orchestrator.core.run import events as ev
from orchestrator.core.run.diagnose import wants_diagnosis
from orchestrator.core.run.fold import GrowingLog, Phase, Run, Vm, replay
from orchestrator.core.run.status import encode_status, status_body, status_line
from orchestrator.ports import INTERRUPTION, Bucket, Clock, Cloud
from orchestrator.runs.holds import Accounts, settle
from orchestrator.runs.logs import diagnosis_of, keep_serial
from orchestrator.runs.machines import (
    cost_by_the_cloud,
    lacks_image,
    looked_for,
    note_validation,
    on_base_image,
    request_machine,
)
from orchestrator.store.documents import LedgerStore, Shelf, StockOuts
from orchestrator.store.events import EventLog
from orchestrator.store.index import RunIndex

RequestFor = Callable[[Offer, int, str, str], InstanceRequest]
"""Builds the request for (offer, attempt, VM name, request id)."""


@dataclass(frozen=True, slots=True)
class World:
    """The outside, as ports. `cloud` is a function because the real client takes seconds to import."""

    cloud: Callable[[], Cloud]
    bucket: Bucket
    accounts: Accounts
    index: RunIndex
    clock: Clock
    log: Callable[[str], EventLog]
    policy: do.Policy
    history: StockOuts | None = None
    shelf: Shelf | None = None
    """Prepared images; None where there can be none."""
    fleets: Callable[[str], None] | None = None
    """Looks after a fleet as its own client would, and settles what is over; None where no scheduler can be asked.
    Raises what schedulers raise."""
    ready: Callable[[str], None] = lambda _: None
    """Loads what is needed to ask for a machine in a zone. It takes seconds, and Ctrl-C meanwhile asks for none."""
    remember: Callable[[str], None] = lambda _: None
    """Notes on this computer what its user has launched. Raises `LocalError`."""

    @property
    def ledger(self) -> LedgerStore:
        """To read; changes go through `accounts`."""
        return self.accounts.ledger

    @property
    def caps(self) -> Caps:
        return self.accounts.caps


@dataclass(frozen=True, slots=True)
class LaunchTerms:
    """What only the client that launched a run can do: start machines."""

    offers: tuple[Offer, ...]
    request: RequestFor
    ttl_s: int
    """The deadline of the machines that it asks for: a run goes on under a plan of its own, which may have less."""
    wait_until: datetime | None = None
    """How long it waits for capacity; None: it requests each machine once."""


def request_id(run_id: str, zone: str, attempt: int, verb: str = "insert", of: str = "") -> str:
    """The same for every retry of the same request, so that the cloud can tell a retry from a second wish. `of` tells
    wishes apart that share a zone and an attempt: another machine type, another way to pay, another generation."""
    return str(uuid5(NAMESPACE_URL, f"spotbench:{run_id}/{zone}/{attempt}/{verb}{of}"))


def with_confirmed_claim(world: World, run: Run) -> Run:
    """The run as the guest of the machine that claims it, if the claim can be true: the run has requested nothing and
    holds nothing in this generation, and a client has requested that machine for its owner. The deadline is the
    owner's. Any other claim changes nothing: every machine can write one. Raises `Unavailable`."""
    claim = run.claim
    if claim is None or claim.generation != run.generation or run.closed is not None:
        return run
    if run.taken is not None and run.taken.generation == run.generation:
        return run
    has_own = any(vm.generation == run.generation for vm in run.vms) or bool(run.hold_usd)
    if has_own or claim.owner == run.run_id or attempt_of(claim.owner, claim.vm) is None:
        return run
    owner = replay(world.log(claim.owner).read())
    vms = owner.vms if owner is not None else ()
    vm = next((vm for vm in vms if (vm.name, vm.zone) == (claim.vm, claim.zone)), None)
    if vm is None:
        return run
    deadline_at = vm.deadline_at or vm.requested_at + timedelta(seconds=vm.max_run_s)
    confirmed = claim.model_copy(update={"deadline_at": deadline_at})
    return replace(run, taken=confirmed, taken_at=run.claim_at, taken_by=run.claim_by)


def is_done(run: Run) -> bool:
    """Whether the run is over and nothing remains to be done for it."""
    return (run.over and run.settled is not None) or run.phase is Phase.REFUSED


QUEUE_ENDED: Final = "FLEX_START_QUEUE_ENDED"
"""The code of a stock-out that showed only when a machine's time in the cloud's queue was over."""
GROWING: Final = frozenset({"cost_usd", "seconds", "paid_s", "measuring_s"})
"""Fields that only grow with time: if nothing else changed, a run's index line is not written again."""


class Engine:
    """Drives one run. Any number of engines may drive the same run at once: every command is idempotent."""

    def __init__(
        self, world: World, run_id: str, *, launch: LaunchTerms | None = None, log: EventLog | None = None
    ) -> None:
        self.world = world
        self.run_id = run_id
        self.launch = launch
        self.log = log if log is not None else world.log(run_id)
        self._indexed: dict[str, str] = {}
        self._folded: tuple[tuple[ev.Event, ...], Run] | None = None
        """The events of the last look, and the run that they are."""
        self._growing = GrowingLog()
        self._by = uuid4().hex[:8]
        self._found_gone: set[tuple[str, str]] = set()
        """The machines, by zone and name, that the cloud has reported as gone to this client."""
        self._queued_at: dict[str, datetime] = {}
        """When this client last saw the machine of a request wait in the cloud's queue."""
        self._watch: Callable[[Run], None] = lambda _: None

    def look(self) -> Run:
        """The state of the run, folded from its log as it is now."""
        log = self.log.read()
        if self._folded is not None and self._folded[0] == log:
            return self._folded[1]  # most looks of a client that follows a run find nothing new
        run = self._growing.replay(log)
        if run is None:
            raise NotFound(f"run not found: {self.run_id}", hint="`bench status` lists the runs in this bucket")
        run = with_confirmed_claim(self.world, run)
        self._folded = log, run
        return run

    def step(self) -> tuple[Run, float]:
        """One turn. Returns the run after it, and the seconds until the next turn is needed (0: at once)."""
        INTERRUPTION.check()
        run = self.look()
        seen = self.observe(run)
        on_host = run.vm is not None and is_host(run.vm.zone)  # looking at a host brings home what its run has said
        gone = run.guest_of is not None and seen.instance is None  # what it said before it was gone may be new
        if on_host or gone:
            run = self.look()
        terms = self.launch
        offers, ttl_s, until = (terms.offers, terms.ttl_s, terms.wait_until) if terms else (None, None, None)
        commands = do.decide_commands(run, seen, self.world.clock.now(), self.world.policy, offers, ttl_s, until)
        pause = 0.0
        for command in commands:
            if isinstance(command, do.Wait):
                pause = command.seconds
            elif not self.perform(command, run):
                pause = self.world.policy.poll_s
                break
        if any(not isinstance(command, do.Wait) for command in commands):
            run = self.look()
        self.write_index(run)
        return run, pause

    def catch_up(self) -> Run:
        """Makes turns as long as something can be done at once. Raises what the ports raise."""
        run, pause = self.look(), 0.0
        while not pause and not is_done(run):
            run, pause = self.step()
        return run

    def follow(
        self,
        *,
        watch: Callable[[Run], None] | None = None,
        trouble: Callable[[Unavailable, float], None] | None = None,
        until: Callable[[Run], bool] = lambda _: False,
        patience_s: float = 600.0,
    ) -> Run:
        """Makes turns until the run is over, or `until` returns true. If a service is unreachable, waits at most
        `patience_s` for it; if a machine may not be deleted, waits until it is gone."""
        waited = 0.0
        self._watch = watch or self._watch
        while True:
            try:
                run, pause = self.step()
            except Unavailable as exc:
                pause = min(30.0, max(1.0, waited))
                if waited + pause > patience_s and not isinstance(exc, StillThere):
                    raise
                waited += pause
                if trouble is not None:
                    trouble(exc, pause)
                self.world.clock.sleep(pause)
                continue
            except LocalError as exc:
                raise (self.with_fate(exc) if self.launch is not None else exc) from exc
            waited = 0.0
            self._watch(run)
            if is_done(run) or until(run):
                return run
            if pause:
                self.world.clock.sleep(pause)

    def observe(self, run: Run) -> do.Observation:
        """One look at the run's machine, if it may have one."""
        taken = run.guest_of
        if taken is not None and run.closed is None:
            instance = self.world.cloud().instance(taken.zone, taken.vm)
            if instance is not None:
                return do.Observation(instance)
            return do.Observation(None, self.world.cloud().operations_by_name(taken.zone, taken.vm))
        vm = run.vm
        if vm is None or not vm.open:
            return do.Observation(None)
        instance, operations = looked_for(self.world.cloud(), vm)
        if instance is not None and instance.status == do.QUEUED:
            self._queued_at[vm.request_id] = self.world.clock.now()
        return do.Observation(instance, operations, self._queued_at.get(vm.request_id))

    def perform(self, command: do.Command, run: Run) -> bool:
        """Carries out a decision. False if another client is doing it, or knows more: then look again later."""
        match command:
            case do.Create(offer=offer, attempt=attempt):
                self.world.ready(offer.zone)
                refused = self._armed(run, offer, attempt)
                if refused is not None and refused.kind == "settled":
                    ending = do.settled_by_another(run, self.world.clock.now())
                    return all(self.perform(one, run) for one in ending)
                if refused is not None:
                    return False
                self._create(run, offer, attempt)
            case do.Reinsert(vm=vm):
                request = replace(self._request(run, self._offer(vm), vm.attempt), queue_s=vm.queue_s)
                self._insert(run, vm.attempt, request, self._offer(vm), again=True)
            case do.Delete(vm=vm):
                keep_serial(self.world.bucket, self.world.cloud(), self.run_id, vm)
                self._delete(vm)
            case do.RecordCreated(vm=vm, instance=instance):
                self._created(vm.attempt, vm.max_run_s, vm.request_id, instance)
            case do.RecordQueued(vm=vm, until=until):
                self._queued(vm.attempt, vm.zone, vm.request_id, until)
            case do.RecordStockOut(vm=vm, message=message):
                pool = (vm.zone, vm.machine_type, vm.provisioning)
                self._refused(
                    run, vm.attempt, vm.request_id, pool, CloudRefusal(QUEUE_ENDED, message, "zone", stock_out=True)
                )
            case do.RecordGone(vm=vm, fact=fact):
                self._found_gone.add((vm.zone, vm.name))
                self.log.append(fact)
            case do.Await(fact=fact):
                self.log.append(fact)
            case do.Settle(cost_usd=cost):
                return self._settle(run, cost)
            case do.Close(outcome=outcome, detail=detail):
                self._diagnose(outcome, detail)
                listed = self.world.bucket.list(cases_prefix(self.run_id), most=RUN_FILES)
                stored = sum(entry.name.endswith(".csv") for entry in listed)
                self.log.append(
                    ev.RunClosed(outcome=outcome.value, detail=detail, generation=run.generation, cases_stored=stored)
                )
                note_validation(self.world.shelf, self.world.bucket, self.look(), self.world.clock.now())
            case do.Wait():
                pass
        return True

    def _delete(self, vm: Vm) -> None:
        try:
            self.world.cloud().delete(vm.zone, vm.name, request_id(self.run_id, vm.zone, vm.attempt, "delete"))
        except PermissionDenied as exc:
            raise StillThere(
                (
                    f"{vm.zone}/{vm.name} was not deleted: {exc}; bench tries again, and its deadline deletes it "
                    "in any case"
                ),
                hint=exc.hint,
            ) from exc

    def request_stop(self, by: str, reason: str) -> None:
        """Asks every client that drives the run to end it. It does not end a later generation of the run."""
        self.log.append(ev.StopRequested(by=by, reason=reason, generation=self.look().generation))

    def end_unbegun(self, why: str) -> bool:
        """Settles and closes a run that has asked for no machine yet. False where it is over already, or has one."""
        run = self.look()
        if run.closed is not None or run.guest_of is not None or any(vm.open for vm in run.vms):
            return False
        ended = all(self.perform(one, run) for one in do.given_up(run, self.world.clock.now(), why))
        self.write_index(self.look())
        return ended

    def with_fate(self, exc: Exception) -> Exception:
        """An error, with what it means for the run. One that has requested no machine is ended, and its hold is given
        back at once."""
        run = self.run_id
        try:
            if self.end_unbegun(f"it could not begin: {exc}"):
                fate = f"run {run} is ended and holds no money"
            elif (vm := self.look().vm) is not None and vm.open and vm.started_at is None:
                fate = f"a machine may exist for run {run}, so its money stays held: `bench status` asks again"
            else:
                return exc
        except BenchError:
            fate = f"run {run} could not be ended either, so it may still hold money: `bench status` gives that back"
        return type(exc)(f"{exc}; {fate}", hint=exc.hint) if isinstance(exc, BenchError) else exc

    def _diagnose(self, outcome: Phase, detail: str) -> None:
        """Adds a diagnosis to a failed run that has none, before it is closed."""
        events = self.log.read()
        if not wants_diagnosis(outcome, events):
            return
        run = replay(events)
        attempt = run.vm.attempt if run is not None and run.vm is not None else 0
        diagnosis = diagnosis_of(self.world.bucket, self.run_id, attempt, events, detail)
        self.log.append(ev.Diagnosed(cause=diagnosis.cause, detail=diagnosis.detail[:400], remedy=diagnosis.remedy))

    # --- machines ---------------------------------------------------------------------------------------------------

    def _armed(self, run: Run, offer: Offer, attempt: int) -> NotArmed | None:
        """Why machine number `attempt` may not be requested; None if it may. Raises `BudgetExceeded` if the ledger
        holds nothing for the run, or less than the machine alone can cost."""
        key, now = hold_key(self.run_id, run.generation), self.world.clock.now()
        patience = self.world.policy.insert_limit_s
        worst = ceiling_usd(offer.usd_per_hour, self._request(run, offer, attempt).max_run_s, 1)
        answer = self.world.accounts.change(
            lambda ledger: arm_request(ledger, key, attempt, self._by, now, patience, worst)
        )
        if isinstance(answer, NotArmed) and answer.kind in ("no_hold", "too_dear"):
            held = "the ledger holds no money" if answer.kind == "no_hold" else f"the ledger holds less than ${worst}"
            raise BudgetExceeded(
                f"{held} for {key}, so no machine is requested",
                hint=f"somebody changed ledger/ledger.json; `bench stop {self.run_id}` ends the run",
            )
        return answer if isinstance(answer, NotArmed) else None

    def _create(self, run: Run, offer: Offer, attempt: int) -> None:
        request = self._request(run, offer, attempt)
        self.log.append(
            ev.InstanceRequested(
                attempt=attempt,
                vm=request.name,
                zone=request.zone,
                machine_type=offer.machine_type,
                provisioning=offer.provisioning,
                usd_per_hour=offer.usd_per_hour,
                max_run_s=request.max_run_s,
                request_id=request.request_id,
                generation=run.generation,
                queue_s=request.queue_s,
            )
        )
        self._watch(self.look())  # the answer may take minutes
        self._insert(run, attempt, request, offer)

    def _request(self, run: Run, offer: Offer, attempt: int) -> InstanceRequest:
        assert self.launch is not None, "only a launching engine is told to create"
        name = instance_name(self.run_id, attempt)
        of = f"/{offer.machine_type}/{offer.provisioning}/{run.generation}"
        of += f"/{run.round}" if run.round else ""  # the cloud answers a request that it knows as it did before
        request = self.launch.request(offer, attempt, name, request_id(self.run_id, offer.zone, attempt, of=of))
        until = self.launch.wait_until
        remaining = until - self.world.clock.now() if until is not None else None
        return replace(request, queue_s=do.queue_seconds(offer, run.round, remaining))

    def _offer(self, vm: Vm) -> Offer:
        assert self.launch is not None, "only a launching engine is told to insert again"
        pool = (vm.zone, vm.machine_type, vm.provisioning)
        return next(offer for offer in self.launch.offers if offer.pool == pool)

    def _insert(self, run: Run, attempt: int, request: InstanceRequest, offer: Offer, *, again: bool = False) -> None:
        """Requests the machine. `again`: an earlier request for it may have arrived."""
        answer = request_machine(self.world.cloud(), request)
        if isinstance(answer, CloudRefusal) and answer.code == NOT_SENT and again:
            raise LocalError(answer.message, hint=answer.hint)
        if isinstance(answer, CloudRefusal) and lacks_image(answer, request):
            self.log.append(
                ev.ImageReplaced(image=request.image, instead=request.base_image, generation=run.generation)
            )
            answer = request_machine(self.world.cloud(), on_base_image(request))
        if isinstance(answer, CloudRefusal):
            self._refused(run, attempt, request.request_id, offer.pool, answer)
        elif request.queue_s and answer.instance.started_at is None:
            if answer.instance.status == do.QUEUED:
                self._queued_at[request.request_id] = self.world.clock.now()
            until = answer.instance.created_at + timedelta(seconds=request.queue_s)
            self._queued(attempt, request.zone, request.request_id, until)
        else:
            self._created(attempt, request.max_run_s, request.request_id, answer.instance)

    def _queued(self, attempt: int, zone: Zone, request_id: str, until: datetime) -> None:
        self.log.append(ev.InstanceQueued(attempt=attempt, zone=zone, until=until, request_id=request_id))

    def _created(self, attempt: int, max_run_s: int, request_id: str, instance: Instance) -> None:
        started = instance.started_at or instance.created_at
        self.log.append(
            ev.InstanceCreated(
                attempt=attempt,
                vm=instance.name,
                zone=instance.zone,
                instance_id=instance.id,
                started_at=started,
                deadline_at=instance.deadline_at or started + timedelta(seconds=max_run_s),
                request_id=request_id,
            )
        )

    def _refused(
        self, run: Run, attempt: int, request_id: str, pool: tuple[str, str, str], refusal: CloudRefusal
    ) -> None:
        zone, machine_type, provisioning = pool
        details: dict[str, Any] = {
            "attempt": attempt, "zone": zone, "code": refusal.code, "message": refusal.message,
            "request_id": request_id, "generation": run.generation,
        }  # fmt: skip
        if refusal.scope == "all":
            self.log.append(ev.InstanceRejected(**details, hint=refusal.hint))
            return
        if refusal.stock_out and self.world.history is not None:
            self.world.history.remember(pool, self.world.clock.now())
        self.log.append(
            ev.ZoneExhausted(
                **details,
                scope=refusal.scope,
                zones_available=refusal.zones_available,
                machine_type=machine_type,
                provisioning=provisioning,
                round=run.round,
            )
        )

    # --- money ------------------------------------------------------------------------------------------------------

    def _settle(self, run: Run, cost: Decimal) -> bool:
        """Replaces the hold by the cost. False if a machine still exists, or one may have been requested that this
        client does not know."""
        metered = cost_by_the_cloud(self.world.cloud, run, self.world.clock.now(), self._found_gone, self._delete)
        if metered is None:
            return False
        cost = max(cost, metered)
        key, last_attempt = hold_key(self.run_id, run.generation), max((vm.attempt for vm in run.vms), default=0)
        hold = self.world.ledger.read().runs.get(key) if run.is_unlaunched else None
        if hold is not None and hold.settled_usd is None:
            raise NotFound(
                f"the events of the clients of {self.run_id} are gone, so its hold is not settled by what machines say",
                hint="`bench reap --yes` deletes its machines and settles it after its last deadline",
            )
        ledger = settle(self.world.accounts, key, cost, last_attempt, self.world.policy.insert_limit_s)
        if ledger is None:
            return False
        entry = ledger.runs.get(key)
        held = entry.hold_usd if entry else Decimal(0)
        released = max(held - cost, Decimal(0))
        self.log.append(ev.Settled(cost_usd=cost, released_usd=released, generation=run.generation))
        return True

    # --- the index --------------------------------------------------------------------------------------------------

    def write_index(self, run: Run) -> None:
        """Caches the state for `bench status`. If the cache is lost, the events are only read again."""
        line = encode_status(status_line(run, self.world.clock.now()))
        stable = {key: value for key, value in line.items() if key not in GROWING}
        if stable == self._indexed:
            return
        self.world.index.write(self.run_id, line, status_body(run, self.world.clock.now()))
        self._indexed = stable
