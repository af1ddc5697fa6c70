"""Users of their own for the processes in which a workload's code runs, where the harness is root on Linux.

The judge has a user, and so has each implementation: a number without a name, from the range that systemd's page on
users and groups leaves unused. Its home has its caches and temporary files, and no other user may enter it. Homes last
as long as a run, so that what was compiled in one step is there in the next. A link in `CLAIMS` names the run that uses
a number, so that no two runs on one machine share one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import pwd
import re
import shutil
import signal
import site
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from kernels.harness.facts import log_line
from kernels.harness.scratch import MEMORY, TEMPORARY, Scratch, folder_name, open_temporary_folder
from kernels.harness.view import show_folders

FIRST, LAST = 60578, 61183
CLAIMS: Final = Path("/run/bench-workers")
HOMES, WHY_NOT = "BENCH_WORKER_HOMES", "BENCH_WHY_NO_WORKER_USERS"
"""Environment variables by which the process that performs steps tells each of them where homes are, or why none."""
ONE_USER = "BENCH_ONE_USER"
"""If it is set, workers have no users of their own."""
READABLE: Final = "readable"
NOT_ROOT: Final = "the harness is not root"
SHARED: Final = (*TEMPORARY, MEMORY)
RIGHTS: Final = 0b11111011
"""The kernel's bits for the capabilities chown, dac_override, fowner, fsetid, kill, setgid and setuid."""
SET_DUMPABLE: Final = 4
END_S: Final = 5.0
TRITON: Final = "triton"
CACHES: Final = {
    "TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "TRITON_CACHE_DIR": TRITON, "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions", "CUDA_CACHE_PATH": "cuda", "BENCH_KERNEL_CACHE": "kernels",
}  # fmt: skip
"""The environment variables that name folders of a home."""
JUDGE: Final = ""


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """A user, its home, and the folders that its processes need."""

    uid: int
    home: Path
    folders: tuple[Path, ...]

    def as_settings(self) -> dict[str, Any]:
        """The arguments of `become_user`, as plain data."""
        return {"uid": self.uid, "home": str(self.home), "folders": [str(folder) for folder in self.folders]}


@dataclass
class Users:
    """The users of a run. The homes are removed by whoever has made them, the owner of `held`."""

    folder: Path
    held: Scratch | None = None
    last: int = FIRST - 1
    """The number that was given last; the next one is above it, so that none is soon given again."""
    known: dict[str, WorkerUser] = field(default_factory=dict)

    def home(self, name: str) -> Path:
        """The home of an implementation, or of the judge, made if need be. Its owner is the user. Raises `OSError`."""
        if name in self.known:
            return self.known[name].home
        home = self.folder / folder_name(name)
        if not home.exists():
            with (self.folder / ".lock").open("w") as lock:  # several processes of a step may need it at once
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not home.exists():
                    self.make_home(home)
        return home

    def of(self, name: str, workload: Path) -> WorkerUser:
        """The user of an implementation, or of the judge, with a home. Raises `OSError`."""
        if name not in self.known:
            home = self.home(name)
            self.known[name] = WorkerUser(int(home.stat().st_uid), home, needed_folders(workload))
        return self.known[name]

    def make_home(self, home: Path) -> None:
        """Makes a home and gives it to a user that has none. Raises `OSError`."""
        self.last = claim_user(self.folder, self.last)
        making = home.with_suffix(".new")
        shutil.rmtree(making, ignore_errors=True)
        for name in CACHES.values():
            (making / name).mkdir(mode=0o700, parents=True)
        for helper in self.compiled_helpers():
            shutil.copytree(helper, making / TRITON / helper.name, symlinks=True)
        making.chmod(0o700)
        for path in (making, *making.rglob("*")):
            os.chown(path, self.last, self.last, follow_symlinks=False)
        making.rename(home)

    def compiled_helpers(self) -> list[Path]:
        """What the judge has in Triton's cache of libraries for the host, which are the same for every kernel. It costs
        0.6 s to compile them again."""
        cache = self.folder / folder_name(JUDGE) / TRITON
        return sorted({library.parent for library in cache.glob("*/*.so")})

    def owners(self, name: str) -> tuple[int, int]:
        """The user of an implementation, and the judge's group. Raises `OSError`."""
        return self.home(name).stat().st_uid, self.home(JUDGE).stat().st_gid

    def rename(self, before: str, name: str) -> None:
        """Gives the user of a name, with its home, another name."""
        self.known[name] = self.known.pop(before)

    def release(self, name: str) -> None:
        """Ends every process of an implementation's user, and removes its home and what else it has left."""
        user = self.known.pop(name, None)
        if user is not None:
            self.remove(user.home)

    def remove(self, home: Path) -> None:
        """Removes a home, and everything of its user."""
        uid = home.lstat().st_uid
        if FIRST <= uid <= LAST:
            end_processes(uid)
            for path in files_of(uid):
                remove_path(path)
            (CLAIMS / str(uid)).unlink(missing_ok=True)
        remove_path(home)

    def close(self) -> None:
        """Removes all homes, if they belong to this process."""
        self.known.clear()
        if self.held is not None:
            for home in list(self.folder.iterdir()):
                self.remove(home)
            self.held.close()


