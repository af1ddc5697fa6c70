"""All instances, and the requests of clients about them. Each request is one operation, as at Google."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial
from typing import Any

from orchestrator.embedded.admission import Admitted, admit_instance, check_labels, check_metadata
from orchestrator.embedded.capacity import foul_weather, over_quota, quota_usage
from orchestrator.embedded.errors import ApiError, OperationError, invalid_field, not_found
from orchestrator.embedded.life import Lives
from orchestrator.embedded.links import document_fingerprint
from orchestrator.embedded.operations import OperationTarget, Sender
from orchestrator.embedded.vm import EmbeddedVm


class Fleet(Lives):
    """The instances of the cloud. Methods raise the API's errors. Thread-safe."""

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
            if failure is not None:
                self._finish_in(self.durations.provision_s, operation, failure)
            else:
                self._create(admitted, vm_id, operation, now, tasks=tasks)
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
        others = [other for other in self.all() if other is not vm]
        failure = self._failure(vm.admitted, others) if vm.status == "TERMINATED" else None
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
