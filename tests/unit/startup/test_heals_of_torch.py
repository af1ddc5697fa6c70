"""How the agent finds and installs a torch that works, against real commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from startup.agent.diagnosis import Halt
from startup.agent.packages import Torch, needed_driver
from startup.host import machine
from tests.support.patience import PATIENCE_S
from tests.unit.startup.healed import Bench, cause_of, disk_of

# --- torch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("require_cuda", [True, False])
def test_a_torch_that_works_is_kept_whatever_its_version(bench: Bench, require_cuda: bool) -> None:
    bench.python(torch="2.9.0", usable=require_cuda)
    assert bench.packages.torch("2.13.0", require_cuda, bench.patience).torch == "2.9.0"
    assert bench.healed == []
    assert bench.installed() == []


def test_an_absent_torch_is_installed(bench: Bench) -> None:
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
    bench: Bench, driver: str, version: str
) -> None:
    bench.driver(driver)
    bench.python(f'*"pip install"*) {bench.becomes(torch=version)} ;;', usable=False)
    bench.packages.torch("2.13.0", True, bench.patience)
    assert bench.installed() == [f"torch=={version} numpy"]


@pytest.mark.parametrize(("wanted", "installed"), [("2.13.0", "torch==2.13.0 numpy"), ("", "torch numpy")])
def test_without_cuda_the_wanted_or_newest_torch_is_installed(bench: Bench, wanted: str, installed: str) -> None:
    bench.python(f'*"pip install"*) {bench.becomes(usable=False)} ;;', torch=None)
    bench.packages.torch(wanted, False, bench.patience)
    assert bench.installed() == [installed]


def test_a_driver_that_no_torch_runs_with_is_named(bench: Bench) -> None:
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


def test_a_torch_that_cannot_be_installed_is_named_with_the_installers_last_word(bench: Bench) -> None:
    bench.python('*"pip install"*) echo "ERROR: No matching distribution"; exit 1 ;;', torch=None)
    with pytest.raises(Halt, match="No matching distribution") as halted:
        bench.packages.torch("2.13.0", False, bench.patience)
    assert cause_of(halted) == "torch_missing"


def test_a_torch_that_still_fails_after_its_installation_is_named(bench: Bench) -> None:
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


def test_a_full_disk_during_the_installation_is_freed_and_the_installation_repeated(
    bench: Bench, tmp_path: Path
) -> None:
    disk_of(bench, 1.0, 9.0)
    bench.packages.min_free_gb = 4
    full = (
        f'[ -e {tmp_path}/freed ] && {{ {bench.becomes()}; exit 0; }}; echo "OSError: No space left on device"; exit 1'
    )
    bench.python(f'*"cache purge"*) touch {tmp_path}/freed ;;\n*"pip install"*) {full} ;;', torch=None)
    bench.packages.torch("2.13.0", False, bench.patience)
    assert [heal.what for heal in bench.healed] == ["disk", "torch"]


# --- the probe, and running commands ----------------------------------------------------------------------------------


def test_the_probe_tells_an_interpreter_without_torch_from_one_with_a_broken_numpy(
    bench: Bench, tmp_path: Path
) -> None:
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
    there = machine.import_check(str(python), PATIENCE_S)
    assert (there["torch"], there["numpy"], there["error"]) == ("2.1.0", "1.26.4", "")


@pytest.mark.parametrize(("torch", "driver"), [("2.13.0+cu130", 580), ("2.9.0", 570), ("1.13.1", 530), ("", 580)])
def test_every_torch_has_an_oldest_driver(torch: str, driver: int) -> None:
    assert needed_driver(torch) == driver
