"""A GPU MODE problem is read from its folder, and what cannot be measured is told by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.adapters.workload_files import found, gathered, own_workload
from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.gpumode import task

TASK = """files:
  - {name: submission.py, source: "@SUBMISSION@"}
  - {name: reference.py, source: reference.py}
  - {name: utils.py, source: ../utils.py}
lang: py
description: |
  Doubles what it is given.
templates: {Python: ../template.py}
tests:
  - {size: 7, mode: odd, seed: 1}
benchmarks:
  - {size: 64, mode: even, seed: 2}
  - {size: 64, mode: even, seed: 3}
  - {size: 128, mode: even, seed: 4}
ranked_timeout: 60
"""
KERNEL = "def custom_kernel(data):\n    return data * 2\n"


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    folder = tmp_path / "set" / "double_py"
    (folder / "solutions").mkdir(parents=True)
    (folder / "task.yml").write_text(TASK)
    (folder / "reference.py").write_text("from utils import check\ndef custom_kernel(data): ...\n")
    (folder / "submission.py").write_text(KERNEL)
    (folder / "solutions" / "submission.py").write_text("from submission import custom_kernel\n")
    (folder / "helpers.py").write_text("def helper(): ...\n")
    (tmp_path / "set" / "utils.py").write_text("def check(): ...\n")
    return folder


def test_cases_are_the_benchmarks_without_their_public_seeds(problem: Path) -> None:
    own = own_workload(problem / "task.yml")
    assert (own.form, own.name) == ("gpumode", "double_py")
    assert own.cases == ("size64-modeeven", "size128-modeeven")


def test_every_file_with_a_custom_kernel_is_a_submission_and_shared_files_come_along(problem: Path) -> None:
    sent = gathered(problem)
    assert {"own/utils.py", "own/reference.py", "own/helpers.py", "own/task.yml"} <= set(sent)
    described = json.loads(sent["own.json"])
    assert described["submissions"] == {
        "submission": "submission.py",
        "solutions_submission": "solutions/submission.py",
    }
    assert described["tests"] == [{"size": 7, "mode": "odd"}]
    assert "seed" not in sent["own.json"].decode(), "whoever measures draws seeds of its own"


REFUSED = {
    "unknown key": (("lang: py", "langs: py"), "task.yml:5: unknown key langs; did you mean lang"),
    "another language": (("lang: py", "lang: cu"), "task.yml:5: lang 'cu' is built by GPU MODE's own evaluator"),
    "several GPUs": (("lang: py", "multi_gpu: true"), "task.yml:5: multi_gpu: only problems for one GPU"),
    "a list that is none": (
        ("benchmarks:\n  - {size: 64", "benchmarks: 7\nx:\n  - {size: 64"),
        "task.yml:12: unknown key x",
    ),
    "a case that is none": (("{size: 7, mode: odd, seed: 1}", "7"), "task.yml:10: tests[0] must be a mapping"),
    "an argument that is none": (("size: 128", "size: [1, 2]"), "task.yml:14: benchmarks[2]: size must be a number"),
    "others' arguments": (("size: 128", "sizes: 128"), "task.yml:11: every benchmark must have the same arguments"),
    "a file far away": (("../utils.py", "../../../utils.py"), "task.yml:4: files[2]: ../../../utils.py is outside of"),
    "a file by its root": (("../utils.py", "/etc/passwd"), "task.yml:4: files[2]: /etc/passwd is outside of"),
    "no YAML": (("lang: py", "lang: ["), "task.yml:"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_task_is_told_by_file_and_line(name: str) -> None:
    (old, new), words = REFUSED[name]
    with pytest.raises(ConfigError) as told:
        task(TASK.replace(old, new, 1), "task.yml")
    assert str(told.value).startswith(words)
    assert "docs/forms/gpu-mode.md" in str(told.value.hint)


def test_a_task_without_benchmarks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.yml:1: there are no benchmarks"):
        task(TASK.split("benchmarks:", maxsplit=1)[0], "task.yml")


def test_a_shared_file_that_is_no_source_is_never_sent(problem: Path) -> None:
    (problem / "task.yml").write_text(TASK.replace("../utils.py", "../id_rsa"))
    (problem.parent / "id_rsa").write_text("mine")
    with pytest.raises(ConfigError, match="id_rsa is not a source file in that folder"):
        found(problem)


def test_a_problem_without_submissions_or_with_a_broken_one_is_refused(problem: Path) -> None:
    (problem / "submission.py").write_text("def (\n")
    with pytest.raises(ConfigError, match=r"submission.py:1: syntax error"):
        found(problem)
    for one in (problem / "submission.py", problem / "solutions" / "submission.py"):
        one.write_text("def other(): ...\n")
    with pytest.raises(ConfigError, match="no file defines custom_kernel"):
        found(problem)
