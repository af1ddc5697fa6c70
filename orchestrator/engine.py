"""Observe, decide, perform, record: until the run is over. Everything that thinks is in `core.decide`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from uuid import NAMESPACE_URL, uuid5

from orchestrator.core import decide as do
from orchestrator.core import events as ev
from orchestrator.core.budget import Alert, Caps, Ledger, alerts_due, mark_alerted, settle
from orchestrator.core.diagnose import wants_diagnosis
from orchestrator.core.errors import NotFound, Unavailable
from orchestrator.core.naming import instance_name
from orchestrator.core.placement import Offer
from orchestrator.core.run import Phase, Run, Vm, replay
from orchestrator.core.status import encode, status_body, status_line
from orchestrator.last_words import diagnosis_of, keep_serial
from orchestrator.ports import (
    Accepted,
    Bucket,
    Clock,
    Cloud,
    EventLog,
    Index,
    Instance,
    InstanceRequest,
    LedgerStore,
    Notice,
    Notifier,
    Refusal,
)

RequestFor = Callable[[Offer, int, str, str], InstanceRequest]
"""Builds the request for (offer, attempt, VM name, request id)."""


@dataclass(frozen=True, slots=True)
class World:
    """The outside, as ports. `cloud` is a function because the real client takes seconds to import."""

    cloud: Callable[[], Cloud]
    bucket: Bucket
    ledger: LedgerStore
    index: Index
    clock: Clock
    notifier: Notifier
    caps: Caps
    log: Callable[[str], EventLog]
    policy: do.Policy


@dataclass(frozen=True, slots=True)
class Launch:
    """What only the client that launched a run can do for it: start machines."""

    offers: tuple[Offer, ...]
    request: RequestFor


def request_id(run_id: str, zone: str, attempt: int, verb: str = "insert") -> str:
    """The same for every retry of the same request, so that the cloud can tell a retry from a second wish."""
    return str(uuid5(NAMESPACE_URL, f"spotbench:{run_id}/{zone}/{attempt}/{verb}"))


def tell(notifier: Notifier, due: tuple[Alert, ...]) -> None:
    """Says each alert once, to whoever asked to hear of it."""
    for alert in due:
        data = {"window": alert.window, "key": alert.key, "threshold_percent": str(alert.threshold)}
        money = {"spent_usd": str(alert.spent), "held_usd": str(alert.held), "cap_usd": str(alert.cap)}
        notifier.notify(Notice(alert.kind, alert.title, alert.text, data | money))


class Engine:
    """Drives one run. Any number of engines may drive the same run at once: every command is idempotent."""

    def __init__(self, world: World, run_id: str, *, launch: Launch | None = None, log: EventLog | None = None) -> None:
        self.world = world
        self.run_id = run_id
        self.launch = launch
        self.log = log if log is not None else world.log(run_id)
        self._indexed: dict[str, str] = {}

    def look(self) -> Run:
        """The run as its log tells it now."""
        run = replay(self.log.read())
        if run is None:
            raise NotFound(f"there is no run {self.run_id}", hint="`bench status` lists the runs in this bucket")
        return run

    def step(self) -> tuple[Run, float]:
        """One turn. Returns the run after it, and for how long nothing needs doing (0: another turn at once)."""
        run = self.look()
        commands = do.decide(
            run,
            self.observe(run),
            self.world.clock.now(),
            self.world.policy,
            self.launch.offers if self.launch else None,
        )
        pause = 0.0
        for command in commands:
            if isinstance(command, do.Wait):
                pause = command.seconds
            else:
                self.perform(command)
        if any(not isinstance(command, do.Wait) for command in commands):
            run = self.look()
        self.write_index(run)
        return run, pause

    def follow(
        self, *, watch: Callable[[Run], None] | None = None, trouble: Callable[[Unavailable, float], None] | None = None
    ) -> Run:
        """Turns until the run is closed. An unreachable service is waited for, up to ten minutes in one piece."""
        waited = 0.0
        while True:
            try:
                run, pause = self.step()
            except Unavailable as exc:
                pause = min(30.0, max(1.0, waited))
                if waited > 600:
                    raise
                waited += pause
                if trouble is not None:
                    trouble(exc, pause)
                self.world.clock.sleep(pause)
                continue
            waited = 0.0
            if watch is not None:
                watch(run)
            if run.closed is not None:
                return run
            if pause:
                self.world.clock.sleep(pause)

    def observe(self, run: Run) -> do.Observation:
        """One look at the run's machine, if it may have one."""
        vm = run.vm
        if run.closed is not None or vm is None or not vm.open:
            return do.Observation(None)
        cloud = self.world.cloud()
        instance = cloud.instance(vm.zone, vm.name)
        if instance is not None:
            return do.Observation(instance)
        if vm.instance_id:
            return do.Observation(None, cloud.operations(vm.zone, vm.instance_id))
        return do.Observation(None, cloud.operations_by_name(vm.zone, vm.name))

    def perform(self, command: do.Command) -> None:
        match command:
            case do.Create(offer=offer, attempt=attempt):
                self._create(offer, attempt)
            case do.Reinsert(vm=vm):
                self._insert(vm.attempt, self._request(self._offer(vm), vm.attempt))
            case do.Delete(vm=vm):
                keep_serial(self.world.bucket, self.world.cloud(), self.run_id, vm)
                self.world.cloud().delete(vm.zone, vm.name, request_id(self.run_id, vm.zone, vm.attempt, "delete"))
            case do.RecordCreated(vm=vm, instance=instance):
                self._created(vm.attempt, vm.max_run_s, instance)
            case do.RecordGone(vm=vm, ended_at=ended, how=how, started_at=started):
                self.log.append(
                    ev.InstanceGone(attempt=vm.attempt, vm=vm.name, ended_at=ended, how=how, started_at=started)
                )
            case do.Settle(cost_usd=cost):
                self._settle(cost)
            case do.Close(outcome=outcome, detail=detail):
                self._diagnose(outcome)
                self.log.append(ev.RunClosed(outcome=outcome.value, detail=detail))
            case do.Wait():
                pass

    def _diagnose(self, outcome: Phase) -> None:
        """No run that went wrong is closed before somebody has said why."""
        events = self.log.read()
        if not wants_diagnosis(outcome, events):
            return
        run = replay(events)
        attempt = run.vm.attempt if run is not None and run.vm is not None else 0
        found = diagnosis_of(self.world.bucket, self.run_id, attempt, events)
        self.log.append(ev.Diagnosed(cause=found.cause, detail=found.detail[:400], remedy=found.remedy))

    # --- machines ---------------------------------------------------------------------------------------------------

    def _create(self, offer: Offer, attempt: int) -> None:
        request = self._request(offer, attempt)
        self.log.append(
            ev.InstanceRequested(
                attempt=attempt,
                vm=request.name,
                zone=offer.zone,
                machine_type=offer.machine_type,
                provisioning=offer.provisioning,
                usd_per_hour=offer.usd_per_hour,
                max_run_s=request.max_run_s,
                request_id=request.request_id,
            )
        )
        self._insert(attempt, request)

    def _request(self, offer: Offer, attempt: int) -> InstanceRequest:
        assert self.launch is not None, "only a launching engine is told to create"
        name = instance_name(self.run_id, attempt)
        return self.launch.request(offer, attempt, name, request_id(self.run_id, offer.zone, attempt))

    def _offer(self, vm: Vm) -> Offer:
        assert self.launch is not None, "only a launching engine is told to insert again"
        return next(offer for offer in self.launch.offers if offer.zone == vm.zone)

    def _insert(self, attempt: int, request: InstanceRequest) -> None:
        answer = self.world.cloud().insert(request)
        if isinstance(answer, Accepted):
            self._created(attempt, request.max_run_s, answer.instance)
        else:
            self._refused(attempt, request.zone, answer)

    def _created(self, attempt: int, max_run_s: int, instance: Instance) -> None:
        started = instance.started_at or instance.created_at
        self.log.append(
            ev.InstanceCreated(
                attempt=attempt,
                vm=instance.name,
                zone=instance.zone,
                instance_id=instance.id,
                started_at=started,
                deadline_at=instance.deadline_at or started + timedelta(seconds=max_run_s),
            )
        )

    def _refused(self, attempt: int, zone: str, refusal: Refusal) -> None:
        if refusal.scope == "all":
            self.log.append(
                ev.InstanceRejected(
                    attempt=attempt, zone=zone, code=refusal.code, message=refusal.message, hint=refusal.hint
                )
            )
            return
        self.log.append(
            ev.ZoneExhausted(
                attempt=attempt,
                zone=zone,
                scope=refusal.scope,
                code=refusal.code,
                message=refusal.message,
                zones_available=refusal.zones_available,
            )
        )

    # --- money ------------------------------------------------------------------------------------------------------

    def _settle(self, cost: Decimal) -> None:
        now = self.world.clock.now()
        due: tuple[Alert, ...] = ()

        def change(ledger: Ledger) -> Ledger:
            nonlocal due
            settled = settle(ledger, self.run_id, cost, now)
            due = alerts_due(settled, self.world.caps, now)
            return mark_alerted(settled, due)

        ledger = self.world.ledger.update(change)
        entry = ledger.runs.get(self.run_id)
        held = entry.hold_usd if entry else Decimal(0)
        self.log.append(ev.Settled(cost_usd=cost, released_usd=max(held - cost, Decimal(0))))
        tell(self.world.notifier, due)

    # --- the index --------------------------------------------------------------------------------------------------

    def write_index(self, run: Run) -> None:
        """Caches the fold for `bench status`. Losing it costs a re-reading, nothing else."""
        line = encode(status_line(run, self.world.clock.now()))
        stable = {key: value for key, value in line.items() if key not in ("cost_usd", "seconds")}
        if stable == self._indexed:
            return
        self.world.index.write(self.run_id, line, status_body(run, self.world.clock.now()))
        self._indexed = stable
