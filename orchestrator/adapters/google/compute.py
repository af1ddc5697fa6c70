"""Google Compute Engine, or the embedded cloud, through Google's client, in such a way that no answer can be lost."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

import google.api_core.exceptions as api

from orchestrator.adapters.google import compute_faults as table
from orchestrator.adapters.google.compute_calls import Calls, require_operation
from orchestrator.adapters.google.compute_library import compute_v1
from orchestrator.adapters.google.errors import (
    FOREIGN,
    brief_message,
    error_reasons,
    is_transient,
    never_left,
    remedy_for,
    translate_error,
)
from orchestrator.adapters.google.instance_body import instance_body
from orchestrator.adapters.google.market import GoogleMarket, instance_from_json, parse_time
from orchestrator.core.errors import LocalError, NotFound, PermissionDenied, Unavailable
from orchestrator.core.market.machines import (
    NOT_SENT,
    Accepted,
    CloudRefusal,
    Instance,
    InstanceRequest,
    Operation,
    SerialChunk,
)
from orchestrator.core.names import MachineName, ResourceId, Zone
from orchestrator.core.naming import RUN_LABEL, TOOL, TOOL_LABEL
from orchestrator.core.run.decide import QUEUED

LATE_S = (10.0, 20.0, 30.0)
"""The pauses in which a new project's network appears, and a resource's rate of operations falls."""
STATUS: Final = {
    int(compute_v1.Operation.Status.PENDING): "PENDING",
    int(compute_v1.Operation.Status.RUNNING): "RUNNING",
    int(compute_v1.Operation.Status.DONE): "DONE",
}

_REQUEST: Final = re.compile(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ")
"""The client puts the request before the server's words; a person needs the words."""


