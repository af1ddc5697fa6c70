"""A program that measures itself is described in a few lines of YAML, and what is wrong with them is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.adapters.workload_files import gather_files, own_workload
from orchestrator.core.config.load import select_cases
from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.program import parse_program
from orchestrator.runs.planning import is_workload
from tests.unit.core.asked import asked

DESCRIBED = """command: ./saxpy
build: make saxpy
format: google-benchmark
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "saxpy_command"
    made.mkdir()
    (made / "saxpy.yaml").write_text(DESCRIBED)
    (made / "saxpy.c").write_text("int main(void) { return 0; }\n")
    (made / "Makefile").write_text("saxpy: saxpy.c\n")
    (made / "saxpy").write_bytes(b"\x7fELF")
    return made


def test_a_folder_or_its_description_brings_the_sources_and_nothing_that_was_built(folder: Path) -> None:
    for path in (folder, folder / "saxpy.yaml"):
        assert is_workload(path)
        own = own_workload(path)
        assert (own.form, own.name, own.cases) == ("program", "saxpy", ())
        sent = gather_files(path)
        assert set(sent) == {"own/saxpy.yaml", "own/saxpy.c", "own/Makefile", "own.json"}
        assert json.loads(sent["own.json"])["build_limit_s"] == 300


def test_a_choice_of_axes_is_refused_for_a_program_that_chooses_its_own_cases(folder: Path) -> None:
    own = own_workload(folder)
    with pytest.raises(ConfigError, match=r"workload.axes: saxpy is a program, which chooses its own cases"):
        select_cases(asked("gpu: cpu"), own.model_copy(update={"axes": {"n": (4,)}}))
    with pytest.raises(ConfigError, match=r"correctness.sanitizer: saxpy is a program; only functions are called"):
        select_cases(asked("gpu: l4\nworkload: saxpy.yaml\ncorrectness: {sanitizer: memcheck}"), own)


def test_a_configuration_is_no_program(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("gpu: l4\nalerts: {command: echo}\n")
    assert not is_workload(config)


def test_a_folder_that_describes_two_programs_is_refused(folder: Path) -> None:
    (folder / "other.yml").write_text(DESCRIBED)
    with pytest.raises(ConfigError, match="describes 2 programs"):
        own_workload(folder)


REFUSED = {
    "unknown key": (("build:", "builds:"), "saxpy.yaml:2: unknown key builds; did you mean build"),
    "no format": (("format: google-benchmark", ""), "saxpy.yaml:1: there is no format"),
    "format": (("google-benchmark", "junit"), "saxpy.yaml:3: format 'junit' is not one of nvbench, google-benchmark"),
    "limit": (("build: make saxpy", "limit_s: soon"), "saxpy.yaml:2: limit_s must be a number above 0, not 'soon'"),
    "output": (("build: make saxpy", "output: ../x.json"), "saxpy.yaml:2: output: ../x.json must lie below"),
    "pattern": (("build: make saxpy", "implementation: BM_("), "saxpy.yaml:2: implementation: 'BM_(' is not a pattern"),
    "groups": (("build: make saxpy", "implementation: (a)(b)"), "saxpy.yaml:2: implementation: '(a)(b)' must have one"),
    "command": (("./saxpy", "[1]"), "saxpy.yaml:1: command must be text, not [1]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_description_is_told_by_file_and_line(name: str) -> None:
    (old, new), words = REFUSED[name]
    with pytest.raises(ConfigError) as told:
        parse_program(DESCRIBED.replace(old, new, 1), "saxpy.yaml")
    assert str(told.value).startswith(words)
