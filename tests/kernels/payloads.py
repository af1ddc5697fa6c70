"""Copies of the kernels that a test may change, and one with another implementation of attention."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kernels.harness_process import ROOT

PLANTED = """
import os, signal, time
import torch
from kernels.harness.workload import Call

class Planted:
    def build(self, site): {build}
    def bind(self, case, inputs):
        def plan():
            {plan}
        return Call("planted", plan)

def planted(name, site):
    return Planted()
"""


def payload(tmp_path: Path) -> Path:
    """A copy of the sources that a test may spoil, with what Python has compiled of them."""
    root = tmp_path / "payload"
    shutil.copytree(ROOT / "kernels", root / "kernels", ignore=shutil.ignore_patterns("*.pyc.*"))  # being written
    return root


def planted(tmp_path: Path, plan: str, build: str = "...") -> Path:
    """A copy in which attention has the implementation `planted`: `plan` are the lines of a call, which know `case` and
    `inputs`; `build` is what it does first."""
    root = payload(tmp_path)
    attention = root / "kernels" / "attention"
    (attention / "planted.py").write_text(PLANTED.format(build=build, plan=plan.replace("\n", "\n" + 12 * " ")))
    with (attention / "registry.py").open("a") as registry:
        registry.write('REGISTRY.add(Entry("planted", "kernels.attention.planted:planted"))\n')
    return root
