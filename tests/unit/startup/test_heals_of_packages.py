"""How the agent gets pip, a venv and numpy, against real commands."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from startup.agent.clock import Patience
from startup.agent.diagnosis import Halt
from startup.agent.packages import CannotInstall, Torch
from startup.agent.remediation import HealRecord
from tests.support.patience import PATIENCE_S
from tests.unit.startup.healed import Bench, cause_of

# --- pip and venv -----------------------------------------------------------------------------------------------------


def test_a_python_without_pip_gets_it_from_ensurepip(bench: Bench, tmp_path: Path) -> None:
    bench.python(f'*ensurepip*) touch {tmp_path}/pip ;;\n*"-m pip"*) [ -e {tmp_path}/pip ] ;;')
    bench.packages.install("torch", patience=bench.patience)
    assert bench.healed == [HealRecord("pip", "installed by ensurepip")]
    assert bench.installed() == ["torch"]


def test_a_python_without_ensurepip_gets_pip_from_apt(bench: Bench, tmp_path: Path) -> None:
    bench.python(f'*ensurepip*) exit 1 ;;\n*"-m pip"*) [ -e {tmp_path}/pip ] ;;')
    bench.stub("apt-get", f'case "$*" in *"install python3-pip"*) touch {tmp_path}/pip ;; esac')
    bench.packages.install("torch", patience=bench.patience)
    assert bench.healed == [HealRecord("pip", "installed by apt")]


def test_a_python_that_cannot_get_pip_is_named(bench: Bench) -> None:
    bench.python("*) exit 1 ;;")
    with pytest.raises(CannotInstall, match="no pip"):
        bench.packages.install("torch", patience=bench.patience)


MANAGED = '*"pip install"*) echo "error: externally-managed-environment"; exit 1 ;;'


def venv_of(bench: Bench) -> str:
    """What `python3 -m venv` does: a python that can be installed into."""
    home = bench.root / "venv" / "bin"
    body = f'#!/bin/sh\\necho "venv $*" >> {bench.root}/calls\\n'
    return f"mkdir -p {home}; printf '{body}' > {home}/python; chmod +x {home}/python"


def test_an_externally_managed_python_is_left_for_a_venv(bench: Bench, tmp_path: Path) -> None:
    bench.python(f'*"-m venv"*) {venv_of(bench)} ;;\n{MANAGED}')
    bench.packages.install("torch", patience=bench.patience)
    assert bench.host.python == str(tmp_path / "venv" / "bin" / "python")
    assert [heal.what for heal in bench.healed] == ["python_venv"]
    assert any("--system-site-packages" in call for call in bench.calls())
    assert bench.calls()[-1].startswith("venv -m pip install"), "from then on it is the venv's python"


def test_a_missing_venv_module_comes_from_apt(bench: Bench, tmp_path: Path) -> None:
    bench.python(f'*"-m venv"*) [ -e {tmp_path}/apt ] || exit 1; {venv_of(bench)} ;;\n{MANAGED}')
    bench.stub("apt-get", f'case "$*" in *"install python3-venv"*) touch {tmp_path}/apt ;; esac')
    bench.packages.install("torch", patience=bench.patience)
    assert [heal.what for heal in bench.healed] == ["python_venv"]


def test_a_venv_that_cannot_be_made_is_named(bench: Bench) -> None:
    bench.stub("apt-get", "exit 100")
    bench.python(f'*"-m venv"*) echo "ensurepip is not available"; exit 1 ;;\n{MANAGED}')
    with pytest.raises(CannotInstall, match="ensurepip is not available"):
        bench.packages.install("torch", patience=bench.patience)


# --- numpy ------------------------------------------------------------------------------------------------------------


def finding(bench: Bench, **found: object) -> Torch:
    return Torch(**json.loads(bench.answer(**found)))


def test_a_numpy_too_new_for_torch_is_replaced_by_numpy_1(bench: Bench) -> None:
    bench.python(f'*"pip install"*) {bench.becomes(numpy="1.26.4")} ;;')
    bench.packages.numpy(finding(bench, torch="2.1.0", numpy="2.4.0", exchange=False, error="ABI"), bench.patience)
    assert bench.installed() == ["numpy<2"]
    assert [heal.what for heal in bench.healed] == ["numpy"]


def test_an_absent_numpy_is_installed(bench: Bench) -> None:
    bench.python(f'*"pip install"*) {bench.becomes()} ;;')
    bench.packages.numpy(finding(bench, numpy=None, exchange=False), bench.patience)
    assert bench.installed() == ["numpy"]


def test_a_numpy_that_fits_is_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, allow_install=False)
    bench.packages.numpy(finding(bench), bench.patience)
    assert bench.healed == []


@pytest.mark.parametrize(
    ("allow_install", "install", "says"),
    [
        (False, "true", "nothing may be installed"),
        (True, "echo no wheel; exit 1", "no wheel"),
        (True, "true", "with numpy 2.4.0"),
    ],
)
def test_a_numpy_that_cannot_be_healed_is_named(tmp_path: Path, allow_install: bool, install: str, says: str) -> None:
    bench = Bench(tmp_path, allow_install=allow_install)
    bench.python(f'*"pip install"*) {install} ;;', exchange=False)
    with pytest.raises(Halt, match=says) as halted:
        bench.packages.numpy(finding(bench, exchange=False), bench.patience)
    assert cause_of(halted) == "numpy_mismatch"


# How the agent runs the commands of its heals, and when it ends them.


def test_a_command_that_does_not_exist_or_cannot_run_is_an_exit_code(bench: Bench) -> None:
    assert bench.host.run("no-such-command", patience=bench.patience).code == 127
    bad = bench.bin / "bad"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    assert bench.host.run("bad", patience=bench.patience).code == 126


def test_a_command_that_outlasts_its_own_time_is_killed(bench: Bench) -> None:
    bench.stub("slow", "trap '' TERM; sleep 3600")
    began = time.monotonic()
    ran = bench.host.run("slow", patience=bench.patience, timeout_s=0.2)
    assert (ran.code, ran.last_line) == (124, "exit code 124")
    assert time.monotonic() - began < PATIENCE_S


def test_a_command_that_outlasts_the_phase_ends_it(bench: Bench) -> None:
    with pytest.raises(Halt, match="sleep took longer") as halted:
        bench.host.run("sleep", "3600", patience=Patience(bench.clock, 0.2))
    assert halted.value.ending.outcome == "timed_out"


@pytest.mark.parametrize("before", [True, False])
def test_a_stop_ends_a_command(bench: Bench, before: bool) -> None:
    timer = threading.Timer(0 if before else 0.2, bench.stop.request, ["terminated"])
    timer.start()
    if before:
        timer.join()
    with pytest.raises(Halt) as halted:
        bench.host.run("sleep", "3600", patience=bench.patience)
    timer.join()
    assert halted.value.ending.outcome == "terminated"


def test_a_command_whose_grandchild_keeps_its_output_open_still_ends(bench: Bench, tmp_path: Path) -> None:
    # The grandchild has a session of its own: killing the group does not reach it.
    number = tmp_path / "grandchild"
    sleeper = f"setsid sh -c 'echo $$ > {number}; exec sleep 3600' &"
    bench.stub("forker", f"{sleeper}\nuntil [ -s {number} ]; do sleep 0.01; done\necho done")
    began = time.monotonic()
    assert bench.host.run("forker", patience=bench.patience).output == "done"
    assert time.monotonic() - began < PATIENCE_S
    os.kill(int(number.read_text()), signal.SIGKILL)
