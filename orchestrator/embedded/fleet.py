"""Every instance that exists, and what clients ask of them: each request is one operation, as at Google."""

from __future__ import annotations

import hmac
from typing import Any

from orchestrator.embedded.admission import admit, check_labels, check_metadata
from orchestrator.embedded.capacity import foul_weather, over_quota, used
from orchestrator.embedded.errors import ApiError, invalid, not_found
from orchestrator.embedded.life import Lives
from orchestrator.embedded.links import fingerprint
from orchestrator.embedded.operations import Target
from orchestrator.embedded.vm import Vm


class Fleet(Lives):
    """Answers; refuses with the API's errors. Thread-safe."""

    # What there is

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

    def usage(self, region: str | None) -> dict[str, float]:
        """How much of each quota is used, in a region or in the project."""
        return used(self.all(), self.inventory, self.weather, region)

    # What is asked of it

    def insert(self, body: Any, zone: str, request_id: str, user: str, *, tasks: bool = False) -> dict[str, Any]:
        """Begin an instance; returns the operation, which may yet fail. `tasks`: it waits for tasks once it has
        booted. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("insert", request_id)) is not None:
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
            operation = self.operations.begin(
                "insert", Target(zone, path, vm_id), now, user=user, request_id=request_id
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
        """Begin the end of an instance; returns the operation. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("delete", request_id)) is not None:
                return replayed
            vm = self.find(zone, name)
            operation = self._begin("delete", vm, user, request_id)
            vm.closing_operations.append(operation)
            vm.status = "STOPPING"
            if vm.ending == "stop":
                vm.ending = by  # it was to stay, and shall not
        self._stop(vm, by)
        return self.operations.listed[operation]

    def set_labels(self, zone: str, name: str, body: Any, request_id: str, user: str) -> dict[str, Any]:
        """Replace the labels, if the fingerprint is that of the present ones. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("setLabels", request_id)) is not None:
                return replayed
            vm = self.find(zone, name)
            labels = check_labels(body.get("labels", {}), "labels")
            if body.get("labelFingerprint") != fingerprint(vm.labels):
                message = "Labels fingerprint either invalid or resource labels have changed"
                raise ApiError(412, message)
            operation = self._begin("setLabels", vm, user, request_id)
            vm.labels = labels
            self._later(self.durations.end_s, lambda: self._done(operation))
        return self.operations.listed[operation]

    def set_metadata(self, zone: str, name: str, body: Any, request_id: str, user: str) -> dict[str, Any]:
        """Replace the metadata, if the fingerprint is that of the present ones. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("setMetadata", request_id)) is not None:
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
        """Run a stopped instance again, on an empty disk, if there is room. Raises `ApiError`."""
        with self.lock:
            if (replayed := self.operations.replayed("start", request_id)) is not None:
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
        return self.operations.begin(kind, vm.target, now, user=user, request_id=request_id)
