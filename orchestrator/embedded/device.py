"""The hardware on which the embedded cloud's machines run: this computer, and its GPU if it has one."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")
CPUS = Path("/proc/cpuinfo")
ASK_S = 20.0


def gpu(driver: Path = DRIVER, smi: str = "nvidia-smi") -> str:
    """The name of this machine's first NVIDIA GPU, such as `NVIDIA H200`; empty if there is none that answers."""
    for information in sorted(driver.glob("*/information")):
        try:
            found = re.search(r"^Model:\s*(\S.*?)\s*$", information.read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            continue
        if found:
            return printable(found[1])
    program = shutil.which(smi)
    if program is None:
        return ""
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return printable(lines[0].strip()) if lines else ""


def cpu(cpus: Path = CPUS) -> str:
    """The processor's name, or its architecture if the name is not known."""
    try:
        found = re.search(r"^model name\s*:\s*(\S.*?)\s*$", cpus.read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:
        found = None
    return printable(found[1] if found else platform.processor() or platform.machine())


def printable(text: str) -> str:
    """The printable characters of `text`, at most 80."""
    return "".join(character for character in text if character.isprintable())[:80]
