"""The GPUs that can be rented: machine types, zones, quota metrics, and what each GPU can compute.

The zones are those in which Google lists the machine types. If a zone no longer has them, the request for a machine is
refused there, and the next zone is tried.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.core.market.offers import region_of
from orchestrator.core.naming import bare_name, is_run_id


@dataclass(frozen=True, slots=True)
class MachineSize:
    name: str
    vcpus: int
    memory_gb: float
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU and the machine types that have it. The entry `cpu` has machine types without a GPU."""

    name: str
    title: str
    accelerator: str | None
    """The API's accelerator type; None for `cpu`."""
    machine_types: tuple[MachineSize, ...]
    """The first is the default: the one with the fewest GPUs."""
    compute_capability: str
    """Such as `8.9`; empty for `cpu`."""
    memory_gb: int
    zones: tuple[str, ...]
    quota: str
    """The quota metric of on-demand machines."""
    on_demand: bool = True
    """Whether the GPU is sold on demand, and not only as spot."""
    attached: bool = False
    """True if the accelerator is attached to a general machine type (T4); False if the machine type includes it."""
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    """Element types with native arithmetic."""
    min_disk_gb: int = 50
    """The size of the default image in GB. A boot disk cannot be smaller."""
    image_project: str = "deeplearning-platform-release"
    image_family: str = "common-cu129-ubuntu-2404-nvidia-580"
    disk_type: str = "pd-balanced"
    """The default type of the boot disk. Machines with `hyperdisk-balanced` boot from no other type."""

    @property
    def quota_standard(self) -> str | None:
        """The quota metric of on-demand machines; None if the GPU is not sold on demand."""
        return self.quota if self.on_demand else None

    @property
    def quota_preemptible(self) -> str:
        return f"PREEMPTIBLE_{self.quota}"

    @property
    def default_machine(self) -> str:
        return self.machine_types[0].name

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(region_of(zone) for zone in self.zones))

    def machine(self, name: str) -> MachineSize | None:
        return next((machine for machine in self.machine_types if machine.name == name), None)

    def is_sold(self, provisioning: str) -> bool:
        """Whether a person can buy its machines as `spot`, `flex-start` or `standard`."""
        if provisioning == "flex-start":
            return self.default_machine.startswith(FLEX_START_SERIES)
        return provisioning == "spot" or self.quota_standard is not None

    def gpus_of(self, machine_type: str) -> int:
        """How many GPUs a machine of this type has; 1 for a type that is not known, and 0 for `cpu`."""
        machine = self.machine(machine_type)
        return 0 if self.accelerator is None else machine.gpus if machine else 1


def _zones(text: str) -> tuple[str, ...]:
    """The zones in a text such as `us-central1-a/b us-east4-a`, which has three."""
    zones: list[str] = []
    for word in text.split():
        region, _, letters = word.rpartition("-")
        zones += [f"{region}-{letter}" for letter in letters.split("/")]
    return tuple(zones)


FLEX_START_SERIES: Final = ("a2-", "a3-", "a4-", "g2-")
"""The series that Google sells as flex-start: the accelerator-optimized ones but for A4X and G4 (docs/gce.md has the
source). N1 machines with a GPU attached are not among them."""

