"""All instances: their lives, which one lock guards, and the requests of clients about them. Each request is one
operation, as at Google."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orchestrator.embedded.admission import Admitted, admit_instance, check_labels, check_metadata
from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import document_fingerprint
from orchestrator.embedded.errors import ApiError, OperationError, invalid_field, not_found, stockout_error
from orchestrator.embedded.guest import Console, Guest, MachineFactory
from orchestrator.embedded.inventory import numeric_id, region_of
from orchestrator.embedded.meter import Account, Rate
from orchestrator.embedded.operations import OperationTarget, Sender
from orchestrator.embedded.vm import EmbeddedVm, foul_weather, over_quota, quota_usage
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


class Fleet(BodyPart):
    """The instances of the cloud. Methods raise the API's errors. Thread-safe. Machines are started and killed outside
    the lock, because they call back."""

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

    def _create(
        self,
        admitted: Admitted,
        vm_id: str,
        operation: str,
        now: datetime,
        *,
        tasks: bool,
        failure: OperationError | None = None,
    ) -> None:
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
        if admitted.queue_s:
            self._enqueue(vm, failure)
        else:
            self._vm_later(vm, self.durations.provision_s, lambda: self._stage(vm))
        self._arm_end(vm, now)

    def _enqueue(self, vm: EmbeddedVm, failure: OperationError | None) -> None:
        """Lets a flex-start VM wait for capacity, for which the weather decides. It costs nothing meanwhile. The
        operation of its insert stays open: it is done when the VM runs, and fails if the VM leaves the queue without
        capacity, which deletes it."""
        vm.status = "PENDING"
        fault = None
        if failure is None:
            fault = self.weather.take(vm.name, lambda fault: self._hits(fault, vm, "queue"))
        waits_s = float(fault.params["seconds"]) if fault else 0.0
        if failure is None and waits_s < vm.admitted.queue_s:
            self._vm_later(vm, waits_s + self.durations.provision_s, lambda: self._provision(vm))
            return
        admitted = vm.admitted
        error = failure or stockout_error(self.project, vm.zone, admitted.machine.name, admitted.attachment, None)

        def leave() -> None:
            self.operations.finish(vm.insert_operation, self.timeline.now(), error)
            self._end(vm, "queue")

        self._vm_later(vm, admitted.queue_s, leave)

    def _provision(self, vm: EmbeddedVm) -> None:
        with self.lock:
            if vm.ending:
                return
            vm.status = "PROVISIONING"
        self._vm_later(vm, self.durations.provision_s, lambda: self._stage(vm))

    def _arm_end(self, vm: EmbeddedVm, now: datetime) -> None:
        """Schedules the VM's absolute end, if it has one. It holds even if the VM does not run by then."""
        vm.deadline_at = vm.admitted.end_at
        if vm.admitted.end_at is not None:
            self._vm_later(vm, (vm.admitted.end_at - now).total_seconds(), lambda: self._expire(vm))

    def _rate(self, admitted: Admitted) -> Rate:
        return self.inventory.tariff.rate(
            admitted.machine.name,
            region_of(admitted.zone),
            provisioning=admitted.provisioning,
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
                provisioning=admitted.provisioning,
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

    # Finding instances

    def in_zone(self, zone: str) -> list[EmbeddedVm]:
        return [vm for vm in self.all() if vm.zone == zone]

    def find(self, zone: str, name: str) -> EmbeddedVm:
        """The instance. Raises the API's 404 if there is none."""
        with self.lock:
            vm = self.vms.get((zone, name))
        if vm is None:
            raise not_found(f"projects/{self.project}/zones/{zone}/instances/{name}")
        return vm

    def by_token(self, token: str) -> EmbeddedVm | None:
        """The VM whose metadata server gives out this token, or None."""
        return next((vm for vm in self.all() if hmac.compare_digest(vm.guest.token.encode(), token.encode())), None)

    def named(self, name: str) -> EmbeddedVm | None:
        """The VM of this name in any zone, or None."""
        return next((vm for vm in self.all() if vm.name == name), None)

    def usage(self, region: str | None) -> dict[str, float]:
        """How much of each quota is used, by metric, in a region or in the project (None)."""
        return quota_usage(self.all(), self.inventory, self.weather, region)

    # Requests
    def insert(self, body: Any, zone: str, sender: Sender, *, tasks: bool = False) -> dict[str, Any]:
        """Begins to create an instance. Returns the operation, which may still fail. `tasks`: whether the instance
        waits for tasks once it has booted. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("insert", sender)) is not None:
                return replayed
            admitted = admit_instance(body, self.project, zone, self.inventory)
            path = f"projects/{self.project}/zones/{zone}/instances/{admitted.name}"
            if (zone, admitted.name) in self.vms:
                raise ApiError(409, f"The resource '{path}' already exists")
            now = self.timeline.now()
            if admitted.end_at is not None and admitted.end_at <= now:
                why = "The termination time must be in the future."
                raise invalid_field("resource.scheduling.terminationTime", admitted.end_at.isoformat(), why)
            vm_id = self.ids.new(now)
            operation = self.operations.begin("insert", OperationTarget(zone, path, vm_id), now, sender)
            failure = self._failure(admitted, self.all())
            if failure is not None and not (admitted.queue_s and failure.http_status == 503):
                self._finish_in(self.durations.provision_s, operation, failure)
            else:
                self._create(admitted, vm_id, operation, now, tasks=tasks, failure=failure)
        return self.operations.listed[operation]

    def act(self, kind: str, zone: str, name: str, body: Any, sender: Sender) -> dict[str, Any]:
        """Begins an action on an instance, named as its operation. Returns the operation. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed(kind, sender)) is not None:
                return replayed
            vm = self.find(zone, name)
            stops = kind == "delete" or (kind == "stop" and vm.status != "TERMINATED")
            begin = partial(self.operations.begin, kind, vm.target, self.timeline.now(), sender)
            match kind:
                case "setLabels":
                    operation = self._set_labels(vm, body, begin)
                case "setMetadata":
                    operation = self._set_metadata(vm, body, begin)
                case "start":
                    operation = self._start(vm, begin)
                case _:
                    operation = begin()
            if kind == "delete":
                vm.status = "STOPPING"
                vm.ending = sender.by if vm.ending == "stop" else vm.ending  # it is deleted instead of stopped
            if stops:
                vm.closing_operations.append(operation)
            elif kind != "start":
                self._finish_in(self.durations.end_s, operation)
        if stops:
            self._stop(vm, sender.by if kind == "delete" else "stop")
        elif kind == "simulateMaintenanceEvent" and vm.admitted.spot:
            self.preempt(vm)
        return self.operations.listed[operation]

    def _set_labels(self, vm: EmbeddedVm, body: Any, begin: Callable[[], str]) -> str:
        """Replaces the labels, if the request has the fingerprint of the present ones."""
        labels = check_labels(body.get("labels", {}), "labels")
        if body.get("labelFingerprint") != document_fingerprint(vm.labels):
            raise ApiError(412, "Labels fingerprint either invalid or resource labels have changed")
        operation = begin()
        vm.labels = labels
        return operation

    def _set_metadata(self, vm: EmbeddedVm, body: Any, begin: Callable[[], str]) -> str:
        """Replaces the metadata, if the request has the fingerprint of the present ones."""
        metadata = check_metadata(body)
        if body.get("fingerprint") != document_fingerprint(dict(vm.guest.metadata)):
            raise ApiError(412, "Supplied fingerprint does not match current metadata fingerprint.")
        operation = begin()
        vm.guest.change_metadata(metadata)
        return operation

    def _start(self, vm: EmbeddedVm, begin: Callable[[], str]) -> str:
        """Starts a stopped instance again with an empty disk, if stock and quota allow it."""
        if vm.status not in ("TERMINATED", "RUNNING"):
            raise ApiError(400, f"The resource '{vm.path}' is not ready", "resourceNotReady")
        operation = begin()
        other_vms = [other for other in self.all() if other is not vm]
        failure = self._failure(vm.admitted, other_vms) if vm.status == "TERMINATED" else None
        if vm.status == "RUNNING" or failure is not None:
            self._finish_in(self.durations.provision_s, operation, failure)
            return operation
        self.meter.ended(vm.account, self.timeline.now(), "stop")
        vm.starts += 1
        vm.status, vm.booted, vm.stopped_at = "PROVISIONING", False, None
        vm.guest.preempted = False
        vm.machine = self.make_machine(vm.guest)
        vm.insert_operation = operation
        self._open_account(vm, self._rate(vm.admitted))
        self._arm_end(vm, self.timeline.now())
        self._vm_later(vm, self.durations.provision_s, lambda: self._stage(vm))
        return operation

    def _failure(self, admitted: Admitted, others: list[EmbeddedVm]) -> OperationError | None:
        """Why an instance cannot be created beside these; None if it can."""
        return foul_weather(admitted, self.project, self.weather) or over_quota(
            admitted, others, self.inventory, self.weather
        )

    def _finish_in(self, seconds: float, operation: str, error: OperationError | None = None) -> None:
        self._later(seconds, lambda: self.operations.finish(operation, self.timeline.now(), error))

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
