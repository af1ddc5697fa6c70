"""A trace set of FlashInfer-Bench is read as a workload: each workload is a case, and what is not used is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.workload_files import gather_files, own_workload, read_workload
from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.flashinfer import trace_set
from orchestrator.runs.planning import is_workload

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
    return json.dumps(
        {
            "definition": "scale_n4",
            "solution": None,
            "workload": {"uuid": uuid, "axes": {"M": m}, "inputs": given},
            "evaluation": None,
        }
    )


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
    assert [case.values for case in traces.cases] == [
        {"M": 2, "workload": "aaaaaaaa"},
        {"M": 2, "workload": "bbbbbbbb"},
    ]


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


REFUSED = {
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


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_set_is_told_by_file_before_anything_is_paid_for(name: str) -> None:
    files, words = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        trace_set(files)
    assert words in str(refused.value)


def test_a_json_file_elsewhere_is_told_what_is_expected(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"is not in the folder definitions/ of a trace set"):
        read_workload(file)
