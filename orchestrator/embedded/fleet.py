"""Every instance that exists, and its life: asked for, provisioned, running, stopped, gone."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from orchestrator.embedded.admission import Admitted, admit, check_labels, check_metadata
from orchestrator.embedded.capacity import foul_weather, over_quota, used
from orchestrator.embedded.console import Console
from orchestrator.embedded.errors import ApiError, OperationError, invalid, not_found
from orchestrator.embedded.guest import Guest, MachineFactory
from orchestrator.embedded.inventory import Inventory, numeric_id, region_of
from orchestrator.embedded.links import fingerprint
from orchestrator.embedded.meter import Account, Meter
from orchestrator.embedded.operations import Ids, Operations
from orchestrator.embedded.tariff import Rate
from orchestrator.embedded.timeline import Timeline
from orchestrator.embedded.vm import Vm
from orchestrator.embedded.weather import Fault, Weather, due_after, due_upon, hits_vm

SYSTEM = "system"
TIMED = ("preempt", "lost", "hang", "kill")
DEFAULT_NOTICE_S = 30.0


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the cloud takes over things, in seconds."""

    provision_s: float
    """From the insert until STAGING."""
    stage_s: float
    """From STAGING until RUNNING."""
    boot_s: float
    """From RUNNING until the startup script runs."""
    end_s: float
    """The least time from STOPPING until the VM is gone."""
    poll_s: float
    """How often the cloud looks whether a stopping VM has come to rest."""
    grace_s: float
    """The most time a stopping VM gets; below the 30 s by which a deadline may be late, so no bill exceeds them."""


REAL = Durations(0.15, 0.15, 0.0, 0.05, 0.05, 25.0)
SIMULATED = Durations(4.0, 8.0, 20.0, 5.0, 1.0, 25.0)


class Watcher(Protocol):
    """Who is told of the VMs that wait for tasks; called outside the lock."""

    def booted(self, vm: Vm) -> None: ...
    def gone(self, vm: Vm, by: str) -> None: ...