class GoogleCloud(GoogleMarket):
    """Implements `orchestrator.ports.Cloud`: what `Market` reads without the heavy client, and all that needs it.

    `endpoint` is the base URL of another server that speaks the same protocol; requests to it carry no credentials.
    Every request is sent again a bounded number of times when its answer is lost; inserts and deletes under the same
    request id, by which Google recognises them.
    """

    @cached_property
    def _calls(self) -> Calls:
        return Calls(self._project, self._session, self._clock, self._patience)

    # --- machines ---

    def insert(self, request: InstanceRequest) -> Accepted | CloudRefusal:
        """One machine, or why there is none. A network that is missing is waited for, as in a new project it appears
        after the first request; so is a zone that counts too many operations, under another request id, as the first
        one is answered with its failed operation from then on."""
        for number, pause_s in enumerate((*LATE_S, None)):
            answer = self._insert_once(request)
            late = isinstance(answer, CloudRefusal) and (
                table.lacks_network(table.ComputeFault(answer.code, answer.message)) or answer.code in table.TOO_OFTEN
            )
            if not late or pause_s is None:
                return answer
            self._clock.sleep(pause_s)
            request = replace(request, request_id=str(uuid.uuid5(uuid.UUID(request.request_id), f"later {number}")))
        raise AssertionError("the last answer is returned")

    def _insert_once(self, request: InstanceRequest) -> Accepted | CloudRefusal:
        body = compute_v1.Instance.from_json(json.dumps(instance_body(request, self._project)))
        doing = f"create the VM {request.name} in {request.zone}"
        message = compute_v1.InsertInstanceRequest(
            project=self._project, zone=request.zone, instance_resource=body, request_id=request.request_id
        )
        tries: list[Exception] = []

        def final(exc: Exception) -> bool:
            tries.append(exc)
            return _final(exc)

        try:
            started = self._calls.persist(
                lambda: require_operation(self._instances.insert_unary(message, **self._calls.once)), final=final
            )
        except (*FOREIGN, LocalError) as exc:
            if all(map(never_left, (*tries, exc))) and not is_transient(exc):
                error = exc if isinstance(exc, LocalError) else translate_error(exc, doing)
                return CloudRefusal(NOT_SENT, str(error), table.ALL, error.hint)
            if isinstance(exc, LocalError):
                raise
            return self._refused(exc, request, doing)
        return self._finish_insert(request, started, doing)

    def delete(self, zone: Zone, name: MachineName, request_id: str) -> None:
        doing = f"delete the VM {name} in {zone}"
        faults = self._delete_once(zone, name, request_id, doing)
        if faults and self.instance(zone, name) is not None:
            # The same request id would be answered with the same failed operation for ever.
            faults = self._delete_once(zone, name, str(uuid.uuid4()), doing)
            if faults and self.instance(zone, name) is not None:
                raise Unavailable(
                    f"cannot {doing}: {faults[0].code} {faults[0].message}",
                    hint="`bench stop RUN` tries again; the VM's own deadline deletes it in any case",
                )

    def instance(self, zone: Zone, name: MachineName) -> Instance | None:
        def look() -> Instance:
            message = to_instance(
                self._instances.get(project=self._project, zone=zone, instance=name, **self._calls.once)
            )
            if message.name != name:
                raise ValueError(f"it is about the VM {message.name[:80]!r}")
            return message

        return self._calls.unless_gone(look, f"look at the VM {name} in {zone}")

    def serial_output(self, zone: Zone, name: MachineName, start: int) -> SerialChunk | None:
        request = compute_v1.GetSerialPortOutputInstanceRequest(
            project=self._project, zone=zone, instance=name, port=1, start=start
        )
        try:
            found: compute_v1.SerialPortOutput | None = self._calls.unless_gone(
                lambda: self._instances.get_serial_port_output(request, **self._calls.once),
                f"read the serial port of {name}",
                through=_not_yet,
            )
        except api.GoogleAPICallError:
            return SerialChunk("", max(start, 0), lost=False)
        if found is None:
            return None
        return SerialChunk(found.contents, int(found.next_), lost=0 <= start < int(found.start))

    # --- the operation log ---

    def operations(self, zone: Zone, instance_id: ResourceId) -> tuple[Operation, ...]:
        return self._log(zone, f"targetId={instance_id}")

    def operations_by_name(self, zone: Zone, name: MachineName) -> tuple[Operation, ...]:
        return self._log(zone, by_name(name))

    # --- below the port ---

    @property
    def _instances(self) -> Any:
        return self._calls.client(compute_v1.InstancesClient)

    def _log(self, zone: str, wanted: str) -> tuple[Operation, ...]:
        return tuple(to_operation(found) for found in self._calls.list_operations(zone, wanted))

    def _finish_insert(
        self, request: InstanceRequest, started: compute_v1.Operation, doing: str
    ) -> Accepted | CloudRefusal:
        queue: list[Instance] = []

        def waits() -> bool:
            """Whether the machine is in the queue. The operation of its insert may stay open until it leaves."""
            found = self.instance(request.zone, request.name) if request.queue_s else None
            queue[:] = [found] if found is not None and found.status == QUEUED else []
            return bool(queue)

        try:
            done = self._calls.wait(request.zone, started, doing, enough=waits)
        except NotFound as exc:
            # A replayed request id is answered with an operation that may be forgotten by now.
            instance = self.instance(request.zone, request.name)
            if instance is None:
                raise Unavailable(
                    f"cannot {doing}: Google no longer knows whether that succeeded",
                    hint=f"`bench launch --resume {request.labels[RUN_LABEL]}` requests a machine again",
                ) from exc
            return Accepted(instance)
        faults = operation_faults(done)
        if queue:
            return Accepted(queue[0])
        if not faults:
            return Accepted(self.instance(request.zone, request.name) or self._vanished(request, done))
        return self._judge(faults, request, doing)

    def _refused(self, exc: Exception, request: InstanceRequest, doing: str) -> Accepted | CloudRefusal:
        """The refusal that an HTTP error to an insert means. Raises if the error is not a refusal of the VM."""
        if not isinstance(exc, api.GoogleAPICallError) or (is_transient(exc) and not _final(exc)):
            raise translate_error(exc, doing) from exc
        fault = fault_of(exc)
        if isinstance(exc, api.Conflict):
            return self._adopt(request, fault, doing)
        if isinstance(exc, (api.Forbidden, api.Unauthorized)) and not table.is_known_fault(fault):
            raise translate_error(exc, doing) from exc
        return table.classify_fault(fault)

    def _judge(
        self, faults: Iterable[table.ComputeFault], request: InstanceRequest, doing: str
    ) -> Accepted | CloudRefusal:
        """The refusal that a failed insert operation means: by its first known error, or else by its first error."""
        ordered = sorted(faults, key=lambda fault: not table.is_known_fault(fault))
        fault = ordered[0]
        if fault.code in table.EXISTS:
            return self._adopt(request, fault, doing)
        if {fault.code, fault.reason} & table.DENIED:
            raise PermissionDenied(
                f"cannot {doing}: {fault.code} {fault.message}",
                hint=remedy_for(fault.message)
                or "the account in use lacks the permission in the message; `bench doctor` lists all of them",
            )
        return table.classify_fault(fault)

    def _adopt(self, request: InstanceRequest, fault: table.ComputeFault, doing: str) -> Accepted | CloudRefusal:
        """Adopts the VM of that name if it belongs to this run: an earlier request, whose answer was lost, made it."""
        for operation in self._calls.list_operations(request.zone, by_name(request.name)):
            if operation.operation_type == "insert" and operation.status != compute_v1.Operation.Status.DONE:
                self._calls.wait(request.zone, operation, doing)
        instance = self.instance(request.zone, request.name)
        if instance is None:
            raise Unavailable(
                f"cannot {doing}: a VM of that name existed, but was deleted meanwhile",
                hint=f"`bench launch --resume {request.labels[RUN_LABEL]}` requests it again",
            )
        ours = instance.labels.get(TOOL_LABEL) == TOOL and instance.labels.get(RUN_LABEL) == request.labels.get(
            RUN_LABEL
        )
        if ours:
            return Accepted(instance)
        return CloudRefusal(
            fault.code,
            fault.message,
            table.ALL,
            hint=f"another VM named {request.name} exists that does not belong to this run",
        )

    def _delete_once(
        self, zone: Zone, name: MachineName, request_id: str, doing: str
    ) -> tuple[table.ComputeFault, ...]:
        message = compute_v1.DeleteInstanceRequest(
            project=self._project, zone=zone, instance=name, request_id=request_id
        )
        started: compute_v1.Operation | None = self._calls.unless_gone(
            lambda: require_operation(self._instances.delete_unary(message, **self._calls.once)), doing
        )
        if started is None:
            return ()
        try:
            done = self._calls.wait(zone, started, doing)
        except NotFound:  # operations are kept for a while only, and a replayed request id names an old one
            return (table.ComputeFault("notFound", "its operation does not exist any more"),)
        return operation_faults(done) or self._surviving(zone, name, done)

    def _surviving(self, zone: Zone, name: MachineName, done: compute_v1.Operation) -> tuple[table.ComputeFault, ...]:
        """A fault where the machine of a delete that is called done runs on. Another that has its name by now is not
        meant."""
        instance = self.instance(zone, name)
        if instance is None or instance.status == "STOPPING" or instance.id != str(done.target_id or instance.id):
            return ()
        return (
            table.ComputeFault(
                "notDeleted", f"the operation {done.name} is done, and the VM is still {instance.status}"
            ),
        )

    def _vanished(self, request: InstanceRequest, done: compute_v1.Operation) -> Instance:
        """A VM that was made and is gone already: preempted within seconds, or made by a replayed request long ago.

        The operation log knows its end by its id.
        """
        created = parse_time(done.start_time) or parse_time(done.insert_time) or self._clock.now()
        return Instance(
            name=request.name,
            zone=request.zone,
            id=ResourceId(str(done.target_id)),
            status="TERMINATED",
            machine_type=request.machine_type,
            labels=dict(request.labels),
            created_at=created,
            started_at=None,
            deadline_at=created + timedelta(seconds=request.max_run_s),
            preemptible=request.provisioning == "SPOT",
        )


