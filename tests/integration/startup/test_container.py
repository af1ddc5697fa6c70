"""A run in a container is the same run: the same agent and harness, in the image that is named by its digest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.run.diagnose import REMEDIES
from startup.agent.clock import AgentClock, Patience
from startup.agent.container import Container
from startup.agent.diagnosis import Halt
from startup.agent.host import LocalHost
from startup.agent.logs import Log
from startup.agent.stop import Stop
from tests.support.patience import PATIENCE_S, await_truth
from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import Machine, fast_python, payload, run_spec, stub

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "orchestrator" / "embedded" / "docker.py"
DIGEST = "sha256:" + "ab" * 32
IMAGE = f"embedded.local/bench@{DIGEST}"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On the disk: /dev/shm, where a session may keep its files, is given to every container."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        yield Path(made)


def with_docker(machine: Machine) -> Machine:
    """A machine with the embedded cloud's stand-in, whose containers find the played python first."""
    inside = fast_python(machine.home / "vm" / "inside")
    wrapper = f'case "$1" in run) shift; set -- run --env "PATH={inside.parent}:/usr/bin:/bin" "$@" ;; esac'
    stub(
        machine.bin,
        "docker",
        f'{wrapper}\necho "$*" >>{machine.home / "docker.log"}\nexec {sys.executable} -I -S {DOCKER} "$@"',
    )
    return machine


def test_a_run_in_a_container_measures_stores_and_names_its_digest(tmp_path: Path) -> None:
    with Cloud(run_spec(container=IMAGE), payload()) as cloud, with_docker(Machine(cloud, tmp_path)) as machine:
        assert machine.wait() == 0, machine.serial()
        assert cloud.said("finished")[0]["outcome"] == "succeeded"
        assert len(cloud.said("case_measured")) == 2
        assert cloud.deleted == 1
        assert f"continuing in {IMAGE}" in machine.serial()
        spec = json.loads(machine.vm_file("spec.json").read_text())
        assert spec["machine"]["container"] == IMAGE
        commands = (tmp_path / "docker.log").read_text().splitlines()
        assert [line.split()[0] for line in commands] == ["pull", "run", "rm"]


