"""Where what a command prints goes may be full: it says so, and ends with a code of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.foreground import run_here

FULL = Path("/dev/full")
ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["config", "list"], ["prices", "--gpu", "l4"], ["schema", "status"], ["--help"]])
def test_output_that_cannot_be_written_is_told_without_a_traceback(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_HOME", str(tmp_path))
    with FULL.open("w") as full:
        ran = run_here(*command, stdout=full.fileno())
    assert ran.code == 11, ran.err
    assert ran.err.splitlines()[0] == "error: cannot write the output: No space left on device"
    assert len(ran.err.splitlines()) == 2


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_process_whose_output_cannot_be_written_ends_without_a_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "BENCH_HOME": str(tmp_path)}
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "orchestrator.cli", "--help"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (11, 2), ran.stderr


LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
sys.argv = ["bench", *sys.argv[1:]]
runpy.run_module("orchestrator.cli", run_name="__main__")
"""


@pytest.mark.parametrize("command", [["status"], ["plan", "--gpu", "cpu"], ["costs", "add", "1.50", "--note", "x"]])
def test_where_nothing_can_be_kept_that_is_said_in_two_lines(command: list[str], tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk without room, in which no coverage can be written either."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    environment = {**kept, "BENCH_HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, *command], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode == 11, ran.stderr
    said = ran.stderr.splitlines()
    assert said[0].startswith("error: the embedded cloud in ")
    assert said[0].endswith("is full")
    assert said[1].startswith("hint:  make room there")
    assert len(said) == 2


def test_no_half_workload_is_left_in_the_way_of_the_next_try(tmp_path: Path) -> None:
    def new(*limited: str) -> int:
        command = [sys.executable, *(limited or ("-m", "orchestrator.cli")), "new", "mine"]
        environment = {**os.environ, "BENCH_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, env=environment).returncode

    assert new("-c", LIMITED) == 11
    assert list(tmp_path.glob("*.py")) == []
    assert new() == 0
