"""Runs another program in this terminal until it ends."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from orchestrator.core.errors import LocalError


def installed(program: str) -> bool:
    return shutil.which(program) is not None


def attach(command: Sequence[str]) -> int:
    """Runs a command that has this terminal to itself; its exit code. Raises `LocalError` when it is not there."""
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as exc:
        raise LocalError(f"{command[0]} cannot be run: {exc.strerror}", hint=f"install {command[0]}") from exc
    except KeyboardInterrupt:
        return 130
