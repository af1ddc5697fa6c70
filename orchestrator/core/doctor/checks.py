"""The checks of a project, in the order of the page and with the checks that each needs, and the checks of this
machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orchestrator.core.doctor import capacity, machine, project, rehearsal
from orchestrator.core.doctor.subject import Subject
from orchestrator.core.doctor.verdicts import Check, Verdict
from orchestrator.core.rest import Api

CloudCheck = Callable[[Api, Subject], Verdict]

CREDENTIALS: Final = Check("credentials", "credentials", "gce")
CLOCK: Final = "clock"
"""The only check that needs no credentials: Google can refuse credentials because of a wrong clock."""
_PROJECT: Final = ("credentials", "project")
_CLOUD: Final[tuple[tuple[Check, CloudCheck], ...]] = (
    (Check(CLOCK, "clock", "gce"), project.clock),
    (Check("project", "project", "gce", ("credentials",)), project.project),
    (Check("billing", "billing", "gce", _PROJECT), project.billing),
    (Check("apis", "APIs", "gce", _PROJECT), project.apis),
    (Check("roles", "permissions", "gce", _PROJECT), project.roles),
    (Check("bucket", "bucket", "gce", ("credentials",), exit_code=10), project.bucket),
    (Check("bucket.rights", "bucket rights", "gce", ("bucket",)), project.rights),
    (Check("rehearsal", "rehearsal", "gce", ("bucket",)), rehearsal.rehearsal),
    (Check("account", "machine's account", "gce", _PROJECT), machine.account),
    (Check("account.rights", "machine's rights", "gce", ("account", "bucket")), machine.machine_rights),
    (Check("network", "network", "gce", ("apis",)), machine.network),
    (Check("quota.all", "quota all GPUs", "gce", ("apis",)), capacity.all_gpus),
)


def cloud_checks(subject: Subject) -> tuple[tuple[Check, CloudCheck], ...]:
    """The checks of a project, then one for each GPU's quotas and one for each image family."""
    quotas = tuple(
        (Check(f"quota.{gpu.name}", f"quota {gpu.name}", "gce", ("apis",)), capacity.of_gpu(gpu))
        for gpu in subject.gpus
    )
    images = tuple(
        (Check(f"image.{family}", "image", "gce", ("apis",), exit_code=10), capacity.of_image(owner, family))
        for owner, family in subject.every_image
    )
    fixed = [entry for entry in _CLOUD if entry[0].name != "quota.all" or any(gpu.accelerator for gpu in subject.gpus)]
    return (*fixed, *quotas, *images)


PYTHON: Final = Check("python", "Python", "here", exit_code=11)
LIBRARIES: Final = Check("libraries", "libraries", "here", exit_code=11)
HOME: Final = Check("home", "BENCH_HOME", "here", exit_code=11)
DOCUMENTS: Final = Check("configs", "configurations", "here", exit_code=2)
PRICES: Final = Check("prices", "prices", "here", exit_code=2)
EMBEDDED: Final = Check("embedded", "embedded cloud", "here", exit_code=11)
COMPILER: Final = Check("compiler", "compiler", "here", exit_code=11)
TORCH: Final = Check("torch", "PyTorch", "here", exit_code=11)
