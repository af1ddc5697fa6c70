"""Every permission that this tool uses, who uses it, and for what. The custom roles have these and no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Need:
    """One permission. `code` is the function whose call to Google needs it."""

    permission: str
    why: str
    code: str


INSERT: Final = "adapters/google/compute.py insert"
NETWORK: Final = "core/doctor/machine.py check_network"
SEAL: Final = "adapters/google/images.py seal"
SUBMIT: Final = "adapters/batch/scheduler.py create"

LAUNCHER: Final = (
    Need("compute.instances.create", "make the machine", INSERT),
    Need("compute.instances.setMetadata", "give it the startup script and the run", INSERT),
    Need("compute.instances.setLabels", "label it as ours", INSERT),
    Need("compute.instances.setServiceAccount", "let it run as its own account", INSERT),
    Need("compute.disks.create", "make its boot disk", INSERT),
    Need("compute.disks.setLabels", "label the disk", INSERT),
    Need("compute.subnetworks.use", "connect it", INSERT),
    Need("compute.subnetworks.useExternalIp", "give it an external address, if one is wanted", INSERT),
    Need("compute.instances.get", "see whether it is there", "adapters/google/compute.py instance"),
    Need("compute.instances.list", "find every machine of ours", "adapters/google/market.py instances"),
    Need("compute.instances.delete", "end it", "adapters/google/compute.py delete"),
    Need(
        "compute.instances.getSerialPortOutput", "read what it says at boot", "adapters/google/compute.py serial_output"
    ),
    Need("compute.zoneOperations.get", "wait until it is made or gone", "adapters/google/compute_calls.py wait"),
    Need("compute.zoneOperations.list", "tell a preemption from a loss", "adapters/google/compute.py operations"),
    Need("compute.regions.get", "read the quotas of a region", "adapters/google/market.py quotas"),
    Need("compute.projects.get", "read the quotas of the project", "adapters/google/market.py quotas"),
)
"""On the project, for each person who runs `bench`."""

LOOKER: Final = (
    Need("resourcemanager.projects.get", "see the project and its billing", "core/doctor/project.py check_project"),
    Need("serviceusage.services.list", "see which APIs are on", "core/doctor/project.py check_apis"),
    Need("serviceusage.services.get", "the same, one by one", "core/doctor/project.py check_apis"),
    Need("compute.advice.capacity", "ask where spot machines are available", "adapters/google/market.py advice"),
    Need("compute.advice.capacityHistory", "ask how long they last there", "adapters/google/market.py advice"),
    Need("compute.regions.list", "see the quotas of all regions at once", "core/doctor/capacity.py regions"),
    Need("compute.networks.get", "see the network", NETWORK),
    Need("compute.subnetworks.list", "see whether Google is reached without an address", NETWORK),
    Need("compute.routers.list", "see whether there is a Cloud NAT", NETWORK),
    Need("iam.serviceAccounts.get", "see the machine's account", "core/doctor/machine.py check_account"),
    Need("compute.images.list", "find prepared images", "adapters/google/images.py images"),
    Need("compute.images.get", "see whether one is ready", "adapters/google/images.py image"),
    Need("compute.images.getFromFamily", "find the newest of a kind", "adapters/google/images.py newest"),
    Need("compute.images.useReadOnly", "start machines from one", INSERT),
    Need("compute.images.create", "make one (`bench image build`)", SEAL),
    Need("compute.images.setLabels", "label it with its expiry", SEAL),
    Need("compute.images.deprecate", "take one out of use", "adapters/google/images.py deprecate"),
    Need("compute.images.delete", "delete one that is due", "adapters/google/images.py delete"),
    Need("compute.disks.useReadOnly", "copy the disk of the machine that becomes one", SEAL),
)
"""On the project, for `bench doctor` and `bench image`. A launch does not need them."""

BATCH: Final = (
    Need("batch.jobs.create", "ask for a fleet's machines", SUBMIT),
    Need("batch.jobs.get", "see how they ended", "adapters/batch/scheduler.py job"),
    Need("batch.jobs.delete", "cancel a job, and take one away", "adapters/batch/scheduler.py cancel"),
    Need("batch.tasks.list", "see how tasks ended (`bench fleet check-batch`)", "adapters/batch/check.py codes"),
    Need("compute.instanceTemplates.create", "say what machines are, and when they end", SUBMIT),
    Need("compute.instanceTemplates.get", "let a job use that", SUBMIT),
    Need("compute.instanceTemplates.delete", "take it away", "adapters/batch/templates.py delete"),
    Need("compute.globalOperations.get", "wait until it is made", "adapters/batch/templates.py insert"),
    Need(
        "compute.instances.simulateMaintenanceEvent",
        "see what a preemption does (`bench fleet check-batch`)",
        "adapters/batch/check.py preempt",
    ),
)
"""On the project, for fleets on Google Cloud Batch. A launch of one run does not need them."""

BUCKET: Final = (
    Need("storage.objects.create", "store payloads, events and cases", "adapters/google/storage.py create"),
    Need("storage.objects.get", "read them", "adapters/google/storage.py read"),
    Need("storage.objects.list", "find them", "adapters/google/storage.py list"),
    Need("storage.objects.delete", "replace the ledger and the index", "adapters/google/storage.py replace"),
)
"""On the bucket, for each person who runs `bench`. The machine needs the same."""

BUCKET_LOOKER: Final = (Need("storage.buckets.get", "see where the bucket is", "core/doctor/project.py check_bucket"),)
"""On the bucket, for `bench doctor`."""

ACCOUNT: Final = (Need("iam.serviceAccounts.actAs", "start machines that run as it", INSERT),)
"""On the machine's service account, for each person who runs `bench`."""

MACHINE: Final = (Need("compute.instances.delete", "delete itself when it is done", "startup/agent/stop.py"),)
"""On instances named bench-…, for the machine's service account."""

BATCH_REPORTER: Final = "roles/batch.agentReporter"
"""On the project, for the machine's service account: programs on the machine report the state of their task to
Batch."""
OBJECT_USER: Final = "roles/storage.objectUser"
"""Allows to create, read, list, replace and delete a bucket's objects, and nothing on the bucket itself."""
OBJECT_VIEWER: Final = "roles/storage.objectViewer"
"""Allows to read and list a bucket's objects."""
BUCKET_READER: Final = "roles/storage.legacyBucketReader"
"""Allows to read a bucket's properties."""
ACCOUNT_USER: Final = "roles/iam.serviceAccountUser"
WRITING_ROLES: Final = frozenset({OBJECT_USER, "roles/storage.objectAdmin", "roles/storage.admin"})
"""Roles on a bucket with which a machine can store and replace objects."""


def permission_names(*groups: tuple[Need, ...]) -> tuple[str, ...]:
    """The permissions of all `groups`, each once, in order."""
    return tuple(dict.fromkeys(need.permission for group in groups for need in group))
