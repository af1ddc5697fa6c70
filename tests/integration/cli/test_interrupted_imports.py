"""Ctrl-C while a library is being loaded, in a hurry, and at the end: what has to be undone is undone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.cli import interrupts
from orchestrator.cli.site_build import workers
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_image_build import Paced
from tests.support.patience import await_truth, living

CTRL_C = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
LISTENING = """
import sys, time
from orchestrator.adapters.clock import SystemClock
from orchestrator.cli.interrupts import deferred, listen
listen()
"""
IN_AN_IMPORT = f"""
{LISTENING}
try:
    with deferred():
        import cut
        SystemClock().sleep(60)
except KeyboardInterrupt:
    import cut
    print(cut.whole)
"""
IN_WHAT_HANGS = f"""
{LISTENING}
import signal
now = [0.0]
listen(lambda: now[0])
try:
    with deferred():
        {CTRL_C}
        now[0] = 3.0
        {CTRL_C}
        time.sleep(60)
except KeyboardInterrupt:
    print(True)
"""
AT_THE_END_OF_WHAT_IS_PAID = f"""
{LISTENING}
try:
    with deferred():
        {CTRL_C}
        done = True
except KeyboardInterrupt:
    print(done)
"""
IN_A_FINALISER = f"""
{LISTENING}
class Kept:
    def __del__(self):
        {CTRL_C}
        time.sleep(0.01)
        print(True)
try:
    with deferred():
        Kept()
        SystemClock().sleep(60)
except KeyboardInterrupt:
    pass
"""
IN_A_HURRY = f"""
{LISTENING}
def undo():
    {CTRL_C}
    time.sleep(0.01)
    print(True)
try:
    {CTRL_C}
    time.sleep(60)
except KeyboardInterrupt:
    undo()
"""
AT_THE_END = f"""
import atexit, sys
def end():
    {CTRL_C}
    print("not killed")
atexit.register(end)
sys.argv = ["bench", "--version"]
from orchestrator.cli.entry import main
main()
"""
AT_THE_BEGINNING = """
import sys
sys.argv = ["bench", "--version"]
for name in {"signal", "enum"}:
    sys.modules.pop(name, None)
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "signal":
            import _signal, posix
            posix.kill(posix.getpid(), _signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
from orchestrator.cli.entry import main
main()
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


@pytest.mark.parametrize(
    "program",
    [IN_AN_IMPORT, IN_A_FINALISER, AT_THE_END_OF_WHAT_IS_PAID, IN_WHAT_HANGS],
    ids=["an import", "a finaliser", "what is paid for", "a call that hangs, when it comes twice"],
)
def test_ctrl_c_is_answered_after(program: str, tmp_path: Path) -> None:
    (tmp_path / "cut.py").write_text(f"{CTRL_C}\n{CTRL_C}\nfor _ in range(1000): pass\nwhole = True\n")
    ran = python("-c", program, path=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")


def test_a_hurried_second_ctrl_c_does_not_cut_short_what_the_first_one_began(tmp_path: Path) -> None:
    ran = python("-c", IN_A_HURRY, path=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")


def test_a_second_ctrl_c_that_comes_later_is_answered() -> None:
    before, now = signal.getsignal(signal.SIGINT), [0.0]
    try:
        interrupts.listen(lambda: now[0])
        for now[0] in (1.0, 10.0):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        interrupts.ignore(10.0, lambda: now[0])
        for now[0] in (10.0, 19.9):
            signal.raise_signal(signal.SIGINT)
        now[0] = 20.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_before_the_command_has_begun_is_only_ctrl_c(tmp_path: Path) -> None:
    ran = python("-S", "-c", AT_THE_BEGINNING, path=Path(interrupts.__file__).parents[2])
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_as_python_ends_says_nothing(tmp_path: Path) -> None:
    ran = python("-c", AT_THE_END, path=tmp_path)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")
    assert "not killed" not in ran.stdout


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize("command", [("launch",), ("image", "build")], ids=" ".join)
def test_ctrl_c_while_the_clouds_client_is_loaded_leaves_nothing_and_asks_nothing(
    bench: Bench, paced: Paced, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AS_THE_CLIENT_LOADS)
    ran = python("-m", "orchestrator.cli", *command, "--gpu", "l4", *paced()[:2], path=tmp_path)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (130, "interrupted")
    assert bench("status", "--json").document["runs"] == []
    assert wire().ledger.read().runs == {}
    assert bench.control("/control/bill")["rows"] == []


# The processes that share a command's work: at Ctrl-C they say nothing, and they never outlive the command.


HAS_A_WORKER = """
import os, signal, time
from orchestrator.cli.site_build import workers
with workers(1) as submit:
    print(submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def test_ctrl_c_is_not_heard_by_a_worker() -> None:
    with workers(1) as submit:
        worker = submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        assert submit(os.getpid).result() == worker


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_worker_ends_with_its_command_however_that_ends(end: signal.Signals) -> None:
    program = ["env", "--default-signal=INT,HUP", sys.executable, "-c", HAS_A_WORKER]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        worker = int(command.stdout.readline())
        assert living(worker)
        command.send_signal(end)
        command.wait()
    await_truth(lambda: not living(worker))


def test_what_no_worker_has_begun_is_not_done_once_the_command_is_interrupted(tmp_path: Path) -> None:
    goes_on, never = tmp_path / "goes-on", tmp_path / "never"
    waits = ["sh", "-c", f"until test -e {goes_on}; do sleep 0.02; done"]
    with pytest.raises(KeyboardInterrupt), workers(1) as submit:  # noqa: PT012 - it is raised by the last line
        submit(subprocess.check_call, waits)
        last = [submit(never.touch) for _ in range(9)][-1]

        def go_on() -> None:
            await_truth(last.cancelled)
            goes_on.touch()

        threading.Thread(target=go_on).start()
        raise KeyboardInterrupt
    assert last.cancelled()
