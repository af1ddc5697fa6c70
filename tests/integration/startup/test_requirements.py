"""What a workload needs is installed into an environment of its own, once, recorded with hashes; or named."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from startup.agent.clock import AgentClock, Patience
from startup.agent.diagnosis import Halt
from startup.agent.host import LocalHost
from startup.agent.logs import Log
from startup.agent.packages import Packages
from startup.agent.requirements import RECORD, TOLD, RequirementList, Requirements, read_requirements
from startup.agent.stop import Stop
from tests.support.patience import PATIENCE_S


class Machine:
    """An agent's surroundings, with a payload."""

    def __init__(self, folder: Path) -> None:
        clock, stop = AgentClock(), Stop()
        env = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
        self.host = LocalHost(folder, env, sys.executable, clock, stop, Log(io.StringIO(), clock))
        self.payload, self.out = folder / "payload", folder / "out"
        (self.payload / "own").mkdir(parents=True, exist_ok=True)
        self.patience = Patience(clock, 600, stop.requested)
        packages = Packages(self.host, False, 0, lambda _: None)
        self.requirements = Requirements(self.host, packages, self.payload, self.out)

    def provide(self, wanted: RequirementList) -> None:
        self.requirements.provide(wanted, self.patience)

    def record(self) -> dict[str, object]:
        made: dict[str, object] = json.loads((self.out / RECORD).read_text())
        return made


def wheel(folder: Path) -> Path:
    """A package of one module, as a wheel."""
    file = folder / "tinykernel-1.2-py3-none-any.whl"
    info = "tinykernel-1.2.dist-info"
    files = {
        "tinykernel.py": "ANSWER = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tinykernel\nVersion: 1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }

    def line(name: str, text: str) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(text)}\n"

    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(line(*one) for one in files.items()) + f"{info}/RECORD,,\n")
    return file


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_wheel_is_installed_once_where_the_machines_torch_stays_visible(machine: Machine, tmp_path: Path) -> None:
    file = wheel(machine.payload / "own")
    wanted = RequirementList(pip=(file.name,))
    machine.provide(wanted)
    code = "import importlib.util, tinykernel; print(tinykernel.ANSWER, importlib.util.find_spec('torch').origin)"
    ran = subprocess.run([machine.host.python, "-c", code], capture_output=True, text=True)
    machines_own = importlib.util.find_spec("torch")
    assert machines_own is not None
    assert ran.stdout == f"42 {machines_own.origin}\n", ran.stderr
    assert machine.host.python != sys.executable
    first = machine.record()
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert first["wheels"] == {file.name: sha256}
    assert first["installed"] == [{"name": "tinykernel", "version": "1.2", "sha256": sha256}]
    assert first["cached"] is False

    again = Machine(tmp_path)
    again.provide(wanted)
    assert (again.record()["cached"], again.host.python) == (True, machine.host.python)


def test_what_pip_cannot_install_is_named_and_leaves_no_environment(machine: Machine, tmp_path: Path) -> None:
    (machine.payload / "own" / "broken-1.0-py3-none-any.whl").write_bytes(b"no archive")
    with pytest.raises(Halt) as told:
        machine.provide(RequirementList(pip=("broken-1.0-py3-none-any.whl",)))
    diagnosis = told.value.ending.diagnosis
    assert diagnosis is not None
    assert diagnosis.cause == "requirements_failed"
    assert "pip could not install" in diagnosis.detail
    assert machine.host.python == sys.executable
    assert not list((tmp_path / "cache" / "spotbench" / "environments").glob("*/bin"))


def test_nothing_is_installed_for_a_workload_that_needs_nothing(machine: Machine, tmp_path: Path) -> None:
    wanted = read_requirements(machine.payload)
    assert wanted == RequirementList()
    machine.provide(wanted)
    assert machine.host.python == sys.executable
    assert not (tmp_path / "cache").exists()
    assert not machine.out.exists()


def test_a_machine_that_is_not_ours_gets_no_package_of_the_system(machine: Machine) -> None:
    with pytest.raises(Halt, match="no-such-package-of-anybody not installed") as told:
        machine.provide(RequirementList(apt=("no-such-package-of-anybody",)))
    assert "sudo apt-get install no-such-package-of-anybody" in told.value.ending.detail


def test_a_build_command_runs_in_the_workload_s_folder_within_its_limit(machine: Machine) -> None:
    machine.provide(RequirementList(build="echo made > product"))
    assert (machine.payload / "own" / "product").read_text() == "made\n"
    for build, limit_s, words in (
        ("echo 'x.c:1: error' && exit 3", PATIENCE_S, "ended with exit code 3"),
        ("sleep 3600", 1, "did not end within 1"),
    ):
        with pytest.raises(Halt, match=words) as told:
            machine.provide(RequirementList(build=build, build_limit_s=limit_s))
        assert told.value.ending.diagnosis is not None
        assert told.value.ending.diagnosis.cause == "build_failed"


def test_a_payload_that_tells_its_needs_in_no_way_we_know_is_refused(machine: Machine) -> None:
    (machine.payload / TOLD).write_text('{"pip": 7}')
    with pytest.raises(Halt, match="cannot be read"):
        read_requirements(machine.payload)
