"""One request for a machine. A right that this client lacks is a refusal like any other: it ends the run."""

from __future__ import annotations

from orchestrator.core.errors import PermissionDenied
from orchestrator.core.hosts import is_host
from orchestrator.ports import Accepted, Cloud, InstanceRequest, Refusal

DENIED = "PERMISSION_DENIED"


def requested(cloud: Cloud, request: InstanceRequest) -> Accepted | Refusal:
    """The cloud's answer. Where this client may not ask for machines, no other zone will do, and the run need not wait
    for a machine: unless the cloud shows one all the same, of an earlier try whose answer was lost. Raises what the
    port raises; `PermissionDenied` only for a host, or where a machine may still come."""
    try:
        return cloud.insert(request)
    except PermissionDenied as exc:
        if is_host(request.zone):
            raise
        made = cloud.instance(request.zone, request.name)
        if made is not None:
            return Accepted(made)
        if cloud.operations_by_name(request.zone, request.name):
            raise
        return Refusal(DENIED, str(exc), "all", exc.hint)
