"""A hook of the build. It makes sdist and wheel say from which commit it was built, as a checkout can."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "revision.json"
TREES = ("kernels", "startup")


def git_answer(root: Path, *arguments: str) -> str | None:
    """The output of git; None where it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class RevisionHook(BuildHookInterface):
    """Adds `revision.json` to the sdist and the wheel's bundle. A wheel that is built from an sdist takes its file."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the files are collected."""
        del version
        root = Path(self.root)
        path = root / NAME
        if not path.is_file():
            document = revision_of(root)
            if document is None:
                return
            self.made = tempfile.TemporaryDirectory(prefix="revision-")
            path = Path(self.made.name) / NAME
            path.write_text(json.dumps(document) + "\n", encoding="utf-8")
        inside = NAME if self.target_name == "sdist" else f"orchestrator/_bundle/{NAME}"
        build_data["force_include"][str(path)] = inside

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when the archive is written."""
        del version, build_data, artifact_path
        if self.made is not None:
            self.made.cleanup()

    made: tempfile.TemporaryDirectory[str] | None = None


def revision_of(root: Path) -> dict[str, Any] | None:
    """The commit that `root` is a checkout of, and whether the payload's trees differ from it; None for no checkout."""
    top, commit = git_answer(root, "rev-parse", "--show-toplevel"), git_answer(root, "rev-parse", "HEAD")
    if not top or not commit or Path(top).resolve() != root.resolve():
        return None
    changes = git_answer(root, "status", "--porcelain", "--", *TREES)
    return {"git_commit": commit, "git_dirty": None if changes is None else bool(changes)}
