"""All instances, and the requests of clients about them. Each request is one operation, as at Google."""

from __future__ import annotations

import hmac
from typing import Any

from orchestrator.embedded.admission import admit_instance, check_labels, check_metadata
from orchestrator.embedded.capacity import foul_weather, over_quota, quota_usage
from orchestrator.embedded.errors import ApiError, invalid_field, not_found
from orchestrator.embedded.life import Lives
from orchestrator.embedded.links import document_fingerprint
from orchestrator.embedded.operations import OperationTarget
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

    def insert(self, body: Any, zone: str, request_id: str, user: str, *, tasks: bool = False) -> dict[str, Any]:
        """Begins to create an instance. Returns the operation, which may still fail. `tasks`: whether the instance
        waits for tasks once it has booted. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("insert", request_id)) is not None:
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
            operation = self.operations.begin(
                "insert", OperationTarget(zone, path, vm_id), now, user=user, request_id=request_id
            )
            failure = foul_weather(admitted, self.project, self.weather) or over_quota(
                admitted, self.all(), self.inventory, self.weather
            )
            if failure is not None:
                self._later(self.durations.provision_s, lambda: self._done(operation, failure))
            else:
                self._create(admitted, vm_id, operation, now, tasks=tasks)
        return self.operations.listed[operation]

    def delete(self, zone: str, name: str, request_id: str, user: str, by: str) -> dict[str, Any]:
        """Begins to delete an instance. Returns the operation. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("delete", request_id)) is not None:
                return replayed
            vm = self.find(zone, name)
            operation = self._begin("delete", vm, user, request_id)
            vm.closing_operations.append(operation)
            vm.status = "STOPPING"
            if vm.ending == "stop":
                vm.ending = by  # it was being stopped, and is now deleted instead
        self._stop(vm, by)
        return self.operations.listed[operation]

    def set_labels(self, zone: str, name: str, body: Any, request_id: str, user: str) -> dict[str, Any]:
        """Replaces the labels, if the request has the fingerprint of the present ones. Returns the operation. Raises
        `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("setLabels", request_id)) is not None:
                return replayed
            vm = self.find(zone, name)
            labels = check_labels(body.get("labels", {}), "labels")
            if body.get("labelFingerprint") != document_fingerprint(vm.labels):
                message = "Labels fingerprint either invalid or resource labels have changed"
                raise ApiError(412, message)
            operation = self._begin("setLabels", vm, user, request_id)
            vm.labels = labels
            self._later(self.durations.end_s, lambda: self._done(operation))
        return self.operations.listed[operation]

    def set_metadata(self, zone: str, name: str, body: Any, request_id: str, user: str) -> dict[str, Any]:
        """Replaces the metadata, if the request has the fingerprint of the present ones. Returns the operation. Raises
        `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("setMetadata", request_id)) is not None:
                return replayed
            vm = self.find(zone, name)
            metadata = check_metadata(body)
            if body.get("fingerprint") != document_fingerprint(dict(vm.guest.metadata)):
                raise ApiError(412, "Supplied fingerprint does not match current metadata fingerprint.")
            operation = self._begin("setMetadata", vm, user, request_id)
            vm.guest.change_metadata(metadata)
            self._later(self.durations.end_s, lambda: self._done(operation))
        return self.operations.listed[operation]

    def stop(self, zone: str, name: str, request_id: str, user: str) -> dict[str, Any]:
        """Shuts an instance down and keeps its disk, which still costs money. Returns the operation. Raises
        `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("stop", request_id)) is not None:
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
        """Starts a stopped instance again with an empty disk, if stock and quota allow it. Returns the operation.
        Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("start", request_id)) is not None:
                return replayed
            vm = self.find(zone, name)
            if vm.status not in ("TERMINATED", "RUNNING"):
                raise ApiError(400, f"The resource '{vm.path}' is not ready", "resourceNotReady")
            operation = self._begin("start", vm, user, request_id)
            other_vms = [one for one in self.all() if one is not vm]
            failure = foul_weather(vm.admitted, self.project, self.weather) if vm.status == "TERMINATED" else None
            if vm.status == "TERMINATED" and failure is None:
                failure = over_quota(vm.admitted, other_vms, self.inventory, self.weather)
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
        """Simulates maintenance of the machine's host: a spot machine is preempted. Returns the operation. Raises
        `ApiError`."""
        vm = self.find(zone, name)
        operation = self._begin("simulateMaintenanceEvent", vm, user, request_id)
        if vm.admitted.spot:
            self.preempt(vm)
        self._later(self.durations.end_s, lambda: self._done(operation))
        return self.operations.listed[operation]

    def _begin(self, kind: str, vm: EmbeddedVm, user: str, request_id: str) -> str:
        now = self.timeline.now()
        return self.operations.begin(kind, vm.target, now, user=user, request_id=request_id)
