"""What a host is: its GPU, its compiler, its interpreters, what can be written and built there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from startup.host.paths import Trouble, cache_folder, make_private, own_folder
from startup.host.processes import lock_patiently, measuring_machine


def run_command(*command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, text=True, errors="replace"
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]}: {error}")


def list_gpus() -> dict[str, Any]:
    """Every NVIDIA GPU, or why there is none. The serial number leaves the host as a hash only."""
    fields = "name,uuid,driver_version,compute_cap,memory.total"
    asked = run_command("nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits")
    gpu_list = []
    for line in asked.stdout.splitlines() if asked.returncode == 0 else ():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5:
            digest = hashlib.sha256(cells[1].encode()).hexdigest()
            gpu_list.append(
                {"name": cells[0], "uuid_sha256": digest, "driver": cells[2], "compute_capability": cells[3],
                 "memory_mib": cells[4]}
            )  # fmt: skip
    why = (
        "" if gpu_list else (asked.stderr or asked.stdout or "nvidia-smi prints nothing").strip().splitlines()[0][:200]
    )
    return {"gpus": gpu_list, "no_gpu": why}


def compiler_version() -> str:
    """The first line of what the C++ compiler says of itself, or nothing. The same search as the CPU kernel's."""
    for program in [os.environ["CXX"].split()[0]] if os.environ.get("CXX", "").strip() else ["g++", "c++"]:
        answer = run_command(program, "--version")
        if answer.returncode == 0 and answer.stdout:
            return answer.stdout.splitlines()[0].strip()
    return ""


def system_name() -> str:
    """Name and version of the system, and its kernel's."""
    name = ""
    try:
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
            if line.startswith("PRETTY_NAME="):
                name = line.partition("=")[2].strip().strip('"')
    except OSError:
        pass
    kernel = f"{os.uname().sysname} {os.uname().release}"
    return f"{name}, {kernel}" if name else kernel


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def free_gb(folder: Path) -> float:
    return round(shutil.disk_usage(str(nearest_existing(folder))).free / 1e9, 3)


def interpreter() -> str:
    """What the client named: a wrapper stays the wrapper, with all that it sets."""
    return os.environ.get("BENCH_INTERPRETER") or sys.executable


