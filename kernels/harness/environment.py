"""The fingerprint of the machine and the software that measured: what a reader needs to judge or repeat the numbers."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from pathlib import Path

import numpy
import torch

from kernels.harness import input_sets, timers, warming
from kernels.harness.clocks import Nvml, open_nvml
from kernels.harness.device_clock import in_kernel_clock
from kernels.harness.memory import NOT_ON_A_CPU
from kernels.harness.own import OwnWorkload
from kernels.harness.rows import Origin
from kernels.harness.several_gpus import GPU_DIGITS, own_slot
from kernels.harness.spec import MACHINE, Spec
from kernels.harness.stamps import utc_now
from kernels.harness.streams import CudaStream
from kernels.harness.users import worker_users

SETTINGS = (
    "power_limit_w", "power_limit_default_w", "ecc", "mig",
    "sm_clock_max_mhz", "mem_clock_max_mhz", "sm_clock_mhz", "mem_clock_mhz", "vbios",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]


def default_device() -> torch.device:
    """The device on which everything runs: the first CUDA device, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_name(where: torch.device) -> str:
    """The name that the device reports."""
    return str(torch.cuda.get_device_name(where)) if where.type == "cuda" else cpu_model()


def gpu_digest(where: torch.device) -> str:
    """The sha256 of the GPU's UUID, which tells it from others of its kind; empty if it has none."""
    slot = own_slot()
    uuid = slot.gpu if slot is not None else ""
    if where.type == "cuda":
        uuid = str(getattr(torch.cuda.get_device_properties(where), "uuid", ""))
    return hashlib.sha256(uuid.encode()).hexdigest() if uuid else ""


def row_origin(where: torch.device, spec: Spec) -> Origin:
    """What all rows that this process measures on a device share."""
    gpu = gpu_digest(where)[:GPU_DIGITS]
    return Origin(spec.run_id, spec.vm, device_name(where), str(torch.__version__), gpu)


def environment_record(where: torch.device, spec: Spec) -> dict[str, object]:
    """The content of environment.json. What is not known or does not apply is null."""
    cuda = where.type == "cuda"
    sensors = open_nvml(where)
    properties = torch.cuda.get_device_properties(where) if cuda else None
    source = payload_manifest() or checkout_state()
    return {
        "schema": 1,
        "device": device_name(where),
        "device_kind": where.type,
        "device_uuid_sha256": gpu_digest(where) or None,
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
        "cpu_count": len(list(input_sets.usable_processors())),
        "last_level_cache_bytes": input_sets.cache_bytes(where),
        **(sensors.settings() if sensors else dict.fromkeys(SETTINGS)),
        **in_kernel(where, sensors),
        "nvrtc": nvrtc_version() if cuda else None,
        "threads": spec.threads or torch.get_num_threads(),
        "cpu_clock_overhead_ns": timers.clock_overhead_ns(),
        "timer_overhead_us": round(timers.timer_overhead_us(where), 4),
        "protocol": measurement_protocol(where, spec),
        **(worker_users() if isinstance(spec.workload, OwnWorkload) else {}),
        **{key: spec.machine.get(key) or None for key in MACHINE},
        "spotbench": source.get("spotbench"),
        "git_commit": source.get("git_commit"),
        "git_dirty": source.get("git_dirty"),
        "payload_sha256": source.get("payload_sha256"),
        "recorded_at": utc_now(),
    }


def measurement_protocol(where: torch.device, spec: Spec) -> dict[str, object]:
    """How measurements are made: the settings of the spec, and the constants of the harness. Times are in seconds."""
    cuda = where.type == "cuda"
    why_no_gate = CudaStream(where).why_no_gate if cuda else ""
    return {
        "regime": spec.regime,
        "repeats": spec.repeats,
        "warmup": spec.warmup,
        "warmup_limit_s": warming.LIMIT_S[where.type],
        "warmup_window_blocks": warming.WINDOW_BLOCKS,
        "warmup_tolerance": warming.TIME_TOLERANCE,
        "stop_at_relative_ci": spec.stop_at_relative_ci,
        "case_budget_s": spec.case_budget_s,
        "cache": spec.cache,
        "cache_turned_over": input_sets.AIM,
        "most_input_sets": input_sets.MOST_SETS[where.type],
        "timer": "CUDA events" if cuda else "perf_counter_ns",
        "launch_hidden_by": (timers.GATE if not why_no_gate else timers.SPIN) if cuda else None,
        "why_no_gate": why_no_gate or None,
        "least_hold_us": timers.LEAST_BLOCK_US if cuda else None,
        "rest_times": timers.REST_TIMES if cuda else 0,
        "rest_most_s": timers.REST_MOST_S if cuda else 0,
        "sustained_s": timers.SUSTAINED_S[where.type],
        "graph_s": timers.GRAPH_S if cuda else None,
        "peak_memory": "PyTorch's allocator" if cuda else f"unknown: {NOT_ON_A_CPU}",
    }


def in_kernel(where: torch.device, sensors: Nvml | None) -> dict[str, object]:
    """The SM clock as a kernel sees it and as NVML reports it, and which of the two the rows have."""
    if where.type != "cuda":
        return dict.fromkeys(("sm_clock_in_kernel_mhz", "sm_clock_in_kernel_failure", "sm_clock_source"))
    clock = in_kernel_clock(where)
    mhz = clock.mhz()
    nvml_has_it = sensors is not None and sensors.read().sm_clock_mhz is not None
    return {
        "sm_clock_in_kernel_mhz": None if mhz is None else round(mhz, 1),
        "sm_clock_in_kernel_failure": clock.why or None,
        "sm_clock_source": "nvml" if nvml_has_it else "in-kernel" if mhz is not None else None,
    }


def nvrtc_version() -> str | None:
    """The version of the runtime compiler that would be used; None where none is found."""
    try:
        from kernels.device_code import Nvrtc, nvrtc_candidates

        return next((Nvrtc(path).version for path in nvrtc_candidates()), None)
    except (ImportError, OSError, AttributeError):
        return None


def payload_manifest() -> dict[str, object]:
    """The content of manifest.json at the root of the payload; empty when this is not a payload."""
    try:
        data = json.loads((ROOT / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def checkout_state() -> dict[str, object]:
    """The commit of a git checkout and whether its tracked files differ from it; empty when this is none."""
    if not (ROOT / ".git").exists():
        return {}
    try:
        commit = run_git("rev-parse", "HEAD")
        dirty = run_git("status", "--porcelain", "--untracked-files=no") != ""
        return {"spotbench": package_version(), "git_commit": commit, "git_dirty": dirty}
    except (OSError, subprocess.SubprocessError):
        return {}


def package_version() -> str | None:
    """The version that a checkout's package names."""
    try:
        source = (ROOT / "orchestrator" / "__init__.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r'__version__ = "([^"]+)"', source)
    return match.group(1) if match else None


def run_git(*arguments: str) -> str:
    """The output of a git command in the checkout. Raises `OSError` or `SubprocessError`."""
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
    model_name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return model_name or platform.processor() or platform.machine()


def os_name() -> str:
    """The distribution's own name for itself."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform())
    except OSError:
        return platform.platform()
