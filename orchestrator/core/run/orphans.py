"""Decides which machines of ours should not exist, only from each machine's labels and the log of the run they name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.market.machines import Instance
from orchestrator.core.market.pricing import accrued
from orchestrator.core.naming import BUCKET_LABEL, RUN_LABEL, is_label_of
from orchestrator.core.run.decide import Policy, is_left_unsealed
from orchestrator.core.run.fold import Run, Vm

STOPPED: Final = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
STALE_AFTER: Final = timedelta(hours=12)
"""Runs rarely last so long: an older machine is reported as odd."""
IDLE_AFTER: Final = timedelta(minutes=30)
"""A working machine writes events more often than this."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A live run owns it, or it is not ours to judge. `flags` say what is odd all the same: `idle`, `stale`."""

    reason: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Orphan:
    """No live run owns it: it costs money for nothing."""

    reason: str


def judge(instance: Instance, run: Run | None, bucket: str, now: datetime, policy: Policy) -> Keep | Orphan:
    """Whether `instance` should exist. `run` is the fold of the run that its label names, read *after* the instance
    was listed (a machine that exists was recorded before it was asked for), or None when the bucket has none."""
    by_itself = _by_itself(instance, bucket, now, policy)
    if by_itself is not None:
        return by_itself
    if run is None:
        named = instance.labels.get(RUN_LABEL)
        return Orphan(f"run {named} is not in this bucket" if named else "its labels name no run")
    if run.closed is not None:
        return Orphan(f"its run is over ({run.phase.value})")
    vm = owner(instance, run)
    if vm is None:
        return Orphan("its run never requested it")
    if not vm.open:
        return Orphan("its run gave it up")
    return _of_a_live_run(instance, run, vm, now, policy)


def judge_alone(instance: Instance, why: str, bucket: str, now: datetime, policy: Policy) -> Keep | Orphan:
    """The same where the run cannot be read, and `why`: by what the cloud says of the machine. In doubt it stays, for
    somebody may be at work on it; its deadline ends it."""
    by_itself = _by_itself(instance, bucket, now, policy)
    return by_itself if by_itself is not None else Keep(f"its run cannot be read: {why}")


def judge_of_fleet(
    instance: Instance, fleet: str, *, held: bool, bucket: str, now: datetime, policy: Policy
) -> Keep | Orphan:
    """The same for a machine that a scheduler has made for a fleet: it may be there while the fleet holds money for it.
    One that is deleted before would only be made again."""
    by_itself = _by_itself(instance, bucket, now, policy)
    if by_itself is not None:
        return by_itself
    return Keep(f"{fleet} is under way") if held else Orphan(f"{fleet} is over")


def _by_itself(instance: Instance, bucket: str, now: datetime, policy: Policy) -> Keep | Orphan | None:
    """What follows from what the cloud says of a machine, whatever its run says; None when that is for the run."""
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
    told = run.said(vm.attempt)
    if told.finished_at is not None and now > told.finished_at + timedelta(seconds=policy.exit_grace_s):
        return Orphan("it finished but did not delete itself")
    if told.idle_until is not None and now > told.idle_until + timedelta(seconds=policy.exit_grace_s):
        return Orphan("it was kept, no launch used it, and it did not delete itself")
    if is_left_unsealed(run, now, policy):
        return Orphan("its disk is ready for an image, and no client came to copy it")
    started = instance.started_at
    word = told.last_word_at
    if started is not None and now > started + timedelta(seconds=policy.boot_limit_s) and word is None:
        return Orphan(f"it sent nothing for {_minutes(now - started)} after it started")
    return Keep(f"run {run.run_id} is {run.phase.value}", flags(instance, run, now))


def owner(instance: Instance, run: Run | None) -> Vm | None:
    """The request of `run` that made `instance`. A name alone is not enough: an attempt asks in several zones."""
    vms = reversed(run.vms) if run is not None else ()
    return next((vm for vm in vms if (vm.name, vm.zone) == (instance.name, instance.zone)), None)


def flags(instance: Instance, run: Run | None, now: datetime) -> tuple[str, ...]:
    """What is odd about a machine, whoever owns it."""
    since = instance.started_at or instance.created_at
    vm = owner(instance, run)
    spoke = run.said(vm.attempt).last_word_at if run is not None and vm is not None else None
    word = max(spoke, since) if spoke is not None else since
    odd = (("idle", now - word > IDLE_AFTER), ("stale", now - since > STALE_AFTER))
    return tuple(name for name, true in odd if true)


def cost_so_far(instance: Instance, usd_per_hour: Decimal | None, now: datetime) -> Decimal | None:
    """Dollars until `now`, or None when the price is not known."""
    if usd_per_hour is None:
        return None
    if instance.started_at is None:
        return Decimal(0)
    return accrued(usd_per_hour, instance.started_at, max(now, instance.started_at))


def _minutes(span: timedelta) -> str:
    return f"{span / timedelta(minutes=1):.0f} min"
