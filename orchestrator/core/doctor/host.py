"""A machine that the user owns: what it has of what a run needs, asked by plain commands over a shell.

A conversation yields a command and is sent what came of it; nothing that it asks changes the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from orchestrator.core.doctor.here import release
from orchestrator.core.doctor.verdicts import Check, Verdict, bad, doubt, fine
from orchestrator.core.hosts import Target

AGENT_PYTHON: Final = (3, 8)
"""The oldest that the bootstrap takes (`startup/startup.sh`)."""
OLDEST_DRIVER: Final = 530
"""The oldest driver branch for which there is a PyTorch that the agent installs."""
NEWEST_DRIVER: Final = 580
"""The branch that the newest PyTorch needs."""
ROOM_KB: Final = 8 * 1024 * 1024
"""PyTorch with its CUDA libraries, unpacked, and some."""


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str = ""
    err: str = ""

    @property
    def first(self) -> str:
        return ((self.out.strip() or self.err.strip()).splitlines() or [""])[0]


HostConversation = Generator[str, Ran, Verdict]
HostCheck = Callable[[Target], HostConversation]


def reachable(host: Target) -> HostConversation:
    """A shell answers, and has what the bootstrap is written in."""
    ran = yield "command -v bash curl tar setsid || true"
    if ran.code != 0:
        return bad(f"no shell answers: {ran.first or f'exit {ran.code}'}", f"ssh -v {words(host)} true")
    lacks = [name for name in ("bash", "curl", "tar", "setsid") if f"/{name}\n" not in f"{ran.out}\n"]
    if lacks:
        return bad(f"it has no {', '.join(lacks)}", on(host, "sudo apt-get install -y bash curl tar util-linux"))
    return fine("a shell answers")


def gpu(host: Target) -> HostConversation:
    ran = yield "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader"
    if ran.code == 0 and ran.out.strip():
        found = [line.strip() for line in ran.out.strip().splitlines()]
        busy = yield "nvidia-smi --query-compute-apps=pid --format=csv,noheader"
        pids = [line.strip() for line in busy.out.splitlines() if line.strip().isdigit()] if busy.code == 0 else []
        many = f" and {len(found) - 1} more" if len(found) > 1 else ""
        if pids:
            why = f"{found[0]}{many}; in use by {', '.join(pids[:3])}: timings would be disturbed"
            return doubt(why, on(host, f"ps -fp {' '.join(pids[:3])}"))
        return fine(f"{found[0]}{many}")
    card = yield "lspci 2>/dev/null | grep -i nvidia || true"
    if card.out.strip():
        return bad(f"there is a card and no driver that answers: {ran.first}", on(host, "sudo ubuntu-drivers install"))
    return doubt("no NVIDIA GPU: only the CPU kernel can be measured there", on(host, "lspci | grep -i nvidia"))


def driver(host: Target) -> HostConversation:
    ran = yield "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
    if ran.code != 0 or not ran.out.strip():
        return doubt("no NVIDIA driver answers", on(host, "nvidia-smi"))
    version = ran.first.strip()
    branch = (release(version) or (0,))[0]
    newer = on(host, "sudo ubuntu-drivers install")
    if branch < OLDEST_DRIVER:
        return bad(f"driver {version} is older than any PyTorch that could be used ({OLDEST_DRIVER})", newer)
    if branch < NEWEST_DRIVER:
        return doubt(f"driver {version}: an older PyTorch will be used; the newest needs {NEWEST_DRIVER}", newer)
    return fine(f"driver {version}")


def python(host: Target) -> HostConversation:
    ran = yield "python3 -c 'import sys, venv, ensurepip; print(\"%d.%d.%d\" % sys.version_info[:3])'"
    if ran.code == 127:
        return bad("there is no python3", on(host, "sudo apt-get install -y python3 python3-venv"))
    if ran.code != 0:
        return doubt(
            f"python3 cannot make environments: {_last(ran)}", on(host, "sudo apt-get install -y python3-venv")
        )
    if release(ran.first)[:2] < AGENT_PYTHON:
        least = ".".join(map(str, AGENT_PYTHON))
        return bad(
            f"python {ran.first} is too old; {least} or newer is needed", on(host, "sudo apt-get install -y python3")
        )
    return fine(f"python {ran.first}")


def compiler(host: Target) -> HostConversation:
    """NVRTC comes with PyTorch and is enough on a GPU; a compiler is the second way there and the only one without."""
    ran = yield "command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || command -v g++ || command -v clang++"
    if ran.code == 0 and ran.out.strip():
        return fine(ran.first)
    torch = yield "python3 -c 'import torch; print(torch.__version__)'"
    if torch.code == 0:
        return fine(f"none; torch {torch.first} brings what the CUDA kernel is built with")
    return doubt(
        "neither a compiler nor torch: torch is installed at each first run", on(host, "sudo apt-get install -y g++")
    )


def disk(host: Target) -> HostConversation:
    ran = yield 'df -Pk "$HOME" | tail -n 1'
    fields = ran.out.split()
    if ran.code != 0 or len(fields) < 4 or not fields[3].isdigit():
        return doubt(f"how full its disk is cannot be told: {ran.first}", on(host, "df -h"))
    free = int(fields[3])
    if free < ROOM_KB:
        return bad(
            f"{free / 2**20:.1f} GiB left; PyTorch and its libraries need {ROOM_KB / 2**20:.0f}",
            on(host, "du -xh --max-depth=2 ~ | sort -h | tail"),
        )
    return fine(f"{free / 2**20:.0f} GiB free")


def on(host: Target, command: str) -> str:
    """The command, to be run there."""
    return f"ssh {words(host)} '{command}'"


def words(host: Target) -> str:
    """What comes after `ssh` to reach it."""
    name = f"{host.user}@{host.name}" if host.user else host.name
    return f"-p {host.port} {name}" if host.port else name


def _last(ran: Ran) -> str:
    return ((ran.err.strip() or ran.out.strip()).splitlines() or [f"exit {ran.code}"])[-1]


HOST_CHECKS: Final[tuple[tuple[Check, HostCheck], ...]] = (
    (Check("host.reachable", "reachable", "host", limit_s=30.0), reachable),
    (Check("host.gpu", "GPU", "host", ("host.reachable",), exit_code=14), gpu),
    (Check("host.driver", "driver", "host", ("host.reachable",), exit_code=14), driver),
    (Check("host.python", "Python", "host", ("host.reachable",), exit_code=14), python),
    (Check("host.compiler", "compiler", "host", ("host.reachable",), exit_code=14, limit_s=20.0), compiler),
    (Check("host.disk", "disk", "host", ("host.reachable",), exit_code=14), disk),
)
