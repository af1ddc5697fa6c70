"""Starts a run from a plan: records the plan, holds the worst case, stores the payload, and makes the run's engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from orchestrator.core.errors import BudgetExceeded, LocalError, ProviderError
from orchestrator.core.hosts import HOST_KEY, is_host
from orchestrator.core.market.machines import InstanceRequest
from orchestrator.core.market.offers import FLEX_START, Offer
from orchestrator.core.names import MachineName, Zone
from orchestrator.core.naming import (
    SESSION_LABEL,
    Mode,
    hold_key,
    machine_labels,
    payload_object,
    plan_name,
    plan_object,
    run_prefix,
)
from orchestrator.core.plan.plan import LaunchPlan, run_spec
from orchestrator.core.plan.resumption import plan_document
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import LONGEST_QUEUE_S
from orchestrator.runs.engine import Engine, LaunchTerms, World
from orchestrator.runs.holds import HoldRequest, acquire
from orchestrator.runs.takeover import Claimant, may_have_waiting, take_over
from orchestrator.store.events import EventLog, refuse_taken


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """What the machine runs: `startup/` and `kernels/` in one archive, named by its contents."""

    sha256: str
    data: bytes
    startup_script: str


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What a launch needs to know about the place in which it launches."""

    mode: Mode
    bucket: str
    user: str
    endpoints: Mapping[str, str] | None
    require_cuda: bool


@dataclass(frozen=True, slots=True)
class RunOrder:
    """Everything that is needed to start a run: its id, its plan, its payload, and the place."""

    run_id: str
    plan: LaunchPlan
    payload: PayloadSource
    where: LaunchContext

    @property
    def payload_in_bucket(self) -> dict[str, str]:
        """Where a machine finds its payload."""
        sha256 = self.payload.sha256
        return {"bucket": self.where.bucket, "object": payload_object(sha256), "sha256": sha256}


def begin_launch(
    world: World,
    order: RunOrder,
    *,
    say: Callable[[str], None] = lambda _: None,
    cold: bool = False,
    refused: BudgetExceeded | None = None,
) -> Engine:
    """Everything before the first machine; or a machine that another run kept, unless `cold`. Raises `BudgetExceeded`
    when somebody else took the money since the plan, and `refused` where there is only money for a kept machine and no
    such machine. Raises `ProviderError` if somebody has guessed the id and stored objects of the run before it."""
    plan, run_id = order.plan, order.run_id
    log = world.log(run_id)
    begun = log.append(_planned(order))
    engine = engine_for(world, order, log)
    with ended_unless_it_begins(engine):
        try:
            refuse_taken(world.bucket, run_prefix(run_id), ours=begun.object_name)
        except ProviderError as refusal:
            log.append(ev.RunClosed(outcome="refused", detail=str(refusal)))
            raise
        document = json.dumps(plan_document(plan), indent=1).encode()
        world.bucket.replace(plan_object(run_id), document, generation=None)
        with suppress(LocalError):  # a plan that is not remembered costs a question when the run is resumed
            world.remember(plan_name(run_id, hashlib.sha256(document).hexdigest()))
        if not cold and not plan.config.machine.container and _taken_over(world, order, log, say):
            return Engine(world, run_id, log=log)
        try:
            if refused is not None:
                raise refused
            take_hold(world, plan, run_id, log)
        except BudgetExceeded as refusal:
            log.append(ev.RunClosed(outcome="refused", detail=str(refusal)))
            raise
        engine.write_index(engine.look())  # money is held from here on: `bench status` lists the run whatever happens
        _store(world, order.payload, log, say)
    return engine


def _planned(order: RunOrder) -> ev.RunPlanned:
    plan = order.plan
    return ev.RunPlanned(
        gpu=plan.label,
        config=plan.config_name,
        user=order.where.user,
        mode=order.where.mode,
        ceiling_usd=plan.ceiling_usd,
        ttl_s=plan.ttl_s,
        attempts=plan.attempts,
        cases=len(plan.cases),
        measurements_per_implementation=plan.measurements_per_implementation,
        implementations=tuple(plan.harness["implementations"]),
        image=plan.image,
        offers=len(plan.offers),
        on_demand_after=plan.config.placement.on_demand_after,
        seals=bool(plan.prepare),
    )


