"""Where what a command prints goes may be full: it says so, and ends with a code of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["config", "list"], ["prices", "--gpu", "l4"], ["schema", "status"], ["--help"]])
def test_output_that_cannot_be_written_is_told_without_a_traceback(command: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "BENCH_HOME": str(tmp_path)}
    with FULL.open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment,
        )  # fmt: skip
    assert ran.returncode == 11, ran.stderr
    assert ran.stderr.splitlines()[0] == ("error: cannot write the output: No space left on device")
    assert len(ran.stderr.splitlines()) == 2
