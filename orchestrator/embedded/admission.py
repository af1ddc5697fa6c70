"""The checks of a request for an instance that Compute Engine makes before it answers with an operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.embedded.documents import last_name, self_link
from orchestrator.embedded.errors import ApiError, invalid_field, not_found, reading_body
from orchestrator.embedded.inventory import Inventory, InventoryImage, InventoryMachineType, region_of

NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}")
METADATA_VALUE_BYTES = 262_144
METADATA_TOTAL_BYTES = 524_288
RUN_S = (30, 120 * 86_400)
FLEX_RUN_S = 7 * 86_400
QUEUE_S = (90, 7200)
"""How long a flex-start machine may run, and how long it may wait in the state PENDING."""
PROVISIONING = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A valid request for an instance, with defaults for the fields that it left out."""

    name: str
    zone: str
    machine: InventoryMachineType
    gpu: str | None
    gpu_count: int
    spot: bool
    flex: bool
    """Whether it is a flex-start machine."""
    queue_s: float
    """How long it waits for capacity; 0: it does not wait."""
    max_run_s: float | None
    end_at: datetime | None
    """The time at which it ends, however late it started; None: no such time."""
    termination_action: str
    automatic_restart: bool
    maintenance: str
    notice_s: float
    image: InventoryImage
    disk_gib: int
    disk_type: str
    auto_delete: bool
    disk_labels: Mapping[str, str]
    external_ip: bool
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    service_account: str | None
    scopes: tuple[str, ...]
    body: Mapping[str, Any]

    @property
    def provisioning(self) -> str:
        """How it is paid for, as the tariff calls it."""
        return "spot" if self.spot else "flex_start" if self.flex else "standard"

    @property
    def has_end(self) -> bool:
        """Whether the server ends the instance by itself."""
        return self.max_run_s is not None or self.end_at is not None

    @property
    def attachment(self) -> str:
        """The attached GPU, such as `nvidia-tesla-t4:1`; empty if there is none or the machine type includes it."""
        return f"{self.gpu}:{self.gpu_count}" if self.gpu and not self.machine.bundled else ""

    def usage(self, inventory: Inventory, limit: Callable[[str, str], float | None]) -> dict[str, float]:
        """How much of each regional quota the instance uses, by metric. `limit` returns a quota's limit by metric and
        region.

        As at Google, a spot or flex-start machine counts against the preemptible quota only if the project was granted
        some, or if there is no standard quota. Otherwise it counts against the standard quota.
        """
        region = region_of(self.zone)

        def metric(standard: str) -> str:
            preemptible = f"PREEMPTIBLE_{standard}"
            granted = (self.spot or self.flex) and (limit(preemptible, region) or limit(standard, region) is None)
            return preemptible if granted else standard

        used: dict[str, float] = {metric("CPUS"): self.machine.vcpus, "INSTANCES": 1}
        used["DISKS_TOTAL_GB" if self.disk_type == "pd-standard" else "SSD_TOTAL_GB"] = self.disk_gib
        if self.external_ip:
            used["IN_USE_ADDRESSES"] = 1
        if self.gpu:
            used[metric(inventory.accelerators[self.gpu].metric)] = self.gpu_count
        return used


INSTANCE_FIELDS = frozenset({
    "advancedMachineFeatures", "canIpForward", "confidentialInstanceConfig", "cpuPlatform", "creationTimestamp",
    "deletionProtection", "description", "disks", "displayDevice", "fingerprint", "guestAccelerators", "hostname",
    "id", "instanceEncryptionKey", "keyRevocationActionType", "kind", "labelFingerprint", "labels",
    "lastStartTimestamp", "lastStopTimestamp", "lastSuspendedTimestamp", "machineType", "metadata", "minCpuPlatform",
    "name", "networkInterfaces", "networkPerformanceConfig", "params", "privateIpv6GoogleAccess",
    "reservationAffinity", "resourcePolicies", "resourceStatus", "satisfiesPzi", "satisfiesPzs", "scheduling",
    "selfLink", "serviceAccounts", "shieldedInstanceConfig", "shieldedInstanceIntegrityPolicy", "sourceMachineImage",
    "sourceMachineImageEncryptionKey", "startRestricted", "status", "statusMessage", "tags",
    "workloadIdentityConfig", "zone",
})  # fmt: skip
"""The fields of an instance in Google's discovery document. Any other is refused, as Google does."""


