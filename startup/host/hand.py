"""What a client does on a host: one operation a call, JSON in and JSON out, from one file that needs nothing else.

The client sends this file's own text over SSH (`python3 -c`), so that it works before anything of ours is on the host.
Everything stays below one cache folder:

    lock              held (flock) by the steward of the run that measures now, and holds its name
    payloads/         what runs, named by its sha256
    incoming/         uploads under way
    build/            kernels that were built and CUDA's own cache; emptied when the host has changed
    runs/<vm>/        run.json state.json alive serial.log spool/<object name>; while it runs, scratch/ and steward/ too
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ANSWER = "@@spotbench@@"
"""Begins the line that holds the answer: a login shell may print before it."""
MARK = "BENCH_HOST_VM"
"""The environment variable that every process of a run carries."""
START_S = 15.0
OLD_PAYLOAD_S = 30 * 86400.0
OLD_UPLOAD_S = 86400.0


class Trouble(Exception):
    """What stands in the way, for the client to put into words: `kind`, and the path that it is about."""

    def __init__(self, kind: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.path = path


# --- places ---


def cache_folder(named: str) -> Path:
    """The cache folder: as named, else below $XDG_CACHE_HOME or ~/.cache."""
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "spotbench"


def run_folder(cache: Path, vm: str) -> Path:
    if not vm or "/" in vm or vm.startswith("."):
        raise Trouble("unknown", f"{vm!r} is no name of a run's machine")
    return cache / "runs" / vm


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replaces `path` whole, or leaves it as it was."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(document), encoding="utf-8")
    fresh.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# --- processes ---


def locked(path: Path) -> int | None:
    """A descriptor that holds the lock on `path`, or None when another process does."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def patiently_locked(path: Path) -> int | None:
    """The same, when whoever only looked at the lock has let go of it."""
    for _ in range(20):
        descriptor = locked(path)
        if descriptor is not None:
            return descriptor
        time.sleep(0.02)
    return None


def is_held(path: Path) -> bool:
    """Whether some process holds the lock on `path`."""
    if not path.exists():
        return False
    descriptor = locked(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def processes() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def marked(vm: str) -> list[int]:
    """The processes of a run, wherever they have got to: what they inherited tells."""
    wanted = f"{MARK}={vm}".encode()
    found = []
    for pid in processes():
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue  # somebody else's, or gone
    return found


def sweep(vm: str, within_s: float = 5.0) -> int:
    """Kills every process of a run; how many there were. One that forks while it is killed is met on the next round."""
    killed = set()
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        pids = [pid for pid in marked(vm) if alive(pid)]
        if not pids:
            break
        for pid in pids:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.05)
    return len(killed)


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


# --- what the host is ---


def ran(*command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, text=True, errors="replace"
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]}: {error}")


def gpus() -> dict[str, Any]:
    """Every NVIDIA GPU, or why there is none. The serial number leaves the host as a hash only."""
    fields = "name,uuid,driver_version,compute_cap,memory.total"
    asked = ran("nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits")
    found = []
    for line in asked.stdout.splitlines() if asked.returncode == 0 else ():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5:
            digest = hashlib.sha256(cells[1].encode()).hexdigest()
            found.append(
                {"name": cells[0], "uuid_sha256": digest, "driver": cells[2], "compute_capability": cells[3],
                 "memory_mib": cells[4]}
            )  # fmt: skip
    why = "" if found else (asked.stderr or asked.stdout or "nvidia-smi says nothing").strip().splitlines()[0][:200]
    return {"gpus": found, "no_gpu": why}


def compiler() -> str:
    """The first line of what the C++ compiler says of itself, or nothing. The same search as the CPU kernel's."""
    for program in [os.environ["CXX"].split()[0]] if os.environ.get("CXX", "").strip() else ["g++", "c++"]:
        answer = ran(program, "--version")
        if answer.returncode == 0 and answer.stdout:
            return answer.stdout.splitlines()[0].strip()
    return ""


def system() -> str:
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


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def free_gb(folder: Path) -> float:
    return round(shutil.disk_usage(str(nearest(folder))).free / 1e9, 3)


