"""A payload whose harness measures nothing, at a pace, for tests of what goes on around a measurement."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from orchestrator.adapters.payload import bundle_root

TORCH = """\
__version__ = "2.13.0"
class cuda:
    is_available = staticmethod(lambda: False)
class version:
    cuda = None
class Zeros:
    def numpy(self): return self
def zeros(*_): return Zeros()
def from_numpy(_): return Zeros()
"""
NUMPY = '__version__ = "2.4.0"\ndef zeros(*_): return ()\n'
FOUND_FIRST = """
import os
import pathlib

os.environ["PYTHONPATH"] = str(pathlib.Path(__file__).resolve().parents[2] / "kernels" / "stand_ins")
"""


def stand_ins(folder: Path) -> None:
    """Something called torch and something called numpy in `folder`: to import the real ones takes seconds."""
    for name, text in (("torch", TORCH), ("numpy", NUMPY)):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)


def paced_payload(root: Path) -> Path:
    """Makes the folder `root`: what a machine is given, with `paced_harness.py` in the harness's place
    and nothing heavy to import."""
    shutil.copytree(bundle_root() / "startup", root / "startup", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "kernels" / "harness").mkdir(parents=True)
    for name in ("kernels/__init__.py", "kernels/harness/__init__.py"):
        (root / name).touch()
    shutil.copy(Path(__file__).with_name("paced_harness.py"), root / "kernels" / "harness" / "__main__.py")
    stand_ins(root / "kernels" / "stand_ins")
    with (root / "startup" / "agent" / "__init__.py").open("a") as file:
        file.write(FOUND_FIRST)
    return root


def held_at(root: Path, *places: str) -> dict[str, Path]:
    """Has the harness of a paced payload stand still at steps and cases (`case 1`): each goes on once its file is there."""
    files = {place: root.with_name(f"{root.name}-{place.replace(' ', '-')}-goes-on") for place in places}
    told = {place: str(file) for place, file in files.items()}
    (root / "kernels" / "harness" / "holds.json").write_text(json.dumps(told))
    return files