def admit_instance(body: Any, project: str, zone: str, inventory: Inventory) -> Admitted:
    """The checked request. Raises `ApiError` for a request that Google would refuse at once."""
    with reading_body("instance"):
        return _admit(body, project, zone, inventory)


def _admit(body: Any, project: str, zone: str, inventory: Inventory) -> Admitted:
    if not isinstance(body, dict):
        raise ApiError(400, "Required field 'resource' not specified", "required")
    for field in body:
        if field not in INSTANCE_FIELDS:
            raise ApiError(400, f'Invalid JSON payload received. Unknown name "{field}": Cannot find field.', "invalid")
    name = body.get("name", "")
    if not NAME.fullmatch(name):
        raise invalid_field("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
    machine = _machine(body, zone, inventory)
    scheduling = _scheduling(body.get("scheduling", {}))
    scheduling["flex"] = body.get("scheduling", {}).get("provisioningModel") == "FLEX_START"
    gpu, count = _accelerator(body, machine, project, zone, inventory)
    if gpu and scheduling["maintenance"] != "TERMINATE":
        why = "Instances with guest accelerators do not support live migration; it must be TERMINATE."
        raise invalid_field("resource.scheduling.onHostMaintenance", scheduling["maintenance"], why)
    queue_s = _queue_s(body, machine, zone, inventory, scheduling)
    if machine.spot_only and not scheduling["spot"] and not scheduling["flex"]:
        raise invalid_field(
            "resource.scheduling.provisioningModel", "STANDARD", f"{machine.name} is offered as SPOT only."
        )
    image, disk = _boot_disk(body, project, zone, inventory)
    if machine.name.startswith(inventory.hyperdisk_only) and not disk["disk_type"].startswith("hyperdisk"):
        why = f"[{disk['disk_type']}, {machine.name}] features are not compatible for creating instance."
        raise ApiError(400, why, "badRequest")
    account, scopes = _service_account(body)
    return Admitted(
        name=name,
        zone=zone,
        machine=machine,
        gpu=gpu,
        gpu_count=count,
        **scheduling,
        queue_s=queue_s,
        image=image,
        **disk,
        external_ip=_external_ip(body, project),
        labels=check_labels(body.get("labels", {}), "resource.labels"),
        metadata=_metadata(body.get("metadata", {})),
        service_account=account,
        scopes=scopes,
        body=body,
    )


def _machine(body: Mapping[str, Any], zone: str, inventory: Inventory) -> InventoryMachineType:
    url = body.get("machineType", "")
    match = re.search(r"zones/([^/]+)/machineTypes/([^/]+)$", url)
    if not match:
        raise invalid_field("resource.machineType", url, "The URL is malformed.")
    if match[1] != zone:
        raise invalid_field("resource.machineType", url, f"It must be in zone {zone}.")
    for machine in inventory.machine_types_in(zone):
        if machine.name == match[2]:
            return machine
    raise invalid_field(
        "resource.machineType", url, f"Machine type with name '{match[2]}' does not exist in zone '{zone}'."
    )


def _queue_s(
    body: Mapping[str, Any],
    machine: InventoryMachineType,
    zone: str,
    inventory: Inventory,
    scheduling: Mapping[str, Any],
) -> float:
    """How long the request waits for capacity. Raises `ApiError` for what flex-start does not allow."""
    field, given = "resource.params.requestValidForDuration", body.get("params", {}).get("requestValidForDuration")
    waits_s = _duration_s(given, field) if given is not None else 0.0
    if not scheduling["flex"]:
        if given is not None:
            raise invalid_field(field, waits_s, "It can be specified only for Flex Start VMs.")
        return 0.0
    if not inventory.tariff.sells(machine.name, region_of(zone), "flex_start"):
        why = f"{machine.name} is not offered as FLEX_START here."
        raise invalid_field("resource.scheduling.provisioningModel", "FLEX_START", why)
    if body.get("reservationAffinity", {}).get("consumeReservationType") != "NO_RESERVATION":
        why = "Flex Start VMs consume no reservation: it must be NO_RESERVATION."
        raise invalid_field("resource.reservationAffinity", body.get("reservationAffinity", {}), why)
    if scheduling["max_run_s"] is None or scheduling["max_run_s"] > FLEX_RUN_S:
        why = "Flex Start VMs need one of at most 7 days."
        raise invalid_field("resource.scheduling.maxRunDuration", scheduling["max_run_s"], why)
    if given is not None and waits_s > QUEUE_S[1]:
        raise invalid_field(field, waits_s, "It must be at most 2 hours.")
    return waits_s if waits_s >= QUEUE_S[0] else 0.0


def _accelerator(
    body: Mapping[str, Any], machine: InventoryMachineType, project: str, zone: str, inventory: Inventory
) -> tuple[str | None, int]:
    requested = body.get("guestAccelerators", [])
    if len(requested) > 1:
        raise invalid_field(
            "resource.guestAccelerators", len(requested), "Only one type of accelerator can be attached."
        )
    if not requested:
        return (machine.bundled, machine.gpus) if machine.bundled else (None, 0)
    name, count = last_name(requested[0].get("acceleratorType", "")), int(requested[0].get("acceleratorCount", 0))
    if name not in {entry.name for entry in inventory.accelerators_in(zone)}:
        raise not_found(f"projects/{project}/zones/{zone}/acceleratorTypes/{name}")
    if name == machine.bundled and count == machine.gpus:
        return name, count
    if name not in machine.attachable:
        raise ApiError(
            400, f"[{machine.name}, {name}] features are not compatible for creating instance.", "badRequest"
        )
    if not 1 <= count <= inventory.accelerators[name].most:
        raise invalid_field("resource.guestAccelerators[0].acceleratorCount", count, "The number is not supported.")
    return name, count


def _duration_s(value: Any, field: str) -> float:
    try:
        return int(value.get("seconds", 0)) + int(value.get("nanos", 0)) / 1e9
    except (AttributeError, TypeError, ValueError) as exc:
        raise invalid_field(field, value, "It must have seconds and nanos.") from exc


def _moment(value: Any, field: str) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError) as exc:
        raise invalid_field(field, value, "It must be a time in RFC 3339 format.") from exc
    if moment.tzinfo is None:
        raise invalid_field(field, value, "It must have an offset.")
    return moment.astimezone(UTC)