def probe(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the host is and has: cheap, so that every launch can ask, and changing nothing."""
    cache = cache_folder(arguments.get("cache", ""))
    return {
        "platform": sys.platform,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "executable": sys.executable,
        "os": system(),
        "machine": os.uname().machine,
        "cpu": processor(),
        "user": os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid()),
        "cache": str(cache),
        "free_gb": free_gb(cache),
        "compiler": compiler(),
        "missing": [name for name in ("bash", "curl", "tar", "sha256sum") if shutil.which(name) is None],
        "busy": busy(cache),
        **gpus(),
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


def validate(arguments: dict[str, Any]) -> dict[str, Any]:
    """From scratch: torch and numpy are imported, a small C++ program is built and run, the cache folder is written
    to. What earlier runs built here is thrown away: it was built by what was here then."""
    cache = cache_folder(arguments.get("cache", ""))
    shutil.rmtree(str(cache / "build"), ignore_errors=True)
    found = imported(sys.executable)
    others = [] if found["torch"] else pythons_with_torch()
    return {**found, "pythons": others, "writable": "", "compiles": compiles(writable(cache))}


def packages(_arguments: dict[str, Any]) -> dict[str, Any]:
    """What `validate` says of torch, numpy and the compiler, with nothing below the cache folder touched."""
    found = imported(sys.executable)
    work = Path(tempfile.mkdtemp(prefix="bench-look-"))
    return {**found, "pythons": [] if found["torch"] else pythons_with_torch(), "compiles": compiles(work)}


def imported(python: str, timeout_s: float = 180) -> dict[str, Any]:
    """What importing torch and numpy comes to in that interpreter."""
    answer = ran(python, "-B", "-c", TORCH, timeout_s=timeout_s)  # -B: nothing is written beside the packages
    try:
        found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"torch": "", "numpy": "", "cuda": "", "usable": False, "error": last_line(answer.stderr)}
    return found


PYTHONS = (
    "~/bench-venv", "~/.venv", "~/venv", "~/*/.venv", "~/miniconda3", "~/miniconda3/envs/*", "~/anaconda3",
    "~/anaconda3/envs/*", "/opt/*", "/opt/*/.venv", "/opt/*/venv", "/opt/conda/envs/*", "/usr/local", "/usr",
)  # fmt: skip
"""Where people keep interpreters that have torch: folders with a bin/python3."""


def pythons_with_torch(most: int = 3, started: int = 8) -> list[str]:
    """Other interpreters of this machine that import torch. Only those that seem to have it are started."""
    found: list[str] = []
    tried = {Path(sys.executable).parent.resolve()}
    for pattern in PYTHONS:
        above = Path.home() if pattern.startswith("~/") else Path("/")
        for base in sorted(above.glob(pattern.lstrip("~/"))):
            folder, python = (base / "bin").resolve(), base / "bin" / "python3"
            if folder in tried or not python.exists() or not any(base.glob("lib/python3*/*-packages/torch")):
                continue
            tried.add(folder)
            if imported(str(python), 60)["torch"]:
                found.append(str(python))
            if len(found) == most or len(tried) > started:
                return found
    return found


def writable(cache: Path) -> Path:
    """A folder of our own below the cache folder, written to and read back."""
    work = cache / "incoming" / f"check-{os.getpid()}"
    make(work)
    (work / "bytes").write_bytes(b"\0" * 65536)
    return work


def compiles(work: Path) -> str:
    """Nothing when a C++ program can be built and run, else why not."""
    try:
        (work / "hello.cpp").write_text("#include <vector>\nint main() { return std::vector<int>(3).size() - 3; }\n")
        command = os.environ.get("CXX", "").split() or ["g++" if shutil.which("g++") else "c++"]
        built = ran(*command, "-std=c++17", "-o", str(work / "hello"), str(work / "hello.cpp"))
        if built.returncode:
            return last_line(built.stderr)
        done = ran(str(work / "hello"))
        return "" if done.returncode == 0 else f"what it built ends with exit code {done.returncode}"
    finally:
        shutil.rmtree(str(work), ignore_errors=True)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"


# --- a run ---


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def busy(cache: Path) -> str:
    """The machine of the run that measures here now; empty when none does."""
    path = cache / "lock"
    if not is_held(path):
        return ""
    try:
        return path.read_text(encoding="utf-8").strip() or "another run"
    except OSError:
        return "another run"


def payload_path(cache: Path, sha256: str) -> Path:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise Trouble("unknown", f"{sha256!r} is no sha256")
    return cache / "payloads" / f"{sha256}.tar.gz"


def is_right(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
    """Whether the payload is here and right; if not, where to put it: a file of its size, so there is room for it."""
    cache, sha256 = cache_folder(arguments.get("cache", "")), str(arguments["sha256"])
    for name in ("payloads", "incoming", "runs", "build"):
        make(cache / name)
    tidy(cache, sha256)
    if is_right(payload_path(cache, sha256), sha256):
        return {"present": True, "incoming": ""}
    if not arguments["size"]:  # only asked
        return {"present": False, "incoming": ""}
    # One name for every try of a run's, so that an upload that was cut short is written over by the next.
    incoming = cache / "incoming" / f"{run_folder(cache, vm_of(arguments)).name}.part"
    try:
        with incoming.open("wb") as file:
            file.write(b"\0" * int(arguments["size"]))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if incoming.exists():
            incoming.unlink()
        raise
    return {"present": False, "incoming": str(incoming)}


def tidy(cache: Path, sha256: str) -> None:
    """Throws away uploads that nobody finished and payloads that nobody has used for a month."""
    kept = payload_path(cache, sha256)
    for folder, age_s in (("incoming", OLD_UPLOAD_S), ("payloads", OLD_PAYLOAD_S)):
        for path in (cache / folder).iterdir():
            try:
                if path != kept and time.time() - path.stat().st_mtime > age_s:
                    shutil.rmtree(str(path)) if path.is_dir() else path.unlink()
            except OSError:
                continue  # another client was first


def accept(arguments: dict[str, Any]) -> dict[str, Any]:
    """An upload becomes a payload, if it is what its name says."""
    cache, sha256 = cache_folder(arguments.get("cache", "")), str(arguments["sha256"])
    incoming = Path(str(arguments["incoming"]))
    if incoming.parent != cache / "incoming":
        raise Trouble("unknown", f"{incoming} is no upload")
    if not is_right(incoming, sha256):
        incoming.unlink()
        raise Trouble("checksum", "the payload did not arrive as it was sent", str(incoming))
    incoming.replace(payload_path(cache, sha256))
    return {}


def start(arguments: dict[str, Any]) -> dict[str, Any]:
    """Starts the steward of a run, detached from this connection. Started twice it is one run."""
    cache, run = cache_folder(arguments.get("cache", "")), dict(arguments["run"])
    vm, sha256 = str(run["vm"]), str(run["sha256"])
    folder = run_folder(cache, vm)
    if (folder / "run.json").exists():
        return state(arguments)
    payload = payload_path(cache, sha256)
    if not is_right(payload, sha256):
        raise Trouble("checksum", "the payload is not here, or not what its name says", str(payload))
    os.utime(str(payload))
    whole = patiently_locked(cache / "lock")
    if whole is None:
        raise Trouble("busy", busy(cache) or "another run", str(cache))
    try:
        os.ftruncate(whole, 0)
        os.write(whole, vm.encode())
        fresh = folder.with_name(".new-" + vm)
        shutil.rmtree(str(fresh), ignore_errors=True)
        make(fresh / "spool")
        with tarfile.open(str(payload)) as archive:
            ours = [entry for entry in archive if entry.isfile() and entry.name.startswith("startup/")]
            archive.extractall(str(fresh / "steward"), members=ours)
        run.update(executable=sys.executable, payload=str(payload), host_time=time.time())
        write_json(fresh / "run.json", run)
        alone = locked(fresh / "alive")
        assert alone is not None, "a folder that is new has no other owner"
        fresh.rename(folder)
        launch_steward(folder, (whole, alone))
        os.close(alone)
    finally:
        os.close(whole)
    until = time.monotonic() + START_S
    while not (folder / "state.json").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return state(arguments)


def launch_steward(folder: Path, held: tuple[int, int]) -> None:
    """A session of its own and no terminal: a lost connection, or a shell that is closed, does not reach it."""
    with (folder / "steward.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "startup.host.steward", str(folder)],
            cwd=str(folder / "steward"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Held for as long as the steward lives: the locks go with its descriptors.
            pass_fds=held,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""},
        )


def state(arguments: dict[str, Any]) -> dict[str, Any]:
    """What became of one run, and what is in its spool. A run whose steward is dead is ended here."""
    cache = cache_folder(arguments.get("cache", ""))
    return told(run_folder(cache, vm_of(arguments)))


def vm_of(arguments: dict[str, Any]) -> str:
    return str(arguments["run"]["vm"]) if "run" in arguments else str(arguments["vm"])


def told(folder: Path) -> dict[str, Any]:
    run = read_json(folder / "run.json")
    if run is None:
        return {"exists": False}
    living = is_held(folder / "alive")
    known = read_json(folder / "state.json") or {}
    if not living and known.get("status") != "gone":
        known = read_json(folder / "state.json") or {}  # it may have ended between the two looks
        if known.get("status") != "gone":
            known = bury(folder, run, known)
    log = folder / "serial.log"
    return {
        "exists": True,
        **known,
        "vm": run["vm"],
        "labels": run.get("labels", {}),
        "deadline_s": run.get("deadline_s"),
        "now": time.time(),
        "files": spooled(folder / "spool"),
        "spool": str(folder / "spool"),
        "log_size": log.stat().st_size if log.exists() else 0,
    }


def bury(folder: Path, run: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """A run without its steward, killed or ended with the power: nothing of it goes on, and what it stored is kept."""
    sweep(str(run["vm"]))
    for name in ("scratch", "steward"):
        shutil.rmtree(str(folder / name), ignore_errors=True)
    ended = (folder / "alive").stat().st_mtime if (folder / "alive").exists() else time.time()
    began = float(known.get("started_at", run["host_time"]))
    known = {**known, "status": "gone", "started_at": began, "ended_at": max(ended, began), "ended_by": "lost"}
    write_json(folder / "state.json", known)
    return known


def spooled(spool: Path) -> list[list[Any]]:
    """Name, size and time of change of every object in the spool, in name order."""
    found = []
    for path in sorted(spool.rglob("*")):
        try:
            if path.is_file():
                status = path.stat()
                found.append([path.relative_to(spool).as_posix(), status.st_size, status.st_mtime_ns])
        except OSError:
            continue  # replaced while we looked
    return found


def read_log(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the run has printed, from byte `start` (negative: the last bytes), at most `most` bytes."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    try:
        with (folder / "serial.log").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            first = int(arguments["start"])
            begin = max(size + first, 0) if first < 0 else min(first, size)
            file.seek(begin)
            data = file.read(int(arguments.get("most", 262144)))
    except OSError:
        return {"exists": False, "text": "", "next": 0}
    return {"exists": True, "text": data.decode("utf-8", "replace"), "next": begin + len(data)}


def stop(arguments: dict[str, Any]) -> dict[str, Any]:
    """Asks the steward to end its run, with time to store what there is. What is gone is stopped."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    known = read_json(folder / "state.json")
    if known is not None and known.get("status") != "gone" and is_held(folder / "alive"):
        (folder / "stop").touch()
        try:
            os.kill(int(known["pid"]), signal.SIGTERM)
        except OSError:
            pass  # it ended first
    return told(folder)


def forget(arguments: dict[str, Any]) -> dict[str, Any]:
    """Removes what is left of a run that is over."""
    folder = run_folder(cache_folder(arguments.get("cache", "")), vm_of(arguments))
    until = time.monotonic() + 3
    while is_held(folder / "alive"):  # it says that it is gone a moment before it is
        if time.monotonic() > until:
            raise Trouble("busy", "it still runs", str(folder))
        time.sleep(0.05)
    sweep(vm_of(arguments))
    shutil.rmtree(str(folder), ignore_errors=True)
    return {"exists": folder.exists()}


def runs(arguments: dict[str, Any]) -> dict[str, Any]:
    """Every run that has left anything here."""
    folder = cache_folder(arguments.get("cache", "")) / "runs"
    there = sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    return {"runs": [one for one in map(told, there) if one["exists"]]}


OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    operation.__name__: operation
    for operation in (probe, validate, packages, prepare, accept, start, state, read_log, stop, forget, runs)
}
KINDS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.EACCES: "not_writable",
    errno.EPERM: "not_writable",
    errno.EROFS: "not_writable",
    errno.ENOTDIR: "not_writable",
}


def main(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One operation. What goes wrong is an answer too: `trouble`, `message`, `path`."""
    try:
        return OPERATIONS[operation](arguments)
    except Trouble as trouble:
        return {"trouble": trouble.kind, "message": str(trouble), "path": trouble.path}
    except OSError as error:
        kind = KINDS.get(error.errno or 0, "failed")
        return {"trouble": kind, "message": error.strerror or str(error), "path": str(error.filename or "")}
    except (KeyError, TypeError, ValueError, tarfile.TarError) as error:
        return {"trouble": "failed", "message": f"{type(error).__name__}: {error}", "path": ""}


if __name__ == "__main__":
    # The same whether it comes by `python3 -c` or is run as a file: `hand.py OPERATION ARGUMENTS`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.write("\n" + ANSWER + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