def own_workload(spec: Path) -> Path | None:
    """The path of a user's own workload in a spec; None for a workload of ours, and for a spec that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Path(json.loads(spec.read_text(encoding="utf-8"))["workload"]["path"])
    return None


@cache
def users_in(folder: str) -> Users:
    """The users whose homes are in a folder that another process, or this one, holds."""
    return Users(Path(folder))


def open_users() -> Users | None:
    """The users of this run; None if its workers have the user of the harness."""
    named = os.environ.get(HOMES)
    return users_in(named) if named else None


def worker_users() -> dict[str, object]:
    """Whether the workers of this run have users of their own, and if not, why, as environment.json has it."""
    return {"worker_users": HOMES in os.environ, "why_no_worker_users": os.environ.get(WHY_NOT)}


@contextlib.contextmanager
def users_for_run(workload: Path | None) -> Iterator[None]:
    """Makes users for the workers of a workload, and the same ones for all steps that are performed within the block;
    none if a block around this one, also of the process that started this one, has decided about them."""
    if workload is None or {HOMES, WHY_NOT} & os.environ.keys():
        yield
        return
    reason, users = why_no_users(workload), None
    try:
        users = None if reason else make_users()
    except OSError as exc:
        reason = str(exc)
    os.environ.update({WHY_NOT: reason} if users is None else {HOMES: str(users.folder)})
    if users is None and reason != NOT_ROOT:
        log_line(f"workers have no users of their own: {reason}")
    try:
        yield
    finally:
        for name in (HOMES, WHY_NOT):
            os.environ.pop(name, None)
        if users is not None:
            users.close()


def make_users() -> Users:
    """Users with a new folder for homes. Raises `OSError`."""
    held = Scratch(open_temporary_folder())
    held.path.chmod(0o711)
    return Users(held.path, held)


def why_no_users(workload: Path) -> str:
    """Why workers cannot have users of their own here; empty if they can. A process tries it out."""
    if os.environ.get(ONE_USER):
        return f"{ONE_USER} is set"
    if not sys.platform.startswith("linux"):
        return "only on Linux"
    if os.geteuid():
        return NOT_ROOT
    try:
        if not has_rights(RIGHTS):
            return "root lacks a right that this needs (chown, dac_override, fowner, fsetid, kill, setgid or setuid)"
        folders = needed_folders(workload)
        open_temporary_folder()
        reading, writing = os.pipe()
        pid = os.fork()
    except (OSError, ValueError, IndexError) as exc:
        return str(exc)
    if not pid:
        try:
            os.write(writing, try_user(folders, workload).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return "" if content == READABLE else content or "the process that tried it has ended"


def has_rights(bits: int) -> bool:
    """Whether this process has the capabilities of these bits. Raises `OSError`, `ValueError` and `IndexError`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return not ~int(status.partition("CapEff:")[2].split()[0], 16) & bits


def try_user(folders: Sequence[Path], workload: Path) -> str:
    """What a process of such a user cannot read, or why there can be none; `READABLE` if all is well."""
    try:
        show_folders(folders)
        drop_rights(FIRST)
    except OSError as exc:
        return str(exc)
    for folder in folders:
        if not os.access(folder, os.R_OK | os.X_OK):
            return f"{folder} is not readable for other users"
    for file in (Path(os.__file__), Path(__file__), *workload_files(workload)):
        if not os.access(file, os.R_OK):
            return f"{file} is not readable for other users"
    for node in gpu_nodes():
        if not os.access(node, os.R_OK | os.W_OK):
            return f"{node} is closed to other users"
    return why_no_cuda(sys.modules.get("torch")) or READABLE


