"""The checks of a project, in the order of the page and with the checks that each needs, and the checks of this
machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orchestrator.core.doctor import capacity, machine, project
from orchestrator.core.doctor.verdicts import CheckVerdict, DoctorCheck, Subject
from orchestrator.core.rest import Api

CloudCheck = Callable[[Api, Subject], CheckVerdict]

CONNECTION: Final = DoctorCheck("connection", "connection", "gce", exit_code=11)
CREDENTIALS: Final = DoctorCheck("credentials", "credentials", "gce", ("connection",))
MACHINES: Final = DoctorCheck("machines", "machines' client", "gce", ("apis",), limit_s=30.0)
"""Asks for a machine through the client that creates them, which takes seconds to load."""
CLOCK: Final = "clock"
"""The only check that needs no credentials: Google can refuse credentials because of a wrong clock."""
_PROJECT: Final = ("credentials", "project")
_CLOUD: Final[tuple[tuple[DoctorCheck, CloudCheck], ...]] = (
    (DoctorCheck(CLOCK, "clock", "gce"), project.check_clock),
    (DoctorCheck("project", "project", "gce", ("credentials",)), project.check_project),
    (DoctorCheck("billing", "billing", "gce", _PROJECT), project.check_billing),
    (DoctorCheck("apis", "APIs", "gce", _PROJECT), project.check_apis),
    (DoctorCheck("roles", "permissions", "gce", _PROJECT), project.check_roles),
    (DoctorCheck("bucket", "bucket", "gce", ("credentials",), exit_code=10), project.check_bucket),
    (DoctorCheck("bucket.rights", "bucket rights", "gce", ("bucket",)), project.check_object_rights),
    (DoctorCheck("rehearsal", "rehearsal", "gce", ("bucket",)), project.check_rehearsal),
    (DoctorCheck("account", "machine's account", "gce", _PROJECT), machine.check_account),
    (DoctorCheck("account.rights", "machine's rights", "gce", ("account", "bucket")), machine.machine_rights),
    (DoctorCheck("network", "network", "gce", ("apis",)), machine.check_network),
    (DoctorCheck("quota.all", "quota all GPUs", "gce", ("apis",)), capacity.all_gpus),
)


def cloud_checks(subject: Subject) -> tuple[tuple[DoctorCheck, CloudCheck], ...]:
    """The checks of a project, then one for each GPU's quotas and one for each image family."""
    quotas = tuple(
        (DoctorCheck(f"quota.{gpu.name}", f"quota {gpu.name}", "gce", ("apis",)), capacity.of_gpu(gpu))
        for gpu in subject.gpus
    )
    images = tuple(
        (DoctorCheck(f"image.{family}", "image", "gce", ("apis",), exit_code=10), capacity.of_image(owner, family))
        for owner, family in subject.every_image
    )
    fixed = [entry for entry in _CLOUD if entry[0].name != "quota.all" or any(gpu.accelerator for gpu in subject.gpus)]
    return (*fixed, *quotas, *images)


PYTHON: Final = DoctorCheck("python", "Python", "here", exit_code=11)
LIBRARIES: Final = DoctorCheck("libraries", "libraries", "here", exit_code=11)
HOME: Final = DoctorCheck("home", "BENCH_HOME", "here", exit_code=11)
DOCUMENTS: Final = DoctorCheck("configs", "configurations", "here", exit_code=2)
PRICES: Final = DoctorCheck("prices", "prices", "here", exit_code=2)
EMBEDDED: Final = DoctorCheck("embedded", "embedded cloud", "here", exit_code=11)
COMPILER: Final = DoctorCheck("compiler", "compiler", "here", exit_code=11)
TORCH: Final = DoctorCheck("torch", "PyTorch", "here", exit_code=11)