def by_name(name: MachineName) -> str:
    """A filter for operations on a VM. By pattern: an exact URL would have to guess which host Google writes in it."""
    return f'targetLink eq ".*/instances/{name}"'


def _final(exc: Exception) -> bool:
    """An error that looks as if it would pass, and names a stock-out or a quota."""
    return isinstance(exc, api.GoogleAPICallError) and table.is_known_fault(fault_of(exc))


def _not_yet(exc: Exception) -> bool:
    """The VM is there and has no serial port yet."""
    return isinstance(exc, api.BadRequest) and (
        bool(error_reasons(exc) & table.NOT_YET) or "not ready" in brief_message(exc)
    )


# From the client's messages to our words.


def to_instance(found: compute_v1.Instance) -> Instance:
    """A VM, from the client's message."""
    return instance_from_json(compute_v1.Instance.to_dict(found, preserving_proto_field_name=False))


def to_operation(found: compute_v1.Operation) -> Operation:
    messages = [found.status_message, *(f"{error.code}: {error.message}" for error in found.error.errors)]
    return Operation(
        kind=found.operation_type,
        status=status_name(found),
        started_at=parse_time(found.start_time) or parse_time(found.insert_time),
        ended_at=parse_time(found.end_time),
        user=found.user,
        message="; ".join(part for part in messages if part),
    )