def why_no_cuda(torch: Any) -> str:
    """Why this process cannot use the GPU; empty if it can, or if there is none, or if torch is not imported yet."""
    if torch is None or torch.version.cuda is None or not gpu_nodes():
        return ""
    try:
        return "" if torch.zeros(1, device="cuda").item() == 0 else "the GPU gives wrong answers to other users"
    except Exception as exc:
        return f"the GPU is closed to other users: {type(exc).__name__}: {exc}"[:300]


def workload_files(workload: Path) -> list[Path]:
    """The workload's own files, and the document beside its folder, if there is one."""
    folder = folder_of(workload)
    return [path for path in (document_of(folder), *folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]


def document_of(folder: Path) -> Path:
    """The place of the document that describes a folder to its form."""
    return folder.with_name(f"{folder.name}.json")


def folder_of(workload: Path) -> Path:
    """The folder of a workload that is a file or a folder."""
    path = workload.absolute()
    return path if path.is_dir() else path.parent


def needed_folders(workload: Path) -> tuple[Path, ...]:
    """The folders that a worker may read something in after it has begun: modules, programs, libraries, the
    workload."""
    named = os.pathsep.join(os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"))
    texts = (*sys.path, *site.getsitepackages(), sys.prefix, sys.base_prefix, *named.split(os.pathsep))
    folder = folder_of(workload)
    about = (folder.parent,) if document_of(folder).exists() else ()
    folders = (Path.cwd(), *(Path(text).absolute() for text in texts if text), folder, *about)
    return tuple(dict.fromkeys(path for path in folders if path.is_dir()))


def become_user(uid: int, home: str, folders: Sequence[str]) -> None:
    """Makes this process, for good, one of a user of its own. Raises `OSError`."""
    show_folders([Path(folder) for folder in folders])
    try:
        os.chdir(Path.cwd())  # the folder that it sees now
    except OSError:
        os.chdir(home)
    drop_rights(uid)
    named = {"HOME": home, "TRITON_HOME": home, "USER": f"bench-{uid}", "LOGNAME": f"bench-{uid}"}
    os.environ.update(named | {name: str(Path(home) / folder) for name, folder in CACHES.items()})
    os.environ.pop(HOMES, None)
    tempfile.tempdir = os.environ["TMPDIR"]


def drop_rights(uid: int) -> None:
    """Gives up root's rights for those of a user and its group. Raises `OSError`."""
    os.setgroups(device_groups())
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(0o027)
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's


def gpu_nodes() -> list[Path]:
    """The device nodes of GPUs and of their driver."""
    return [node for pattern in ("[0-9]*", "ctl", "-uvm") for node in Path("/dev").glob(f"nvidia{pattern}")]


def device_groups() -> list[int]:
    """The groups whose members may use the GPUs, where not every user may."""
    statuses = [node.stat() for node in gpu_nodes()]
    return sorted({status.st_gid for status in statuses if status.st_mode & 0o066 == 0o060 and status.st_gid})


def claim_user(homes: Path, after: int) -> int:
    """The first number above `after` that nothing on this machine uses; it starts again from below. Raises
    `OSError`."""
    CLAIMS.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(CLAIMS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        used = set(process_ids().values())
        for uid in itertools.chain(range(after + 1, LAST + 1), range(FIRST, after + 1)):
            claim = CLAIMS / str(uid)
            # A link to homes that are gone is no claim.
            if uid not in used and not claim.exists() and not has_name(uid):
                claim.unlink(missing_ok=True)
                claim.symlink_to(homes)
                return uid
    finally:
        os.close(descriptor)
    raise OSError("no number is free for a user")


def has_name(uid: int) -> bool:
    """Whether a number is a person's or a service's: of this machine, or of a directory that it asks."""
    try:
        return bool(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return False


def process_ids() -> Mapping[int, int]:
    """The real user of each process."""
    users: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            match = re.search(rb"(?m)^Uid:\s*(\d+)", status.read_bytes())
            if match:
                users[int(status.parent.name)] = int(match[1])
    return users


def end_processes(uid: int) -> None:
    """Ends every process of a user."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        pids = [pid for pid, user in process_ids().items() if user == uid and is_running(pid)]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def files_of(uid: int) -> list[Path]:
    """What a user has left in the folders that all users share."""
    paths = []
    for place in SHARED:
        with contextlib.suppress(OSError):
            paths += [path for path in place.iterdir() if path.lstat().st_uid == uid]
    return paths


def remove_path(path: Path) -> None:
    """Removes a file, a link or a folder."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