class Fleet:
    """Thread-safe. Machines are started and killed outside the lock, because they call back."""

    def __init__(  # noqa: PLR0913 - the parts of a cloud meet here
        self,
        *,
        project: str,
        inventory: Inventory,
        meter: Meter,
        operations: Operations,
        weather: Weather,
        timeline: Timeline,
        durations: Durations,
        ids: Ids,
        make_machine: MachineFactory,
        scratch: Path,
        endpoints: Callable[[], tuple[str, str]],
    ) -> None:
        self.project = project
        self.project_number = numeric_id(project)[:12]
        self.inventory = inventory
        self.meter = meter
        self.operations = operations
        self.weather = weather
        self.timeline = timeline
        self.durations = durations
        self.ids = ids
        self.make_machine = make_machine
        self.scratch = scratch
        self.endpoints = endpoints
        self.lock = threading.RLock()
        self.vms: dict[tuple[str, str], Vm] = {}
        self.watchers: list[Watcher] = []

    # What there is

    def all(self) -> list[Vm]:
        with self.lock:
            return list(self.vms.values())

    def in_zone(self, zone: str) -> list[Vm]:
        return [vm for vm in self.all() if vm.zone == zone]

    def find(self, zone: str, name: str) -> Vm:
        """Raises the API's 404."""
        with self.lock:
            vm = self.vms.get((zone, name))
        if vm is None:
            raise not_found(f"projects/{self.project}/zones/{zone}/instances/{name}")
        return vm

    def by_token(self, token: str) -> Vm | None:
        """The VM whose metadata server gives out this token."""
        return next((vm for vm in self.all() if hmac.compare_digest(vm.guest.token.encode(), token.encode())), None)

    def named(self, name: str) -> Vm | None:
        """The VM of that name, in whatever zone."""
        return next((vm for vm in self.all() if vm.name == name), None)

    def of_run(self, run_id: str, attempt: str) -> Vm | None:
        """The VM that makes this attempt at a run."""
        for vm in self.all():
            if vm.labels.get("bench-run") == run_id and vm.labels.get("bench-attempt") == attempt:
                return vm
        return None

    def usage(self, region: str | None) -> dict[str, float]:
        """How much of each quota is used, in a region or in the project."""
        return used(self.all(), self.inventory, self.weather, region)

    # What is asked of it

    def insert(self, body: Any, zone: str, request_id: str, user: str, *, tasks: bool = False) -> dict[str, Any]:
        """Begin an instance; returns the operation, which may yet fail. `tasks`: it waits for tasks once it has
        booted. Raises `ApiError`."""
        with self.lock:
            replayed = self.operations.replayed("insert", request_id)
            if replayed is not None:
                return replayed
            admitted = admit(body, self.project, zone, self.inventory)
            path = f"projects/{self.project}/zones/{zone}/instances/{admitted.name}"
            if (zone, admitted.name) in self.vms:
                raise ApiError(409, f"The resource '{path}' already exists")
            now = self.timeline.now()
            if admitted.end_at is not None and admitted.end_at <= now:
                why = "The termination time must be in the future."
                raise invalid("resource.scheduling.terminationTime", admitted.end_at.isoformat(), why)
            vm_id = self.ids.new(now)
            operation = self.operations.begin("insert", zone, path, vm_id, now, user=user, request_id=request_id)
            failure = foul_weather(admitted, self.project, self.weather) or over_quota(
                admitted, self.all(), self.inventory, self.weather
            )
            if failure is not None:
                self._later(self.durations.provision_s, lambda: self._done(operation, failure))
            else:
                self._create(admitted, vm_id, operation, now, tasks=tasks)
        return self.operations.listed[operation]

    def delete(self, zone: str, name: str, request_id: str, user: str, by: str) -> dict[str, Any]:
        """Begin the end of an instance; returns the operation. Raises `ApiError`."""
        with self.lock:
            replayed = self.operations.replayed("delete", request_id)
            if replayed is not None:
                return replayed
            vm = self.find(zone, name)
            operation = self.operations.begin(
                "delete", zone, vm.path, vm.id, self.timeline.now(), user=user, request_id=request_id
            )
            vm.closing_operations.append(operation)
            vm.status = "STOPPING"
            if vm.ending == "stop":
                vm.ending = by  # it was to stay, and shall not
        self._stop(vm, by)
        return self.operations.listed[operation]

    def set_labels(self, zone: str, name: str, body: Any, request_id: str, user: str) -> dict[str, Any]:
        """Replace the labels, if the fingerprint is that of the present ones. Raises `ApiError`."""
        with self.lock:
            replayed = self.operations.replayed("setLabels", request_id)
            if replayed is not None:
                return replayed
            vm = self.find(zone, name)
            labels = check_labels(body.get("labels", {}), "labels")
            if body.get("labelFingerprint") != fingerprint(vm.labels):
                message = "Labels fingerprint either invalid or resource labels have changed"
                raise ApiError(412, message)
            now = self.timeline.now()
            operation = self.operations.begin("setLabels", zone, vm.path, vm.id, now, user=user, request_id=request_id)
            vm.labels = labels
            self._later(self.durations.end_s, lambda: self._done(operation))
        return self.operations.listed[operation]

    def set_metadata(self, zone: str, name: str, body: Any, request_id: str, user: str) -> dict[str, Any]:
        """Replace the metadata, if the fingerprint is that of the present ones. Raises `ApiError`."""
        with self.lock:
            replayed = self.operations.replayed("setMetadata", request_id)
            if replayed is not None:
                return replayed
            vm = self.find(zone, name)
            metadata = check_metadata(body)
            if body.get("fingerprint") != fingerprint(dict(vm.guest.metadata)):
                raise ApiError(412, "Supplied fingerprint does not match current metadata fingerprint.")
            operation = self._begin("setMetadata", vm, user, request_id)
            vm.guest.change_metadata(metadata)
            self._later(self.durations.end_s, lambda: self._done(operation))
        return self.operations.listed[operation]

    def stop(self, zone: str, name: str, request_id: str, user: str) -> dict[str, Any]:
        """Shut an instance down and keep its disk, which goes on costing. Raises `ApiError`."""
        with self.lock:
            replayed = self.operations.replayed("stop", request_id)
            if replayed is not None:
                return replayed
            vm = self.find(zone, name)
            operation = self._begin("stop", vm, user, request_id)
            if vm.status == "TERMINATED":
                self._later(self.durations.end_s, lambda: self._done(operation))
                return self.operations.listed[operation]
            vm.closing_operations.append(operation)
        self._stop(vm, "stop")
        return self.operations.listed[operation]

    def start(self, zone: str, name: str, request_id: str, user: str) -> dict[str, Any]:
        """Run a stopped instance again, on an empty disk, if there is room. Raises `ApiError`."""
        with self.lock:
            replayed = self.operations.replayed("start", request_id)
            if replayed is not None:
                return replayed
            vm = self.find(zone, name)
            if vm.status not in ("TERMINATED", "RUNNING"):
                raise ApiError(400, f"The resource '{vm.path}' is not ready", "resourceNotReady")
            operation = self._begin("start", vm, user, request_id)
            others = [one for one in self.all() if one is not vm]
            failure = foul_weather(vm.admitted, self.project, self.weather) if vm.status == "TERMINATED" else None
            if vm.status == "TERMINATED" and failure is None:
                failure = over_quota(vm.admitted, others, self.inventory, self.weather)
            if vm.status == "RUNNING" or failure is not None:
                self._later(self.durations.provision_s, lambda: self._done(operation, failure))
                return self.operations.listed[operation]
            self.meter.ended(vm.account, self.timeline.now(), "stop")
            vm.starts += 1
            vm.status, vm.booted, vm.stopped_at = "PROVISIONING", False, None
            vm.guest.preempted = False
            vm.machine = self.make_machine(vm.guest)
            vm.insert_operation = operation
            self._open_account(vm, self._rate(vm.admitted))
            self._arm_end(vm, self.timeline.now())
            self._vm_later(vm, self.durations.provision_s, lambda: self._stage(vm))
        return self.operations.listed[operation]

    def simulate_maintenance(self, zone: str, name: str, request_id: str, user: str) -> dict[str, Any]:
        """What befalls a machine whose host is maintained: a spot one is preempted. Raises `ApiError`."""
        vm = self.find(zone, name)
        operation = self._begin("simulateMaintenanceEvent", vm, user, request_id)
        if vm.admitted.spot:
            self.preempt(vm)
        self._later(self.durations.end_s, lambda: self._done(operation))
        return self.operations.listed[operation]

    def _begin(self, kind: str, vm: Vm, user: str, request_id: str) -> str:
        now = self.timeline.now()
        return self.operations.begin(kind, vm.zone, vm.path, vm.id, now, user=user, request_id=request_id)

    def preempt(self, vm: Vm, notice_s: float = DEFAULT_NOTICE_S) -> None:
        """Take the VM back: the guest is told at once, shut down after `notice_s`; with 0 it is killed at once."""
        with self.lock:
            if vm.status != "RUNNING" or vm.ending or vm.guest.preempted:
                return
            operation = self.operations.begin(
                "compute.instances.preempted",
                vm.zone,
                vm.path,
                vm.id,
                self.timeline.now(),
                user=SYSTEM,
                message="Instance was preempted.",
            )
            vm.closing_operations.append(operation)
        vm.guest.announce_preemption()
        if notice_s > 0:
            self._vm_later(vm, notice_s, lambda: self._stop(vm, "preemption"))
        else:
            self._end(vm, "preemption")

    def lose(self, vm: Vm) -> None:
        """The VM vanishes with no operation and no notice."""
        self._end(vm, "lost", vanish=True)

    def witness(self, run_id: str, writer: str, kind: str, data: dict[str, Any]) -> None:
        """A VM has stored an event of its run: faults that wait for it befall that VM now."""
        vm = self.of_run(run_id, [*writer.split("-"), ""][1])
        if vm is None:
            return
        fault = self.weather.reserve(lambda fault: self._hits(fault, vm, *TIMED) and due_upon(fault, kind, data))
        if fault is not None:
            vm.reserved.append(fault)
            self._perform(vm, fault)

    def close(self) -> None:
        """End everything, as the host is going down."""
        for vm in self.all():
            self._end(vm, "shutdown", vanish=True)

    # A life

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
        vm = Vm(
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

    def _arm_end(self, vm: Vm, now: datetime) -> None:
        """The absolute end holds from the start on, whether it runs by then or not."""
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

    def _open_account(self, vm: Vm, rate: Rate) -> None:
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

    def _stage(self, vm: Vm) -> None:
        with self.lock:
            if vm.ending:
                return
            vm.status = "STAGING"
        self._vm_later(vm, self.durations.stage_s, lambda: self._run(vm))

    def _run(self, vm: Vm) -> None:
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

    def _boot(self, vm: Vm) -> None:
        with self.lock:
            if vm.ending:
                return
            vm.booted = True
        vm.machine.boot()
        for watcher in self.watchers if vm.guest.tasks else ():
            watcher.booted(vm)

    def _expire(self, vm: Vm) -> None:
        with self.lock:
            if vm.ending:
                return
            operation = self.operations.begin(
                vm.admitted.termination_action.lower(),
                vm.zone,
                vm.path,
                vm.id,
                self.timeline.now(),
                user=SYSTEM,
                message="Instance reached its maximum run duration or its termination time.",
            )
            vm.closing_operations.append(operation)
        self._stop(vm, "deadline")

    def _stop(self, vm: Vm, by: str) -> None:
        """Shut the guest down, and end the VM when it has come to rest or its grace is over."""
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

    def _rest(self, vm: Vm, until: datetime) -> None:
        if vm.machine.running() and self.timeline.now() < until:
            self._later(self.durations.poll_s, lambda: self._rest(vm, until))
        else:
            self._end(vm, vm.ending or "client")

    def _end(self, vm: Vm, by: str, *, vanish: bool = False) -> None:
        """Pull the plug. The VM is gone when this returns, unless it is to be kept as stopped."""
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

    # What goes wrong

    def _hits(self, fault: Fault, vm: Vm, *kinds: str) -> bool:
        return hits_vm(fault, *kinds, vm=vm.name, zone=vm.zone, run_id=vm.run_id)

    def _perform(self, vm: Vm, fault: Fault) -> None:
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
            # The phase has begun but its harness has not: look again until there is one to strike.
            self._vm_later(vm, self.durations.poll_s, lambda: self._perform(vm, fault))

    # Time

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timeline.call_later(seconds, callback)

    def _vm_later(self, vm: Vm, seconds: float, callback: Callable[[], None]) -> None:
        """A callback that is forgotten when the VM begins to end."""
        vm.alarms.append(self.timeline.call_later(seconds, callback))

    def _done(self, operation: str, error: OperationError | None = None) -> None:
        self.operations.finish(operation, self.timeline.now(), error)