CATALOG: Final[tuple[Gpu, ...]] = (
    Gpu(
        name="l4",
        title="NVIDIA L4",
        accelerator="nvidia-l4",
        machine_types=(
            MachineSize("g2-standard-4", 4, 16),
            MachineSize("g2-standard-8", 8, 32),
            MachineSize("g2-standard-12", 12, 48),
            MachineSize("g2-standard-16", 16, 64),
            MachineSize("g2-standard-32", 32, 128),
        ),
        compute_capability="8.9",
        memory_gb=24,
        zones=_zones(
            "us-central1-a/b/c us-east1-b/c/d us-east4-a/c us-west1-a/b/c us-west4-a/c northamerica-northeast1-b/c"
            " northamerica-northeast2-a/b europe-west1-b/c europe-west2-a/b europe-west3-a/b europe-west4-a/b/c"
            " europe-west6-b/c me-central2-a/c asia-east1-a/b/c asia-northeast1-a/b/c asia-northeast3-a/b"
            " asia-south1-a/b/c asia-southeast1-a/b/c"
        ),
        quota="NVIDIA_L4_GPUS",
    ),
    Gpu(
        name="t4",
        title="NVIDIA T4",
        accelerator="nvidia-tesla-t4",
        attached=True,
        machine_types=(
            MachineSize("n1-standard-4", 4, 15),
            MachineSize("n1-standard-8", 8, 30),
            MachineSize("n1-standard-16", 16, 60),
        ),
        compute_capability="7.5",
        memory_gb=16,
        zones=_zones(
            "us-central1-a/b/c/f us-east1-b/c/d us-east4-a/b/c us-west1-a/b us-west2-b/c us-west3-b us-west4-a/b"
            " europe-west1-b/c/d europe-west2-a/b europe-west3-b europe-west4-a/b/c europe-central2-b/c me-west1-b/c"
            " asia-east1-a/c asia-east2-a/c asia-northeast1-a/c asia-northeast3-b/c asia-south1-a/b"
            " asia-southeast1-a/b/c asia-southeast2-a/b australia-southeast1-a/c southamerica-east1-a/b/c"
            " northamerica-northeast1-c"
        ),
        quota="NVIDIA_T4_GPUS",
        # Compute capability 7.5 has half-precision tensor cores and no bfloat16 arithmetic.
        dtypes=("float16", "float32"),
    ),
    Gpu(
        name="a100",
        title="NVIDIA A100 40 GB",
        accelerator="nvidia-tesla-a100",
        machine_types=(MachineSize("a2-highgpu-1g", 12, 85),),
        compute_capability="8.0",
        memory_gb=40,
        zones=_zones("us-central1-a/b/c/f us-east1-b europe-west4-a/b"),
        quota="NVIDIA_A100_GPUS",
    ),
    Gpu(
        name="a100-80gb",
        title="NVIDIA A100 80 GB",
        accelerator="nvidia-a100-80gb",
        machine_types=(
            MachineSize("a2-ultragpu-1g", 12, 170),
            MachineSize("a2-ultragpu-2g", 24, 340, 2),
            MachineSize("a2-ultragpu-4g", 48, 680, 4),
            MachineSize("a2-ultragpu-8g", 96, 1360, 8),
        ),
        compute_capability="8.0",
        memory_gb=80,
        zones=_zones("us-central1-a/c us-east4-c us-east5-a/b europe-west4-a asia-southeast1-c"),
        quota="NVIDIA_A100_80GB_GPUS",
    ),
    Gpu(
        name="h100",
        title="NVIDIA H100 80 GB",
        accelerator="nvidia-h100-80gb",
        machine_types=(
            MachineSize("a3-highgpu-1g", 26, 234),
            MachineSize("a3-highgpu-2g", 52, 468, 2),
            MachineSize("a3-highgpu-4g", 104, 936, 4),
            MachineSize("a3-highgpu-8g", 208, 1872, 8),
        ),
        compute_capability="9.0",
        memory_gb=80,
        zones=_zones("us-central1-a/b/c us-east4-a/b europe-west4-b"),
        # The small A3 machines are sold as spot or flex-start only.
        quota="NVIDIA_H100_GPUS",
        on_demand=False,
    ),
    Gpu(
        name="h200",
        title="NVIDIA H200 141 GB",
        accelerator="nvidia-h200-141gb",
        machine_types=(MachineSize("a3-ultragpu-8g", 224, 2952, 8),),
        compute_capability="9.0",
        memory_gb=141,
        zones=_zones("us-central1-b us-east4-b us-west1-c us-south1-b europe-west1-b europe-west4-a asia-south1-b"),
        quota="NVIDIA_H200_GPUS",
        on_demand=False,
        disk_type="hyperdisk-balanced",
    ),
    Gpu(
        name="b200",
        title="NVIDIA B200",
        accelerator="nvidia-b200",
        machine_types=(MachineSize("a4-highgpu-8g", 224, 3968, 8),),
        compute_capability="10.0",
        memory_gb=180,
        zones=_zones(
            "us-central1-b us-east1-b us-east4-b us-south1-b us-west2-c us-west3-b/c europe-north1-b europe-west4-b"
            " asia-northeast1-b asia-southeast1-b"
        ),
        quota="NVIDIA_B200_GPUS",
        on_demand=False,
        disk_type="hyperdisk-balanced",
    ),
    Gpu(
        name="g4",
        title="NVIDIA RTX PRO 6000",
        accelerator="nvidia-rtx-pro-6000",
        machine_types=(
            MachineSize("g4-standard-48", 48, 180),
            MachineSize("g4-standard-96", 96, 360, 2),
            MachineSize("g4-standard-192", 192, 720, 4),
            MachineSize("g4-standard-384", 384, 1440, 8),
        ),
        compute_capability="12.0",
        memory_gb=96,
        zones=_zones("us-central1-b/f europe-west1-c"),
        quota="NVIDIA_RTX_PRO_6000_GPUS",
        disk_type="hyperdisk-balanced",
    ),
    Gpu(
        name="cpu",
        title="no GPU",
        accelerator=None,
        machine_types=(MachineSize("e2-standard-4", 4, 16), MachineSize("n2-standard-4", 4, 16)),
        compute_capability="",
        memory_gb=0,
        zones=_zones(
            "us-central1-a/b/c/f us-east1-b/c/d us-west1-a/b/c us-east4-a/b/c europe-west1-b/c/d europe-west4-a/b/c"
        ),
        quota="CPUS",
        dtypes=("float32", "bfloat16"),
        min_disk_gb=10,
        image_project="ubuntu-os-cloud",
        image_family="ubuntu-2404-lts-amd64",
    ),
)