def probe_host(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the host is and has: cheap, so that every launch can ask, and changing nothing."""
    cache = cache_folder(arguments.get("cache", ""))
    return {
        "platform": sys.platform,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "executable": interpreter(),
        "os": system_name(),
        "machine": os.uname().machine,
        "cpu": processor_name(),
        "user": os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid()),
        "cache": str(cache),
        "free_gb": free_gb(cache),
        "compiler": compiler_version(),
        "missing": [name for name in ("bash", "curl", "tar", "sha256sum") if shutil.which(name) is None],
        "busy": measuring_machine(cache),
        **list_gpus(),
    }


TORCH = """
import json, warnings
warnings.simplefilter("ignore")
found = {"torch": "", "numpy": "", "cuda": "", "usable": False, "error": ""}
try:
    import torch
    found.update(torch=torch.__version__, cuda=torch.version.cuda or "", usable=bool(torch.cuda.is_available()))
    import numpy
    found["numpy"] = numpy.__version__
    torch.from_numpy(numpy.zeros(1)); torch.zeros(1).numpy()
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(found))
"""


VALIDATION = b"another client's validation"


def validate_host(arguments: dict[str, Any]) -> dict[str, Any]:
    """From scratch: torch and numpy are imported, a small C++ program is built and run, the cache folder is written
    to. What earlier runs built here is thrown away: it was built by what was here then. A run that another client has
    started since the look is neither disturbed nor robbed of what it builds: raises `Trouble`."""
    cache = cache_folder(arguments.get("cache", ""))
    own_folder(cache)
    cache_lock = lock_patiently(cache / "lock")
    if cache_lock is None:
        raise Trouble("measuring", measuring_machine(cache) or "another run", str(cache))
    try:
        os.ftruncate(cache_lock, 0)
        os.write(cache_lock, VALIDATION)
        shutil.rmtree(str(cache / "build"), ignore_errors=True)
        import_result = import_check(interpreter())
        other_pythons = [] if import_result["torch"] else pythons_with_torch(arguments.get("pythons", []))
        return {
            **import_result,
            "pythons": other_pythons,
            "writable": "",
            "compiles": compile_check(writable_cache(cache)),
        }
    finally:
        os.close(cache_lock)


def check_packages(arguments: dict[str, Any]) -> dict[str, Any]:
    """What `validate` says of torch, numpy and the compiler, with nothing below the cache folder touched."""
    import_result = import_check(interpreter())
    work = Path(tempfile.mkdtemp(prefix="bench-look-"))
    other_pythons = [] if import_result["torch"] else pythons_with_torch(arguments.get("pythons", []))
    return {**import_result, "pythons": other_pythons, "compiles": compile_check(work)}


def import_check(python: str, timeout_s: float = 180) -> dict[str, Any]:
    """What importing torch and numpy comes to in that interpreter."""
    answer = run_command(python, "-B", "-c", TORCH, timeout_s=timeout_s)  # -B: nothing is written beside the packages
    for line in reversed(answer.stdout.splitlines()):  # libraries have words of their own, some as they are unloaded
        if line.startswith('{"torch": '):
            try:
                document: dict[str, Any] = json.loads(line)
                return document
            except ValueError:
                continue
    return {"torch": "", "numpy": "", "cuda": "", "usable": False, "error": last_line(answer.stderr)}


PYTHONS = (
    "~/bench-venv", "~/.venv", "~/venv", "~/*/.venv", "~/miniconda3", "~/miniconda3/envs/*", "~/anaconda3",
    "~/anaconda3/envs/*", "/opt/*", "/opt/*/.venv", "/opt/*/venv", "/opt/conda/envs/*", "/usr/local", "/usr",
)  # fmt: skip
"""Where people keep interpreters that have torch: folders with a bin/python3."""


def folders_of_pythons(last: list[str]) -> Iterator[Path]:
    """Where interpreters may be: where people keep them, and those of `last`."""
    for pattern in PYTHONS:
        above = Path.home() if pattern.startswith("~/") else Path("/")
        yield from sorted(above.glob(pattern.lstrip("~/")))
    for python in last:
        yield Path(python).parent.parent


def pythons_with_torch(last: list[str], started: int = 8) -> list[str]:
    """Another interpreter of this machine that imports torch, or none. Only those that seem to have it are started."""
    tried = {Path(sys.executable).parent.resolve()}
    for base in folders_of_pythons(last):
        folder, python = (base / "bin").resolve(), base / "bin" / "python3"
        if folder in tried or not python.exists() or not any(base.glob("lib/python3*/*-packages/torch")):
            continue
        if len(tried) > started:
            break
        tried.add(folder)
        if import_check(str(python), 60)["torch"]:
            return [str(python)]
    return []


def writable_cache(cache: Path) -> Path:
    """A folder of our own below the cache folder, written to and read back."""
    own_folder(cache)
    own_folder(cache / "incoming")
    work = cache / "incoming" / f"check-{os.getpid()}"
    make_private(work)
    (work / "bytes").write_bytes(b"\0" * 65536)
    return work


def compile_check(work: Path) -> str:
    """Nothing when a C++ program can be built and run, else why not."""
    try:
        (work / "hello.cpp").write_text("#include <vector>\nint main() { return std::vector<int>(3).size() - 3; }\n")
        command = os.environ.get("CXX", "").split() or ["g++" if shutil.which("g++") else "c++"]
        built = run_command(*command, "-std=c++17", "-o", str(work / "hello"), str(work / "hello.cpp"))
        if built.returncode:
            return last_line(built.stderr)
        done = run_command(str(work / "hello"))
        return "" if done.returncode == 0 else f"what it built ends with exit code {done.returncode}"
    finally:
        shutil.rmtree(str(work), ignore_errors=True)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it prints nothing"
