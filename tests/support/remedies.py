"""A remedy is one whole command, or words: what begins with a program's name must work when it is pasted."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Final

PROGRAMS: Final = frozenset({"bench", "gcloud", "curl", "pip", "ssh", "export", "unset", "sudo", "rm", "chmod", "make"})
OPEN: Final = re.compile(r"<<|…|\.\.\.|<[A-Z_a-z]+>")
"""What leaves a command open: a heredoc, an ellipsis, something in angle brackets."""


def refused_by_shell(text: str) -> str:
    """What a shell says of lines that it cannot read; empty where it can."""
    return subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=600).stderr.strip()


def wrong_with(remedy: str, *, by_shell: bool = True) -> str:
    """Why a remedy cannot be pasted, in a few words; empty where it can, or where it is no command. `by_shell` asks a
    shell whether it can read it."""
    if remedy.split(" ")[0] not in PROGRAMS or re.search(r"[a-z]: |; or |, or ", remedy):
        return ""
    if "\n" in remedy or OPEN.search(remedy):
        return f"it is no whole command: {remedy}"
    if by_shell and (refusal := refused_by_shell(remedy)):
        return f"{remedy}: {refusal}"
    if any(word in ("(", ")") for word in shlex.split(remedy)):
        return f"it has brackets: {remedy}"
    return ""