def test_what_a_container_is_not_given_it_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "not").mkdir()
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "SECRET": "x"}

    def docker(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(DOCKER), *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    own = (
        "--network", "host", "--pid", "host", "--ipc", "host", "--volume", f"{tmp_path / 'given'}:{tmp_path / 'given'}",
    )  # fmt: skip
    assert docker("run", *own, IMAGE, "true").returncode == 125
    assert docker("pull", "--quiet", IMAGE).returncode == 0
    told = docker("run", "--rm", *own, "--env", "A=1", "--workdir", str(tmp_path / "given"), IMAGE, "env")
    assert "A=1" in told.stdout
    assert "SECRET" not in told.stdout
    write = "echo ok >mine; echo no >../not/theirs; true"
    docker("run", *own, "--workdir", str(tmp_path / "given"), IMAGE, "sh", "-c", write)
    assert (tmp_path / "given" / "mine").read_text() == "ok\n"
    if isolates():
        assert not (tmp_path / "not" / "theirs").exists()
    for wrong in (("--privileged",), ("--gpus", "all"), ("--network", "bridge")):
        refused = docker("run", *own, *wrong, IMAGE, "true")
        assert (refused.returncode, refused.stdout) == (125, "")
    assert "manifest unknown" in docker("pull", f"elsewhere.example/x@{DIGEST}").stderr
    assert "not a docker command" in docker("build", ".").stderr


def test_the_python_of_a_container_is_there_wherever_it_lies_and_cannot_be_changed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python, given = tmp_path / "env" / "bin" / "python", tmp_path / "given"
    given.mkdir()
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    docker = [str(python), "-I", "-S", str(DOCKER)]
    subprocess.run([*docker, "pull", IMAGE], env=environ, capture_output=True, check=True)
    own = ("--network", "host", "--pid", "host", "--ipc", "host", "--volume", f"{given}:{given}")
    write = f"open({str(given / 'mine')!r}, 'w').close(); open({str(tmp_path / 'env' / 'theirs')!r}, 'w')"
    subprocess.run([*docker, "run", *own, IMAGE, str(python), "-c", write], env=environ, capture_output=True)
    assert (given / "mine").exists()
    assert not (isolates() and (tmp_path / "env" / "theirs").exists())


def isolates() -> bool:
    """Whether this host lets anybody have a mount namespace with mounts of its own."""
    apart = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    return subprocess.run([*apart, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0


@pytest.mark.parametrize("image", [f"elsewhere.example/bench@{DIGEST}", "embedded.local/bench:latest"])
def test_an_image_that_cannot_be_had_ends_the_run_with_its_own_diagnosis(tmp_path: Path, image: str) -> None:
    with Cloud(run_spec(container=image), payload()) as cloud, with_docker(Machine(cloud, tmp_path)) as machine:
        assert machine.wait() == 1
        assert cloud.said("diagnosed")[0]["cause"] == "container_unavailable"
        assert image in cloud.said("diagnosed")[0]["detail"]
        assert cloud.said("finished")[0]["outcome"] == "failed"
        assert cloud.deleted == 1
    assert "container_unavailable" in REMEDIES


def test_a_signal_reaches_the_agent_in_its_container_and_the_machine_still_goes(tmp_path: Path) -> None:
    spec = run_spec({"measure": [{"hang": True}]}, container=IMAGE)
    with Cloud(spec, payload()) as cloud, with_docker(Machine(cloud, tmp_path)) as machine:
        await_truth(lambda: "phase_started" in cloud.kinds())
        os.kill(machine.process.pid, signal.SIGTERM)
        machine.wait()
        assert cloud.said("finished")[0]["outcome"] == "terminated"
        assert cloud.deleted == 1


def host(home: Path, tools: Path) -> LocalHost:
    clock = AgentClock()
    return LocalHost(
        home, {"PATH": f"{tools}:/usr/bin:/bin"}, "python3", clock, Stop(), Log((home / "log").open("w"), clock)
    )


def test_a_google_registry_is_given_the_machines_token_and_no_other_is(tmp_path: Path) -> None:
    called = tmp_path / "called"
    stub(tmp_path / "bin", "docker", f'echo "$*" >>{called}; [ "$1" = login ] && cat >{tmp_path / "token"}; exit 0')
    google = f"europe-west4-docker.pkg.dev/p/r/bench@{DIGEST}"
    for reference in (google, f"ghcr.io/ada/bench@{DIGEST}"):
        machine = host(tmp_path, tmp_path / "bin")
        Container(machine, reference, tmp_path, gpu=False, allow_install=False).fetch(
            "tok", Patience(AgentClock(), PATIENCE_S)
        )
        assert "BENCH_TOKEN" not in machine.env
    assert (tmp_path / "token").read_text() == "tok"
    assert called.read_text().splitlines() == [
        "login -u oauth2accesstoken --password-stdin https://europe-west4-docker.pkg.dev",
        f"pull --quiet {google}",
        f"pull --quiet ghcr.io/ada/bench@{DIGEST}",
    ]


def test_a_gpu_is_handed_in_and_what_is_in_the_environment_is_not(tmp_path: Path) -> None:
    container = Container(host(tmp_path, tmp_path), IMAGE, tmp_path, gpu=True, allow_install=False)
    command = container.command(tmp_path / "payload", {"GCE_METADATA_HOST": "m", "SECRET": "x"})
    assert command[:3] == ["docker", "run", "--rm"]
    assert command[command.index("--gpus") + 1] == "all"
    assert command[-4:] == [IMAGE, "python3", "-m", "startup.agent"]
    assert not any("SECRET" in word for word in command)


def test_without_an_engine_the_run_says_so(tmp_path: Path) -> None:
    clock, environment = AgentClock(), {"PATH": str(tmp_path)}
    machine = LocalHost(tmp_path, environment, "python3", clock, Stop(), Log((tmp_path / "l").open("w"), clock))
    with pytest.raises(Halt) as caught:
        Container(machine, IMAGE, tmp_path, gpu=False, allow_install=False).fetch(
            "", Patience(AgentClock(), PATIENCE_S)
        )
    diagnosis = caught.value.ending.diagnosis
    assert diagnosis is not None
    assert "there is no docker" in diagnosis.detail
