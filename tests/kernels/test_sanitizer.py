"""Kernels are called once under compute-sanitizer on request, and what it finds is a reason of their row."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kernels.harness.reading import BadSpec
from kernels.harness.sanitizer import first_finding, sanitizer_fault
from kernels.harness.spec import parse_spec, read_sanitizer
from tests.kernels.harness_process import HarnessProcess, named
from tests.kernels.test_cheats import own

WORKLOAD = """
import torch

axes = {"n": [8]}


def inputs(n, device, generator):
    return torch.randn(n, device=device, generator=generator)


def reference(x):
    return x + 1


def baseline_torch(x):
    return x + 1


def kernel_clean(x):
    return x + 1


def kernel_beyond(x):
    return x + 1
"""
REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at beyond(float *, int)+0x90
=========     by thread (32,0,0) in block (0,0,0)
========= ERROR SUMMARY: 3 errors
"""
FAKE = f"""#!{sys.executable}
import json, pathlib, subprocess, sys
given = sys.argv[1:]
at = given.index("--log-file") + 1
code = subprocess.run(given[given.index("all") + 1 :]).returncode
name = json.loads(given[-1])["name"]
with open({{seen!r}}, "a") as file:
    print(given[given.index("--tool") + 1], name, code, file=file)
if name == "beyond":
    pathlib.Path(given[at]).write_text({REPORT!r})
    sys.exit(int(given[given.index("--error-exitcode") + 1]))
sys.exit(code)
"""


@pytest.fixture
def fake(tmp_path: Path) -> tuple[Path, Path]:
    """A compute-sanitizer that runs the program and finds something in one kernel, and what it was asked for."""
    folder, seen = tmp_path / "bin", tmp_path / "seen.txt"
    folder.mkdir()
    program = folder / "compute-sanitizer"
    program.write_text(FAKE.format(seen=str(seen)))
    program.chmod(0o755)
    return program, seen


def test_what_the_sanitizer_finds_makes_the_kernel_wrong_and_is_its_reason(
    tmp_path: Path, fake: tuple[Path, Path]
) -> None:
    program, seen = fake
    file = tmp_path / "beyond.py"
    file.write_text(WORKLOAD)
    path = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    asked = own(file, sanitizer="memcheck", repeats=3)
    with HarnessProcess("measure", asked, tmp_path, environ=path) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    (case,) = named(facts, "case_finished")
    reason = "compute-sanitizer memcheck: Invalid __global__ write of size 4 bytes at beyond(float *, int)+0x90"
    assert case["skipped"] == {"beyond": f"{reason} (3 findings)"}
    assert set(case["median_us"]) == {"torch", "clean", "torch:aa"}
    assert seen.read_text().splitlines() == ["memcheck clean 0", "memcheck beyond 0"]  # each was really called


def test_a_sanitizer_that_cannot_watch_a_call_accuses_nobody(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    assert sanitizer_fault(str(program), "racecheck", {"name": "any"}) == ""
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    assert sanitizer_fault(str(program), "racecheck", {"name": "any"}, limit_s=0.2) == ""


def test_a_finding_without_a_report_is_still_one(tmp_path: Path) -> None:
    program = tmp_path / "silent"
    program.write_text("#!/bin/sh\nexit 86\n")
    program.chmod(0o755)
    assert sanitizer_fault(str(program), "memcheck", {"name": "any"}) == "compute-sanitizer memcheck: found something"
    assert first_finding(REPORT).startswith("Invalid __global__ write")


def test_a_tool_that_is_not_there_and_a_kernel_of_ours_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "beyond.py"
    file.write_text(WORKLOAD)
    with HarnessProcess("measure", own(file, sanitizer="memcheck"), tmp_path, environ={"PATH": "/nowhere"}) as harness:
        code, facts = harness.finish()
    assert code == 22
    assert "compute-sanitizer is not on PATH" in named(facts, "problem")[0]["detail"]
    with pytest.raises(BadSpec, match="is none of memcheck"):
        parse_spec(json.dumps(own(file, sanitizer="valgrind")))
    with pytest.raises(BadSpec, match="a workload of your own"):
        read_sanitizer("memcheck", is_own_workload=False)
