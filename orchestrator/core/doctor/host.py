"""Checks whether a machine of the user's has what a run needs, by plain shell commands. None of them changes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.doctor.here import release
from orchestrator.core.doctor.verdicts import Check, Verdict, bad, doubt, fine
from orchestrator.core.hosts import Needs, Target, lacks, lacks_packages

OLDEST_DRIVER: Final = 530
"""The oldest driver branch for which there is a PyTorch that the agent installs."""
NEWEST_DRIVER: Final = 580
"""The branch that the newest PyTorch needs."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command returned: its exit code and its output."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def first(self) -> str:
        """The first line of the output, or of the error output if there is no other."""
        return ((self.out.strip() or self.err.strip()).splitlines() or [""])[0]


Run = Callable[[str], Ran]
"""Runs a command line on the host."""
HostCheck = Callable[[Run, Target], Verdict]


def reachable(run: Run, host: Target) -> Verdict:
    """Checks that a shell answers and has the tools that the bootstrap uses."""
    ran = run("echo a shell answers; for tool in bash curl tar setsid; do command -v $tool; done; true")
    if ran.code != 0:
        return bad(f"no shell answers: {ran.first or f'exit {ran.code}'}", on(host, "true").replace("ssh", "ssh -v", 1))
    if "a shell answers" not in ran.out:
        return bad(
            f"this key runs one command only, whatever is asked: it printed {ran.first[:80]!r}",
            on(host, "grep -n command= ~/.ssh/authorized_keys"),
        )
    lacks = [name for name in ("bash", "curl", "tar", "setsid") if f"/{name}\n" not in f"{ran.out}\n"]
    if lacks:
        return bad(f"it has no {', '.join(lacks)}", on(host, "sudo apt-get install -y bash curl tar util-linux"))
    return fine("a shell answers")


def gpu(run: Run, host: Target) -> Verdict:
    ran = run("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader")
    if ran.code == 0 and ran.out.strip():
        found = [line.strip() for line in ran.out.strip().splitlines()]
        busy = run("nvidia-smi --query-compute-apps=pid --format=csv,noheader")
        pids = [line.strip() for line in busy.out.splitlines() if line.strip().isdigit()] if busy.code == 0 else []
        many = f" and {len(found) - 1} more" if len(found) > 1 else ""
        if pids:
            why = f"{found[0]}{many}; in use by {', '.join(pids[:3])}: timings would be disturbed"
            return doubt(why, on(host, f"ps -fp {' '.join(pids[:3])}"))
        return fine(f"{found[0]}{many}")
    card = run("lspci 2>/dev/null | grep -i nvidia || true")
    if card.out.strip():
        return bad(
            f"there is an NVIDIA card, but no driver answers: {ran.first}", on(host, "sudo ubuntu-drivers install")
        )
    return doubt("no NVIDIA GPU: only the CPU kernel can be measured there", on(host, "lspci | grep -i nvidia"))


def driver(run: Run, host: Target) -> Verdict:
    ran = run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    if ran.code != 0 or not ran.out.strip():
        return doubt("no NVIDIA driver answers", on(host, "nvidia-smi"))
    version = ran.first.strip()
    branch = (release(version) or (0,))[0]
    newer = on(host, "sudo ubuntu-drivers install")
    if branch < OLDEST_DRIVER:
        return bad(
            f"driver {version} is too old for every PyTorch that bench installs; {OLDEST_DRIVER} is the oldest", newer
        )
    if branch < NEWEST_DRIVER:
        return doubt(f"driver {version}: an older PyTorch will be used; the newest needs {NEWEST_DRIVER}", newer)
    return fine(f"driver {version}")


def ready(probe: Mapping[str, Any], needs: Needs, name: str) -> Verdict:
    """Checks what every launch checks first, by the same rules: python, tools, disk, GPU, compiler. `probe` is the
    report of `startup/host/remote_ops.py` on the host."""
    lack = lacks(probe, needs, name)
    if lack is not None:
        return bad(lack.what, lack.remedy)
    if probe["busy"]:
        return doubt(f"it is busy with {probe['busy']}", "bench status")
    return fine(f"python {probe['python']}, {probe['free_gb']:.0f} GB free at {probe['cache']}")


def packaged(found: Mapping[str, Any], needs: Needs, name: str, python: str, torch: str) -> Verdict:
    """Checks what a validation checks, by the same rules: whether torch, numpy and the compiler work."""
    lack = lacks_packages(found, needs, name, python, torch)
    if lack is not None:
        return bad(lack.what, lack.remedy)
    return fine(f"torch {found['torch']}, numpy {found['numpy']}, in {python}")


def on(host: Target, command: str) -> str:
    """The command line that runs `command` on the host."""
    return command if host.machine else f"ssh {host.ssh} '{command}'"


HOST_CHECKS: Final[tuple[tuple[Check, HostCheck], ...]] = (
    (Check("host.reachable", "reachable", "host", limit_s=30.0), reachable),
    (Check("host.gpu", "GPU", "host", ("host.reachable",), exit_code=15), gpu),
    (Check("host.driver", "driver", "host", ("host.reachable",), exit_code=15), driver),
)

PYTHON: Final = Check("host.python", "Python and tools", "host", ("host.reachable",), exit_code=15, limit_s=30.0)
FILES: Final = Check("host.files", "file transfer", "host", ("host.reachable",), limit_s=30.0)
TORCH: Final = Check("host.torch", "torch", "host", ("host.python",), exit_code=15, limit_s=240.0)