@contextmanager
def ended_unless_it_begins(engine: Engine) -> Iterator[None]:
    """What fails before a machine is requested ends the run, and its hold is given back at once. The error says which
    of the two could be done, and keeps its class."""
    try:
        yield
    except Exception as exc:
        explained = engine.with_fate(exc)
        if explained is exc:
            raise
        raise explained from exc


def _taken_over(world: World, order: RunOrder, log: EventLog, say: Callable[[str], None]) -> bool:
    if not may_have_waiting(world):
        return False
    _store(world, order.payload, log, say)
    claimant = Claimant(order.run_id, order.where.user, order.payload_in_bucket, order.where.require_cuda)
    return take_over(world, order.plan, claimant, log, say)


def _store(world: World, payload: PayloadSource, log: EventLog, say: Callable[[str], None]) -> None:
    stored = store_payload(world, payload, log)
    say(f"payload {payload.sha256[:12]}, {len(payload.data) / 1024:.0f} KiB, {'stored' if stored else 'already there'}")


def store_payload(world: World, payload: PayloadSource, log: EventLog) -> bool:
    """Stores the payload in the bucket and records that; False if the same payload was there already."""
    stored = world.bucket.create(payload_object(payload.sha256), payload.data, content_type="application/gzip")
    log.append(ev.PayloadStored(sha256=payload.sha256, size_bytes=len(payload.data), uploaded=stored))
    return stored


def engine_for(world: World, order: RunOrder, log: EventLog) -> Engine:
    """The engine of a client that may start machines for a run."""

    def request(offer: Offer, attempt: int, name: str, request_id: str) -> InstanceRequest:
        return instance_request(order, offer, attempt, name, request_id)

    minutes = order.plan.config.placement.wait_minutes
    until = world.clock.now() + timedelta(minutes=minutes) if minutes else None
    terms = LaunchTerms(order.plan.offers, request, order.plan.ttl_s, until)
    return Engine(world, order.run_id, launch=terms, log=log)


def hold_request(plan: LaunchPlan, run_id: str, generation: int = 0) -> HoldRequest:
    """The worst case of a run as a request for money."""
    key, pretend = hold_key(run_id, generation), plan.mode.simulated
    waits = any(offer.provisioning == FLEX_START for offer in plan.offers)  # before its time begins
    ttl_s = plan.ttl_s + (LONGEST_QUEUE_S if waits else 0)
    return HoldRequest(key, plan.ceiling_usd, "this run", ttl_s, plan.label, pretend=pretend)


def take_hold(world: World, plan: LaunchPlan, run_id: str, events: EventLog, generation: int = 0) -> None:
    """Hold the ceiling. Taken twice it is one hold. Raise `BudgetExceeded`; then nothing has happened."""
    acquire(world.accounts, hold_request(plan, run_id, generation))
    events.append(ev.BudgetHeld(hold_usd=plan.ceiling_usd, generation=generation))


def instance_request(order: RunOrder, offer: Offer, attempt: int, name: str, request_id: str) -> InstanceRequest:
    """The request for a machine that a plan stands for. No other function makes one."""
    plan, payload, where, run_id = order.plan.of(offer), order.payload, order.where, order.run_id
    machine = plan.config.machine
    spec = run_spec(
        plan,
        run_id=run_id,
        attempt=attempt,
        bucket=where.bucket,
        require_cuda=where.require_cuda,
        usd_per_hour=offer.usd_per_hour,
    )
    metadata = {
        "startup-script": payload.startup_script,
        "bench-run": json.dumps(spec),
        "bench-payload": json.dumps(order.payload_in_bucket),
    }
    if is_host(offer.zone):
        metadata[HOST_KEY] = json.dumps({"target": offer.host, "python": plan.config.host.python})
    elif where.endpoints is not None:
        metadata["bench-endpoints"] = json.dumps(dict(where.endpoints))
    return InstanceRequest(
        name=MachineName(name),
        zone=Zone(offer.zone),
        machine_type=offer.machine_type,
        accelerator=offer.accelerator,
        accelerator_count=offer.accelerator_count,
        provisioning=offer.provisioning,
        max_run_s=plan.ttl_s,
        image=plan.image,
        disk_gb=machine.disk_gb,
        disk_type=plan.config.disk_type,
        network=machine.network,
        external_ip=machine.external_ip,
        service_account=machine.service_account or None,
        labels=machine_labels(run_id, attempt, where.user, where.bucket)
        | ({SESSION_LABEL: "true"} if "session" in plan.harness else {}),
        metadata=metadata,
        request_id=request_id,
        base_image=plan.base_image,
    )
