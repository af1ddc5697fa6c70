"""The life of an instance: it is created, staged, runs, may be preempted or hit by faults, stops, and is gone. One lock
guards all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from orchestrator.embedded.admission import Admitted
from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.console import Console
from orchestrator.embedded.guest import Guest, MachineFactory
from orchestrator.embedded.inventory import numeric_id, region_of
from orchestrator.embedded.meter import Account, Rate
from orchestrator.embedded.operations import Sender
from orchestrator.embedded.vm import EmbeddedVm
from orchestrator.embedded.weather import Fault, due_after, due_upon, hits_vm

SYSTEM = Sender("system")
TIMED = ("preempt", "lost", "hang", "kill")
DEFAULT_NOTICE_S = 30.0


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the cloud takes, in seconds."""

    provision_s: float
    """From the request until STAGING."""
    stage_s: float
    """From STAGING until RUNNING."""
    boot_s: float
    """From RUNNING until the startup script runs."""
    end_s: float
    """The least time from STOPPING until the VM is gone."""
    poll_s: float
    """The pause between checks whether the processes of a stopping VM have ended."""
    grace_s: float
    """The most time that a stopping VM gets. It is less than the 30 s by which a deadline may be late, so that no bill
    exceeds the ceiling."""


REAL = Durations(0.15, 0.15, 0.0, 0.05, 0.05, 25.0)
SIMULATED = Durations(4.0, 8.0, 20.0, 5.0, 1.0, 25.0)


class Watcher(Protocol):
    """Is told about VMs that wait for tasks. Its methods are called outside the lock."""

    def booted(self, vm: EmbeddedVm) -> None: ...
    def gone(self, vm: EmbeddedVm, by: str) -> None: ...


@dataclass(frozen=True, slots=True)
class VmSite:
    """How the machines of a cloud are made, and where."""

    durations: Durations
    make_machine: MachineFactory
    scratch: Path
    """The folder in which each VM gets a folder."""
    endpoints: Callable[[], tuple[str, str]]
    """The addresses of Compute Engine and of Cloud Storage, once they are known."""


