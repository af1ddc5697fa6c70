"""A remedy is one whole command, or words: what begins with a program's name must work when it is pasted."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Final

PROGRAMS: Final = frozenset({"bench", "gcloud", "curl", "pip", "ssh", "export", "unset", "sudo", "rm", "chmod", "make"})
OPEN: Final = re.compile(r"<<|…|\.\.\.|<[A-Z_a-z]+>")
"""What leaves a command open: a heredoc, an ellipsis, something in angle brackets."""


def wrong_with(remedy: str) -> str:
    """Why a remedy cannot be pasted, in a few words; empty where it can, or where it is no command."""
    if remedy.split(" ")[0] not in PROGRAMS or re.search(r"[a-z]: |; or |, or ", remedy):
        return ""
    if "\n" in remedy or OPEN.search(remedy):
        return f"it is no whole command: {remedy}"
    read = subprocess.run(["bash", "-n", "-c", remedy], capture_output=True, text=True, timeout=600)
    if read.returncode:
        return f"{remedy}: {read.stderr.strip()}"
    if any(word in ("(", ")") for word in shlex.split(remedy)):
        return f"it has brackets: {remedy}"
    return ""