def status_name(found: compute_v1.Operation) -> str:
    """`PENDING`, `RUNNING` or `DONE`; a number when Google has a new word."""
    value = int(found.status)
    return STATUS.get(value, str(value))


def operation_faults(found: compute_v1.Operation) -> tuple[table.ComputeFault, ...]:
    """What a finished operation failed of; empty when it succeeded.

    Some failures carry only `error.errors`, some only the HTTP fields, so both are looked at.
    """
    status = int(found.http_error_status_code)
    listed = tuple(_fault(error, status) for error in found.error.errors)
    if listed or status < 400:
        return listed
    return (
        table.ComputeFault(
            code=found.http_error_message or f"HTTP {status}", message=found.http_error_message, http_status=status
        ),
    )


def _fault(error: compute_v1.Errors, status: int) -> table.ComputeFault:
    reason, metric, message = "", "", error.message
    metadata: dict[str, str] = {}
    dimensions: dict[str, str] = {}
    for detail in error.error_details:
        if detail.error_info.reason:
            reason, metadata = detail.error_info.reason, dict(detail.error_info.metadatas)
        if detail.quota_info.metric_name:
            metric, dimensions = detail.quota_info.metric_name, dict(detail.quota_info.dimensions)
        if detail.localized_message.message and detail.localized_message.message not in message:
            message = f"{message} {detail.localized_message.message}".strip()
    return table.ComputeFault(error.code, message, reason, metadata, metric, dimensions, status)


def fault_of(exc: api.GoogleAPICallError) -> table.ComputeFault:
    """The same of an HTTP error: of its first entry, with the `ErrorInfo` of its details."""
    entries: list[dict[str, Any]] = [error for error in exc.errors if isinstance(error, dict)]
    code = str(entries[0].get("reason", "")) if entries else ""
    return table.ComputeFault(
        code=code or exc.reason or f"HTTP {exc.code}",
        message=_REQUEST.sub("", exc.message or ""),
        reason=exc.reason or "",
        metadata={str(key): str(value) for key, value in (exc.metadata or {}).items()},
        http_status=int(exc.code or 0),
    )
