"""How the agent runs the commands of its heals, and when it ends them."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from startup.agent.clock import Patience
from startup.agent.diagnosis import Halt
from tests.support.patience import PATIENCE_S
from tests.unit.startup.healed import Bench


def test_a_command_that_does_not_exist_or_cannot_run_is_an_exit_code(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.host.run("no-such-command", patience=bench.patience).code == 127
    bad = bench.bin / "bad"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    assert bench.host.run("bad", patience=bench.patience).code == 126


def test_a_command_that_outlasts_its_own_time_is_killed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stub("slow", "trap '' TERM; sleep 3600")
    began = time.monotonic()
    ran = bench.host.run("slow", patience=bench.patience, timeout_s=0.2)
    assert (ran.code, ran.last_line) == (124, "exit code 124")
    assert time.monotonic() - began < PATIENCE_S


def test_a_command_that_outlasts_the_phase_ends_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(Halt, match="sleep took longer") as halted:
        bench.host.run("sleep", "3600", patience=Patience(bench.clock, 0.2))
    assert halted.value.ending.outcome == "timed_out"


@pytest.mark.parametrize("before", [True, False])
def test_a_stop_ends_a_command(tmp_path: Path, before: bool) -> None:
    bench = Bench(tmp_path)
    timer = threading.Timer(0 if before else 0.2, bench.stop.request, ["terminated"])
    timer.start()
    if before:
        timer.join()
    with pytest.raises(Halt) as halted:
        bench.host.run("sleep", "3600", patience=bench.patience)
    timer.join()
    assert halted.value.ending.outcome == "terminated"


def test_a_command_whose_grandchild_keeps_its_output_open_still_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    # The grandchild has a session of its own: killing the group does not reach it.
    number = tmp_path / "grandchild"
    sleeper = f"setsid sh -c 'echo $$ > {number}; exec sleep 3600' &"
    bench.stub("forker", f"{sleeper}\nuntil [ -s {number} ]; do sleep 0.01; done\necho done")
    began = time.monotonic()
    assert bench.host.run("forker", patience=bench.patience).output == "done"
    assert time.monotonic() - began < PATIENCE_S
    os.kill(int(number.read_text()), signal.SIGKILL)
