"""Checks whether a machine of the user's has what a run needs, by plain shell commands. None of them changes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.doctor.here import parse_release
from orchestrator.core.doctor.verdicts import CheckVerdict, DoctorCheck, fail_verdict, pass_verdict, warn_verdict
from orchestrator.core.hosts import HostNeeds, HostTarget, first_lack, lacks_packages

OLDEST_DRIVER: Final = 530
"""The oldest driver branch for which there is a PyTorch that the agent installs."""
NEWEST_DRIVER: Final = 580
"""The branch that the newest PyTorch needs."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command returned: its exit code and its output."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def first(self) -> str:
        """The first line of the output, or of the error output if there is no other."""
        return ((self.out.strip() or self.err.strip()).splitlines() or [""])[0]


Run = Callable[[str], CommandResult]
"""Runs a command line on the host."""
HostCheck = Callable[[Run, HostTarget], CheckVerdict]


def check_reachable(run: Run, host: HostTarget) -> CheckVerdict:
    """Checks that a shell answers and has the tools that the bootstrap uses."""
    ran = run("echo a shell answers; for tool in bash curl tar setsid; do command -v $tool; done; true")
    if ran.code != 0:
        return fail_verdict(
            f"no shell answers: {ran.first or f'exit {ran.code}'}",
            ssh_command_line(host, "true").replace("ssh", "ssh -v", 1),
        )
    if "a shell answers" not in ran.out:
        return fail_verdict(
            f"this key runs one command only, whatever is asked: it printed {ran.first[:80]!r}",
            ssh_command_line(host, "grep -n command= ~/.ssh/authorized_keys"),
        )
    lacks = [name for name in ("bash", "curl", "tar", "setsid") if f"/{name}\n" not in f"{ran.out}\n"]
    if lacks:
        return fail_verdict(
            f"it has no {', '.join(lacks)}", ssh_command_line(host, "sudo apt-get install -y bash curl tar util-linux")
        )
    return pass_verdict("a shell answers")


def check_gpu(run: Run, host: HostTarget) -> CheckVerdict:
    ran = run("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader")
    if ran.code == 0 and ran.out.strip():
        gpu_lines = [line.strip() for line in ran.out.strip().splitlines()]
        busy = run("nvidia-smi --query-compute-apps=pid --format=csv,noheader")
        pids = [line.strip() for line in busy.out.splitlines() if line.strip().isdigit()] if busy.code == 0 else []
        many = f" and {len(gpu_lines) - 1} more" if len(gpu_lines) > 1 else ""
        if pids:
            why = f"{gpu_lines[0]}{many}; in use by {', '.join(pids[:3])}: timings would be disturbed"
            return warn_verdict(why, ssh_command_line(host, f"ps -fp {' '.join(pids[:3])}"))
        return pass_verdict(f"{gpu_lines[0]}{many}")
    card = run("lspci 2>/dev/null | grep -i nvidia || true")
    if card.out.strip():
        return fail_verdict(
            f"there is an NVIDIA card, but no driver answers: {ran.first}",
            ssh_command_line(host, "sudo ubuntu-drivers install"),
        )
    return warn_verdict(
        "no NVIDIA GPU: only the CPU kernel can be measured there", ssh_command_line(host, "lspci | grep -i nvidia")
    )


def check_driver(run: Run, host: HostTarget) -> CheckVerdict:
    ran = run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    if ran.code != 0 or not ran.out.strip():
        return warn_verdict("no NVIDIA driver answers", ssh_command_line(host, "nvidia-smi"))
    version = ran.first.strip()
    branch = (parse_release(version) or (0,))[0]
    newer = ssh_command_line(host, "sudo ubuntu-drivers install")
    if branch < OLDEST_DRIVER:
        return fail_verdict(
            f"driver {version} is too old for every PyTorch that bench installs; {OLDEST_DRIVER} is the oldest", newer
        )
    if branch < NEWEST_DRIVER:
        return warn_verdict(f"driver {version}: an older PyTorch will be used; the newest needs {NEWEST_DRIVER}", newer)
    return pass_verdict(f"driver {version}")


def check_readiness(probe: Mapping[str, Any], needs: HostNeeds, name: str) -> CheckVerdict:
    """Checks what every launch checks first, by the same rules: python, tools, disk, GPU, compiler. `probe` is the
    report of `startup/host/remote_ops.py` on the host."""
    lack = first_lack(probe, needs, name)
    if lack is not None:
        return fail_verdict(lack.what, lack.remedy)
    if probe["busy"]:
        return warn_verdict(f"it is busy with {probe['busy']}", "bench status")
    return pass_verdict(f"python {probe['python']}, {probe['free_gb']:.0f} GB free at {probe['cache']}")


def check_packages(found: Mapping[str, Any], needs: HostNeeds, name: str, python: str, torch: str) -> CheckVerdict:
    """Checks what a validation checks, by the same rules: whether torch, numpy and the compiler work."""
    lack = lacks_packages(found, needs, name, python, torch)
    if lack is not None:
        return fail_verdict(lack.what, lack.remedy)
    return pass_verdict(f"torch {found['torch']}, numpy {found['numpy']}, in {python}")


def ssh_command_line(host: HostTarget, command: str) -> str:
    """The command line that runs `command` on the host."""
    return command if host.machine else f"ssh {host.ssh} '{command}'"


HOST_CHECKS: Final[tuple[tuple[DoctorCheck, HostCheck], ...]] = (
    (DoctorCheck("host.reachable", "reachable", "host", limit_s=30.0), check_reachable),
    (DoctorCheck("host.gpu", "GPU", "host", ("host.reachable",), exit_code=15), check_gpu),
    (DoctorCheck("host.driver", "driver", "host", ("host.reachable",), exit_code=15), check_driver),
)

PYTHON: Final = DoctorCheck("host.python", "Python and tools", "host", ("host.reachable",), exit_code=15, limit_s=30.0)
FILES: Final = DoctorCheck("host.files", "file transfer", "host", ("host.reachable",), limit_s=30.0)
TORCH: Final = DoctorCheck("host.torch", "torch", "host", ("host.python",), exit_code=15, limit_s=240.0)
