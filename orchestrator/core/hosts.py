"""Machines that the user owns: how one is named, what a run needs of it, and when it must be validated again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.bounds import Moment
from orchestrator.core.errors import ConfigError, DocumentUnreadable
from orchestrator.core.foreign import document, words
from orchestrator.core.market.catalog import nearest
from orchestrator.core.naming import RUN_ID, attempt_of

ZONE_PREFIX: Final = "host-"
"""No zone of a cloud begins so."""
RECORD_PREFIX: Final = "hosts/"
HOST_KEY: Final = "bench-host"
"""In a request's metadata: which machine, by which interpreter. It is for the client and does not reach the machine."""
MACHINE_TYPE: Final = "host"
PROVISIONING: Final = "OWN"
VALID_FOR: Final = timedelta(hours=48)
OLDEST_PYTHON: Final = (3, 10)
"""What the harness needs (kernels/README.md)."""
PYTHON: Final = r"^$|^(~?[A-Za-z0-9_.+/ -]*/)?(python|pypy)[0-9.]*$"
KEPT_ENDED: Final = timedelta(days=30)

LOCAL: Final = "local"
"""The host that the client itself runs on, reached without SSH."""
_LOCAL = re.compile(rf"{LOCAL}(?::(?P<machine>[a-z0-9-]+-[0-9a-f]{{6}}))?")
_TARGET = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^@:\s\[\]]+))(?::(?P<port>\d{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a host is, as it was typed: `[user@]name[:port]`; the name may be an alias of ~/.ssh/config. With
    `machine`, the machine of that name, by commands that are run on it itself: `local:machine`."""

    user: str
    name: str
    port: int | None
    machine: str = ""

    @property
    def called(self) -> str:
        """What messages call it."""
        return "this machine" if self.machine else self.name

    @property
    def ssh(self) -> str:
        """What comes after `ssh` to reach it."""
        name = f"{self.user}@{self.name}" if self.user else self.name
        return f"-p {self.port} {name}" if self.port else name

    @property
    def entry(self) -> str:
        """How a hint begins that sends somebody there."""
        return "" if self.machine else f"`ssh {self.name}`; "

    def __str__(self) -> str:
        if self.machine:
            return f"{LOCAL}:{self.machine}"
        name = f"[{self.name}]" if ":" in self.name else self.name
        return (f"{self.user}@" if self.user else "") + name + (f":{self.port}" if self.port else "")

    @property
    def zone(self) -> str:
        """The host as a place: readable, a label's characters only, and not that of any other target."""
        readable = re.sub(r"[^a-z0-9]+", "-", (self.machine or self.name).lower()).strip("-")[:24] or "machine"
        return f"{ZONE_PREFIX}{readable}-{hashlib.sha256(str(self).encode()).hexdigest()[:6]}"


def parse_target(text: str, machine: str = "") -> Target:
    """The target in `text`; a bare `local` is `machine`, where that is given. Raises `ConfigError`."""
    if (there := _LOCAL.fullmatch(text.strip())) is not None and (there["machine"] or machine):
        return Target("", LOCAL, None, there["machine"] or machine)
    found = _TARGET.fullmatch(text.strip())
    if found is not None:
        user, name = found["user"] or "", found["six"] or found["name"]
        port = int(found["port"]) if found["port"] else None
        if not name.startswith("-") and not user.startswith("-") and (port is None or 0 < port < 65536):
            return Target(user, name, port)
    raise ConfigError(
        f"'{text}' names no host",
        hint="--host takes user@box, user@box:port, an alias of ~/.ssh/config, or local for this machine",
    )


def is_host(zone: str) -> bool:
    """Whether a zone is a machine that somebody owns."""
    return zone.startswith(ZONE_PREFIX)


def record_object(zone: str) -> str:
    return f"{RECORD_PREFIX}{zone}.json"


# --- what is known of a host ------------------------------------------------------------------------------------------


class RecordUnreadable(DocumentUnreadable):
    """What the bucket keeps of a host is not what this version can read."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")


class HostRun(_Document):
    """A run that may have left something on the host."""

    run_id: Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$")]
    labels: dict[str, str] = Field(default_factory=dict)
    id: str = ""
    created_at: Moment
    deadline_at: Moment
    ended_at: Moment | None = None
    """When it ended; then everything that it stored is in the bucket."""
    how: str = ""
    removed: bool = False
    """Whether nothing of it is on the host any more."""


class HostRecord(_Document):
    """What the bucket keeps of a host. Losing it costs a validation, and the sight of what is on the host now."""

    schema_: Annotated[int, Field(alias="schema")] = 1
    target: str
    python: Annotated[str, Field(pattern=PYTHON)] = ""
    """It is run on the host: so nothing but an interpreter's path is taken from the bucket."""
    fingerprint: dict[str, str] = Field(default_factory=dict)
    validated_at: Moment | None = None
    torch: str = ""
    runs: dict[str, HostRun] = Field(default_factory=dict)
    """By machine name."""

    @classmethod
    def parse(cls, zone: str, data: bytes) -> HostRecord:
        """The record of the host `zone`. Raises `RecordUnreadable`."""
        try:
            record = cls.model_validate(document(data))
            if parse_target(record.target).zone != zone:
                raise ValueError("it tells of another host")
            if strange := [vm for vm, run in record.runs.items() if attempt_of(run.run_id, vm) is None]:
                raise ValueError(f"{strange[0]} is no machine of its run")
        except (ValueError, ConfigError) as error:
            said = error.errors()[0] if isinstance(error, ValidationError) else None
            why = f"{'.'.join(map(str, said['loc']))}: {said['msg']}" if said is not None else str(error)
            raise RecordUnreadable(
                f"{record_object(zone)} cannot be read: {words(why, 200)}",
                hint="a newer version of bench may have written it; a record that is removed costs one validation, "
                "and the sight of what is on that host now",
            ) from error
        return record

    def open_runs(self) -> dict[str, HostRun]:
        """The runs that may still be there, or something of them."""
        return {vm: run for vm, run in self.runs.items() if not run.removed}


def with_run(record: HostRecord, vm: str, run: HostRun, now: datetime) -> HostRecord:
    """The record with one more run, or with what has become of one; without those that ended long ago."""
    kept = {
        name: old
        for name, old in record.runs.items()
        if not old.removed or old.ended_at is None or now - old.ended_at < KEPT_ENDED
    }
    return record.model_copy(update={"runs": {**kept, vm: run}})


def fingerprint(probe: Mapping[str, Any]) -> dict[str, str]:
    """What must stay as it is for a validation to stay valid. A GPU's serial number is in it as a hash only."""
    gpus = probe.get("gpus", ())
    return {
        "gpu": " ".join(str(gpu["uuid_sha256"])[:16] for gpu in gpus),
        "driver": " ".join(sorted({str(gpu["driver"]) for gpu in gpus})),
        "compiler": str(probe.get("compiler", "")),
        "python": f"{probe.get('executable', '')} {probe.get('python', '')}".strip(),
        "os": str(probe.get("os", "")),
    }


def why_validate(record: HostRecord | None, now_is: Mapping[str, str], now: datetime) -> str:
    """Why a host must be validated from scratch, for a person; empty when what is known of it still holds."""
    if record is None or record.validated_at is None:
        return "it was never validated"
    changed = [key for key, value in now_is.items() if record.fingerprint.get(key) != value]
    if changed:
        return f"its {', '.join(changed)} changed"
    age = now - record.validated_at
    if age > VALID_FOR or age < -VALID_FOR:
        return f"it was last validated {age / timedelta(hours=1):.0f} hours ago"
    return ""


# --- what a run needs of it -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a run needs and a host does not have."""

    kind: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs of a host."""

    cuda: bool
    compiler: bool
    """For the CPU kernel: on a GPU, the compiler comes with torch."""
    min_free_gb: float


def lacks(probe: Mapping[str, Any], needs: Needs, name: str) -> Lack | None:
    """The first thing that the host `name` lacks, of what a look can tell; None when it will do."""
    if probe["platform"] != "linux":
        return Lack("no_linux", f"{name} runs {probe['platform']}", "bench measures on Linux only")
    version = str(probe["python"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
        return python_too_old(name, version)
    if probe["missing"]:
        tools = " ".join(probe["missing"])
        packages = tools.replace("sha256sum", "coreutils")
        return Lack("no_tools", f"{name} has no {tools}", f"on {name}: sudo apt-get install {packages}")
    if probe["free_gb"] < needs.min_free_gb:
        return Lack(
            "disk_full",
            f"{name} has {probe['free_gb']:.1f} GB free for {probe['cache']}, and a run needs {needs.min_free_gb:g} GB",
            f"free some there (`df -h`, `du -sh {probe['cache']}`), or lower environment.min_free_gb",
        )
    if needs.cuda and not probe["gpus"]:
        return Lack(
            "no_cuda",
            f"{name} has no NVIDIA GPU that answers: {probe['no_gpu']}",
            f"on {name}: nvidia-smi must list it; `--gpu cpu` measures the processor instead",
        )
    if needs.compiler and not probe["compiler"]:
        return Lack(
            "no_compiler",
            f"{name} has no C++ compiler, which the CPU kernel is built with",
            f"on {name}: sudo apt-get install g++; or --baseline-only measures PyTorch alone",
        )
    return None


def python_too_old(name: str, version: str) -> Lack:
    least = ".".join(map(str, OLDEST_PYTHON))
    return Lack(
        "python_too_old",
        f"{name} has python {version}, and a run needs {least} or newer",
        "--set host.python=/path/to/a/newer/python3 names another one there",
    )


def lacks_packages(found: Mapping[str, Any], needs: Needs, name: str, python: str, torch: str) -> Lack | None:
    """The same, of what only a validation can tell. Nothing is installed on a machine that is somebody's own."""
    others = [str(one) for one in found.get("pythons", ())][:3]
    wanted = f"torch=={torch}" if torch else "torch"
    install = (
        f"another python there has torch: --set {quote(f'host.python={others[0]}')}"
        if others
        else f"on {name}: python3 -m venv ~/bench-venv && ~/bench-venv/bin/pip install {wanted} numpy; "
        "then --set host.python=~/bench-venv/bin/python3"
    )
    if not found["torch"]:
        return Lack("torch_missing", f"{python} on {name} cannot import torch ({found['error']})", install)
    if found["error"]:
        return Lack("numpy_mismatch", f"numpy does not fit torch {found['torch']} on {name}: {found['error']}", install)
    if needs.cuda and not found["usable"]:
        why = "is built without CUDA" if not found["cuda"] else f"(CUDA {found['cuda']}) finds no usable GPU"
        return Lack("torch_without_cuda", f"torch {found['torch']} on {name} {why}", install)
    if needs.compiler and found["compiles"]:
        return Lack(
            "no_compiler",
            f"the C++ compiler on {name} does not work: {found['compiles']}",
            f"on {name}: sudo apt-get install g++; or --baseline-only measures PyTorch alone",
        )
    return None


def gpu_for(probe: Mapping[str, Any]) -> str:
    """The configuration that suits a host when nobody named one: that of the most capable GPU in the catalog that can
    do no more than the host's first; `cpu` without one. It decides what is measured; what is measured says who it is.
    """
    cards = probe["gpus"]
    return nearest(str(cards[0]["compute_capability"]) if cards else "").name
