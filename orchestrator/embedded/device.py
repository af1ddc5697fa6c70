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


def gpu_name(driver: Path = DRIVER, smi: str = "nvidia-smi") -> str:
    """The name of this machine's first NVIDIA GPU, such as `NVIDIA H200`; empty if there is none that answers."""
    for information in sorted(driver.glob("*/information")):
        try:
            match = re.search(r"^Model:\s*(\S.*?)\s*$", information.read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            continue
        if match:
            return printable_text(match[1])
    program = shutil.which(smi)
    if program is None:
        return ""
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return printable_text(lines[0].strip()) if lines else ""


def cpu_name(cpus: Path = CPUS) -> str:
    """The processor's name, or its architecture if the name is not known."""
    try:
        match = re.search(r"^model name\s*:\s*(\S.*?)\s*$", cpus.read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:
        match = None
    return printable_text(match[1] if match else platform.processor() or platform.machine())


def practice_device(gpu: str) -> str:
    """What a run of the embedded cloud measures: `this machine's GPU: NVIDIA H200`, or its CPU."""
    name = "" if gpu == "cpu" else gpu_name()
    return f"this machine's GPU: {name}" if name else f"this machine's CPU: {cpu_name()}"


def printable_text(text: str) -> str:
    """The printable characters of `text`, at most 80."""
    return "".join(character for character in text if character.isprintable())[:80]
