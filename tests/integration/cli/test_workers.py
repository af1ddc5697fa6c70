"""The processes that share a command's work: at Ctrl-C they say nothing, and they never outlive the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.cli.site_build import workers
from tests.support.patience import await_truth, living

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