GPU_NAMES: Final = tuple(gpu.name for gpu in CATALOG)


def launch_command(run: str) -> str:
    """The command that launches a run with the GPU in the id `run`."""
    return f"`bench launch --gpu {gpu_of(run) or 'GPU'}`"


def gpu_of(run: str) -> str:
    """The GPU in a run id; empty if `run` is none. The id of a fleet's child has an `x` after the GPU."""
    bare = run.split("-")[2].partition("x")[0] if is_run_id(run) else ""
    return next((name for name in GPU_NAMES if bare_name(name) == bare), bare)


def find_gpu(name: str) -> Gpu | None:
    """The GPU named `name` (`l4`, `L4`, `nvidia-l4`), or None."""
    wanted = name.strip().lower()
    return next((gpu for gpu in CATALOG if wanted in (gpu.name, gpu.accelerator)), None)


def nearest_gpu(capability: str) -> Gpu:
    """The most capable GPU whose compute capability is at most `capability` (`9.0`); the least capable GPU if there is
    none. For an empty text it is the entry `cpu`."""
    if not capability:
        return next(gpu for gpu in CATALOG if gpu.accelerator is None)
    cards = sorted(
        (gpu for gpu in CATALOG if gpu.accelerator is not None), key=lambda gpu: _number(gpu.compute_capability)
    )
    able = [gpu for gpu in cards if _number(gpu.compute_capability) <= _number(capability)]
    best = (able or cards[:1])[-1].compute_capability
    return next(gpu for gpu in cards if gpu.compute_capability == best)


def _number(capability: str) -> tuple[int, ...]:
    """The sort key of a compute capability: (8, 9) for `8.9`, so that 10.0 is above 9.0; (0,) if it is not a number."""
    return tuple(int(part) for part in capability.split(".")) if re.fullmatch(r"\d+\.\d+", capability) else (0,)


def carrier_of(machine_type: str) -> Gpu | None:
    """The GPU of machines of this type; None if the type is not in the catalog."""
    return next((gpu for gpu in CATALOG if gpu.machine(machine_type)), None)


def closest_word(word: str, choices: Iterable[str]) -> str | None:
    """The choice that is most similar to `word`, or None if none is similar enough."""
    matches = difflib.get_close_matches(word.lower(), sorted(choices), n=1, cutoff=0.5)
    return matches[0] if matches else None


FRACTIONS: Final = ("g4-standard-6", "g4-standard-12", "g4-standard-24")
"""Machine types that Google sells with a part of a GPU. They need NVIDIA's vGPU driver, which the images do not have,
and a part of a GPU has other times than the whole."""


def unknown_gpu_message(name: str) -> str:
    """The error message for a GPU that the catalog does not have, with the GPUs that it has."""
    return f"unknown GPU '{name}'; {suggest(name, GPU_NAMES)}"


def suggest(word: str, choices: Iterable[str], listed: Iterable[str] = ()) -> str:
    """The end of an error message: `did you mean 'l4'? valid: l4, t4 …`. It lists `listed` if given, else all
    choices."""
    valid = tuple(choices)
    match = closest_word(word, valid)
    return (f"did you mean '{match}'? " if match else "") + f"valid: {', '.join(tuple(listed) or valid)}"
