"""From an `InstanceRequest` to the body of `instances.insert`, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.market.machines import InstanceRequest
from orchestrator.core.market.offers import FLEX_START
from orchestrator.core.run.decide import LONGEST_QUEUE_S, SHORTEST_QUEUE_S

MIN_RUN_S: Final = 30
MAX_RUN_S: Final = 120 * 86_400
"""What Google accepts as `maxRunDuration`."""
MAX_FLEX_S: Final = 7 * 86_400
"""What Google accepts as `maxRunDuration` of a flex-start machine."""
MAX_VALUE_BYTES: Final = 262_144
MAX_METADATA_BYTES: Final = 512_000
"""Limits on one metadata value, and on all keys and values together."""
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
DEFAULT_ACCOUNT: Final = "default"
"""Google's alias for the project's default compute service account."""

Json = dict[str, Any]


def instance_body(request: InstanceRequest, project: str) -> Json:
    """The JSON body. Raises `ConfigError` for what Google would refuse anyway, before anything is sent.

    Whatever the request says, the VM and its disk vanish when it stops: at its deadline, when it is preempted, or when
    it deletes itself. A GPU cannot migrate, and a spot VM cannot restart.
    """
    check_request(request)
    zone = f"zones/{request.zone}"
    body: Json = {
        "name": request.name,
        "machineType": f"{zone}/machineTypes/{request.machine_type}",
        **ending_with_its_disk(
            {"provisioningModel": request.provisioning, "maxRunDuration": {"seconds": str(request.max_run_s)}},
            request.image,
            (request.disk_gb, f"{zone}/diskTypes/{request.disk_type}"),
            request.labels,
        ),
        "networkInterfaces": [network_interface(request.network, external_ip=request.external_ip)],
        "serviceAccounts": service_accounts(request.service_account),
        "metadata": {"items": [{"key": key, "value": value} for key, value in sorted(request.metadata.items())]},
    }
    if request.queue_s:
        body["params"] = {"requestValidForDuration": {"seconds": str(request.queue_s)}}
    if request.provisioning == FLEX_START:
        body["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    if request.accelerator:
        body["guestAccelerators"] = [
            {
                "acceleratorType": f"projects/{project}/{zone}/acceleratorTypes/{request.accelerator}",
                "acceleratorCount": request.accelerator_count,
            }
        ]
    return body


def ending_with_its_disk(limits: Json, image: str, disk: tuple[int, str], labels: Mapping[str, str]) -> Json:
    """What every machine of ours has, however it is made: limits, a disk (GB and type) that goes when it does, labels
    on both."""
    label_map = dict(sorted(labels.items()))
    size, kind = disk
    made = {"sourceImage": image, "diskSizeGb": str(size), "diskType": kind, "labels": label_map}
    stays = {"instanceTerminationAction": "DELETE", "onHostMaintenance": "TERMINATE", "automaticRestart": False}
    return {
        "scheduling": limits | stays,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": made}],
        "labels": label_map,
    }


def service_accounts(email: str | None) -> list[Json]:
    """The account that a machine runs as; the project's default one where none is named."""
    return [{"email": email or DEFAULT_ACCOUNT, "scopes": [SCOPE]}]


def network_interface(network: str, *, external_ip: bool) -> Json:
    """`network` is a name, or the partial URL of a network or subnetwork."""
    key = "subnetwork" if "/subnetworks/" in network else "network"
    interface: Json = {key: network if "/" in network else f"global/networks/{network}"}
    if external_ip:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return interface


def check_request(request: InstanceRequest) -> None:
    """Raises `ConfigError` when Google would refuse the request for its form."""
    if not MIN_RUN_S <= request.max_run_s <= MAX_RUN_S:
        raise ConfigError(
            f"a machine cannot have {request.max_run_s} s to run; Google allows {MIN_RUN_S} to {MAX_RUN_S}",
            hint="raise the budget, or set run.max_minutes within these limits",
        )
    if request.provisioning not in ("SPOT", FLEX_START, "STANDARD"):
        raise ConfigError(
            f"{request.provisioning!r} is not a valid provisioning",
            hint="choose --set machine.provisioning=spot, flex-start or standard",
        )
    queue_s, flexible = request.queue_s, request.provisioning == FLEX_START
    if flexible and (request.max_run_s > MAX_FLEX_S or not SHORTEST_QUEUE_S <= queue_s <= LONGEST_QUEUE_S):
        raise ConfigError(
            f"a flex-start machine cannot wait {queue_s} s to run {request.max_run_s} s; Google lets it wait"
            f" {SHORTEST_QUEUE_S} to {LONGEST_QUEUE_S} s, and run {MAX_FLEX_S} s at most",
            hint="--set run.max_minutes=10080 is the most",
        )
    if queue_s and not flexible:
        raise ConfigError("only a flex-start machine waits in a queue", hint="--set machine.provisioning=flex-start")
    hint = "`bench fleet launch --cases-per-child 12` divides the cases among several runs"
    sizes = {key: len(value.encode()) for key, value in request.metadata.items()}
    for key, size in sizes.items():
        if size > MAX_VALUE_BYTES:
            raise ConfigError(f"the metadata value {key} has {size} bytes; Google allows {MAX_VALUE_BYTES}", hint=hint)
    total = sum(sizes.values()) + sum(len(key.encode()) for key in sizes)
    if total > MAX_METADATA_BYTES:
        raise ConfigError(f"the machine's metadata has {total} bytes; Google allows {MAX_METADATA_BYTES}", hint=hint)