def _scheduling(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Admitted` that come from the scheduling section of a request."""
    field = "resource.scheduling"
    model = given.get("provisioningModel", "STANDARD")
    if model not in PROVISIONING:
        raise invalid_field(f"{field}.provisioningModel", model, f"It must be one of {', '.join(PROVISIONING)}.")
    legacy = bool(given.get("preemptible", False)) and model != "SPOT"
    spot = model == "SPOT" or legacy
    action = given.get("instanceTerminationAction", "")
    limited = "maxRunDuration" in given or "terminationTime" in given
    if action not in ("", "STOP", "DELETE"):
        raise invalid_field(f"{field}.instanceTerminationAction", action, "It must be STOP or DELETE.")
    if action and model != "SPOT" and not limited:
        raise invalid_field(
            f"{field}.instanceTerminationAction",
            action,
            "You can specify it only for Spot VMs or with a maximum run time.",
        )
    max_run_s = None
    if "maxRunDuration" in given:
        max_run_s = _duration_s(given["maxRunDuration"], f"{field}.maxRunDuration")
        if legacy:
            raise invalid_field(f"{field}.maxRunDuration", max_run_s, "It is not supported by preemptible instances.")
        if not RUN_S[0] <= max_run_s <= RUN_S[1]:
            raise invalid_field(f"{field}.maxRunDuration", max_run_s, "It must be between 30 seconds and 120 days.")
        if not action:
            raise invalid_field(
                f"{field}.instanceTerminationAction", "", "It must be specified with a maximum run time."
            )
    end_at = _moment(given.get("terminationTime"), f"{field}.terminationTime")
    if end_at is not None and not action:
        raise invalid_field(f"{field}.instanceTerminationAction", "", "It must be specified with a termination time.")
    restart = bool(given.get("automaticRestart", not spot))
    if spot and restart:
        raise invalid_field(
            f"{field}.automaticRestart", True, "Scheduling must have preemptible instances not restart."
        )
    maintenance = given.get("onHostMaintenance", "TERMINATE" if spot else "MIGRATE")
    if spot and maintenance != "TERMINATE":
        raise invalid_field(f"{field}.onHostMaintenance", maintenance, "Preemptible instances must TERMINATE.")
    notice = _duration_s(given.get("preemptionNoticeDuration", {}), f"{field}.preemptionNoticeDuration")
    return {
        "spot": spot,
        "max_run_s": max_run_s,
        "end_at": end_at,
        "termination_action": action or ("STOP" if spot else ""),
        "automatic_restart": restart,
        "maintenance": maintenance,
        "notice_s": notice,
    }


def _boot_disk(
    body: Mapping[str, Any], project: str, zone: str, inventory: Inventory
) -> tuple[InventoryImage, dict[str, Any]]:
    boots = [disk for disk in body.get("disks", []) if disk.get("boot")]
    if len(boots) != 1:
        raise invalid_field("resource.disks", len(boots), "Exactly one boot disk must be specified.")
    given = boots[0].get("initializeParams", {})
    image = find_image(given.get("sourceImage", ""), project, inventory)
    size = int(given.get("diskSizeGb", image.disk_gb))
    if size < image.disk_gb:
        why = f"Requested disk size cannot be smaller than the image size ({image.disk_gb} GB)"
        raise invalid_field("resource.disks[0].initializeParams.diskSizeGb", size, why)
    kind = last_name(given.get("diskType", "pd-standard"))
    if kind not in inventory.disk_types:
        field, url = "resource.disks[0].initializeParams.diskType", f"projects/{project}/zones/{zone}/diskTypes/{kind}"
        raise invalid_field(field, url, "The referenced diskType resource cannot be found.")
    return image, {
        "disk_gib": size,
        "disk_type": kind,
        "auto_delete": bool(boots[0].get("autoDelete", False)),
        "disk_labels": check_labels(given.get("labels", {}), "resource.disks[0].initializeParams.labels"),
    }


def find_image(url: str, project: str, inventory: Inventory) -> InventoryImage:
    """The image at a full or partial URL, by name or by family. Raises `ApiError`: 404 if there is none."""
    match = re.search(r"(?:projects/([^/]+)/)?global/images/(family/)?([^/]+)$", url) or re.search(
        r"projects/([^/]+)/zones/[^/]+/(imageFamilyViews/)([^/]+)$", url
    )
    if not match:
        raise invalid_field("resource.disks[0].initializeParams.sourceImage", url, "The URL is malformed.")
    owner = match[1] or project
    image = inventory.newest(owner, match[3]) if match[2] else inventory.image(owner, match[3])
    if image is None:
        raise not_found(f"projects/{owner}/global/images/{match[2] or ''}{match[3]}")
    return image


def _external_ip(body: Mapping[str, Any], project: str) -> bool:
    interfaces = body.get("networkInterfaces", [])
    if not interfaces:
        raise invalid_field("resource.networkInterfaces", "", "At least one network interface is required.")
    for number, interface in enumerate(interfaces):
        network = last_name(interface.get("network", "default"))
        if network != "default":
            url = self_link(f"projects/{project}/global/networks/{network}")
            why = "The referenced network resource cannot be found."
            raise invalid_field(f"resource.networkInterfaces[{number}].network", url, why)
    return any(interface.get("accessConfigs") for interface in interfaces)


def _service_account(body: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    accounts = body.get("serviceAccounts", [])
    if len(accounts) > 1:
        raise invalid_field("resource.serviceAccounts", len(accounts), "At most one service account is allowed.")
    if not accounts:
        return None, ()
    return accounts[0].get("email", "default"), tuple(accounts[0].get("scopes", ()))


def check_labels(labels: Any, field: str) -> dict[str, str]:
    """The labels of a request. Raises `ApiError` (400) if keys or values are not valid."""
    if not isinstance(labels, dict) or len(labels) > 64:
        raise invalid_field(field, labels, "It must be a map of at most 64 labels.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(str(value)):
            raise invalid_field(field, f"{key}={value}", "Label keys and values must be lower case, as documented.")
    return dict(labels)


def check_metadata(given: Any) -> dict[str, str]:
    """The metadata of a request as a mapping. Raises `ApiError` (400) if it is not valid."""
    with reading_body("metadata"):
        return _metadata(given)


def _metadata(given: Mapping[str, Any]) -> dict[str, str]:
    items: dict[str, str] = {}
    for item in given.get("items", []):
        key, value = item.get("key", ""), item.get("value", "")
        if not METADATA_KEY.fullmatch(key) or key in items:
            raise invalid_field("resource.metadata.items.key", key, "It is malformed or occurs twice.")
        if len(value.encode()) > METADATA_VALUE_BYTES:
            raise invalid_field(
                "resource.metadata.items.value", f"({len(value)} bytes)", f"Value for key '{key}' is too large."
            )
        items[key] = value
    if sum(len(key.encode()) + len(value.encode()) for key, value in items.items()) > METADATA_TOTAL_BYTES:
        raise invalid_field("resource.metadata", "(too large)", "Metadata size is too large.")
    return items
