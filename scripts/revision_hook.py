"""A hook of the build. It makes the wheel say from which commit it was built, as a checkout can."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TREES = ("kernels", "startup")


def git_answer(root: Path, *arguments: str) -> str | None:
    """The output of git; None where it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class RevisionHook(BuildHookInterface):
    """Adds `revision.json` to the bundle where the wheel is built in a checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the files are collected."""
        del version
        root = Path(self.root)
        top, commit = git_answer(root, "rev-parse", "--show-toplevel"), git_answer(root, "rev-parse", "HEAD")
        if not top or not commit or Path(top).resolve() != root.resolve():
            return
        changes = git_answer(root, "status", "--porcelain", "--", *TREES)
        document = {"git_commit": commit, "git_dirty": None if changes is None else bool(changes)}
        path = Path(self.directory) / "revision.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document) + "\n", encoding="utf-8")
        build_data["force_include"][str(path)] = "orchestrator/_bundle/revision.json"
