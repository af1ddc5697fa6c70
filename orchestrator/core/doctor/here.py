"""The checks of this machine: Python and libraries, settings and configurations, the price table, the embedded
cloud."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from orchestrator.core.doctor.verdicts import CheckVerdict, DoctorCheck, fail_verdict, pass_verdict, warn_verdict
from orchestrator.core.hosts import HostNeeds, HostTarget, first_lack, lacks_packages
from orchestrator.core.market.pricing import STALE_DAYS
from orchestrator.core.text import count

LEAST_PYTHON: Final = (3, 11)
ROOM_BYTES: Final = 1 << 30
"""The free disk space that payloads, results and the embedded cloud's objects need."""
REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([0-9][0-9.]*))?")


def check_python(version: tuple[int, ...]) -> CheckVerdict:
    text = ".".join(map(str, version[:3]))
    if version[:2] < LEAST_PYTHON:
        wanted = ".".join(map(str, LEAST_PYTHON))
        return fail_verdict(f"python {text} is too old; {wanted} or newer is needed", f"uv venv --python {wanted}")
    return pass_verdict(f"python {text}")


def check_libraries(requirements: Sequence[str], installed: Mapping[str, str]) -> CheckVerdict:
    """Compares `requirements`, as a distribution lists them (`typer>=0.20`), with `installed`: versions by name."""
    absent: list[str] = []
    old: list[str] = []
    wanted = [found for text in requirements if "extra ==" not in text and (found := REQUIREMENT.match(text))]
    for found in wanted:
        name, least = found[1], found[2]
        if name not in installed:
            absent.append(name)
        elif least and parse_release(installed[name]) < parse_release(least):
            old.append(f"{name} {installed[name]} (needs {least})")
    again = f"pip install --upgrade {' '.join([*absent, *(text.partition(' ')[0] for text in old)])}"
    if absent:
        return fail_verdict(f"not installed: {', '.join(absent)}", again)
    if old:
        return fail_verdict(f"too old: {', '.join(old)}", again)
    return pass_verdict(f"{len(wanted)} libraries, all installed and new enough")


def parse_release(version: str) -> tuple[int, ...]:
    """The numbers of a version: `(2, 13, 0)` for `2.13.0+cpu`. It ends before the first part that is not a number."""
    parts = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in parts[0].split(".")) if parts else ()


def check_home(path: str, trouble: str, free_bytes: int, another: str) -> CheckVerdict:
    """Checks BENCH_HOME. `trouble` says why it cannot be written; empty if it can. `another` chooses one that can."""
    if trouble:
        return fail_verdict(f"{path} cannot be written: {trouble}", another)
    if free_bytes < ROOM_BYTES:
        return warn_verdict(f"{path} has {free_bytes / 1e9:.1f} GB left", f"du -sh {path}/*")
    return pass_verdict(f"{path}, {free_bytes / 1e9:.0f} GB free")


def check_documents(troubles: Sequence[tuple[str, str]], read: int) -> CheckVerdict:
    """`troubles` has (name, what is wrong) for each configuration that cannot be read; a bundled one is named after its
    GPU. A bundled configuration is checked with the values that the user's settings replace in it."""
    if troubles:
        name, what = troubles[0]
        suffix = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        remedy = f"bench plan {name}" if "." in name else f"bench plan --gpu {name}"
        return fail_verdict(f"{what.splitlines()[0]}{suffix}", remedy)
    return pass_verdict(f"settings and {count(read, 'configuration')} can be read")


def check_prices(as_of: date, today: date) -> CheckVerdict:
    age = (today - as_of).days
    if age < 0:
        return warn_verdict(f"the price table is dated {as_of}, which is in the future", "bench prices")
    if age > STALE_DAYS:
        why = f"the price table is from {as_of}, {count(age, 'day')} old; spot prices change monthly, so more is held"
        return warn_verdict(why, "bench prices --refresh")
    return pass_verdict(f"from {as_of}, {count(age, 'day')} old; holds are computed with these prices")


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedded cloud's daemon. `state` is `up`, `down`, `stale` (it died and its address file is still there),
    `lost` (it runs but cannot be reached; the detail says why) or `old` (it was started before this version of the
    program was installed)."""

    state: str
    detail: str = ""


def check_embedded(found: Embedded) -> CheckVerdict:
    match found.state:
        case "up":
            return pass_verdict(f"up{found.detail}")
        case "down":
            return pass_verdict("down; any command that needs it starts it")
        case "old":
            return warn_verdict(f"it runs an older version of this program{found.detail}", "bench cloud stop")
        case "lost":
            return warn_verdict(found.detail, "bench cloud stop")
        case _:
            return warn_verdict(
                f"it does not answer at the address that it wrote down{found.detail}",
                "bench cloud stop; bench cloud start",
            )


def lacks_for_practice(torch: str, compiler: str, *, compiler_needed: bool) -> tuple[tuple[str, str], ...]:
    """What a run on this machine needs and does not find, each with the command that installs it."""
    wanted = (
        (torch, "this Python has no torch, which a run on this machine measures with", "pip install torch"),
        (
            compiler or not compiler_needed,
            "no C++ compiler, with which the bundled kernel is built",
            "sudo apt-get install g++",
        ),
    )
    return tuple((text, command) for found, text, command in wanted if not found)


def check_compiler(path: str, needed: bool) -> CheckVerdict:
    """Checks the C++ compiler that builds the CPU kernel. `needed` says whether runs on this machine need it."""
    if path:
        return pass_verdict(path)
    if needed:
        return fail_verdict(
            "no C++ compiler: runs in the embedded cloud cannot build the kernel", "sudo apt-get install g++"
        )
    return pass_verdict("not installed and not needed: machines in the cloud have their own")


def judge_torch(version: str, wanted: str, text: str, where: str) -> CheckVerdict:
    """Warns if a torch is older than `wanted`, which rented machines install. `where` begins the remedy."""
    if () < parse_release(version) < parse_release(wanted):
        older = (
            f"older than torch {wanted} of rented machines, and so are the baselines that come with it, such as cuDNN"
        )
        return warn_verdict(f"{text}: {older}", f"{where}pip install torch=={wanted}")
    return pass_verdict(text)


def check_torch(version: str, needed: bool, wanted: str) -> CheckVerdict:
    """Checks PyTorch in this Python. `needed` says whether runs on the embedded cloud's machines use it."""
    if version:
        return judge_torch(version, wanted, f"torch {version}", "")
    if needed:
        return warn_verdict(
            "this Python has no torch: runs in the embedded cloud cannot measure PyTorch to compare with it",
            "pip install torch",
        )
    return pass_verdict("not installed and not needed: machines in the cloud have their own")


# Checks whether a machine of the user's has what a run needs, by plain shell commands. None of them changes it.


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
    text = f"torch {found['torch']}, numpy {found['numpy']}, in {python}"
    return judge_torch(str(found["torch"]), torch, text, f"on {name}: {python} -m ")


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
