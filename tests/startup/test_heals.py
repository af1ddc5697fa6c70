"""Laws of the ladder, each rung against real commands: executables on a PATH that holds nothing else of note."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from startup.agent.clock import Clock, Patience
from startup.agent.diagnosis import Halt
from startup.agent.heals import Healed, clock_skew, cuda_path, disk_space, driver_version, driver_wait
from startup.agent.host import Host
from startup.agent.logs import Log
from startup.agent.packages import CannotInstall, Packages, Torch, needed_driver
from startup.agent.stop import Stop
from startup.host import machine
from tests.startup.machine import stub
from tests.support.patience import PATIENCE_S

SHELL = "/usr/bin:/bin"


class SimulatedClock(Clock):
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


class Bench:
    """A host whose commands are stubs, and what its ladder recorded."""

    def __init__(self, root: Path, allow_install: bool = True, clock: Clock | None = None) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.root = root
        self.stop = Stop()
        self.clock = clock or Clock()
        self.console = io.StringIO()
        env = {"PATH": f"{self.bin}:{SHELL}"}
        self.host = Host(root, env, "python3", self.clock, self.stop, Log(self.console, self.clock))
        self.host.kill_grace_s = 0.1
        # This machine's own package managers are never within reach.
        for name in ("apt-get", "python3", "nvidia-smi"):
            self.stub(name, "exit 1")
        self.healed: list[Healed] = []
        self.packages = Packages(self.host, allow_install, 0, self.healed.append)
        self.patience = Patience(self.clock, PATIENCE_S)

    def stub(self, name: str, body: str) -> Path:
        return stub(self.bin, name, body)

    def driver(self, version: str) -> None:
        self.stub("nvidia-smi", f"echo {version}")

    def python(self, body: str = "", /, **found: object) -> None:
        """A python3 whose probe finds `found`, and on which `body` (sh) handles everything else."""
        self.finds(**found)
        self.stub(
            "python3",
            f'echo "$*" | head -n 1 >> {self.root}/calls\n'
            f'case "$*" in\n"-c "*exchange*) cat {self.root}/found; exit 0 ;;\n{body}\nesac',
        )

    def finds(self, **found: object) -> None:
        (self.root / "found").write_text(self.answer(**found) + "\n")

    def answer(self, **found: object) -> str:
        whole = {"torch": "2.13.0", "cuda": "13.0", "usable": True, "numpy": "2.4.0", "exchange": True, "error": ""}
        return json.dumps({**whole, **found})

    def becomes(self, **found: object) -> str:
        """What a stub does to change what the next probe finds."""
        return f"echo '{self.answer(**found)}' > {self.root}/found"

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    def installed(self) -> list[str]:
        return [call.split("--quiet ")[1] for call in self.calls() if "pip install" in call]


def cause_of(halted: pytest.ExceptionInfo[Halt]) -> str:
    assert halted.value.ending.diagnosis is not None
    return halted.value.ending.diagnosis.cause


# --- clock ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [None, 0.0, 4.0, -4.0])
def test_a_clock_that_is_right_or_cannot_be_compared_is_left_alone(skew_s: float | None) -> None:
    clock = Clock()
    assert clock_skew(clock, skew_s, 5.0) is None
    assert clock.offset == timedelta(0)


@pytest.mark.parametrize("skew_s", [90.0, -90.0])
def test_a_wrong_clock_is_corrected_by_what_it_is_off(skew_s: float) -> None:
    clock = Clock()
    healed = clock_skew(clock, skew_s, 5.0)
    assert healed is not None
    assert healed.what == "clock"
    assert clock.offset == timedelta(seconds=skew_s)


@pytest.mark.parametrize("jump_s", [90.0, -90.0, 86400.0])
def test_a_clock_that_is_set_while_a_run_goes_on_moves_no_event(jump_s: float) -> None:
    wall, steady = [1e9 - jump_s], [50.0]
    clock = Clock(lambda: wall[0], lambda: steady[0])
    clock_skew(clock, jump_s, 5.0)  # the storage server's is right
    wall[0] += jump_s + 10.0  # and so is ours from now on
    steady[0] += 10.0
    assert clock.now().timestamp() == 1e9 + 10.0


# --- CUDA's PATH ------------------------------------------------------------------------------------------------------


def test_cuda_is_put_on_path_where_it_is_installed_but_not_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    cuda = tmp_path / "cuda"
    (cuda / "lib64").mkdir(parents=True)
    stub(cuda / "bin", "nvcc", "echo nvcc")
    assert bench.host.which("nvcc") is None
    healed = cuda_path(bench.host, [tmp_path / "absent", cuda / "bin"])
    assert healed is not None
    assert healed.what == "cuda_path"
    assert bench.host.run("nvcc", patience=bench.patience).output == "nvcc"
    assert bench.host.env["LD_LIBRARY_PATH"] == str(cuda / "lib64")
    assert cuda_path(bench.host, [cuda / "bin"]) is None, "once healed there is nothing left to heal"


def test_cuda_without_libraries_beside_it_only_changes_path(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stub(tmp_path / "cuda" / "bin", "nvcc", "echo nvcc")
    assert cuda_path(bench.host, [tmp_path / "cuda" / "bin"]) is not None
    assert "LD_LIBRARY_PATH" not in bench.host.env


def test_no_cuda_toolkit_is_no_fault(tmp_path: Path) -> None:
    assert cuda_path(Bench(tmp_path).host, [tmp_path / "absent"]) is None


# --- driver -----------------------------------------------------------------------------------------------------------


def test_a_driver_that_answers_at_once_needs_no_heal(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.driver("580.95.05")
    assert driver_wait(bench.host, 5, 0.01, bench.patience) is None


def test_a_driver_that_is_late_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    bench.stub("nvidia-smi", f'echo x >> {tmp_path}/asked; [ "$(wc -l < {tmp_path}/asked)" -ge 4 ] && echo 580.95.05')
    healed = driver_wait(bench.host, 60, 3, bench.patience)
    assert healed == Healed("driver_wait", "the driver answered after 9.0 s")


@pytest.mark.parametrize(
    ("body", "says"), [("exit 9", "does not answer"), ("echo No devices were found", "not answer")]
)
def test_a_driver_that_never_answers_is_named(tmp_path: Path, body: str, says: str) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    bench.stub("nvidia-smi", body)
    with pytest.raises(Halt, match=says) as halted:
        driver_wait(bench.host, 20, 3, bench.patience)
    assert cause_of(halted) == "no_cuda"


def test_an_image_without_a_driver_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    (bench.bin / "nvidia-smi").unlink()
    bench.host.env["PATH"] = str(bench.bin)
    with pytest.raises(Halt, match="not installed") as halted:
        driver_wait(bench.host, 20, 3, bench.patience)
    assert cause_of(halted) == "no_cuda"


def test_waiting_for_the_driver_ends_when_the_phase_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=SimulatedClock())
    bench.stub("nvidia-smi", "exit 9")
    with pytest.raises(Halt, match="after 3 s"):
        driver_wait(bench.host, 600, 3, Patience(bench.clock, 5))


# --- disk -------------------------------------------------------------------------------------------------------------


def disk_of(bench: Bench, *free_gb: float) -> None:
    """Each look at the disk finds the next of these; the last one stays."""
    left = list(free_gb)

    class Disk(Host):
        def free_gb(self) -> float:
            return left.pop(0) if len(left) > 1 else left[0]

    bench.host = Disk(bench.root, bench.host.env, "python3", bench.clock, bench.stop, bench.host.log)
    bench.packages.host = bench.host


def test_an_empty_disk_is_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.host.free_gb() > 0
    assert disk_space(bench.host, 0, True, bench.patience) is None


def test_a_full_disk_is_freed_of_package_caches(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    disk_of(bench, 1.0, 6.5)
    bench.python()
    bench.stub("apt-get", f'echo "apt-get $*" >> {tmp_path}/calls')
    healed = disk_space(bench.host, 4, True, bench.patience)
    assert healed == Healed("disk", "package caches emptied: 1.0 GB free before, 6.5 GB after")
    assert bench.calls() == ["apt-get clean", "-m pip cache purge"]


def test_a_disk_that_stays_full_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    disk_of(bench, 1.0)
    with pytest.raises(Halt, match=r"1\.0 GB free") as halted:
        disk_space(bench.host, 4, True, bench.patience)
    assert cause_of(halted) == "disk_full"


def test_where_nothing_may_be_installed_nothing_is_deleted_either(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    disk_of(bench, 1.0)
    bench.stub("apt-get", f"touch {tmp_path}/deleted")
    with pytest.raises(Halt):
        disk_space(bench.host, 4, False, bench.patience)
    assert not (tmp_path / "deleted").exists()


# --- torch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("require_cuda", [True, False])
def test_a_torch_that_works_is_kept_whatever_its_version(tmp_path: Path, require_cuda: bool) -> None:
    bench = Bench(tmp_path)
    bench.python(torch="2.9.0", usable=require_cuda)
    assert bench.packages.torch("2.13.0", require_cuda, bench.patience).torch == "2.9.0"
    assert bench.healed == []
    assert bench.installed() == []


def test_an_absent_torch_is_installed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.driver("580.95.05")
    bench.python(f'*"pip install"*) {bench.becomes()} ;;', torch=None, error="ModuleNotFoundError: torch")
    assert bench.packages.torch("2.13.0", True, bench.patience).torch == "2.13.0"
    assert bench.installed() == ["torch==2.13.0 numpy"]
    assert [heal.what for heal in bench.healed] == ["torch"]


@pytest.mark.parametrize(
    ("driver", "version"),
    [
        ("580.95.05", "2.13.0"),
        ("590.10", "2.13.0"),
        ("570.86.15", "2.10.0"),
        ("565.57.01", "2.7.1"),
        ("550.54.15", "2.6.0"),
        ("535.183.01", "2.4.1"),
    ],
)
def test_the_torch_that_is_installed_is_the_newest_that_the_driver_serves(
    tmp_path: Path, driver: str, version: str
) -> None:
    bench = Bench(tmp_path)
    bench.driver(driver)
    bench.python(f'*"pip install"*) {bench.becomes(torch=version)} ;;', usable=False)
    bench.packages.torch("2.13.0", True, bench.patience)
    assert bench.installed() == [f"torch=={version} numpy"]


def test_without_cuda_the_driver_does_not_choose_the_torch(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python(f'*"pip install"*) {bench.becomes(usable=False)} ;;', torch=None)
    bench.packages.torch("2.13.0", False, bench.patience)
    assert bench.installed() == ["torch==2.13.0 numpy"]


def test_without_a_wanted_version_the_newest_is_installed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python(f'*"pip install"*) {bench.becomes(usable=False)} ;;', torch=None)
    bench.packages.torch("", False, bench.patience)
    assert bench.installed() == ["torch numpy"]


def test_a_driver_that_no_torch_runs_with_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.driver("470.256.02")
    bench.python(usable=False)
    with pytest.raises(Halt, match=r"470\.256\.02") as halted:
        bench.packages.torch("2.13.0", True, bench.patience)
    assert cause_of(halted) == "driver_too_old"


@pytest.mark.parametrize(
    ("found", "driver", "cause"),
    [
        ({"torch": None, "error": "ModuleNotFoundError: No module named 'torch'"}, "580.95.05", "torch_missing"),
        ({"cuda": None, "usable": False}, "580.95.05", "torch_without_cuda"),
        ({"usable": False}, "570.86.15", "driver_too_old"),
        ({"usable": False}, "580.95.05", "no_cuda"),
        ({"usable": False}, "", "no_cuda"),
    ],
)
def test_where_nothing_may_be_installed_each_fault_of_torch_has_its_name(
    tmp_path: Path, found: dict[str, object], driver: str, cause: str
) -> None:
    bench = Bench(tmp_path, allow_install=False)
    bench.driver(driver)
    bench.python(**found)
    with pytest.raises(Halt, match="nothing may be installed") as halted:
        bench.packages.torch("2.13.0", True, bench.patience)
    assert cause_of(halted) == cause
    assert bench.installed() == []


def test_a_torch_that_cannot_be_installed_is_named_with_the_installers_last_word(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python('*"pip install"*) echo "ERROR: No matching distribution"; exit 1 ;;', torch=None)
    with pytest.raises(Halt, match="No matching distribution") as halted:
        bench.packages.torch("2.13.0", False, bench.patience)
    assert cause_of(halted) == "torch_missing"


def test_a_torch_that_still_fails_after_its_installation_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.driver("580.95.05")
    bench.python(f'*"pip install"*) {bench.becomes(usable=False)} ;;', torch=None)
    with pytest.raises(Halt, match="just installed") as halted:
        bench.packages.torch("2.13.0", True, bench.patience)
    assert cause_of(halted) == "no_cuda"


def test_a_python_that_crashes_in_the_probe_has_no_torch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, allow_install=False)
    bench.stub("python3", "echo Illegal instruction; exit 132")
    with pytest.raises(Halt, match="Illegal instruction") as halted:
        bench.packages.torch("2.13.0", False, bench.patience)
    assert cause_of(halted) == "torch_missing"


def test_a_full_disk_during_the_installation_is_freed_and_the_installation_repeated(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    disk_of(bench, 1.0, 9.0)
    bench.packages.min_free_gb = 4
    full = (
        f'[ -e {tmp_path}/freed ] && {{ {bench.becomes()}; exit 0; }}; echo "OSError: No space left on device"; exit 1'
    )
    bench.python(f'*"cache purge"*) touch {tmp_path}/freed ;;\n*"pip install"*) {full} ;;', torch=None)
    bench.packages.torch("2.13.0", False, bench.patience)
    assert [heal.what for heal in bench.healed] == ["disk", "torch"]


# --- pip and venv -----------------------------------------------------------------------------------------------------


def test_a_python_without_pip_gets_it_from_ensurepip(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python(f'*ensurepip*) touch {tmp_path}/pip ;;\n*"-m pip"*) [ -e {tmp_path}/pip ] ;;')
    bench.packages.install("torch", patience=bench.patience)
    assert bench.healed == [Healed("pip", "installed by ensurepip")]
    assert bench.installed() == ["torch"]


def test_a_python_without_ensurepip_gets_pip_from_apt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python(f'*ensurepip*) exit 1 ;;\n*"-m pip"*) [ -e {tmp_path}/pip ] ;;')
    bench.stub("apt-get", f'case "$*" in *"install python3-pip"*) touch {tmp_path}/pip ;; esac')
    bench.packages.install("torch", patience=bench.patience)
    assert bench.healed == [Healed("pip", "installed by apt")]


def test_a_python_that_cannot_get_pip_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python("*) exit 1 ;;")
    with pytest.raises(CannotInstall, match="no pip"):
        bench.packages.install("torch", patience=bench.patience)


MANAGED = '*"pip install"*) echo "error: externally-managed-environment"; exit 1 ;;'


def venv_of(bench: Bench) -> str:
    """What `python3 -m venv` does: a python that can be installed into."""
    home = bench.root / "venv" / "bin"
    body = f'#!/bin/sh\\necho "venv $*" >> {bench.root}/calls\\n'
    return f"mkdir -p {home}; printf '{body}' > {home}/python; chmod +x {home}/python"


def test_an_externally_managed_python_is_left_for_a_venv(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python(f'*"-m venv"*) {venv_of(bench)} ;;\n{MANAGED}')
    bench.packages.install("torch", patience=bench.patience)
    assert bench.host.python == str(tmp_path / "venv" / "bin" / "python")
    assert [heal.what for heal in bench.healed] == ["python_venv"]
    assert any("--system-site-packages" in call for call in bench.calls())
    assert bench.calls()[-1].startswith("venv -m pip install"), "from then on it is the venv's python"


def test_a_missing_venv_module_comes_from_apt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python(f'*"-m venv"*) [ -e {tmp_path}/apt ] || exit 1; {venv_of(bench)} ;;\n{MANAGED}')
    bench.stub("apt-get", f'case "$*" in *"install python3-venv"*) touch {tmp_path}/apt ;; esac')
    bench.packages.install("torch", patience=bench.patience)
    assert [heal.what for heal in bench.healed] == ["python_venv"]


def test_a_venv_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stub("apt-get", "exit 100")
    bench.python(f'*"-m venv"*) echo "ensurepip is not available"; exit 1 ;;\n{MANAGED}')
    with pytest.raises(CannotInstall, match="ensurepip is not available"):
        bench.packages.install("torch", patience=bench.patience)


# --- numpy ------------------------------------------------------------------------------------------------------------


def finding(bench: Bench, **found: object) -> Torch:
    return Torch(**json.loads(bench.answer(**found)))


def test_a_numpy_too_new_for_torch_is_replaced_by_numpy_1(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.python(f'*"pip install"*) {bench.becomes(numpy="1.26.4")} ;;')
    bench.packages.numpy(finding(bench, torch="2.1.0", numpy="2.4.0", exchange=False, error="ABI"), bench.patience)
    assert bench.installed() == ["numpy<2"]
    assert [heal.what for heal in bench.healed] == ["numpy"]


def test_an_absent_numpy_is_installed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
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


# --- the probe, and running commands ----------------------------------------------------------------------------------


def test_the_probe_tells_a_real_interpreter_without_torch_from_one_with_a_broken_numpy(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    modules = tmp_path / "modules"
    modules.mkdir()
    bench.stub("python3", f'PYTHONPATH={modules} exec {sys.executable} -S "$@"')
    assert bench.packages.probe(bench.patience).torch is None
    (modules / "torch.py").write_text(
        "import types\n__version__ = '2.1.0'\nversion = types.SimpleNamespace(cuda='12.1')\n"
        "cuda = types.SimpleNamespace(is_available=lambda: True)\n"
        "def from_numpy(array): raise RuntimeError('Numpy is not available')\nprint('chatter')\n"
    )
    (modules / "numpy.py").write_text("__version__ = '2.4.0'\ndef zeros(n): return [0.0] * n\n")
    found = bench.packages.probe(bench.patience)
    assert found == Torch("2.1.0", "12.1", True, "2.4.0", False, "RuntimeError: Numpy is not available")


CHATTY = """
import atexit, sys, types
__version__, version = "2.1.0", types.SimpleNamespace(cuda="12.1")
cuda = types.SimpleNamespace(is_available=lambda: True)
def from_numpy(array): pass
def zeros(n): return types.SimpleNamespace(numpy=lambda: None)
atexit.register(lambda: print("unloaded", file=sys.stderr))
atexit.register(lambda: print("[1, 2]"))
"""


def test_what_libraries_say_as_they_are_unloaded_hides_no_torch(tmp_path: Path) -> None:
    bench, modules = Bench(tmp_path), tmp_path / "modules"
    modules.mkdir()
    (modules / "torch.py").write_text(CHATTY)
    (modules / "numpy.py").write_text("__version__ = '1.26.4'\ndef zeros(n): return [0.0] * n\n")
    python = bench.stub("python3", f'PYTHONPATH={modules} exec {sys.executable} -S "$@"')
    assert bench.packages.probe(bench.patience) == Torch("2.1.0", "12.1", True, "1.26.4", True, "")
    there = machine.imported(str(python), PATIENCE_S)
    assert (there["torch"], there["numpy"], there["error"]) == ("2.1.0", "1.26.4", "")


@pytest.mark.parametrize(("torch", "driver"), [("2.13.0+cu130", 580), ("2.9.0", 570), ("1.13.1", 530), ("", 580)])
def test_every_torch_has_an_oldest_driver(torch: str, driver: int) -> None:
    assert needed_driver(torch) == driver


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


def test_driver_version_is_only_what_looks_like_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.driver("NVIDIA-SMI has failed")
    assert driver_version(bench.host, bench.patience) is None
