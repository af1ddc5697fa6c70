"""A GPU MODE problem is read from its folder, and what cannot be measured is told by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.adapters.workload_files import gather_files, own_workload, read_workload
from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.gpumode import as_json, parse_task

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
REFERENCE = """from utils import check
def custom_kernel(data): ...
def generate_input(size, mode, seed): ...
def ref_kernel(data): ...
check_implementation = check
"""
KERNEL = "def custom_kernel(data):\n    return data * 2\n"


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    folder = tmp_path / "set" / "double_py"
    (folder / "solutions").mkdir(parents=True)
    (folder / "task.yml").write_text(TASK)
    (folder / "reference.py").write_text(REFERENCE)
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
    sent = gather_files(problem)
    assert {"own/utils.py", "own/reference.py", "own/helpers.py", "own/task.yml"} <= set(sent)
    described = json.loads(sent["own.json"])
    assert described["submissions"] == {
        "submission": "submission.py",
        "solutions_submission": "solutions/submission.py",
    }
    assert described["tests"] == [{"size": 7, "mode": "odd"}]
    assert not any("not measured" in note for note in read_workload(problem).notes)
    assert "seed" not in sent["own.json"].decode(), "whoever measures draws seeds of its own"


REFUSED = {
    "unknown key": (("lang: py", "langs: py"), "task.yml:5: unknown key langs; did you mean lang"),
    "another language": (
        ("lang: py", "lang: cu"),
        "task.yml:5: lang 'cu': such a submission is compiled with GPU MODE's",
    ),
    "several GPUs": (
        ("lang: py", "multi_gpu: true"),
        "task.yml:5: multi_gpu: the problem's kernels run on several GPUs",
    ),
    "a ranking": (
        ("lang: py", "ranking_by: best"),
        "task.yml:5: ranking_by 'best' is not one of none, last, mean, geom",
    ),
    "a list that is none": (
        ("benchmarks:\n  - {size: 64", "benchmarks: 7\nx:\n  - {size: 64"),
        "task.yml:12: unknown key x",
    ),
    "a case that is none": (("{size: 7, mode: odd, seed: 1}", "7"), "task.yml:10: tests[0] must be a mapping"),
    "an argument that is none": (("size: 128", "size: [{a: 1}]"), "task.yml:14: benchmarks[2]: size must be a number"),
    "two cases of one name": (
        ("size: 128", 'size: "64"'),
        "task.yml:11: two cases would both be called size64-modeeven",
    ),
    "a file far away": (("../utils.py", "../../../utils.py"), "task.yml:4: files[2]: ../../../utils.py is outside of"),
    "a file by its root": (("../utils.py", "/etc/passwd"), "task.yml:4: files[2]: /etc/passwd is outside of"),
    "no YAML": (("lang: py", "lang: ["), "task.yml:"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_task_is_told_by_file_and_line(name: str) -> None:
    (old, new), words = REFUSED[name]
    with pytest.raises(ConfigError) as told:
        parse_task(TASK.replace(old, new, 1), "task.yml")
    assert str(told.value).startswith(words)
    assert "bench docs forms/gpu-mode" in str(told.value.hint)


def test_a_task_without_benchmarks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.yml:1: there are no benchmarks"):
        parse_task(TASK.split("benchmarks:", maxsplit=1)[0], "task.yml")


def test_a_shared_file_that_is_no_source_is_never_sent(problem: Path) -> None:
    (problem / "task.yml").write_text(TASK.replace("../utils.py", "../id_rsa"))
    (problem.parent / "id_rsa").write_text("mine")
    with pytest.raises(ConfigError, match="id_rsa is not a source file in that folder"):
        read_workload(problem)


def test_an_argument_that_only_some_cases_have_is_an_axis_that_is_empty_elsewhere() -> None:
    read = parse_task(
        TASK.replace("{size: 7, mode: odd, seed: 1}", "{size: 7, mode: even, fill: ones, seed: 1}"), "task.yml"
    )
    assert read.tests == ({"size": 7, "mode": "even", "fill": "ones"},)
    assert read.cases[0] == {"size": 64, "mode": "even", "fill": None}
    assert read.case_ids == ("size64-modeeven", "size128-modeeven"), "an absent argument is not part of the id"


def test_a_list_is_one_argument_and_one_value_of_its_axis() -> None:
    read = parse_task(TASK.replace("size: 128", "size: [128, 40]"), "task.yml")
    assert read.cases[1]["size"] == [128, 40]
    assert read.case_ids[1] == "size128x40-modeeven"


def test_what_differs_only_in_its_seed_and_what_is_not_used_is_named() -> None:
    repeated, unused = parse_task(TASK, "task.yml").notes
    assert repeated.startswith("task.yml: 1 of 3 benchmarks repeats a test or benchmark with another seed: judged once")
    assert unused == "task.yml: not used: ranked_timeout (the run has its own limits and machine)"


@pytest.mark.parametrize(("line", "ranking"), [("", ""), ("ranking_by: none\n", ""), ("ranking_by: last\n", "last")])
def test_the_ranking_is_sent_to_the_machine(line: str, ranking: str) -> None:
    task = parse_task(TASK + line, "task.yml")
    assert as_json(task, ["mine.py"], "problem")["ranking"] == ranking
    assert not any("ranking_by" in note for note in task.notes)


def test_a_template_is_measured_where_it_is_the_submission(problem: Path) -> None:
    named = TASK.replace("../template.py", "submission.py")
    (problem / "task.yml").write_text(named)
    described = read_workload(problem).description
    assert "submission" in described["submissions"], "this is the file that users edit"
    (problem / "task.yml").write_text(TASK.replace("../template.py", "template.py"))
    (problem / "template.py").write_text(KERNEL)
    assert "not measured, as task.yml calls it a template: template.py" in read_workload(problem).notes


@pytest.mark.parametrize("body", ["raise NotImplementedError", '"""Double it."""\n    pass'])
def test_without_a_submission_the_reference_is_measured_alone(problem: Path, body: str) -> None:
    (problem / "task.yml").write_text(TASK.replace("../template.py", "submission.py"))
    (problem / "submission.py").write_text(f"def custom_kernel(data):\n    {body}\n")
    (problem / "solutions" / "submission.py").unlink()
    own = read_workload(problem)
    assert own.description["submissions"] == {}
    assert "only ref_kernel is measured" in own.notes[-1]


def test_a_submission_never_takes_the_name_of_the_baseline_or_of_another(problem: Path) -> None:
    (problem / "solutions" / "reference.py").write_text(KERNEL)
    described = read_workload(problem).description
    assert described["submissions"]["solutions_reference"] == "solutions/reference.py"
    (problem / "solutions_reference.py").write_text(KERNEL)
    with pytest.raises(ConfigError, match="it would have the same name as"):
        read_workload(problem)


def test_a_problem_of_another_form_is_named_and_a_broken_submission_refused(problem: Path) -> None:
    (problem / "submission.py").write_text("def (\n")
    with pytest.raises(ConfigError, match=r"submission.py:1: syntax error"):
        read_workload(problem)
    (problem / "submission.py").write_text(KERNEL)
    (problem / "reference.py").write_text("def generate_inputs(): ...\n")
    with pytest.raises(ConfigError, match=r"no function generate_input\(…\); it has generate_inputs. .* another form"):
        read_workload(problem)


def test_files_of_the_folder_that_are_not_sent_are_named_in_the_plan(problem: Path) -> None:
    (problem / "weights.npz").write_bytes(b"\0")
    (problem / "results").mkdir()
    (problem / "results" / "old.py").write_text(KERNEL)
    (problem / "__pycache__").mkdir()
    (problem / "__pycache__" / "submission.pyc").write_bytes(b"\0")
    assert own_workload(problem).notes[-1].endswith(": results/, weights.npz")
