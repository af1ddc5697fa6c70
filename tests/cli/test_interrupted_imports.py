"""Ctrl-C while a library is being loaded: the import is finished first, so that what has to be undone can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.wiring import wire
from tests.cli.conftest import Bench
from tests.cli.test_image_build import Paced

CTRL_C = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
LISTENING = "import sys, time; from orchestrator.cli.interrupts import listen; listen()"
IN_AN_IMPORT = f"""
{LISTENING}
try:
    import cut
    time.sleep(60)
except KeyboardInterrupt:
    import cut
    print(cut.whole and sys.gettrace() is None)
"""
IN_A_FINALISER = f"""
{LISTENING}
class Kept:
    def __del__(self):
        {CTRL_C}
        time.sleep(0.01)
        print(True)
try:
    Kept()
    time.sleep(60)
except KeyboardInterrupt:
    pass
"""
AS_THE_CLIENT_LOADS = f"""
import sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "google.cloud.compute_v1.types.compute":
            {CTRL_C}
sys.meta_path.insert(0, CtrlC())
"""


def python(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python with modules of `path`, and with the Ctrl-C that a shell's background jobs do not have."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = ["env", "--default-signal=INT", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("program", [IN_AN_IMPORT, IN_A_FINALISER], ids=["an import", "a finaliser"])
def test_ctrl_c_is_answered_after(program: str, tmp_path: Path) -> None:
    (tmp_path / "cut.py").write_text(f"{CTRL_C}\n{CTRL_C}\nfor _ in range(1000): pass\nwhole = True\n")
    ran = python("-c", program, path=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")


@pytest.mark.slow
@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize("command", [("launch",), ("image", "build")], ids=" ".join)
def test_ctrl_c_as_the_client_of_the_cloud_is_loaded_leaves_nothing_and_asks_for_nothing(
    bench: Bench, paced: Paced, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AS_THE_CLIENT_LOADS)
    ran = python("-m", "orchestrator.cli", *command, "--gpu", "l4", *paced()[:2], path=tmp_path)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "interrupted" in ran.stderr
    (run,) = bench("status", "--json").document["runs"]
    assert run["phase"] == "stopped"
    assert command != ("launch",) or f"`bench launch --resume {run['run_id']}` asks for a machine again" in ran.stderr
    assert {entry.settled_usd for entry in wire().ledger.read().runs.values()} == {0}
    assert bench.control("/control/bill")["rows"] == []
