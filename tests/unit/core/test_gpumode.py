"""A GPU MODE problem is read from its folder, and what cannot be measured is told by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.workload_files import gather_files, own_workload, read_workload
from orchestrator.core.config.load import select_cases
from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.flashinfer import trace_set
from orchestrator.core.forms.gpumode import as_json, parse_task
from orchestrator.core.forms.program import parse_program
from orchestrator.runs.planning import is_workload
from tests.unit.core.asked import asked

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
    files = {"submission": "submission.py", "solutions_submission": "solutions/submission.py"}
    assert described["submissions"] == files
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
    filled = TASK.replace("{size: 7, mode: odd, seed: 1}", "{size: 7, mode: even, fill: ones, seed: 1}")
    read = parse_task(filled, "task.yml")
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


# A trace set of FlashInfer-Bench is read as a workload: each workload is a case, and what is not used is named.


SCALE = {
    "name": "scale_n4",
    "op_type": "scale",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 4}},
    "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}, "by": {"shape": None, "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\ndef run(x, by):\n    return x * by\n",
}
PAGED = {
    "name": "paged",
    "op_type": "sum",
    "axes": {axis: {"type": "var"} for axis in ("batch_size", "len_indptr", "num_pages", "total_q")},
    "inputs": {"indptr": {"shape": ["len_indptr"], "dtype": "int32"}},
    "outputs": {"y": {"shape": ["batch_size"], "dtype": "float32"}},
    "reference": "import torch\nimport flashinfer\ndef run(indptr): ...\n",
    "constraints": ["len_indptr == batch_size + 1", "total_q == indptr[-1].item()"],
    "owner": "me",
}
MINE = {
    "name": "mine",
    "definition": "scale_n4",
    "author": "me",
    "spec": {
        "language": "triton",
        "target_hardware": ["H100"],
        "entry_point": "main.py::run",
        "dependencies": ["einops"],
    },
    "sources": [{"path": "main.py", "content": "def run(x, by, y):\n    y.copy_(x * by)\n"}],
}


def workload(m: int, uuid: str, **inputs: Any) -> str:
    given = {"x": {"type": "random"}, "by": {"type": "scalar", "value": 2.0}, **inputs}
    posed = {"uuid": uuid, "axes": {"M": m}, "inputs": given}
    return json.dumps({"definition": "scale_n4", "solution": None, "workload": posed, "evaluation": None})


def texts(**changes: str) -> dict[str, str]:
    return {
        "definitions/scale/scale_n4.json": json.dumps(SCALE),
        "solutions/mine.json": json.dumps(MINE),
        "workloads/scale_n4.jsonl": "\n".join((workload(2, "u-1"), "", workload(8, "u-2"))),
    } | changes


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_set_and_a_definition_in_it_are_workloads_whose_cases_are_its_workloads(tmp_path: Path) -> None:
    root = write(tmp_path / "set", texts())
    for path in (root, root / "definitions" / "scale" / "scale_n4.json"):
        assert is_workload(path)
        own = own_workload(path)
        assert (own.form, own.name, own.cases) == ("flashinfer", "scale_n4", ("M2", "M8"))
        sent = gather_files(path)
        assert set(sent) == {"own/definitions/scale/scale_n4.json", "own/solutions/mine.json", "own.json"}
        described = json.loads(sent["own.json"])
        assert described["solutions"] == {"mine": "solutions/mine.json"}
        assert [case["uuid"] for case in described["cases"]] == ["u-1", "u-2"]
    assert own.notes == ("dependencies of solutions are not installed (einops): a requirements.txt in the folder is",)


def test_several_definitions_are_an_axis_and_lone_ones_get_sizes_within_constraints() -> None:
    traces = trace_set(texts() | {"definitions/paged.json": json.dumps(PAGED)})
    values = [case.values for case in traces.cases]
    assert values[0] == {
        "definition": "scale_n4", "M": 2, "batch_size": None, "len_indptr": None, "num_pages": None, "total_q": None,
    }  # fmt: skip
    assert {axis: values[2][axis] for axis in PAGED["axes"]} == {  # type: ignore[attr-defined]
        "batch_size": 16, "len_indptr": 17, "num_pages": 1024, "total_q": 512,
    }  # fmt: skip
    assert traces.notes[:3] == (
        "not used of a definition: owner",
        "references need packages that are not installed: flashinfer (a requirements.txt in the folder is)",
        "no workload, so sizes and indices are chosen by bench: paged",
    )


def test_workloads_of_equal_sizes_are_told_apart_by_their_uuids() -> None:
    alike = "\n".join((workload(2, "aaaaaaaa-1"), workload(2, "bbbbbbbb-1")))
    traces = trace_set(texts(**{"workloads/scale_n4.jsonl": alike}))
    values = [case.values for case in traces.cases]
    assert values == [{"M": 2, "workload": "aaaaaaaa"}, {"M": 2, "workload": "bbbbbbbb"}]


def test_what_is_not_measured_of_a_set_is_named() -> None:
    files = texts(**{"workloads/scale_n4.jsonl": workload(2, "u-1").replace('"solution": null', '"solution": "old"')})
    files["definitions/paged.json"] = json.dumps(PAGED)
    files["workloads/other.jsonl"] = workload(2, "u-2").replace("scale_n4", "gone")
    files["solutions/cuda.json"] = json.dumps(MINE | {"name": "fast", "spec": MINE["spec"] | {"language": "cuda"}})  # type: ignore[operator]
    files["solutions/gone.json"] = json.dumps(MINE | {"name": "late", "definition": "gone"})
    notes = " | ".join(trace_set(files).notes)
    assert "1 trace in workloads/ with a solution or an evaluation" in notes
    assert "workloads of definitions that are not there: gone" in notes
    assert "solutions of definitions that are not there: late" in notes
    assert "because only FlashInfer-Bench's own builders compile C++ and CUDA: fast" in notes


def test_inputs_in_files_travel_and_pointers_or_missing_files_are_rows_that_say_so(tmp_path: Path) -> None:
    stored = {"type": "safetensors", "path": "./blob/x.safetensors", "tensor_key": "x"}
    gone = {"type": "safetensors", "path": "blob/gone.safetensors", "tensor_key": "x"}
    rows = "\n".join((workload(2, "u-1", x=stored), workload(8, "u-2", x=gone)))
    root = write(tmp_path, texts(**{"workloads/scale_n4.jsonl": rows, "blob/x.safetensors": "data"}))
    assert gather_files(root)["own/blob/x.safetensors"] == b"data"
    assert read_workload(root).notes[-1].startswith("1 case cannot be measured: inputs are in files that are not there")
    (root / "blob" / "x.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid")
    described = json.loads(gather_files(root)["own.json"])
    assert [case["skip"] for case in described["cases"]] == [
        "its inputs are in blob/x.safetensors, which is not there", "its inputs are in blob/gone.safetensors, which is not there",
    ]  # fmt: skip


def broken(**changes: Any) -> dict[str, str]:
    return texts(**{"definitions/scale/scale_n4.json": json.dumps(SCALE | changes)})


REFUSED_SETS = {
    "no JSON": (texts(**{"solutions/mine.json": '{\n"name": mine}'}), "solutions/mine.json:2: not JSON"),
    "a line that is none": (texts(**{"workloads/w.jsonl": "\n{"}), "workloads/w.jsonl:2: not JSON"),
    "a dtype": (broken(outputs={"y": {"shape": ["M"], "dtype": "float4_e2m1"}}), "y: dtype 'float4_e2m1' is not one of"),
    "a shape": (broken(outputs={"y": {"shape": ["K"], "dtype": "int8"}}), "y: shape must be a list of axes"),
    "an axis": (broken(axes={"M": {"type": "var"}, "N": {"type": "const"}}), "axis N must have the type var, or const"),
    "no run": (broken(reference="def go(): ..."), "reference: there is no function run(…)"),
    "another axis": (texts(**{"workloads/w.jsonl": workload(2, "u-3").replace('"M"', '"K"')}), "workloads/w.jsonl:1: axes must give"),
    "a constraint": (
        texts(**{"workloads/w.jsonl": workload(2, "u-3")}) | broken(constraints=["M == N + 1"]),
        "axes: M == N + 1 does not hold: 2 and 5",
    ),
    "another input": (texts(**{"workloads/w.jsonl": workload(2, "u-3", z={"type": "random"})}), "scale_n4 has no input z"),
    "a path": (
        texts(**{"workloads/w.jsonl": workload(2, "u-3", x={"type": "safetensors", "path": "../x", "tensor_key": "x"})}),
        "x must have a path below the trace set",
    ),
    "a uuid twice": (texts(**{"workloads/w.jsonl": workload(4, "u-1")}), "2 workloads have the uuid u-1"),
    "a name twice": (texts(**{"solutions/z.json": json.dumps(MINE)}), "solutions/mine.json has the same name, mine"),
    "the baseline's name": (
        texts(**{"solutions/mine.json": json.dumps(MINE | {"name": "reference"})}), "cannot be called reference",
    ),
    "no source": (
        texts(**{"solutions/mine.json": json.dumps(MINE | {"sources": []})}), "entry_point: there is no source main.py",
    ),
    "no definition": ({"solutions/mine.json": json.dumps(MINE)}, "there is no definition in definitions/"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_SETS)
def test_what_is_wrong_with_a_set_is_told_by_file_before_anything_is_paid_for(name: str) -> None:
    files, words = REFUSED_SETS[name]
    with pytest.raises(ConfigError) as refused:
        trace_set(files)
    assert words in str(refused.value)


def test_a_json_file_elsewhere_is_told_what_is_expected(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"is not in the folder definitions/ of a trace set"):
        read_workload(file)


# A program that measures itself is described in a few lines of YAML, and what is wrong with them is told.


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


def test_a_program_says_how_many_gpus_it_needs_to_plan_and_machine_alike(folder: Path) -> None:
    assert own_workload(folder).gpus == 0
    (folder / "saxpy.yaml").write_text(DESCRIBED + "gpus: 2\n")
    assert own_workload(folder).gpus == 2
    assert json.loads(gather_files(folder)["own.json"])["gpus"] == 2


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


REFUSED_PROGRAMS = {
    "unknown key": (("build:", "builds:"), "saxpy.yaml:2: unknown key builds; did you mean build"),
    "no format": (("format: google-benchmark", ""), "saxpy.yaml:1: there is no format"),
    "format": (("google-benchmark", "junit"), "saxpy.yaml:3: format 'junit' is not one of nvbench, google-benchmark"),
    "limit": (("build: make saxpy", "limit_s: soon"), "saxpy.yaml:2: limit_s must be a number above 0, not 'soon'"),
    "output": (("build: make saxpy", "output: ../x.json"), "saxpy.yaml:2: output: ../x.json must lie below"),
    "pattern": (("build: make saxpy", "implementation: BM_("), "saxpy.yaml:2: implementation: 'BM_(' is not a pattern"),
    "groups": (("build: make saxpy", "implementation: (a)(b)"), "saxpy.yaml:2: implementation: '(a)(b)' must have one"),
    "GPUs": (("build: make saxpy", "gpus: many"), "saxpy.yaml:2: gpus must be a whole number from 1 to 16, not 'many'"),
    "command": (("./saxpy", "[1]"), "saxpy.yaml:1: command must be text, not [1]"),
}


@pytest.mark.parametrize("name", REFUSED_PROGRAMS)
def test_what_is_wrong_with_a_description_is_told_by_file_and_line(name: str) -> None:
    (old, new), words = REFUSED_PROGRAMS[name]
    with pytest.raises(ConfigError) as told:
        parse_program(DESCRIBED.replace(old, new, 1), "saxpy.yaml")
    assert str(told.value).startswith(words)
