"""The fingerprint of the machine and the software that measured: what a reader needs to judge or repeat the numbers."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path

import numpy
import torch

from kernels.harness.clocks import nvml
from kernels.harness.stamps import now
from kernels.harness.timing import clock_overhead_ns

SETTINGS = ("power_limit_w", "ecc", "mig", "sm_clock_max_mhz", "mem_clock_max_mhz")
ROOT = Path(__file__).resolve().parents[2]


def device() -> torch.device:
    """Where everything runs: the first CUDA device, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_name(where: torch.device) -> str:
    """The name of the device that really runs, as it names itself."""
    return str(torch.cuda.get_device_name(where)) if where.type == "cuda" else cpu_model()


def record(where: torch.device, threads: int) -> dict[str, object]:
    """The content of environment.json. What is not known or does not apply is null."""
    cuda = where.type == "cuda"
    sensors = nvml(where)
    properties = torch.cuda.get_device_properties(where) if cuda else None
    uuid = str(getattr(properties, "uuid", "")) if cuda else ""
    source = manifest() or checkout()
    return {
        "schema": 1,
        "device": device_name(where),
        "device_kind": where.type,
        "device_uuid_sha256": hashlib.sha256(uuid.encode()).hexdigest() if uuid else None,
        "compute_capability": f"{properties.major}.{properties.minor}" if properties else None,
        "device_memory_bytes": properties.total_memory if properties else None,
        "driver": (sensors.driver_version() or None) if sensors else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "os": os_name(),
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpu_count": usable_cpus(),
        **(sensors.settings() if sensors else dict.fromkeys(SETTINGS)),
        "threads": threads or torch.get_num_threads(),
        "cpu_clock_overhead_ns": clock_overhead_ns(),
        "git_commit": source.get("git_commit"),
        "git_dirty": source.get("git_dirty"),
        "payload_sha256": source.get("payload_sha256"),
        "recorded_at": now(),
    }


def manifest() -> dict[str, object]:
    """What the payload says about itself, from manifest.json at its root; empty when this is not a payload."""
    try:
        data = json.loads((ROOT / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def checkout() -> dict[str, object]:
    """The commit of a git checkout and whether its tracked files differ from it; empty when this is none."""
    if not (ROOT / ".git").exists():
        return {}
    try:
        commit = git("rev-parse", "HEAD")
        return {"git_commit": commit, "git_dirty": git("status", "--porcelain", "--untracked-files=no") != ""}
    except (OSError, subprocess.SubprocessError):
        return {}


def git(*arguments: str) -> str:
    """One answer of git about the checkout. Raises `OSError` or `SubprocessError`."""
    answer = subprocess.run(
        ["git", "--no-optional-locks", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
    )
    return answer.stdout.strip()


def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or platform.machine()


def usable_cpus() -> int:
    """The processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def os_name() -> str:
    """The distribution's own name for itself."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform())
    except OSError:
        return platform.platform()
