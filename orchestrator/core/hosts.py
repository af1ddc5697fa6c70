"""Hosts, the machines that the user owns: how one is named, what a run needs there, and when it is validated again."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError

from orchestrator.core.bounds import LenientModel, Moment
from orchestrator.core.errors import ConfigError, DocumentUnreadable
from orchestrator.core.market.catalog import nearest_gpu
from orchestrator.core.names import MachineName, MachineType, ProjectId, Zone
from orchestrator.core.naming import RUN_ID, attempt_of
from orchestrator.core.text import clean_line, count, parse_document

ZONE_PREFIX: Final = "host-"
"""The beginning of a host's zone. No zone of a cloud begins with it."""
RECORD_PREFIX: Final = "hosts/"
HOST_KEY: Final = "bench-host"
"""The key in a request's metadata for the machine and its interpreter. It is for the client and is not sent there."""
MACHINE_TYPE: Final = MachineType("host")
PROVISIONING: Final = "OWN"
VALID_FOR: Final = timedelta(hours=48)
OLDEST_PYTHON: Final = (3, 10)
"""The oldest Python that the harness supports (kernels/README.md)."""
PYTHON: Final = r"^$|^(~?[A-Za-z0-9_.+/ -]*/)?py[A-Za-z0-9_.+-]*$"
"""A path whose last part begins with py: python3.13t, pypy3, python3-torch."""
KEPT_ENDED: Final = timedelta(days=30)

