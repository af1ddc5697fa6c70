"""A payload whose harness measures nothing, at a pace, for tests of what goes on around a measurement."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.adapters.payload import bundle_root


def paced_payload(root: Path) -> Path:
    """Makes the folder `root`: what a machine is given, with `paced_harness.py` in the harness's place."""
    shutil.copytree(bundle_root() / "startup", root / "startup", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "kernels" / "harness").mkdir(parents=True)
    for name in ("kernels/__init__.py", "kernels/harness/__init__.py"):
        (root / name).touch()
    shutil.copy(Path(__file__).with_name("paced_harness.py"), root / "kernels" / "harness" / "__main__.py")
    return root