class Lives(BodyPart):
    """The instances that exist. Thread-safe. Machines are started and killed outside the lock, because they call
    back."""

    def __init__(self, commons: Commons, site: VmSite) -> None:
        super().__init__(commons)
        self.project_number = numeric_id(commons.project)[:12]
        self.durations = site.durations
        self.make_machine = site.make_machine
        self.scratch = site.scratch
        self.endpoints = site.endpoints
        self.lock = threading.RLock()
        self.vms: dict[tuple[str, str], EmbeddedVm] = {}
        self.watchers: list[Watcher] = []

    def all(self) -> list[EmbeddedVm]:
        with self.lock:
            return list(self.vms.values())

    def of_run(self, run_id: str, attempt: str) -> EmbeddedVm | None:
        """The VM of this attempt of a run, or None."""
        for vm in self.all():
            if vm.labels.get("bench-run") == run_id and vm.labels.get("bench-attempt") == attempt:
                return vm
        return None

    def preempt(self, vm: EmbeddedVm, notice_s: float = DEFAULT_NOTICE_S) -> None:
        """Preempts the VM. The guest is told at once and shut down after `notice_s` seconds; with 0 it is killed at
        once."""
        with self.lock:
            if vm.status != "RUNNING" or vm.ending or vm.guest.preempted:
                return
            operation = self.operations.begin(
                "compute.instances.preempted", vm.target, self.timeline.now(), SYSTEM, "Instance was preempted."
            )
            vm.closing_operations.append(operation)
        vm.guest.announce_preemption()
        if notice_s > 0:
            self._vm_later(vm, notice_s, lambda: self._stop(vm, "preemption"))
        else:
            self._end(vm, "preemption")

    def lose(self, vm: EmbeddedVm) -> None:
        """Removes the VM with no operation and no notice."""
        self._end(vm, "lost", vanish=True)

    def witness(self, run_id: str, writer: str, kind: str, data: dict[str, Any]) -> None:
        """Called when a VM has stored an event of its run. A fault that waits for this event hits the VM now."""
        vm = self.of_run(run_id, [*writer.split("-"), ""][1])
        if vm is None:
            return
        fault = self.weather.reserve(lambda fault: self._hits(fault, vm, *TIMED) and due_upon(fault, kind, data))
        if fault is not None:
            vm.reserved.append(fault)
            self._perform(vm, fault)

    def close(self) -> None:
        """Ends all VMs, because the cloud ends."""
        for vm in self.all():
            self._end(vm, "shutdown", vanish=True)

    def _create(self, admitted: Admitted, vm_id: str, operation: str, now: datetime, *, tasks: bool) -> None:
        compute, storage = self.endpoints()
        guest = Guest(
            id=vm_id,
            name=admitted.name,
            zone=admitted.zone,
            project=self.project,
            project_number=self.project_number,
            machine_type=admitted.machine.name,
            image=f"projects/{admitted.image.project}/global/images/{admitted.image.name}",
            metadata=dict(admitted.metadata),
            labels=dict(admitted.labels),
            service_account=admitted.service_account,
            scopes=admitted.scopes,
            spot=admitted.spot,
            console=Console(),
            timeline=self.timeline,
            scratch=self.scratch / f"{admitted.name}-{vm_id}",
            compute_url=compute,
            storage_url=storage,
            tasks=tasks,
        )
        rate = self._rate(admitted)
        vm = EmbeddedVm(
            id=vm_id,
            project=self.project,
            admitted=admitted,
            guest=guest,
            machine=self.make_machine(guest),
            created_at=now,
            usd_per_hour=rate.usd_per_hour,
            insert_operation=operation,
            labels=dict(admitted.labels),
        )
        self.vms[(vm.zone, vm.name)] = vm
        self._open_account(vm, rate)
        self._vm_later(vm, self.durations.provision_s, lambda: self._stage(vm))
        self._arm_end(vm, now)

    def _arm_end(self, vm: EmbeddedVm, now: datetime) -> None:
        """Schedules the VM's absolute end, if it has one. It holds even if the VM does not run by then."""
        vm.deadline_at = vm.admitted.end_at
        if vm.admitted.end_at is not None:
            self._vm_later(vm, (vm.admitted.end_at - now).total_seconds(), lambda: self._expire(vm))

    def _rate(self, admitted: Admitted) -> Rate:
        return self.inventory.tariff.rate(
            admitted.machine.name,
            region_of(admitted.zone),
            spot=admitted.spot,
            disk_type=admitted.disk_type,
            disk_gib=admitted.disk_gib,
            external_ip=admitted.external_ip,
            gpu_count=admitted.gpu_count,
        )

    def _open_account(self, vm: EmbeddedVm, rate: Rate) -> None:
        admitted = vm.admitted
        self.meter.open(
            Account(
                vm_id=vm.account,
                run_id=vm.run_id,
                vm=vm.name,
                zone=vm.zone,
                machine_type=admitted.machine.name,
                gpu=admitted.gpu,
                provisioning="spot" if admitted.spot else "standard",
                has_deadline=admitted.has_end,
                rate=rate,
            )
        )

    def _stage(self, vm: EmbeddedVm) -> None:
        with self.lock:
            if vm.ending:
                return
            vm.status = "STAGING"
        self._vm_later(vm, self.durations.stage_s, lambda: self._run(vm))

    def _run(self, vm: EmbeddedVm) -> None:
        with self.lock:
            if vm.ending:
                return
            now = self.timeline.now()
            vm.status = "RUNNING"
            vm.running_at = now
            self.meter.started(vm.account, now)
            self.operations.finish(vm.insert_operation, now)
            if vm.admitted.max_run_s is not None:
                after = now + timedelta(seconds=vm.admitted.max_run_s)
                vm.deadline_at = min(after, vm.admitted.end_at or after)
                self._vm_later(vm, vm.admitted.max_run_s, lambda: self._expire(vm))
            timed = self.weather.reserve(lambda f: self._hits(f, vm, *TIMED) and due_after(f) is not None)
            if timed is not None:
                vm.reserved.append(timed)
                self._vm_later(vm, due_after(timed) or 0.0, lambda: self._perform(vm, timed))
        slow = self.weather.take(vm.name, lambda fault: self._hits(fault, vm, "slow_boot"))
        if self.weather.take(vm.name, lambda fault: self._hits(fault, vm, "never_boots")) is None:
            delay = float(slow.params["seconds"]) if slow else 0.0
            self._vm_later(vm, self.durations.boot_s + delay, lambda: self._boot(vm))

    def _boot(self, vm: EmbeddedVm) -> None:
        with self.lock:
            if vm.ending:
                return
            vm.booted = True
        vm.machine.boot()
        for watcher in self.watchers if vm.guest.tasks else ():
            watcher.booted(vm)

    def _expire(self, vm: EmbeddedVm) -> None:
        with self.lock:
            if vm.ending:
                return
            operation = self.operations.begin(
                vm.admitted.termination_action.lower(),
                vm.target,
                self.timeline.now(),
                SYSTEM,
                "Instance reached its maximum run duration or its termination time.",
            )
            vm.closing_operations.append(operation)
        self._stop(vm, "deadline")

    def _stop(self, vm: EmbeddedVm, by: str) -> None:
        """Shuts the guest down, and ends the VM once its processes have ended or `grace_s` is over."""
        with self.lock:
            if vm.ending:
                return
            vm.ending = by
            vm.status = "STOPPING"
            vm.cancel_alarms()
            until = self.timeline.now() + timedelta(seconds=self.durations.grace_s)
        if vm.booted:
            vm.machine.shut_down()
        self._later(self.durations.end_s, lambda: self._rest(vm, until))

    def _rest(self, vm: EmbeddedVm, until: datetime) -> None:
        if vm.machine.running() and self.timeline.now() < until:
            self._later(self.durations.poll_s, lambda: self._rest(vm, until))
        else:
            self._end(vm, vm.ending or "client")

    def _end(self, vm: EmbeddedVm, by: str, *, vanish: bool = False) -> None:
        """Ends the VM at once. It is gone when this returns, unless it stays as a stopped VM."""
        with self.lock:
            if self.vms.get((vm.zone, vm.name)) is not vm:
                return
            vm.ending = vm.ending or by
            vm.cancel_alarms()
        vm.machine.kill()
        with self.lock:
            if self.vms.get((vm.zone, vm.name)) is not vm:
                return
            now = self.timeline.now()
            for fault in vm.reserved:
                self.weather.release(fault)
            vm.reserved.clear()
            stays = by == "stop" or (by in ("preemption", "deadline") and vm.admitted.termination_action == "STOP")
            keeps_disk = stays and not vanish
            if keeps_disk:
                vm.status = "TERMINATED"
                vm.ending = None
                vm.stopped_at = now
                self.meter.stopped(vm.account, now, by)
            else:
                del self.vms[(vm.zone, vm.name)]
                self.meter.ended(vm.account, now, by)
            operations = [vm.insert_operation, *vm.closing_operations]
            vm.closing_operations.clear()
            for operation in operations:
                self.operations.finish(operation, now)
        for watcher in self.watchers if vm.guest.tasks else ():
            watcher.gone(vm, by)

    # Faults

    def _hits(self, fault: Fault, vm: EmbeddedVm, *kinds: str) -> bool:
        return hits_vm(fault, *kinds, vm=vm.name, zone=vm.zone, run_id=vm.run_id)

    def _perform(self, vm: EmbeddedVm, fault: Fault) -> None:
        with self.lock:
            if fault not in vm.reserved:
                return
            if fault.kind in ("preempt", "lost"):
                vm.reserved.remove(fault)
                self.weather.fire(fault, vm.name)
        if fault.kind == "preempt":
            self.preempt(vm, float(fault.params.get("notice_s", vm.admitted.notice_s or DEFAULT_NOTICE_S)))
        elif fault.kind == "lost":
            self.lose(vm)
        elif vm.machine.strike(fault.kind, fault.params.get("target", "harness")):
            with self.lock:
                if fault in vm.reserved:
                    vm.reserved.remove(fault)
                    self.weather.fire(fault, vm.name)
        else:
            # The phase has begun but its harness has not: try again until it runs.
            self._vm_later(vm, self.durations.poll_s, lambda: self._perform(vm, fault))

    # Time

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timeline.call_later(seconds, callback)

    def _vm_later(self, vm: EmbeddedVm, seconds: float, callback: Callable[[], None]) -> None:
        """Schedules a callback that is cancelled when the VM begins to end."""
        vm.alarms.append(self.timeline.call_later(seconds, callback))
