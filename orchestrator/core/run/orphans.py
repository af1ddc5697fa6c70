"""Decides which of our machines should not exist, from each machine's labels and the log of the run that they name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.market.machines import Instance
from orchestrator.core.market.pricing import accrued_usd
from orchestrator.core.naming import BUCKET_LABEL, RUN_LABEL, is_label_of
from orchestrator.core.run.decide import Policy, is_left_unsealed
from orchestrator.core.run.fold import Run, Vm

STOPPED: Final = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
STALE_AFTER: Final = timedelta(hours=12)
"""Runs rarely last this long, so an older machine is reported as unusual."""
IDLE_AFTER: Final = timedelta(minutes=30)
"""A working machine writes events more often than this."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A live run owns the machine, or it is not ours to judge. `flags` say what is unusual about it: `idle`,
    `stale`."""

    reason: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Orphan:
    """No live run owns the machine, so it costs money without use."""

    reason: str


def judge_machine(instance: Instance, run: Run | None, bucket: str, now: datetime, policy: Policy) -> Keep | Orphan:
    """Whether `instance` should exist. `run` is the state of the run that its label names, or None if the bucket has no
    such run. It must be read *after* the instance was listed: a machine is recorded before it is requested."""
    by_itself = _by_itself(instance, bucket, now, policy)
    if by_itself is not None:
        return by_itself
    if run is None:
        named = instance.labels.get(RUN_LABEL)
        return Orphan(f"run {named} is not in this bucket" if named else "its labels name no run")
    if run.closed is not None:
        return Orphan(f"its run is over ({run.phase.value})")
    vm = requesting_vm(instance, run)
    if vm is None:
        return Orphan("its run never requested it")
    if not vm.open:
        return Orphan("its run gave it up")
    return _of_a_live_run(instance, run, vm, now, policy)


def judge_alone(instance: Instance, why: str, bucket: str, now: datetime, policy: Policy) -> Keep | Orphan:
    """Whether `instance` should exist, if its run cannot be read; `why` says why not. Only what the cloud reports about
    the machine counts. In doubt the machine stays, because it may be at work; its deadline ends it."""
    by_itself = _by_itself(instance, bucket, now, policy)
    return by_itself if by_itself is not None else Keep(f"its run cannot be read: {why}")


def judge_of_fleet(
    instance: Instance, fleet: str, *, held: bool, bucket: str, now: datetime, policy: Policy
) -> Keep | Orphan:
    """Whether a machine that a scheduler made for a fleet should exist: it may while the fleet holds money for it. If
    it were deleted before, the scheduler would only make it again."""
    by_itself = _by_itself(instance, bucket, now, policy)
    if by_itself is not None:
        return by_itself
    return Keep(f"{fleet} is under way") if held else Orphan(f"{fleet} is over")


def _by_itself(instance: Instance, bucket: str, now: datetime, policy: Policy) -> Keep | Orphan | None:
    """The verdict from what the cloud reports about a machine, whatever its run says; None if the run must decide."""
    home = instance.labels.get(BUCKET_LABEL, "")
    if home and not is_label_of(home, bucket):
        return Keep(f"it belongs to the bucket {home}")
    if instance.status == "STOPPING":
        return Keep("it is being deleted")
    if instance.status in STOPPED:
        return Orphan("it stopped without being deleted, and its disk is still billed")
    if instance.deadline_at is not None and now > instance.deadline_at + timedelta(seconds=policy.deadline_slack_s):
        return Orphan(f"it is {_minutes(now - instance.deadline_at)} past its deadline")
    return None


def _of_a_live_run(instance: Instance, run: Run, vm: Vm, now: datetime, policy: Policy) -> Keep | Orphan:
    if run.stop is not None:
        return Orphan(f"its run was stopped: {run.stop.reason}")
    latest = vm is run.vm
    if not latest:
        return Orphan("its run has moved to another machine")
    report = run.report_of(vm.attempt)
    if report.finished_at is not None and now > report.finished_at + timedelta(seconds=policy.exit_grace_s):
        return Orphan("it finished but did not delete itself")
    if report.idle_until is not None and now > report.idle_until + timedelta(seconds=policy.exit_grace_s):
        return Orphan("it was kept, no launch used it, and it did not delete itself")
    if is_left_unsealed(run, now, policy):
        return Orphan("its disk is ready for an image, and no client came to copy it")
    started = instance.started_at
    last_word = report.last_word_at
    if started is not None and now > started + timedelta(seconds=policy.boot_limit_s) and last_word is None:
        return Orphan(f"it sent nothing for {_minutes(now - started)} after it started")
    return Keep(f"run {run.run_id} is {run.phase.value}", machine_flags(instance, run, now))


def requesting_vm(instance: Instance, run: Run | None) -> Vm | None:
    """The request of `run` that made `instance`, or None. The name alone does not identify it, because an attempt
    requests machines of one name in several zones."""
    vms = reversed(run.vms) if run is not None else ()
    return next((vm for vm in vms if (vm.name, vm.zone) == (instance.name, instance.zone)), None)


def machine_flags(instance: Instance, run: Run | None, now: datetime) -> tuple[str, ...]:
    """What is unusual about a machine: `idle` if it has sent nothing for `IDLE_AFTER`, `stale` if it is older than
    `STALE_AFTER`."""
    since = instance.started_at or instance.created_at
    vm = requesting_vm(instance, run)
    last_event = run.report_of(vm.attempt).last_word_at if run is not None and vm is not None else None
    last_sign = max(last_event, since) if last_event is not None else since
    conditions = (("idle", now - last_sign > IDLE_AFTER), ("stale", now - since > STALE_AFTER))
    return tuple(name for name, true in conditions if true)


def cost_so_far(instance: Instance, usd_per_hour: Decimal | None, now: datetime) -> Decimal | None:
    """The dollars that a machine has cost until `now`, or None if its price is not known."""
    if usd_per_hour is None:
        return None
    if instance.started_at is None:
        return Decimal(0)
    return accrued_usd(usd_per_hour, instance.started_at, max(now, instance.started_at))


def _minutes(span: timedelta) -> str:
    return f"{span / timedelta(minutes=1):.0f} min"
