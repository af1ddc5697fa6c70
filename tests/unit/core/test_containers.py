"""A container is named by its digest; its recipe has what an image has, and nothing that changes by itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.config import load as configs
from orchestrator.core.errors import ConfigError
from orchestrator.core.images import HINT, LABEL, container_recipe, environment_of, require_digest
from tests.integration.stories.stage import GRIDS
from tests.unit.startup.machine import stub

DIGEST = "sha256:" + "0f" * 32
NEEDS = ("apt libnuma-dev", "pip triton==3.4", "pip own-1.0-py3-none-any.whl", "wheel own-1.0-py3-none-any.whl ab")


def test_a_tag_alone_is_refused_with_what_prints_its_digest() -> None:
    assert require_digest("") == ""
    assert require_digest(f"ghcr.io/ada/bench:v1@{DIGEST}") == f"ghcr.io/ada/bench:v1@{DIGEST}"
    for wrong in ("ghcr.io/ada/bench:v1", f"ghcr.io/ada/bench@{DIGEST[:-1]}", f"a b@{DIGEST}", f"x@{DIGEST}; rm -rf /"):
        with pytest.raises(ValueError, match="expected NAME@sha256"):
            require_digest(wrong)
    assert "imagetools inspect" in HINT


def test_a_configuration_takes_a_container_by_its_digest_and_keeps_no_machine_for_it() -> None:
    def loaded(*more: str) -> str:
        return configs.load("gpu: l4", source="x.yaml", overrides=more, grids=GRIDS).machine.container

    assert loaded(f"machine.container=a/b@{DIGEST}") == f"a/b@{DIGEST}"
    for wrong in (("machine.container=a/b:latest",), (f"machine.container=a/b@{DIGEST}", "run.keep=true")):
        with pytest.raises(ConfigError):
            loaded(*wrong)


def steps(dockerfile: str) -> list[str]:
    """The instructions, continued lines as one."""
    text = re.sub(r"\\\n\s*", "", dockerfile)
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_a_recipe_keeps_the_rules_of_dockerfiles() -> None:
    made = container_recipe("2.13.0", environment_of("2.13.0", NEEDS), NEEDS)
    told = steps(made.dockerfile)
    verbs = [line.split()[0] for line in told]
    assert verbs[:2] == ["ARG", "FROM"]
    assert set(verbs) <= {"ARG", "FROM", "LABEL", "ENV", "RUN", "COPY"}
    assert f'{LABEL}="{environment_of("2.13.0", NEEDS)}"' in made.dockerfile
    assert ":latest" not in made.dockerfile
    for line in told:
        if "apt-get install" in line:
            assert "--no-install-recommends" in line
            assert line.startswith("RUN apt-get update && ")
            assert line.endswith("rm -rf /var/lib/apt/lists/*")
        if "pip install" in line:
            assert "--no-cache-dir" in line
    assert made.requirements.splitlines() == ["torch==2.13.0", "numpy", "triton==3.4"]
    assert made.wheels == ("own-1.0-py3-none-any.whl",)


def test_every_step_of_a_recipe_runs(tmp_path: Path) -> None:
    """With stand-ins that write down what they were called with: that a shell takes each step, and in which order."""
    called = tmp_path / "called"
    for name in ("apt-get", "python3", "rm"):
        stub(tmp_path / "bin", name, f'echo "{name} $*" >>{called}')
    for line in steps(container_recipe("2.13.0", "e", NEEDS).dockerfile):
        if line.startswith("RUN "):
            subprocess.run(
                ["/bin/sh", "-ec", line.removeprefix("RUN ")], env={"PATH": str(tmp_path / "bin")}, check=True
            )
    told = called.read_text().splitlines()
    assert told[0] == "apt-get update"
    assert told[1].startswith("apt-get install -y --no-install-recommends ca-certificates g++ libnuma-dev")
    assert [line.partition("--no-input ")[2] for line in told if "pip install" in line] == [
        "-r /opt/bench/requirements.txt", "/opt/bench/wheels/*.whl",
    ]  # fmt: skip