LOCAL: Final = "local"
"""The host that the client itself runs on, reached without SSH."""
_LOCAL = re.compile(rf"{LOCAL}(?::(?P<machine>[a-z0-9-]+-[0-9a-f]{{6}}))?")
_TARGET = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^@:\s\[\]]+))(?::(?P<port>\d{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class HostTarget:
    """A host as the user typed it: `[user@]name[:port]`; the name may be an alias of ~/.ssh/config. With `machine` it
    is `local:machine`: the commands run on that machine itself, without SSH."""

    user: str
    name: str
    port: int | None
    machine: str = ""

    def __post_init__(self) -> None:
        """Raises `ValueError` for parts that are no host: they become arguments of `ssh`."""
        is_form = _LOCAL if self.machine else _TARGET
        if is_form.fullmatch(str(self)) is None or self.name.startswith("-") or self.user.startswith("-"):
            raise ValueError(f"{clean_line(str(self), 80)!r} is not the form of a host")

    @property
    def called(self) -> str:
        """The name of the host in messages."""
        return "this machine" if self.machine else self.name

    @property
    def ssh(self) -> str:
        """The arguments of `ssh` that reach it."""
        name = f"{self.user}@{self.name}" if self.user else self.name
        return f"-p {self.port} {name}" if self.port else name

    @property
    def entry(self) -> str:
        """The beginning of a hint that tells the user to log in there."""
        return "" if self.machine else f"`ssh {self.name}`; "

    def __str__(self) -> str:
        if self.machine:
            return f"{LOCAL}:{self.machine}"
        name = f"[{self.name}]" if ":" in self.name else self.name
        return (f"{self.user}@" if self.user else "") + name + (f":{self.port}" if self.port else "")

    @property
    def zone(self) -> Zone:
        """The host's name as a zone: readable, only the characters that a label may have, unique to this target."""
        readable = re.sub(r"[^a-z0-9]+", "-", (self.machine or self.name).lower()).strip("-")[:24] or "machine"
        return Zone(f"{ZONE_PREFIX}{readable}-{hashlib.sha256(str(self).encode()).hexdigest()[:6]}")


def parse_target(text: str, machine: str = "") -> HostTarget:
    """The target in `text`; `local` alone means `machine`, if that is given. Raises `ConfigError`."""
    if (local := _LOCAL.fullmatch(text.strip())) is not None and (local["machine"] or machine):
        return HostTarget("", LOCAL, None, local["machine"] or machine)
    match = _TARGET.fullmatch(text.strip())
    if match is not None:
        user, name = match["user"] or "", match["six"] or match["name"]
        port = int(match["port"]) if match["port"] else None
        if not name.startswith("-") and not user.startswith("-") and (port is None or 0 < port < 65536):
            return HostTarget(user, name, port)
    raise ConfigError(
        f"'{text}' is not a host",
        hint="--host takes user@box, user@box:port, an alias of ~/.ssh/config, or local for this machine",
    )


def is_host(zone: str) -> bool:
    """Whether a zone is a host and not a zone of a cloud."""
    return zone.startswith(ZONE_PREFIX)


def record_object(zone: str) -> str:
    return f"{RECORD_PREFIX}{zone}.json"


# --- the record of a host ---------------------------------------------------------------------------------------------


class RecordUnreadable(DocumentUnreadable):
    """This version cannot read the record of a host in the bucket."""


def _interpreter(value: object) -> str:
    return value if isinstance(value, str) and re.fullmatch(PYTHON, value) else ""


class HostRun(LenientModel):
    """A run that may have left something on the host."""

    run_id: Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$")]
    labels: dict[str, str] = Field(default_factory=dict)
    id: str = ""
    created_at: Moment
    deadline_at: Moment
    ended_at: Moment | None = None
    """When it ended. From then on everything that it stored is in the bucket."""
    how: str = ""
    removed: bool = False
    """Whether all its files are deleted on the host."""


class HostRecord(LenientModel):
    """The record of a host in the bucket. Without it the host is validated again, and the runs on it are not listed."""

    schema_: Annotated[int, Field(alias="schema")] = 1
    target: str
    python: Annotated[str, BeforeValidator(_interpreter)] = ""
    """The client runs this on the host, so only the path of an interpreter is accepted from the bucket: anything else
    counts as none, and the host is validated again."""
    fingerprint: dict[str, str] = Field(default_factory=dict)
    validated_at: Moment | None = None
    torch: str = ""
    runs: dict[str, HostRun] = Field(default_factory=dict)
    """By machine name."""

    @classmethod
    def parse(cls, zone: str, data: bytes) -> HostRecord:
        """The record of the host `zone`. Raises `RecordUnreadable`."""
        try:
            record = cls.model_validate(parse_document(data))
            if parse_target(record.target).zone != zone:
                raise ValueError("it describes another host")
            if foreign_vms := [vm for vm, run in record.runs.items() if attempt_of(run.run_id, vm) is None]:
                raise ValueError(f"{foreign_vms[0]} is not a machine of its run")
        except (ValueError, ConfigError) as error:
            first_error = error.errors()[0] if isinstance(error, ValidationError) else None
            why = (
                f"{'.'.join(map(str, first_error['loc']))}: {first_error['msg']}"
                if first_error is not None
                else str(error)
            )
            raise RecordUnreadable(
                f"{record_object(zone)} cannot be read: {clean_line(why, 200)}",
                hint=f"if a newer version of bench wrote it, use that version; otherwise delete {record_object(zone)} "
                "in the bucket: the host is then validated again, and runs that are on it now are not listed",
            ) from error
        return record

    def open_runs(self) -> dict[str, HostRun]:
        """The runs that may still be on the host, or may have files there."""
        return {vm: run for vm, run in self.runs.items() if not run.removed}


def with_run(record: HostRecord, vm: str, run: HostRun, now: datetime) -> HostRecord:
    """The record with `run` added or replaced, and without runs that ended long ago."""
    kept = {
        name: old
        for name, old in record.runs.items()
        if not old.removed or old.ended_at is None or now - old.ended_at < KEPT_ENDED
    }
    return record.model_copy(update={"runs": {**kept, vm: run}})


def host_fingerprint(probe: Mapping[str, Any]) -> dict[str, str]:
    """The facts that must not change while a validation is valid. It has a GPU's serial number only as a hash."""
    gpus = probe.get("gpus", ())
    return {
        "gpu": " ".join(str(gpu["uuid_sha256"])[:16] for gpu in gpus),
        "driver": " ".join(sorted({str(gpu["driver"]) for gpu in gpus})),
        "compiler": str(probe.get("compiler", "")),
        "python": f"{probe.get('executable', '')} {probe.get('python', '')}".strip(),
        "os": str(probe.get("os", "")),
    }


def why_validate(record: HostRecord | None, facts: Mapping[str, str], now: datetime) -> str:
    """Why a host must be validated again, as text for the user; empty if its last validation is still valid. `facts` is
    its present fingerprint."""
    if record is None or record.validated_at is None:
        return "it was never validated"
    changed = [key for key, value in facts.items() if record.fingerprint.get(key) != value]
    if changed:
        return f"its {', '.join(changed)} changed"
    age = now - record.validated_at
    if age > VALID_FOR or age < -VALID_FOR:
        return f"it was last validated {age / timedelta(hours=1):.0f} hours ago"
    return ""


# --- what a run needs of a host ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a run needs and a host does not have."""

    kind: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """What a run needs of a host."""

    cuda: bool
    compiler: bool
    """Whether a C++ compiler is needed, for the CPU kernel. On a GPU the compiler comes with torch."""
    min_free_gb: float
    gpus: int = 0
    """How many GPUs a program needs at once."""


def first_lack(probe: Mapping[str, Any], needs: HostNeeds, name: str) -> Lack | None:
    """The first thing that the host `name` lacks, as far as a probe can tell; None if it has everything."""
    if probe["platform"] != "linux":
        return Lack(
            "no_linux",
            f"{name} runs {probe['platform']}",
            "bench measures on Linux only: name a Linux machine with --host",
        )
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
            f"free some space on {name} (`df -h`, `du -sh {probe['cache']}`), or lower the limit: "
            "--set environment.min_free_gb=1",
        )
    if needs.cuda and not probe["gpus"]:
        return Lack(
            "no_cuda",
            f"{name} has no NVIDIA GPU that answers: {probe['no_gpu']}",
            f"on {name}: nvidia-smi must list a GPU; --gpu cpu measures the processor instead",
        )
    if len(probe["gpus"]) < needs.gpus:
        what = f"{name} has {len(probe['gpus']) or 'none'} of the {count(needs.gpus, 'GPU')} that the program needs"
        return Lack("no_cuda", what, f"name a host with more than {name} has, or change `gpus` of the program")
    if needs.compiler and not probe["compiler"]:
        return _no_compiler(name, f"{name} has no C++ compiler, which the CPU kernel is built with")
    return None


def _no_compiler(name: str, why: str) -> Lack:
    return Lack("no_compiler", why, f"on {name}: sudo apt-get install g++; or --baseline-only measures PyTorch alone")


def python_too_old(name: str, version: str) -> Lack:
    least = ".".join(map(str, OLDEST_PYTHON))
    return Lack(
        "python_too_old",
        f"{name} has python {version}, and a run needs {least} or newer",
        f"if {name} has a newer one, name it: --set host.python=/path/to/python3",
    )


def lacks_packages(found: Mapping[str, Any], needs: HostNeeds, name: str, python: str, torch: str) -> Lack | None:
    """The first thing that the host lacks, as far as only a validation can tell; None if it has everything. Nothing is
    installed on a machine that the user owns."""
    other_pythons = [str(one) for one in found.get("pythons", ())][:3]
    wanted = f"torch=={torch}" if torch else "torch"
    install = (
        f"another python on {name} has torch, so name it: --set {quote(f'host.python={other_pythons[0]}')}"
        if other_pythons
        else f"on {name}: python3 -m venv ~/bench-venv && ~/bench-venv/bin/pip install {wanted} numpy; "
        "then launch with --set host.python=~/bench-venv/bin/python3"
    )
    if not found["torch"]:
        return Lack("torch_missing", f"{python} on {name} cannot import torch ({found['error']})", install)
    if found["error"]:
        return Lack("numpy_mismatch", f"numpy does not fit torch {found['torch']} on {name}: {found['error']}", install)
    if needs.cuda and not found["usable"]:
        why = "is built without CUDA" if not found["cuda"] else f"(CUDA {found['cuda']}) finds no usable GPU"
        return Lack("torch_without_cuda", f"torch {found['torch']} on {name} {why}", install)
    if needs.compiler and found["compiles"]:
        return _no_compiler(name, f"the C++ compiler on {name} does not work: {found['compiles']}")
    return None


def gpu_for(probe: Mapping[str, Any]) -> str:
    """The name of the GPU whose configuration a host gets if the user named none: the most capable GPU of the catalog
    whose compute capability is not above that of the host's first GPU; `cpu` if the host has none. It decides only what
    is measured: the rows name the device that was found on the host."""
    cards = probe["gpus"]
    return nearest_gpu(str(cards[0]["compute_capability"]) if cards else "").name


# Makes the command that opens a terminal on the machine of a run. It does not run the command.


def to_host(target: HostTarget, command: Sequence[str] = ()) -> tuple[str, ...]:
    """The command for a host of the user's. It is OpenSSH's own client, so that ~/.ssh/config, the agent, jump hosts
    and known_hosts apply as usual."""
    port = ("-p", str(target.port)) if target.port else ()
    terminal = () if command else ("-t",)
    name = f"{target.user}@{target.name}" if target.user else target.name
    return ("ssh", *terminal, *port, "--", name, *((shlex.join(command),) if command else ()))


def through_iap(vm: MachineName, zone: Zone, project: ProjectId, command: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that goes through Identity-Aware Proxy: the machine needs neither an external address nor an open
    port."""
    remote_command = ("--command", shlex.join(command)) if command else ()
    return (
        "gcloud",
        "compute",
        "ssh",
        vm,
        "--zone",
        zone,
        "--project",
        project,
        "--tunnel-through-iap",
        *remote_command,
    )
