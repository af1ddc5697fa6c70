"""A step of the harness ends as a Python program does, but for the second that Python takes to take PyTorch apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import atexit, sys, threading, time
from kernels.harness.ending import leave_process

class Module:
    def __del__(self): print("taken apart")

kept = Module()
asked, gone = threading.Event(), threading.Event()
atexit.register(lambda: (print("registered"), asked.set()))
threading.Thread(target=lambda: (time.sleep(0.05), print("a thread"))).start()
threading.Thread(target=gone.wait, daemon=True).start()
sys.stdout.write("unfinished; ")
leave_process(int(sys.argv[1]))
"""


def ended(code: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(code)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


def test_what_python_does_at_its_end_is_done_and_no_module_is_taken_apart() -> None:
    done = ended(0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unfinished; a thread\nregistered\n", "")


def test_the_exit_code_is_the_one_that_was_asked_for() -> None:
    assert ended(21).returncode == 21
